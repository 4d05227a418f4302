//! A core that is taken does not serve the queues that depend on it.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::finding::FactKey;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule {
    from: &[
        Code::CoreSaturated,
        Code::CoreMonopolised,
        Code::InterruptStorm,
        Code::MemcgWalk,
        Code::ObserverCost,
        Code::PageFaults,
        Code::HugePages,
    ],
    to: &[Code::NicCoreStarved],
    examine: |_, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        // On a node that is full as a whole no single core is told; then the work itself must be of the thread that had this one.
        let is_about_core = matches!(cause.code, Code::CoreSaturated | Code::CoreMonopolised | Code::InterruptStorm);
        if !is_about_core && effect.ties.common_culprit(&cause.ties).is_none() {
            return None;
        }
        let queue = effect.ties.queues.first().map_or_else(|| "a device".to_owned(), |queue| queue.name());
        Some(Linked {
            because: format!("core {core} alone polls {queue}, and was taken"),
            proofs: Proofs {
                identity: Proof::shown(format!("core {core} in both")),
                order: while_both(cause, effect)?,
                size: match effect.ties.common_culprit(&cause.ties) {
                    Some(owner) => Proof::shown(format!("{} had the core while the queue waited", owner.name())),
                    None => Proof::not_seen("who had the core while the queue waited cannot be named"),
                },
            },
            evidence: effect.facts(&[FactKey::Waited, FactKey::Queues]),
        })
    },
};
