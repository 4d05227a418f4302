//! What each unit costs: CPU, memory, restarts, and the dead cgroups it left behind.

mod cpu;
mod dead;

use super::loops::{self, loops};
use super::paths::UnitPaths;
use coroner_evidence::{Evidence, Unit};
use std::cmp::Ordering;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnitCost {
    /// Share of one core while watched, 1.0 = a whole core. A lower bound: what ended between two looks is missing.
    pub cores: Option<f64>,
    /// CPU time since it last started.
    pub cpu_ns: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub tasks: Option<u64>,
    /// The highest count known.
    pub restarts: Option<u32>,
    /// Dead memory cgroups at its path, or made by its processes; `None` if they were not named.
    pub zombies: Option<u64>,
    /// What they hold.
    pub zombie_bytes: Option<u64>,
    pub zombies_per_hour: Option<f64>,
    /// What that rate is based on: [`crate::zombies::RateFrom::as_str`].
    pub zombies_rate_from: Option<&'static str>,
    /// The files that keep most of them, a handful.
    pub pinned_by: Vec<PinnedBy>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedBy {
    pub file: String,
    pub bytes: u64,
    pub zombies: u64,
}

/// Kinds of units that have processes.
const WITH_PROCESSES: [&str; 5] = [".service", ".scope", ".socket", ".mount", ".swap"];

/// By unit name. Without systemd, by the cgroup of the processes.
pub fn costs(evidence: &Evidence) -> BTreeMap<String, UnitCost> {
    let looks = loops::looks(evidence);
    let paths = UnitPaths::of(evidence);
    let mut costs: BTreeMap<String, UnitCost> = BTreeMap::new();
    for (name, looks) in &looks {
        if WITH_PROCESSES.iter().any(|kind| name.ends_with(kind)) {
            costs.insert((*name).to_owned(), of_looks(looks));
        }
    }
    for l in loops(evidence) {
        if let Some(cost) = costs.get_mut(&l.unit.name) {
            cost.restarts = cost.restarts.max(Some(u32::try_from(l.restarts).unwrap_or(u32::MAX)));
        }
    }
    let without_systemd = looks.is_empty();
    for (name, used) in cpu::of_processes(evidence, &paths, without_systemd) {
        let cost = costs.entry(name).or_default();
        cost.cores = cost.cores.or(used.cores);
        cost.memory_bytes = cost.memory_bytes.or(used.memory_bytes);
    }
    if let Some(dead) = dead::by_unit(evidence, &paths) {
        if dead.complete {
            for cost in costs.values_mut() {
                (cost.zombies, cost.zombie_bytes) = (Some(0), Some(0));
            }
        }
        for (name, of_it) in dead.units {
            let cost = costs.entry(name).or_default();
            cost.zombies = Some(of_it.zombies);
            cost.zombie_bytes = of_it.bytes;
            (cost.zombies_per_hour, cost.zombies_rate_from) = (of_it.per_hour, of_it.rate_from);
            cost.pinned_by = of_it.pinned_by;
        }
    }
    costs
}

fn of_looks(looks: &[&Unit]) -> UnitCost {
    let latest = loops::latest(looks);
    // A dead unit no longer holds anything.
    let lives = latest.is_some_and(|u| {
        !matches!(u.active_state.as_str(), "inactive" | "failed") && !u.sub_state.starts_with("auto-restart")
    });
    let last = |of: fn(&Unit) -> Option<u64>| looks.iter().rev().find_map(|u| of(u));
    UnitCost {
        cores: cpu::between_looks(looks),
        cpu_ns: last(|u| u.cpu_ns),
        memory_bytes: last(|u| u.memory_bytes).filter(|_| lives),
        tasks: last(|u| u.tasks).filter(|_| lives),
        restarts: looks.iter().rev().find_map(|u| u.restarts),
        ..UnitCost::default()
    }
}

/// What hurts most first: dead cgroups, then restarts, then CPU, then memory. What is left behind stays until the node reboots, a restart
/// leaves more, a busy unit may be doing its work, and idle memory harms least. Dead cgroups count from ten on and restarts from three on,
/// both by order of magnitude, so that one stray does not outweigh a full core. Unknown counts as nothing.
pub fn order(a: &UnitCost, b: &UnitCost) -> Ordering {
    key(b).cmp(&key(a))
}

fn key(cost: &UnitCost) -> (u32, u32, u64, u64, u64, u32, u64) {
    let zombies = cost.zombies.unwrap_or(0);
    let restarts = cost.restarts.unwrap_or(0);
    let magnitude = |n: u64, from: u64| if n < from { 0 } else { n.ilog10() + 1 };
    (
        magnitude(zombies, 10),
        magnitude(u64::from(restarts), u64::from(loops::LOOP)),
        // In thousandths of a core: less is noise.
        (cost.cores.unwrap_or(0.0).max(0.0) * 1000.0) as u64,
        cost.memory_bytes.unwrap_or(0),
        zombies,
        restarts,
        cost.tasks.unwrap_or(0),
    )
}

#[cfg(test)]
mod tests;
