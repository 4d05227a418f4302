//! What a plan must know about its targets beyond the evidence.

use crate::guards;
use crate::planner::Targets;
use crate::steps::move_interrupt::name_of;
use crate::steps::remove_cgroups::empty_children;
use crate::steps::{Hands, threads};
use coroner_diagnosis::agents::Catalogue;
use coroner_diagnosis::units::protected::why_protected_by;
use coroner_evidence::{CgroupMount, CoreSet, Evidence, Unit};
use coroner_probes::units::UnitNow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Read from the node now, not from a recording.
    pub live: bool,
    pub units: BTreeMap<String, UnitFacts>,
    /// By path, as in /proc/PID/cgroup.
    pub cgroups: BTreeMap<String, CgroupFacts>,
    /// By TID.
    pub threads: BTreeMap<u32, ThreadFacts>,
    /// Handlers, by interrupt number.
    pub interrupts: BTreeMap<u32, String>,
    /// Whether there is swap, so that reclaim could swap out memory of running jobs.
    pub swap: Option<bool>,
    /// Its PID, if it runs.
    pub irqbalance: Option<u32>,
    /// Cores isolated on the kernel command line.
    pub isolated: CoreSet,
    /// The cores of each NUMA node.
    pub nodes: Vec<CoreSet>,
}

#[derive(Debug, Clone, Default)]
pub struct UnitFacts {
    pub file_state: String,
    pub active_state: String,
    pub fragment: String,
    pub triggered_by: Vec<String>,
    /// Time since it last became active.
    pub up_for: Option<Duration>,
    /// Why it must not be disabled.
    pub protected: Option<String>,
    /// What else would stop with it.
    pub stops_with: Vec<String>,
    /// Why that is unknown.
    pub stops_with_unknown: Option<String>,
    pub is_known: bool,
}

#[derive(Debug, Clone, Default)]
pub struct CgroupFacts {
    pub directory: PathBuf,
    /// It has a directory.
    pub lives: bool,
    /// It has memory.reclaim (v2) or memory.force_empty (v1).
    pub can_reclaim: bool,
    /// Page cache below it, of live and dead cgroups.
    pub cache_bytes: Option<u64>,
    /// Empty children, and whether there are more than one run removes.
    pub empty_children: Option<(Vec<String>, bool)>,
}

#[derive(Debug, Clone, Default)]
pub struct ThreadFacts {
    pub cpuset: Option<CoreSet>,
    pub lives: bool,
}

/// The facts in a recording.
pub fn of_evidence(evidence: &Evidence, targets: &Targets) -> Facts {
    let catalogue = Catalogue::load(&evidence.catalogues).unwrap_or_else(|_| Catalogue::built_in());
    let mut facts = Facts { irqbalance: irqbalance_in(evidence), ..Facts::default() };
    for name in &targets.units {
        let unit = evidence.units.iter().filter(|unit| unit.name == *name).max_by_key(|unit| unit.at);
        let file = evidence.unit_files.iter().find(|file| file.name == *name);
        let word = || unit.and_then(|unit| unit.unit_file_state.clone()).unwrap_or_default();
        let told = UnitFacts {
            file_state: file.map_or_else(word, |file| file.enablement.as_str().to_owned()),
            active_state: unit.map(|unit| unit.active_state.clone()).unwrap_or_default(),
            fragment: file.and_then(|file| file.path.clone()).unwrap_or_default(),
            triggered_by: unit.map(|unit| unit.triggered_by.clone()).unwrap_or_default(),
            up_for: unit.and_then(|unit| up_for(evidence, unit)),
            protected: why_protected_by(&catalogue, name).map(str::to_owned),
            stops_with: Vec::new(),
            stops_with_unknown: None,
            is_known: unit.is_some() || file.is_some(),
        };
        facts.units.insert(name.clone(), told);
    }
    for path in &targets.cgroups {
        if let Some((mount, directory)) = directory_of(evidence, path) {
            let is_root = path == "/";
            let can_reclaim = mount.version == 2 || !is_root;
            let told = CgroupFacts { directory, lives: true, can_reclaim, ..CgroupFacts::default() };
            facts.cgroups.insert(path.clone(), told);
        }
    }
    for tid in &targets.threads {
        facts.threads.insert(*tid, ThreadFacts { cpuset: None, lives: true });
    }
    facts
}

fn irqbalance_in(evidence: &Evidence) -> Option<u32> {
    evidence.processes.iter().find(|process| process.comm == "irqbalance").map(|process| process.pid)
}

fn up_for(evidence: &Evidence, unit: &Unit) -> Option<Duration> {
    let now = evidence.window()?.to;
    let since = unit.main_started.or(unit.active_since).filter(|_| unit.active_state == "active")?;
    Some(now.since(since))
}

/// The facts on the node now. What cannot be read is taken from the evidence.
pub fn of_node(evidence: &Evidence, targets: &Targets, hands: &mut Hands<'_>) -> Facts {
    let mut facts = of_evidence(evidence, targets);
    facts.live = true;
    facts.irqbalance = guards::irqbalance();
    facts.isolated = read_cores("/sys/devices/system/cpu/isolated").unwrap_or_default();
    facts.nodes = numa_nodes();
    facts.interrupts = targets.interrupts.iter().filter_map(|irq| Some((*irq, name_of(*irq)?))).collect();
    facts.swap = fs::read_to_string("/proc/swaps").ok().map(|text| text.lines().count() > 1);
    for name in &targets.units {
        let Some(told) = facts.units.get_mut(name) else { continue };
        let Ok(now) = hands.manager().and_then(|manager| Ok(manager.unit(name)?)) else {
            hands.forget_manager();
            continue;
        };
        look_at_unit(told, name, &now, hands);
    }
    for (path, told) in &mut facts.cgroups {
        look_at_cgroup(told, targets.leaking.contains(path));
    }
    for (tid, told) in &mut facts.threads {
        *told = ThreadFacts { cpuset: cpuset_of(evidence, *tid), lives: threads::started(*tid).is_some() };
    }
    facts
}

