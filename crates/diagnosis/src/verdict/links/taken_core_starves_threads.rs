//! Who takes a core starves those who wait for it.

use super::{LinkRule, Linked, while_both};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{FactKey, Finding, Severity};
use crate::verdict::{Proof, Proofs};
use crate::waits::cited::{is_estimate, loss_of};
use crate::waits::losses::Kind;

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

fn examine(case: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    let core = cause.ties.common_core(&effect.ties)?;
    let kind = loss_of(case, effect)?.kind;
    // A shortage of CPU or a crowded core explains those who took equal turns. Who lost to a class, a weight or forks lost to somebody in
    // particular, and both must name that one.
    let because = match cause.code {
        Code::CpuContention | Code::Affinity if !matches!(kind, Kind::Turns | Kind::Crowd) => return None,
        // A node that is merely full needs no cause, and is none.
        Code::CpuContention if cause.severity < Severity::Warning => return None,
        Code::CpuContention => "there are more threads than cores, and each gets a small turn".to_owned(),
        Code::Affinity => format!("threads are pinned to core {core} and take turns there"),
        _ => {
            let culprit = cause.ties.common_culprit(&effect.ties)?;
            format!("{} had core {core} while they waited", culprit.name())
        }
    };
    Some(Linked {
        because,
        proofs: Proofs {
            identity: Proof::shown(format!("both are about core {core}")),
            order: while_both(cause, effect)?,
            size: if is_estimate(case) {
                Proof::not_seen("who had the core during each wait, which is estimated without BPF")
            } else {
                Proof::shown("the ledger charges the waits to it")
            },
        },
        evidence: effect.facts(&[FactKey::GotOfAsked, FactKey::TakenBy]),
    })
}
