//! The rules, one file each.
//!
//! A rule file holds its question, its thresholds as named constants with the reason, its answer and its tests.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Finding};
use crate::waits::losses::{Kind, Loss};
use crate::words::duration_words;
use coroner_evidence::{Evidence, Time, Unseen};

pub mod affinity;
pub mod agent_conflict;
pub mod agent_unused;
pub mod blocked;
pub mod cgroup_leak;
pub mod conntrack_full;
pub mod container_crashloop;
pub mod core_monopolised;
pub mod core_saturated;
pub mod cpu_contention;
pub mod cpu_starved;
pub mod cpu_steal;
pub mod cpu_throttled;
pub mod fork_storm;
pub mod gpu_xid;
pub mod interrupt_storm;
pub mod kernel_stall;
pub mod memcg_walk;
pub mod memory_reclaim;
pub mod nic_allowance;
pub mod nic_core_starved;
pub mod nic_reset;
pub mod observer_cost;
pub mod oom_kill;
pub mod page_work;
pub mod slow_memcg_stat;
pub mod softnet_drop;
pub mod unfair_weight;
pub mod unit_churn;
pub mod unit_crashloop;
pub mod unit_drift;
pub mod unit_failing;
pub mod zombie_memcgs;

/// `from 15:14:02Z until 15:14:40Z`
fn time_words(evidence: &Evidence, from: Time, until: Time) -> String {
    let clock = |at: Time| {
        let wall = evidence.clocks.last()?.wall_of(at);
        Some(jiff::Timestamp::from_nanosecond(wall.0.into()).ok()?.strftime("%H:%M:%SZ").to_string())
    };
    match (clock(from), clock(until)) {
        (Some(from), Some(until)) if from == until => format!("at {from}"),
        (Some(from), Some(until)) => format!("from {from} until {until}"),
        _ => format!("for {}", duration_words(until.since(from))),
    }
}

/// Why something was not seen, as an answer: the probe's own reason if it gave one, else these.
fn not_seen(unseen: Option<&Unseen>, because: &str, how_to_see: &str) -> Answer {
    match unseen {
        Some(u) => Answer::CannotTell { because: u.why.clone(), how_to_see: u.how_to_see.clone() },
        None => Answer::CannotTell { because: because.to_owned(), how_to_see: how_to_see.to_owned() },
    }
}

/// What the rules on the wait ledger say about one loss.
pub fn of_loss(case: &Case<'_>, loss: &Loss) -> Finding {
    match loss.kind {
        Kind::Weight => unfair_weight::finding(case, loss),
        Kind::Forks => fork_storm::finding(case, loss),
        Kind::Class | Kind::Crowd | Kind::Turns => cpu_starved::finding(case, loss),
    }
}

#[cfg(test)]
pub(crate) mod test_evidence;

pub struct Rule {
    pub code: Code,
    pub examine: fn(&Case<'_>) -> Answer,
}

/// Every rule, in the order in which findings of equal severity are shown: what hurts jobs first, then likely causes.
pub const ALL: &[Rule] = &[
    Rule { code: Code::NicReset, examine: nic_reset::examine },
    Rule { code: Code::NicCoreStarved, examine: nic_core_starved::examine },
    Rule { code: Code::CoreSaturated, examine: core_saturated::examine },
    Rule { code: Code::CoreMonopolised, examine: core_monopolised::examine },
    Rule { code: Code::InterruptStorm, examine: interrupt_storm::examine },
    Rule { code: Code::Affinity, examine: affinity::examine },
    Rule { code: Code::UnfairWeight, examine: unfair_weight::examine },
    Rule { code: Code::ForkStorm, examine: fork_storm::examine },
    Rule { code: Code::CpuStarved, examine: cpu_starved::examine },
    Rule { code: Code::Blocked, examine: blocked::examine },
    Rule { code: Code::CpuSteal, examine: cpu_steal::examine },
    Rule { code: Code::CpuContention, examine: cpu_contention::examine },
    Rule { code: Code::KernelStall, examine: kernel_stall::examine },
    Rule { code: Code::OomKill, examine: oom_kill::examine },
    Rule { code: Code::GpuXid, examine: gpu_xid::examine },
    Rule { code: Code::ConntrackFull, examine: conntrack_full::examine },
    Rule { code: Code::UnitCrashloop, examine: unit_crashloop::examine },
    Rule { code: Code::AgentUnused, examine: agent_unused::examine },
    Rule { code: Code::AgentConflict, examine: agent_conflict::examine },
    Rule { code: Code::UnitChurn, examine: unit_churn::examine },
    Rule { code: Code::ContainerCrashloop, examine: container_crashloop::examine },
    Rule { code: Code::ZombieMemcgs, examine: zombie_memcgs::examine },
    Rule { code: Code::SlowMemcgStat, examine: slow_memcg_stat::examine },
    Rule { code: Code::MemcgWalk, examine: memcg_walk::examine },
    Rule { code: Code::ObserverCost, examine: observer_cost::examine },
    Rule { code: Code::CgroupLeak, examine: cgroup_leak::examine },
    Rule { code: Code::MemoryReclaim, examine: memory_reclaim::examine },
    Rule { code: Code::PageFaults, examine: page_work::page_faults },
    Rule { code: Code::HugePages, examine: page_work::huge_pages },
    Rule { code: Code::CpuThrottled, examine: cpu_throttled::examine },
    Rule { code: Code::SoftnetDrop, examine: softnet_drop::examine },
    Rule { code: Code::NicAllowance, examine: nic_allowance::examine },
    Rule { code: Code::UnitDrift, examine: unit_drift::examine },
    Rule { code: Code::UnitFailing, examine: unit_failing::examine },
];
