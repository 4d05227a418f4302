//! Who takes the time of those who wait for a core also fills it.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule {
    from: &[Code::CpuStarved, Code::UnfairWeight, Code::ForkStorm],
    to: &[Code::CoreSaturated],
    examine: |_, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        // A core with an owner of its own is full because of that one.
        let by_other = !effect.ties.culprits.is_empty() && cause.ties.common_culprit(&effect.ties).is_none();
        if by_other {
            return None;
        }
        Some(Linked {
            because: format!("those who had core {core} while others waited kept it full"),
            proofs: Proofs {
                identity: Proof::shown(format!("both are about core {core}")),
                order: while_both(cause, effect)?,
                size: Proof::shown("a core that threads wait for is never idle"),
            },
            evidence: Vec::new(),
        })
    },
};
