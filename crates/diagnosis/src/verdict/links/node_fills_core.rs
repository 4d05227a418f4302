//! Interrupts, the hypervisor or pinned threads fill a core.

use super::{LinkRule, Linked, while_both};
use crate::code::Code;
use crate::cores::threads::is_napi;
use crate::ties::Task;
use crate::verdict::{Proof, Proofs};
use crate::words::percent;
use coroner_evidence::Window;

/// Share of the core's time: below it, something else fills the core. A mostly stolen core does not count as full.
const SOME: f64 = 0.2;

pub const LINK: LinkRule = LinkRule {
    from: &[Code::InterruptStorm, Code::CpuSteal, Code::Affinity],
    to: &[Code::CoreSaturated],
    examine: |case, cause, effect| {
        let core = cause.ties.common_core(&effect.ties)?;
        // A thread that owns the core explains it better, unless it does work for interrupts.
        let does_their_work = |task: &Task| {
            cause.code == Code::InterruptStorm && (task.comm.starts_with("ksoftirqd/") || is_napi(&task.comm))
        };
        let by_thread = effect.ties.culprits.iter().any(|task| !does_their_work(task));
        if cause.code != Code::Affinity && by_thread {
            return None;
        }
        // Steal is counted for the whole node; this core may have lost nothing.
        let stolen =
            effect.ties.when.and_then(|w| case.cores().timeline.shares(core, Window { from: w.from, to: w.to }));
        let stolen = stolen.map_or(0.0, |shares| shares.steal);
        if cause.code == Code::CpuSteal && stolen < SOME {
            return None;
        }
        let what = match cause.code {
            Code::InterruptStorm => "interrupts took the core ahead of every thread",
            Code::CpuSteal => "the hypervisor gave the core to others",
            _ => "threads that may run nowhere else shared the core",
        };
        Some(Linked {
            because: what.to_owned(),
            proofs: Proofs {
                identity: Proof::shown(format!("both are about core {core}")),
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
