//! CPU time of units.

use crate::cgroup_paths::cgroup_name;
use crate::units::paths::UnitPaths;
use coroner_evidence::{CgroupOwner, Evidence, Process, Source, ThreadKey, ThreadSample, Unit};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A shorter time gives no reliable share.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

/// From the cgroup's CPU time as systemd reports it. Each invocation starts from zero: for one that began between two looks, all of
/// it counts.
pub fn between_looks(looks: &[&Unit]) -> Option<f64> {
    let telling: Vec<&&Unit> = looks.iter().filter(|u| u.cpu_ns.is_some()).collect();
    let over = telling.last()?.at.since(telling.first()?.at);
    let used = telling.windows(2).fold(0u64, |sum, pair| {
        let (a, b) = (pair[0], pair[1]);
        let (before, after) = (a.cpu_ns.unwrap_or(0), b.cpu_ns.unwrap_or(0));
        let same = a.invocation_id == b.invocation_id && after >= before;
        sum.saturating_add(if same { after - before } else { after })
    });
    (over >= LONG_ENOUGH).then(|| used as f64 / over.as_nanos() as f64)
}

#[derive(Debug, Default)]
pub struct Used {
    pub cores: Option<f64>,
    pub memory_bytes: Option<u64>,
}

/// From the threads seen, by the unit of their process. `by_cgroup`: also those that belong to no unit.
pub fn of_processes(evidence: &Evidence, paths: &UnitPaths<'_>, by_cgroup: bool) -> BTreeMap<String, Used> {
    let mut names: HashMap<u32, String> = HashMap::new();
    let mut used: BTreeMap<String, Used> = BTreeMap::new();
    for process in evidence.processes.iter().filter(|p| !p.kernel) {
        let Some(name) = name_of(process, paths, by_cgroup) else { continue };
        let memory = || process.memory_cgroup.as_deref();
        let usage = || evidence.counters.last(Source::CgroupMemory, memory()?, "usage_bytes");
        let of_it = used.entry(name.clone()).or_default();
        if by_cgroup && of_it.memory_bytes.is_none() {
            of_it.memory_bytes = usage();
        }
        names.insert(process.pid, name);
    }
    let Some(window) = evidence.window().filter(|w| w.length() >= LONG_ENOUGH) else { return used };
    let pids: HashMap<ThreadKey, u32> = evidence.threads.iter().map(|t| (t.key, t.pid)).collect();
    let mut ends: HashMap<ThreadKey, (&ThreadSample, &ThreadSample)> = HashMap::new();
    for sample in &evidence.thread_samples {
        let (first, last) = ends.entry(sample.key).or_insert((sample, sample));
        if sample.at < first.at {
            *first = sample;
        }
        if sample.at >= last.at {
            *last = sample;
        }
    }
    // A name with sampled threads has a known CPU time, even if it is zero.
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (key, (first, last)) in ends {
        let Some(name) = pids.get(&key).and_then(|pid| names.get(pid)) else { continue };
        // Started while watched: all of its time counts.
        let young = key.started.saturating_mul(TICK_NS) >= window.from.0;
        let before = if young { 0 } else { cpu_ns(first) };
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(cpu_ns(last).saturating_sub(before));
    }
    for (name, sum) in sums {
        if let Some(of_it) = used.get_mut(name) {
            of_it.cores = Some(sum as f64 / window.length().as_nanos() as f64);
        }
    }
    used
}

const TICK_NS: u64 = 10_000_000;

fn cpu_ns(sample: &ThreadSample) -> u64 {
    match sample.sched {
        Some(sched) => sched.run_ns,
        None => sample.user_ticks.saturating_add(sample.system_ticks).saturating_mul(TICK_NS),
    }
}

/// The unit of a process; without systemd its container, or the first part of its cgroup's path.
fn name_of(process: &Process, paths: &UnitPaths<'_>, by_cgroup: bool) -> Option<String> {
    let cgroups = || [process.memory_cgroup.as_deref(), process.cpu_cgroup.as_deref()].into_iter().flatten();
    if by_cgroup && let Some(path) = cgroups().find(|path| CgroupOwner::of_path(path).container_id.is_some()) {
        return Some(cgroup_name(path));
    }
    let unit = cgroups().find_map(|path| paths.unit_of(path)).or_else(|| process.owner.unit.clone());
    if unit.is_some() || !by_cgroup {
        return unit;
    }
    let top = cgroups().find_map(|path| path.split('/').find(|part| !part.is_empty()));
    Some(format!("/{}", top.unwrap_or("")))
}
