//! A core that is full does not serve the queues that depend on it.

use super::{LinkRule, Linked};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule {
    from: &[Code::CoreSaturated],
    to: &[Code::NicCoreStarved],
    examine: |_, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        let (cause_when, effect_when) = (cause.ties.when?, effect.ties.when?);
        if !cause_when.overlaps(&effect_when) {
            return None;
        }
        let nic = effect.ties.queues.first().map_or("the device", |queue| queue.nic.as_str());
        let owner = effect.ties.common_culprit(&cause.ties);
        Some(Linked {
            because: format!("core {core} alone serves {nic}, and was taken"),
            proofs: Proofs {
                identity: Proof::shown(format!("core {core} in both")),
                order: Proof::shown("the queue waited while the core was full"),
                size: match owner {
                    Some(owner) => Proof::shown(format!("{} had the core in both", owner.name())),
                    None => Proof::not_seen("who had the core cannot be named"),
                },
            },
            evidence: effect.evidence.iter().take(2).cloned().collect(),
        })
    },
};
