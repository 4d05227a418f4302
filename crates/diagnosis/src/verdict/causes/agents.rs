//! An unused agent, two that conflict, or a unit that differs from the baseline.

use super::{Cause, Root};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const CAUSE: Cause = Cause {
    codes: &[Code::AgentUnused, Code::AgentConflict, Code::UnitDrift],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            match finding.code {
                Code::AgentConflict => "both agents want to manage the same thing on this node",
                Code::UnitDrift => "it differs from the stored baseline of a good node",
                _ => "it starts on this node but has no work here",
            },
            Proofs {
                identity: Proof::shown(format!("unit {}", finding.subject.name)),
                order: Proof::not_seen("what it has cost so far"),
                size: Proof::not_seen("that it harms any job"),
            },
            "The image that enables it will bring it to the next node too.",
        ))
    },
};
