//! From findings to verdicts: root cause first, then each link with its proof.
//!
//! A [`links::LinkRule`] says whether one finding caused another, and proves it three ways: they are about the same thing (unit, cgroup, core,
//! queue, process), the cause came first, and it is large enough. A [`causes::Cause`] says that a finding explains itself and need not be caused by
//! anything else: then it may be a root. The findings with their links form a graph; each root and all that follows from it is a
//! verdict. What no root explains is told as [`Unexplained`], with what would be needed to explain it.
//!
//! How to add one: docs/verdicts.md.

pub mod causes;
pub mod chain;
pub mod links;
pub mod proof;
pub mod risk;
pub mod timeline;

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Fact, Finding, Severity, Subject};
use serde::Serialize;

pub use proof::{Certainty, Proof, Proofs};
pub use timeline::Moment;

/// Which finding: its code, its subject, and who did it. A core may be taken by one thread, and later by another one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FindingRef {
    pub code: Code,
    pub subject: Subject,
    pub by: Option<String>,
    /// The finding's title.
    pub title: String,
}

impl FindingRef {
    pub fn to(finding: &Finding) -> FindingRef {
        FindingRef {
            code: finding.code,
            subject: finding.subject.clone(),
            by: finding.ties.culprit(),
            title: finding.title.clone(),
        }
    }

    pub fn is(&self, finding: &Finding) -> bool {
        self.code == finding.code && self.subject == finding.subject && self.by == finding.ties.culprit()
    }

    /// Whether both are the same finding.
    pub fn is_same(&self, other: &FindingRef) -> bool {
        self.code == other.code && self.subject == other.subject && self.by == other.by
    }
}

/// One step from cause to effect.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Link {
    pub from: FindingRef,
    pub to: FindingRef,
    pub because: String,
    pub certainty: Certainty,
    pub proofs: Proofs,
    pub evidence: Vec<Fact>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
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
    #[serde(skip)]
    pub over_real_ns: Option<u64>,
    pub remedy: String,
    /// What the remedy leaves as it is.
    pub not_fixed: String,
    /// What will come if nothing is done.
    pub risk: Option<String>,
}

/// A finding that hurts and whose cause was not found.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Conclusion {
    /// The worst first, of equals those that go on, then the surest.
    pub verdicts: Vec<Verdict>,
    pub unexplained: Vec<Unexplained>,
}

/// Of the case's findings.
pub fn conclude(case: &Case<'_>) -> Conclusion {
    if case.findings.iter().all(|finding| finding.severity < Severity::Warning) {
        return Conclusion::default();
    }
    chain::conclude(case)
}

#[cfg(test)]
mod tests;
