//! What caused what, with its proofs.

use crate::{Certainty, Code, Fact, Proofs, Severity, Subject, TimeSpan, Wall};
use serde::{Deserialize, Serialize};

/// Identifies a finding by code, subject and culprit: one core may be occupied by one thread and later by another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FindingRef {
    pub code: Code,
    /// The finding's key.
    #[serde(default)]
    pub key: String,
    pub subject: Subject,
    #[serde(default)]
    pub by: Option<String>,
    /// The finding's title.
    pub title: String,
}

impl FindingRef {
    /// Whether both are the same finding.
    pub fn is_same(&self, other: &FindingRef) -> bool {
        self.code == other.code && self.subject == other.subject && self.by == other.by
    }
}

/// One step from cause to effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    pub from: FindingRef,
    pub to: FindingRef,
    pub because: String,
    pub certainty: Certainty,
    pub proofs: Proofs,
    pub evidence: Vec<Fact>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// That of its root cause.
    #[serde(default)]
    pub key: String,
    pub root_cause: FindingRef,
    pub certainty: Certainty,
    /// The worst in the chain.
    pub severity: Severity,
    /// One line: from the harm back to the cause, then what else follows from it.
    pub story: String,
    /// The titles in the story, from the worst effect back to the cause.
    #[serde(default)]
    pub story_path: Vec<String>,
    /// Titles of the other effects.
    #[serde(default)]
    pub story_also: Vec<String>,
    /// Root cause first. Empty if the cause itself is the harm.
    pub chain: Vec<Link>,
    /// More findings about the cause, such as that the unit is unused.
    pub context: Vec<FindingRef>,
    /// Why the root is one.
    pub because: String,
    pub proofs: Proofs,
    /// Oldest first.
    pub timeline: Vec<Moment>,
    /// From the first of its findings to the last.
    #[serde(default)]
    pub time: TimeSpan,
    /// When it ended, if it was over before the end of the window; the same as `time.until`.
    #[serde(default)]
    pub over: Option<Wall>,
    /// First aid and fix in one text.
    pub remedy: String,
    /// What stops the harm before the cause is fixed.
    #[serde(default)]
    pub first_aid: Option<String>,
    /// What fixes the cause.
    #[serde(default)]
    pub fix: String,
    /// What the remedy does not fix.
    pub not_fixed: String,
    /// What happens if nothing is done.
    pub risk: Option<String>,
}

/// When a finding of a verdict began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    pub at: Wall,
    /// It may have been this much earlier or later.
    pub uncertainty_ms: u64,
    /// It was already so when watching began; its start is unknown.
    pub already: bool,
    pub what: String,
}

/// A warning or critical finding whose cause was not found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unexplained {
    pub finding: FindingRef,
    /// What it would take to name its cause.
    pub needs: String,
    /// The command that gets it.
    pub command: String,
    /// What to do next, or when to run it; may be empty.
    pub then: String,
}

/// All conclusions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// Those that go on, then those that are over; of these the worst first, then the surest.
    pub verdicts: Vec<Verdict>,
    pub unexplained: Vec<Unexplained>,
}

/// A check that ran and found nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuledOut {
    pub code: Code,
    pub why: String,
}
