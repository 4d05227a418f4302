//! Threads pinned to the same core.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::Affinity],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            "these threads may run nowhere else, although other cores had room",
            measured(finding, "the threads that wait are the pinned ones"),
            "Whatever starts them will pin them again: change it there (cpuset, taskset, CPUAffinity=, the launcher).",
        ))
    },
};
