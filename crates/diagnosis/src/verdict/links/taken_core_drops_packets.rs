//! Packets that wait for an occupied core overflow its backlog.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::finding::{FactKey, Finding};
use crate::verdict::{Proof, Proofs};

const MOST: f64 = 0.5;

pub const LINK: LinkRule = LinkRule {
    from: &[Code::NicCoreStarved, Code::CoreSaturated, Code::CoreMonopolised, Code::InterruptStorm],
    to: &[Code::SoftnetDrop],
    examine: |_, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        Some(Linked {
            because: format!("core {core} could not drain its backlog of received packets"),
            proofs: Proofs {
                identity: Proof::shown(format!("both are about core {core}")),
                order: while_both(cause, effect)?,
                size: size(cause, effect),
            },
            evidence: effect.facts(&[FactKey::Dropped, FactKey::DroppedShare, FactKey::DroppedOnCore]),
        })
    },
};

/// Whether the core was occupied for most of the time in which packets were dropped.
fn size(cause: &Finding, effect: &Finding) -> Proof {
    let (Some(taken), Some(dropped)) = (cause.ties.when, effect.ties.when) else {
        return Proof::not_seen("when the two happened");
    };
    let both = taken.to.min(dropped.to).since(taken.from.max(dropped.from));
    let all = dropped.to.since(dropped.from);
    match both.as_secs_f64() >= MOST * all.as_secs_f64() {
        true => Proof::shown("the core was occupied for most of the time in which packets were dropped"),
        false => Proof::not_seen("whether it was occupied for most of the time in which packets were dropped"),
    }
}
