//! Everything coroner says about a node, as a document.

use crate::named;
use crate::{Cost, Finding, Node, RuledOut, Unexplained, Unseen, Verdict, Wall};
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "coroner.diagnosis/1";

/// Described in docs/json.md.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    pub schema: String,
    pub coroner_version: String,
    pub node: Node,
    pub window: Window,
    pub conclusion: Outcome,
    pub verdicts: Vec<Verdict>,
    pub unexplained: Vec<Unexplained>,
    /// Those that go on, then those that are over; the worst first.
    pub findings: Vec<Finding>,
    pub ruled_out: Vec<RuledOut>,
    pub unseen: Vec<Unseen>,
    pub cost: Option<Cost>,
}

/// What was watched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub from: Option<Wall>,
    pub to: Option<Wall>,
}

named! {
    /// The outcome in a word.
    pub enum Outcome {
        /// No finding of severity warning or worse.
        NothingWrong = "nothing wrong",
        /// None either, but whether a full core harms a job could not be seen.
        TooLittleSeen = "too little seen",
        NoCauseFound = "no cause found",
        /// At least one verdict; its certainty is its own.
        CauseFound = "cause found",
    }
}
