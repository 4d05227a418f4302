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
pub mod risk;
pub mod timeline;

use crate::case::Case;
use crate::finding::Severity;

pub use coroner_report::{Certainty, Conclusion, FindingRef, Link, Moment, Proof, Proofs, Unexplained, Verdict};

/// Of the case's findings.
pub fn conclude(case: &Case<'_>) -> Conclusion {
    if case.findings.iter().all(|finding| finding.severity < Severity::Warning) {
        return Conclusion::default();
    }
    chain::conclude(case)
}

#[cfg(test)]
mod tests;
