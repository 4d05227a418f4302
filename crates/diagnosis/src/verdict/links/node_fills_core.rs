//! Interrupts, the hypervisor, or threads that may not go elsewhere fill a core.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::cores::threads::is_napi;
use crate::ties::Task;
use crate::verdict::{Proof, Proofs};

pub const LINK: LinkRule = LinkRule {
    from: &[Code::InterruptStorm, Code::CpuSteal, Code::Affinity],
    to: &[Code::CoreSaturated],
    examine: |_, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        // A thread that owns the core explains it better, unless it does the work of interrupts.
        let does_their_work = |task: &Task| {
            cause.code == Code::InterruptStorm && (task.comm.starts_with("ksoftirqd/") || is_napi(&task.comm))
        };
        let by_thread = effect.ties.culprits.iter().any(|task| !does_their_work(task));
        if cause.code != Code::Affinity && by_thread {
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
