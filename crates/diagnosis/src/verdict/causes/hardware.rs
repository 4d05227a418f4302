//! The device itself says that it failed.

use super::{Cause, Root};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const CAUSE: Cause = Cause {
    codes: &[Code::GpuXid],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            "the driver reports a GPU error",
            Proofs {
                identity: Proof::shown(format!("GPU {}", finding.subject.name)),
                order: Proof::not_seen("what ran on the GPU before"),
                size: Proof::shown(finding.title.clone()),
            },
            "If a job provokes the error, it will do so on the next GPU too.",
        ))
    },
};
