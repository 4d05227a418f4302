//! A CPU quota that is too small for what runs under it.

use super::{Cause, Root};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const CAUSE: Cause = Cause {
    code: Code::CpuThrottled,
    judge: |_, finding| {
        Some(Root {
            because: "the kernel itself stops this cgroup when its quota is used up, and counts how often".to_owned(),
            proofs: Proofs {
                identity: Proof::shown("quota and stops are of the same cgroup"),
                order: Proof::shown("the quota was there before the stops"),
                size: Proof::shown(finding.title.clone()),
            },
            remedy: finding.remedy.clone(),
            not_fixed: "Where the node has no idle cores a larger quota takes the time from others.".to_owned(),
            risk: None,
        })
    },
};
