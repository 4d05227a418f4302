//! A thread's work in the kernel fills its core: walking cgroups, reclaim, reading other processes' page tables.

use super::{LinkRule, Linked};
use crate::case::Case;
use crate::cgroup_paths::is_same_or_below;
use crate::code::Code;
use crate::cores::timeline::Saturation;
use crate::finding::{Fact, FactKey, Finding};
use crate::verdict::{Proof, Proofs};
use crate::words::percent;
use coroner_evidence::{Window, WorkKind, WorkRow};
use std::time::Duration;

/// From this share of the core's time on, the work explains the full core.
const MOST: f64 = 0.5;
/// Below this share, something else fills the core.
const SOME: f64 = 0.2;
/// If the core's owner is known to be short of memory, this share is enough for a suspicion.
const A_LITTLE: f64 = 0.05;

pub const LINK: LinkRule = LinkRule {
    from: &[Code::MemcgWalk, Code::MemoryReclaim, Code::ObserverCost, Code::PageFaults, Code::HugePages],
    to: &[Code::CoreSaturated, Code::CoreMonopolised],
    examine,
};

fn is_of(code: Code, kind: WorkKind) -> bool {
    match code {
        Code::MemcgWalk => kind.is_memcg_walk(),
        Code::MemoryReclaim => kind == WorkKind::Reclaim,
        Code::PageFaults => kind == WorkKind::PageFault,
        Code::HugePages => kind == WorkKind::HugePages,
        _ => matches!(kind, WorkKind::PageTables | WorkKind::Kernfs | WorkKind::StatsWalk),
    }
}

/// Whether the process is in the cgroup that reclaims; if the whole node reclaims, every process is.
fn reclaims_in(case: &Case<'_>, reclaim: &Finding, pid: u32) -> bool {
    let Some(full) = reclaim.ties.cgroups.first() else { return true };
    let process = case.evidence.processes.iter().rev().find(|process| process.pid == pid);
    let cgroup = process.and_then(|process| process.memory_cgroup.as_deref());
    cgroup.is_some_and(|cgroup| is_same_or_below(cgroup, full))
}

fn examine(case: &Case<'_>, cause: &Finding, effect: &Finding) -> Option<Linked> {
    let work = case.work()?;
    let core = *effect.ties.cores.first()?;
    let when = effect.ties.when?;
    let clearest = Window { from: when.from, to: when.to };
    // If coroner was kept from sampling just then, the other stretches in which that core was full tell.
    let is_sampled = !work.over_within(clearest).is_zero();
    let windows = match is_sampled {
        true => vec![clearest],
        false => {
            let full = case.cores().timeline.stretches(Saturation::Busy);
            full.iter().filter(|stretch| stretch.core == core).map(|stretch| stretch.window).collect()
        }
    };
    // Many threads reclaim; the other causes name one thread.
    let owner = effect.ties.culprits.first();
    let of_many = cause.code == Code::MemoryReclaim;
    if !of_many && cause.ties.common_culprit(&effect.ties).is_none() {
        return None;
    }
    let of_owner = |row: &WorkRow| {
        let by_whom = match of_many {
            true => reclaims_in(case, cause, row.pid),
            false => owner.is_some_and(|owner| row.pid == owner.pid),
        };
        row.core == core && by_whom
    };
    let sum = |of: &dyn Fn(Window) -> Duration| {
        windows.iter().fold(Duration::ZERO, |sum, window| sum.saturating_add(of(*window)))
    };
    let all = sum(&|window| work.over_within(window));
    let part = sum(&|window| work.time_within(Some(window), |row| of_owner(row) && is_of(cause.code, row.kind)));
    let share = part.as_secs_f64() / all.as_secs_f64().max(1e-9);
    // Refaults of reclaimed pages cost time too, and samples cannot tell them from other work.
    let owner_reclaims =
        of_many && owner.is_some_and(|owner| !cause.ties.cgroups.is_empty() && reclaims_in(case, cause, owner.pid));
    if all.is_zero() || share < SOME && !(owner_reclaims && share >= A_LITTLE) {
        return None;
    }
    Some(Linked {
        because: match owner {
            Some(owner) if share < SOME => {
                format!("{} is in that cgroup, and reclaim took {} of core {core}'s time", owner.name(), percent(share))
            }
            _ => format!("that work took {} of core {core}'s time", percent(share)),
        },
        proofs: Proofs {
            identity: match owner {
                Some(owner) if !of_many => Proof::shown(format!("both are about {} on core {core}", owner.name())),
                Some(owner) if owner_reclaims => {
                    Proof::shown(format!("{} runs in the cgroup that reclaims", owner.name()))
                }
                _ => Proof::shown(format!("threads on core {core} were sampled in reclaim")),
            },
            order: match is_sampled {
                true => Proof::shown("sampled while it happened"),
                false => Proof::not_seen("its longest stretch was not sampled, only others in which the core was full"),
            },
            size: match share >= MOST {
                true => Proof::shown(format!("{} of the core's time", percent(share))),
                false if owner_reclaims => Proof::not_seen(format!(
                    "only {} of the core's time, not counting refaults of reclaimed pages",
                    percent(share)
                )),
                false => Proof::not_seen(format!("only {} of the core's time", percent(share))),
            },
        },
        evidence: vec![Fact::new(FactKey::ShareOfThatCore, (share * 1000.0).round() / 10.0, "kernel samples")],
    })
}
