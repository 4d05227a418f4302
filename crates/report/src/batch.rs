//! What a node sends to a fleet's collector: batches of JSON lines. The first line of a batch is its head, each other one a row.

use crate::{Concluded, HeaviestStacks, Incident, Minute, NodeIdentity, Wall};
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "coroner.report/1";

/// The longest names that a collector accepts: node, stream, boot id, host, cluster.
pub const LONGEST_NAME: usize = 256;

/// Identifies a batch by node, stream and sequence. A node sends the batches of a stream in order, and again until they are acknowledged:
/// so a collector ignores those up to the last sequence that it stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchHead {
    pub schema: String,
    /// The machine id, or the host name where there is none.
    pub node: String,
    /// Chosen at random when the recorder starts.
    pub stream: String,
    /// Counts from 1 within the stream. A gap means that batches were dropped.
    pub sequence: u64,
    pub boot_id: String,
    pub sealed: Wall,
    /// The version of coroner on the node.
    pub version: String,
    /// Since the stream began.
    pub dropped: Dropped,
}

/// Rows that were dropped before they could be sent, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dropped {
    pub nodes: u64,
    pub minutes: u64,
    pub diagnoses: u64,
    pub incidents: u64,
    pub stacks: u64,
}

impl Dropped {
    pub fn add(&mut self, other: Dropped) {
        let Dropped { nodes, minutes, diagnoses, incidents, stacks } = other;
        let sums = [
            (&mut self.nodes, nodes),
            (&mut self.minutes, minutes),
            (&mut self.diagnoses, diagnoses),
            (&mut self.incidents, incidents),
            (&mut self.stacks, stacks),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
    }

    pub fn total(&self) -> u64 {
        let Dropped { nodes, minutes, diagnoses, incidents, stacks } = self;
        [nodes, minutes, diagnoses, incidents, stacks].into_iter().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// One line of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReportRow {
    Batch(BatchHead),
    /// When it changes.
    Node(NodeIdentity),
    Minute(Minute),
    /// Every few minutes.
    Diagnosis(Concluded),
    /// When it opens, changes, and is complete.
    Incident(Box<Incident>),
    /// Every ten minutes.
    Stacks(HeaviestStacks),
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}
