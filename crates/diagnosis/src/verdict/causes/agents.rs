//! An agent that nobody uses, or two that want the same.

use super::{Cause, Root};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const CAUSE: Cause = Cause {
    codes: &[Code::AgentUnused, Code::AgentConflict, Code::UnitDrift],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            match finding.code {
                Code::AgentConflict => "each of the two wants this node for itself",
                Code::UnitDrift => "it is not as in the baseline that was stored when the node was well",
                _ => "it is installed to run on this node, and has no work here",
            },
            Proofs {
                identity: Proof::shown(format!("unit {}", finding.subject.name)),
                order: Proof::not_seen("what it has cost so far is not known"),
                size: Proof::not_seen("it was not seen to hurt anybody"),
            },
            "The image that enabled it brings it to the next node as well.",
        ))
    },
};
