//! What can be a root cause, one file each.
//!
//! A cause says why a finding needs no further cause, what to do about it, and what that does not fix.

mod affinity;
mod agents;
mod cgroup_leak;
mod core_monopolised;
mod core_saturated;
mod cpu_contention;
mod cpu_steal;
mod cpu_throttled;
mod full_table;
mod hardware;
mod interrupt_storm;
mod loops;
mod memcg_walk;
mod memory;
mod observer_cost;
mod page_work;
mod waits;
mod zombie_memcgs;

use super::{Proof, Proofs};
use crate::case::Case;
use crate::code::Code;
use crate::finding::Finding;

pub struct Cause {
    pub codes: &'static [Code],
    /// `None`: no root, only an effect whose cause was not seen.
    pub judge: fn(&Case<'_>, &Finding) -> Option<Root>,
}

/// A finding as a root cause.
#[derive(Debug, Clone)]
pub struct Root {
    /// Why it is one: a sentence without its full stop.
    pub because: String,
    pub proofs: Proofs,
    pub remedy: String,
    /// What the remedy does not fix.
    pub not_fixed: String,
    /// What happens if nothing is done.
    pub risk: Option<String>,
}

impl Root {
    /// With the finding's own remedy.
    pub fn of(finding: &Finding, because: impl Into<String>, proofs: Proofs, not_fixed: &str) -> Root {
        Root {
            because: because.into(),
            proofs,
            remedy: finding.remedy.clone(),
            not_fixed: not_fixed.to_owned(),
            risk: None,
        }
    }
}

/// For a finding that is cause and effect in one: both were measured together.
fn measured(finding: &Finding, same: impl Into<String>) -> Proofs {
    Proofs {
        identity: Proof::shown(same),
        order: Proof::shown("cause and effect were measured together"),
        size: Proof::shown(finding.title.clone()),
    }
}

pub const ALL: &[Cause] = &[
    loops::CAUSE,
    zombie_memcgs::CAUSE,
    cgroup_leak::CAUSE,
    memcg_walk::CAUSE,
    observer_cost::CAUSE,
    core_monopolised::CAUSE,
    core_saturated::CAUSE,
    interrupt_storm::CAUSE,
    affinity::CAUSE,
    waits::STARVED,
    waits::BLOCKED,
    cpu_steal::CAUSE,
    cpu_contention::CAUSE,
    cpu_throttled::CAUSE,
    memory::CAUSE,
    page_work::CAUSE,
    agents::CAUSE,
    full_table::CAUSE,
    hardware::CAUSE,
];

pub fn judge(case: &Case<'_>, finding: &Finding) -> Option<Root> {
    let cause = ALL.iter().find(|cause| cause.codes.contains(&finding.code))?;
    (cause.judge)(case, finding)
}

/// What is missing to find a cause, and how to get it.
pub struct Needed {
    pub needs: &'static str,
    pub command: &'static str,
    /// What to do after the command, or when to run it; empty if nothing.
    pub then: &'static str,
}

pub fn needed(case: &Case<'_>, finding: &Finding) -> Needed {
    let recorded = |needs| Needed {
        needs,
        command: "coroner record --dir DIR",
        then: "then `coroner incidents --dir DIR` once it has happened again",
    };
    let longer = "coroner diagnose --for 30s";
    let by_us = finding.ties.culprits.first().is_some_and(|task| case.is_observer(task.pid));
    let watched =
        case.evidence.window().zip(finding.ties.when).is_some_and(|(window, when)| window.contains(when.from));
    match finding.code {
        Code::NicReset | Code::KernelStall if watched && !finding.ties.cores.is_empty() => Needed {
            needs: "a closer look: it happened while watching, and nothing seen on that core explains it",
            command: "coroner cores",
            then: "",
        },
        Code::NicReset if finding.ties.cores.is_empty() => {
            recorded("which core serves the queue, and what ran there when it happened")
        }
        Code::NicReset => recorded("what ran on the core that serves the queue at that time, which was not watched"),
        Code::KernelStall => recorded("what ran on that core before the kernel's report, which was not watched"),
        Code::CoreSaturated | Code::NicCoreStarved if by_us => {
            Needed { needs: "a longer look: coroner itself had the core when it started", command: longer, then: "" }
        }
        Code::CoreSaturated | Code::NicCoreStarved if case.work().is_none() => Needed {
            needs: "who had the core, from kernel samples, which could not be taken",
            command: longer,
            then: "as root",
        },
        Code::CoreSaturated | Code::NicCoreStarved => Needed {
            needs: "who had the core: nothing had most of it while watching",
            command: "coroner record --dir DIR",
            then: "then `coroner monopolies DIR`",
        },
        Code::SoftnetDrop => Needed {
            needs: "what occupied the core, or who sent faster than it can receive",
            command: longer,
            then: "while it happens",
        },
        Code::SlowMemcgStat => Needed {
            needs: "why the read takes so long: neither dead nor leaked cgroups explain it",
            command: "perf record -a -g -- cat FILE",
            then: "with the file named in the finding",
        },
        _ => recorded("what came before it, which was not watched"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_code_has_at_most_one_cause() {
        let mut seen = BTreeSet::new();
        for code in ALL.iter().flat_map(|cause| cause.codes) {
            assert!(seen.insert(*code), "{code} twice");
        }
    }
}
