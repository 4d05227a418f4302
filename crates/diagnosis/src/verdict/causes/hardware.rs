//! The device itself says that it failed.

use super::{Cause, Root};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const CAUSE: Cause = Cause {
    codes: &[Code::GpuXid],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            "the driver reports an error of the GPU",
            Proofs {
                identity: Proof::shown(format!("GPU {}", finding.subject.name)),
                order: Proof::not_seen("what ran on it before is not known"),
                size: Proof::shown(finding.title.clone()),
            },
            "A job that breaks a GPU by what it does breaks the next one as well.",
        ))
    },
};
