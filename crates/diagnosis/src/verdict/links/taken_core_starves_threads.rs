//! Who takes a core starves those who wait for it.

use super::{LinkRule, Linked, while_both};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{FactKey, Finding};
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule {
    from: &[
        Code::CoreMonopolised,
        Code::Affinity,
        Code::CpuContention,
        Code::InterruptStorm,
        Code::CpuSteal,
        Code::MemcgWalk,
        Code::ObserverCost,
        Code::PageFaults,
        Code::HugePages,
        Code::MemoryReclaim,
    ],
    to: &[Code::CpuStarved, Code::UnfairWeight, Code::ForkStorm],
    examine,
};

fn examine(_: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    let core = cause.ties.common_core(&effect.ties)?;
    // A shortage of CPU or a crowded core is about everybody there; else both must name the same culprit.
    let because = match cause.code {
        Code::CpuContention => "there are more threads than cores, and each gets a small turn".to_owned(),
        Code::Affinity => format!("threads are pinned to core {core} and take turns there"),
        _ => {
            let culprit = cause.ties.common_culprit(&effect.ties)?;
            format!("{} had core {core} while they waited", culprit.name())
        }
    };
    // Weights and forks are causes of their own: a full node alone does not make a light cgroup wait for everybody.
    if matches!(cause.code, Code::CpuContention) && effect.code != Code::CpuStarved {
        return None;
    }
    Some(Linked {
        because,
        proofs: Proofs {
            identity: Proof::shown(format!("both are about core {core}")),
            order: while_both(cause, effect)?,
            size: Proof::shown("the ledger charges the waits to it"),
        },
        evidence: effect.facts(&[FactKey::GotOfAsked, FactKey::TakenBy]),
    })
}
