//! What a recorder concluded about its own node, in few words: rows of its history, and what a node reports to a fleet.

use crate::Wall;
use serde::{Deserialize, Serialize};

/// One problem of a diagnosis: a verdict, or a finding whose cause was not found. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Stays the same after a restart and on another node.
    pub key: String,
    pub code: String,
    pub subject_kind: String,
    pub subject: String,
    pub severity: String,
    /// `None` if the cause was not found.
    pub certainty: Option<String>,
    pub title: String,
    /// `None` if it was there when the diagnosis's window began.
    #[serde(rename = "began_real_ns", serialize_with = "Wall::as_number")]
    pub began: Option<Wall>,
    /// `None` if it is ongoing.
    #[serde(rename = "ended_real_ns", serialize_with = "Wall::as_number")]
    pub ended: Option<Wall>,
}

/// Consecutive diagnoses with the same conclusion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concluded {
    pub boot_id: String,
    /// The time they cover, without a gap.
    #[serde(rename = "from_real_ns", serialize_with = "Wall::as_number")]
    pub from: Wall,
    #[serde(rename = "until_real_ns", serialize_with = "Wall::as_number")]
    pub until: Wall,
    pub diagnoses: u64,
    /// `nothing wrong`, `cause found` …
    pub conclusion: String,
    pub problems: Vec<Problem>,
}
