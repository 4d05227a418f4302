//! A core that runs one thing without a break trips the kernel's watchdogs.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::finding::FactKey;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule {
    from: &[Code::CoreSaturated, Code::CoreMonopolised],
    to: &[Code::KernelStall],
    examine: |_, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        let culprit = cause.ties.common_culprit(&effect.ties);
        Some(Linked {
            because: format!("core {core} was occupied for so long that the kernel's watchdog reported it"),
            proofs: Proofs {
                identity: Proof::shown(format!("both are about core {core}")),
                order: while_both(cause, effect)?,
                size: match culprit {
                    Some(culprit) => Proof::shown(format!("the kernel log names {} too", culprit.name())),
                    None => Proof::not_seen("whether it was the same thread: the kernel log names none or another"),
                },
            },
            evidence: effect.facts(&[FactKey::Longest, FactKey::LongestHang, FactKey::Lines, FactKey::Line]),
        })
    },
};
