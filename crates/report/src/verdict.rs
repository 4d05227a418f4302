//! What caused what, with its proofs.

use crate::timestamp;
use crate::{Certainty, Code, Fact, Proofs, Severity, Subject};
use serde::{Deserialize, Serialize};

/// Which finding: its code, its subject, and who did it. A core may be taken by one thread, and later by another one.
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
    /// The worst of all that is in the chain.
    pub severity: Severity,
    /// One line: from what hurts back to the cause.
    pub story: String,
    /// Root cause first. Empty if the cause is itself what hurts.
    pub chain: Vec<Link>,
    /// Findings that say more about the cause, such as that nobody uses the unit.
    pub context: Vec<FindingRef>,
    /// Why the root is one: what shows it.
    pub because: String,
    pub proofs: Proofs,
    /// Oldest first.
    pub timeline: Vec<Moment>,
    /// It was so until then, and not any more at the end of what was watched. Nanoseconds since 1970; `None` if it goes on, or if that is not
    /// known.
    #[serde(rename = "over", default, with = "timestamp::option")]
    pub over_real_ns: Option<u64>,
    pub remedy: String,
    /// What the remedy leaves as it is.
    pub not_fixed: String,
    /// What will come if nothing is done.
    pub risk: Option<String>,
}

/// When a finding of a verdict began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Nanoseconds since 1970.
    #[serde(rename = "at", with = "timestamp")]
    pub real_ns: u64,
    /// It may have been so much earlier or later.
    pub uncertainty_ms: u64,
    /// It was so when we began to watch; since when is not known.
    pub already: bool,
    pub what: String,
}

/// A finding that hurts and whose cause was not found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unexplained {
    pub finding: FindingRef,
    /// What is missing to name its cause.
    pub needs: String,
    /// The command that gets it.
    pub command: String,
    /// What to do after that, or when to run it; empty if nothing.
    pub then: String,
}

/// All that was concluded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// The worst first, of equals those that go on, then the surest.
    pub verdicts: Vec<Verdict>,
    pub unexplained: Vec<Unexplained>,
}

/// A code that was looked for and is not there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuledOut {
    pub code: Code,
    pub why: String,
}
