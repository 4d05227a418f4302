//! A CPU quota that is too small for what runs under it.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::CpuThrottled],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            "the kernel stops this cgroup whenever its quota is used up, and counts how often",
            measured(finding, "quota and stops are of the same cgroup"),
            "A larger quota takes the time from others where the node has no idle cores.",
        ))
    },
};
