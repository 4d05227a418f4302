//! The thread that keeps others off a core fills it.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::finding::FactKey;
use crate::verdict::{Proof, Proofs};

/// Of the core's busy time.
const MOST_PERCENT: f64 = 50.0;

pub const LINK: LinkRule = LinkRule {
    from: &[Code::CoreMonopolised],
    to: &[Code::CoreSaturated],
    examine: |_, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        let thread = cause.ties.common_culprit(&effect.ties)?;
        Some(Linked {
            because: format!("{} kept other threads off core {core}", thread.name()),
            proofs: Proofs {
                identity: Proof::shown(format!("both are about {} on core {core}", thread.name())),
                order: while_both(cause, effect)?,
                size: match effect.number(FactKey::OwnerShare) {
                    Some(share) if share >= MOST_PERCENT => {
                        Proof::shown(format!("it had {share} % of the core's busy time"))
                    }
                    _ => Proof::not_seen("whether it had most of the core's busy time"),
                },
            },
            evidence: cause.facts(&[FactKey::OwnerShare, FactKey::OwnerClass]),
        })
    },
};