fn look_at_unit(told: &mut UnitFacts, name: &str, now: &UnitNow, hands: &mut Hands<'_>) {
    told.is_known = now.load_state != "not-found";
    told.file_state.clone_from(&now.file_state);
    told.active_state.clone_from(&now.active_state);
    told.fragment.clone_from(&now.fragment);
    told.triggered_by.clone_from(&now.triggered_by);
    told.up_for = (now.active_since_us > 0).then(|| {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_us = clock.tv_sec as u64 * 1_000_000 + clock.tv_nsec as u64 / 1000;
        Duration::from_micros(now_us.saturating_sub(now.active_since_us))
    });
    match hands.manager().and_then(|manager| Ok(manager.stops_with(&now.id)?)) {
        // Targets only group units: stopping one stops no work.
        Ok(with_it) => told.stops_with = with_it.into_iter().filter(|other| !other.ends_with(".target")).collect(),
        Err(error) => told.stops_with_unknown = Some(error.to_string()),
    }
    if let Err(crate::steps::StepError::Refused(why)) = guards::may_switch_off(name, hands) {
        told.protected = Some(why);
    }
}

fn look_at_cgroup(told: &mut CgroupFacts, count_empty: bool) {
    told.lives = told.directory.is_dir();
    let has = |file: &str| told.directory.join(file).exists();
    told.can_reclaim = told.lives && (has("memory.reclaim") || has("memory.force_empty"));
    told.cache_bytes = fs::read_to_string(told.directory.join("memory.stat")).ok().and_then(|stat| cache_in(&stat));
    if count_empty {
        told.empty_children = empty_children(&told.directory).ok();
    }
}

/// v1 `total_cache`, v2 `file`; both include shared memory, which reclaim does not free.
fn cache_in(stat: &str) -> Option<u64> {
    let field = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok();
    match field("total_cache ") {
        Some(cache) => Some(cache.saturating_sub(field("total_shmem ").unwrap_or(0))),
        None => Some(field("file ")?.saturating_sub(field("shmem ").unwrap_or(0))),
    }
}

/// The directory of a memory cgroup.
pub fn directory_of<'e>(evidence: &'e Evidence, path: &str) -> Option<(&'e CgroupMount, PathBuf)> {
    let mount = evidence.cgroup_mounts.iter().rev().find(|mount| mount.has("memory"))?;
    let below = path.strip_prefix(mount.root.trim_end_matches('/'))?;
    let is_below = below.is_empty() || below.starts_with('/');
    // A cgroup namespace shows what is outside of it as `/..`.
    if !is_below || below.split('/').any(|part| part == "..") {
        return None;
    }
    Some((mount, Path::new(&mount.mount_point).join(below.trim_start_matches('/'))))
}

fn cpuset_of(evidence: &Evidence, tid: u32) -> Option<CoreSet> {
    let memberships = fs::read_to_string(format!("/proc/{tid}/cgroup")).ok()?;
    let of = |wanted: &str| {
        memberships.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            let path = parts.next()?;
            controllers.split(',').any(|controller| controller == wanted).then_some(path)
        })
    };
    let (path, version) = of("cpuset").map(|path| (path, 1)).or_else(|| of("").map(|path| (path, 2)))?;
    let mount = evidence.cgroup_mounts.iter().find(|m| m.version == version && (version == 2 || m.has("cpuset")))?;
    let below = path.strip_prefix(mount.root.trim_end_matches('/'))?;
    let directory = Path::new(&mount.mount_point).join(below.trim_start_matches('/'));
    let files = ["cpuset.effective_cpus", "cpuset.cpus.effective", "cpuset.cpus"];
    let text = files.iter().find_map(|file| fs::read_to_string(directory.join(file)).ok())?;
    CoreSet::parse_list(text.trim()).filter(|cores| !cores.is_empty())
}

fn numa_nodes() -> Vec<CoreSet> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/node") else { return Vec::new() };
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    let nodes = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_node));
    nodes.filter_map(|node| read_cores(node.path().join("cpulist").to_str()?)).collect()
}

fn read_cores(file: &str) -> Option<CoreSet> {
    CoreSet::parse_list(fs::read_to_string(file).ok()?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_not_page_cache() {
        assert_eq!(cache_in("cache 1\ntotal_cache 5000\ntotal_shmem 1000\n"), Some(4000));
        assert_eq!(cache_in("anon 7\nfile 5000\nshmem 1000\n"), Some(4000));
        assert_eq!(cache_in("nothing\n"), None);
    }

    #[test]
    fn a_cgroup_is_found_below_its_mount() {
        let mount = CgroupMount {
            version: 1,
            controllers: vec!["memory".into()],
            mount_point: "/sys/fs/cgroup/memory".into(),
            root: "/".into(),
        };
        let evidence = Evidence { cgroup_mounts: vec![mount], ..Evidence::default() };
        let place = |path| directory_of(&evidence, path).map(|(_, directory)| directory);
        assert_eq!(place("/a/b"), Some("/sys/fs/cgroup/memory/a/b".into()));
        assert_eq!(place("/../x"), None);
    }
}
