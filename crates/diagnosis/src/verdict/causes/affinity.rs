//! Threads that share a core because they may run nowhere else.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::Affinity],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            "they may run nowhere else, while other cores had room",
            measured(finding, "the threads that wait are those that are pinned"),
            "Whoever starts them pins them anew: change it there (cpuset, taskset, CPUAffinity=, the launcher).",
        ))
    },
};
