//! An occupied core does not serve the NIC queues that depend on it.

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
        // On a node that is full as a whole no finding names a single core; then the work must be that of the thread on this core.
        let is_about_core = matches!(cause.code, Code::CoreSaturated | Code::CoreMonopolised | Code::InterruptStorm);
        if !is_about_core && effect.ties.common_culprit(&cause.ties).is_none() {
            return None;
        }
        let queue = effect.ties.queues.first().map_or_else(|| "a NIC queue".to_owned(), |queue| queue.name());
        Some(Linked {
            because: format!("core {core} alone polls {queue}, and was occupied"),
            proofs: Proofs {
                identity: Proof::shown(format!("both are about core {core}")),
                order: while_both(cause, effect)?,
                size: match effect.ties.common_culprit(&cause.ties) {
                    Some(owner) => Proof::shown(format!("{} occupied the core while the queue waited", owner.name())),
                    None => Proof::not_seen("who occupied the core while the queue waited"),
                },
            },
            evidence: effect.facts(&[FactKey::Waited, FactKey::Queues]),
        })
    },
};
