//! Interrupts, the hypervisor, or threads that may not go elsewhere fill a core.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule {
    from: &[Code::InterruptStorm, Code::CpuSteal, Code::Affinity],
    to: &[Code::CoreSaturated],
    examine: |_, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        // A thread that owns the core explains it better.
        let by_thread = cause.code != Code::Affinity && !effect.ties.culprits.is_empty();
        if by_thread {
            return None;
        }
        let what = match cause.code {
            Code::InterruptStorm => "interrupts took it before any thread could run",
            Code::CpuSteal => "the hypervisor gave it to others",
            _ => "threads that may run nowhere else shared it",
        };
        Some(Linked {
            because: format!("core {core} was full because {what}"),
            proofs: Proofs {
                identity: Proof::shown(format!("core {core} in both")),
                order: while_both(cause, effect)?,
                size: Proof::shown(cause.title.clone()),
            },
            evidence: cause.evidence.iter().take(3).cloned().collect(),
        })
    },
};
