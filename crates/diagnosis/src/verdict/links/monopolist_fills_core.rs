//! The thread that keeps others off a core is what fills it.

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
            because: format!("{} did not leave core {core} to others", thread.name()),
            proofs: Proofs {
                identity: Proof::shown(format!("{} on core {core} in both", thread.name())),
                order: while_both(cause, effect)?,
                size: match effect.number(FactKey::OwnerShare) {
                    Some(share) if share >= MOST_PERCENT => {
                        Proof::shown(format!("it had {share} % of the core's busy time"))
                    }
                    _ => Proof::not_seen("how much of the core it had"),
                },
            },
            evidence: cause.facts(&[FactKey::OwnerShare, FactKey::OwnerClass]),
        })
    },
};
