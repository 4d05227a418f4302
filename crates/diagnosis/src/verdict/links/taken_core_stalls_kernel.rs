//! A core that runs one thing without a break trips the kernel's watchdogs.

use super::{LinkRule, Linked, overlap, times_on_core};
use crate::code::Code;
use crate::finding::FactKey;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule {
    from: &[Code::CoreSaturated, Code::CoreMonopolised],
    to: &[Code::KernelStall],
    examine: |case, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        let culprit = cause.ties.common_culprit(&effect.ties);
        let order = match (cause.ties.when, effect.ties.when) {
            (Some(_), Some(after)) => times_on_core(case, cause, core).iter().find_map(|when| overlap(when, &after))?,
            _ => Proof::not_seen("when the two happened"),
        };
        Some(Linked {
            because: format!("core {core} was occupied for so long that the kernel's watchdog reported it"),
            proofs: Proofs {
                identity: Proof::shown(format!("both are about core {core}")),
                order,
                size: match culprit {
                    Some(culprit) => Proof::shown(format!("the kernel log names {} too", culprit.name())),
                    None => Proof::not_seen("whether it was the same thread: the kernel log names none or another"),
                },
            },
            evidence: effect.facts(&[FactKey::Longest, FactKey::LongestHang, FactKey::Lines, FactKey::Line]),
        })
    },
};
