//! The thread that keeps others off a core is what fills it.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

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
                size: Proof::shown("it had most of the core's busy time"),
            },
            evidence: cause.facts_about(&["owner's share of the busy time", "owner's scheduling class"]),
        })
    },
};
