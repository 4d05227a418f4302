//! The hypervisor gives the node's cores to others.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::CpuSteal],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            "the hypervisor ran somebody else while threads of this node wanted to run",
            measured(finding, "the kernel counts this time by core"),
            "Nothing on the node can change it: it is the provider's machine that is too full, or the instance's credits are used up.",
        ))
    },
};
