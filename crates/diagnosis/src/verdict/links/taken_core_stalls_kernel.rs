//! A core that runs one thing without a break is what the kernel's own watchdogs bark at.

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
            because: format!("core {core} ran the same thing for so long that the kernel's watchdog saw it"),
            proofs: Proofs {
                identity: Proof::shown(format!("core {core} in both")),
                order: while_both(cause, effect)?,
                size: match culprit {
                    Some(culprit) => Proof::shown(format!("the kernel names {}, too", culprit.name())),
                    None => Proof::not_seen("the kernel names no thread, or another one"),
                },
            },
            evidence: effect.facts(&[FactKey::Longest, FactKey::LongestHang, FactKey::Lines, FactKey::Line]),
        })
    },
};
