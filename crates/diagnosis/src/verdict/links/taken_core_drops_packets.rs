//! Packets that wait for a core that is taken overflow its backlog.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule {
    from: &[Code::NicCoreStarved, Code::CoreSaturated, Code::CoreMonopolised, Code::InterruptStorm],
    to: &[Code::SoftnetDrop],
    examine: |_, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        Some(Linked {
            because: format!("core {core} could not take received packets off its backlog"),
            proofs: Proofs {
                identity: Proof::shown(format!("core {core} in both")),
                order: while_both(cause, effect)?,
                size: Proof::shown("a backlog of 1,000 packets is full within milliseconds"),
            },
            evidence: effect.facts_about(&["dropped", "part dropped"]),
        })
    },
};
