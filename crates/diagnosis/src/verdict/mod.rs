//! From findings to verdicts: root cause first, then each link with its proof.
//!
//! A [`links::LinkRule`] says whether one finding caused another, with three proofs: both are about the same thing (unit, cgroup, core, queue,
//! process), the cause came first, and it is large enough. A [`causes::Cause`] says that a finding needs no further cause and so may be a root.
//! Findings and links form a graph; a root with everything that follows from it is a verdict. What no root explains is [`Unexplained`], with
//! what it would take to explain it.
//!
//! How to add one: docs/verdicts.md.

pub mod causes;
pub mod chain;
pub mod links;
pub mod risk;
pub mod timeline;

use crate::case::Case;
use crate::finding::Severity;

pub use coroner_report::{
    Certainty, Conclusion, FindingRef, Link, Moment, Proof, Proofs, TimeSpan, Unexplained, Verdict,
};

pub fn conclude(case: &Case<'_>) -> Conclusion {
    if case.findings.iter().all(|finding| finding.severity < Severity::Warning) {
        return Conclusion::default();
    }
    chain::conclude(case)
}

#[cfg(test)]
mod tests;
