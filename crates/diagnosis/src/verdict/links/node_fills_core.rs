//! Interrupts, the hypervisor, or threads that may not go elsewhere fill a core.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::cores::threads::is_napi;
use crate::ties::Task;
use crate::verdict::{Proof, Proofs};
use crate::words::percent;
use coroner_evidence::Window;

/// Of the core's time: with less than this it is something else. A core of which the hypervisor took the most is not full.
const SOME: f64 = 0.2;

pub const LINK: LinkRule = LinkRule {
    from: &[Code::InterruptStorm, Code::CpuSteal, Code::Affinity],
    to: &[Code::CoreSaturated],
    examine: |case, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        // A thread that owns the core explains it better, unless it does the work of interrupts.
        let does_their_work = |task: &Task| {
            cause.code == Code::InterruptStorm && (task.comm.starts_with("ksoftirqd/") || is_napi(&task.comm))
        };
        let by_thread = effect.ties.culprits.iter().any(|task| !does_their_work(task));
        if cause.code != Code::Affinity && by_thread {
            return None;
        }
        // Of the node's time much may be stolen, and of this core's nothing.
        let stolen =
            effect.ties.when.and_then(|w| case.cores().timeline.shares(core, Window { from: w.from, to: w.to }));
        let stolen = stolen.map_or(0.0, |shares| shares.steal);
        if cause.code == Code::CpuSteal && stolen < SOME {
            return None;
        }
        let what = match cause.code {
            Code::InterruptStorm => "interrupts took it before any thread could run",
            Code::CpuSteal => "the hypervisor gave it to others",
            _ => "threads that may run nowhere else shared it",
        };
        Some(Linked {
            because: what.to_owned(),
            proofs: Proofs {
                identity: Proof::shown(format!("core {core} in both")),
                order: while_both(cause, effect)?,
                size: match cause.code {
                    Code::CpuSteal => {
                        Proof::not_seen(format!("only {} of the core's time was stolen", percent(stolen)))
                    }
                    _ => Proof::shown(cause.title.clone()),
                },
            },
            evidence: cause.evidence.iter().take(3).cloned().collect(),
        })
    },
};
