//! A CPU quota that is too small for what runs under it.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::CpuThrottled],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            "the kernel throttles this cgroup whenever its CPU quota is used up, and counts how often",
            measured(finding, "quota and throttling are of the same cgroup"),
            "If the node has no idle cores, a larger quota takes the time from other jobs.",
        ))
    },
};
