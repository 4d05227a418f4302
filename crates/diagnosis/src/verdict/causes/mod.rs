//! What can be a root cause, one file each.
//!
//! A cause says of a finding why it needs no further cause, what to do about it, and what that leaves as it is.

mod cpu_throttled;

use super::{Case, Proofs};
use crate::code::Code;
use crate::finding::Finding;

pub struct Cause {
    pub code: Code,
    /// `None`: this one is no root, only an effect whose cause was not seen.
    pub judge: fn(&Case<'_>, &Finding) -> Option<Root>,
}

/// A finding as a root cause.
#[derive(Debug, Clone)]
pub struct Root {
    /// Why it is one, in a sentence.
    pub because: String,
    pub proofs: Proofs,
    pub remedy: String,
    pub not_fixed: String,
    pub risk: Option<String>,
}

pub const ALL: &[Cause] = &[cpu_throttled::CAUSE];

pub fn judge(case: &Case<'_>, finding: &Finding) -> Option<Root> {
    let cause = ALL.iter().find(|cause| cause.code == finding.code)?;
    (cause.judge)(case, finding)
}

/// What is missing to find the cause of this, and the command that gets it.
pub fn needed(_case: &Case<'_>, finding: &Finding) -> (String, String) {
    let needs = format!("{} was seen without anything that explains it", finding.code);
    (needs, "coroner record --dir DIR   (then `coroner incidents` after it happens again)".to_owned())
}
