//! The hypervisor gives the node's cores to others.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::CpuSteal],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            "the hypervisor ran something else while threads on this node were ready to run",
            measured(finding, "the kernel counts stolen time per core"),
            "Nothing on the node can change this: the provider's host is overcommitted, or the instance has used up its CPU credits.",
        ))
    },
};
