//! Turns evidence into the few numbers in /metrics.
//!
//! Fragments come five times a second for months, so nothing here grows with time: it keeps the last seconds of the cores, the
//! last value of each counter, and bounded tables. Counters never fall, as Prometheus takes a fall for a restart: a unit keeps
//! its own row once it has one, and later units are summed up.

mod cores;
mod nics;

use super::real_time::RealTimeThreads;
use super::status::{NodeStatus, OTHER, ZombieStatus};
use coroner_diagnosis::cores::timeline::Timeline;
use coroner_diagnosis::zombies::folding::{self, Item, split};
use coroner_evidence::{CgroupCensus, Evidence, LogLine, Order, Point, Source, Time, Unit, ZombieScan};
use std::collections::{BTreeMap, HashMap};

/// Most rows; the rest is summed up in one.
const MOST_PARENTS: usize = 20;
const MOST_UNITS: usize = 50;
/// Most units whose last count is remembered. No healthy node has that many.
const MOST_TRACKED_UNITS: usize = 20_000;
const MOST_CORES: usize = coroner_evidence::cores::MAX_CORES;

#[derive(Default)]
pub struct Meter {
    /// What happened before does not count.
    started: Option<Time>,
    cores: cores::CoreMeter,
    nics: nics::NicMeter,
    zombies: Option<(Time, ZombieStatus)>,
    /// The last NRestarts, by unit name.
    units: HashMap<String, u32>,
    unit_restarts: BTreeMap<String, u64>,
    softnet_dropped: HashMap<String, u64>,
    softnet_drops: Option<u64>,
    oom_killed: Option<u64>,
    oom_kills: Option<u64>,
    /// The newest kernel log line seen: a new segment begins by repeating old ones.
    last_line: Option<u64>,
}

impl Meter {
    pub fn new() -> Meter {
        Meter::default()
    }

    /// Takes a fragment that `cores` and `real_time` have taken already.
    pub fn note(&mut self, fragment: &Evidence, cores: &Timeline, real_time: &RealTimeThreads) {
        let looks = fragment.core_times.iter().map(|look| look.at);
        let first = fragment.clocks.iter().map(|clocks| clocks.at).chain(looks).min();
        self.started = self.started.or(first);
        self.cores.note(cores, real_time);
        self.nics.note_devices(&fragment.nics);
        self.nics.note_counters(&fragment.counters);
        for line in &fragment.log {
            self.note_line(line);
        }
        for census in &fragment.cgroup_censuses {
            self.note_zombies(census.at, |known| of_census(census, known));
        }
        for scan in &fragment.zombie_scans {
            self.note_zombies(scan.at, |known| of_scan(scan, known));
        }
        for unit in &fragment.units {
            self.note_unit(unit);
        }
        for (series, points) in fragment.counters.iter() {
            match (series.source, series.name.as_str()) {
                (Source::Softnet, "dropped") => self.note_dropped(&series.subject, points),
                (Source::Vmstat, "oom_kill") => {
                    let kills = self.oom_kills.get_or_insert(0);
                    *kills = kills.saturating_add(rise(&mut self.oom_killed, points));
                }
                _ => {}
            }
        }
    }

    pub fn node(&self) -> NodeStatus {
        NodeStatus {
            zombies: self.zombies.as_ref().map(|(_, status)| status.clone()),
            saturated_seconds: self.cores.saturated_seconds(),
            worst_core: self.cores.worst(),
            starved_queues: self.nics.starved(&self.cores),
            nic_resets: self.nics.resets(),
            unit_restarts: self.unit_restarts.clone(),
            softnet_drops: self.softnet_drops,
            oom_kills: self.oom_kills,
        }
    }

    fn note_line(&mut self, line: &LogLine) {
        if self.last_line.is_some_and(|last| line.sequence <= last) {
            return;
        }
        self.last_line = Some(line.sequence);
        let newest_possible = line.at + std::time::Duration::from_nanos(line.uncertainty_ns);
        if self.started.is_some_and(|started| newest_possible >= started) {
            self.nics.note_line(line);
        }
    }

    fn note_zombies(&mut self, at: Time, update: impl FnOnce(ZombieStatus) -> ZombieStatus) {
        if self.zombies.as_ref().is_some_and(|(newest, _)| at < *newest) {
            return;
        }
        let known = self.zombies.take().map(|(_, status)| status).unwrap_or_default();
        self.zombies = Some((at, update(known)));
    }

    /// `reset-failed` and a manual start set NRestarts back to 0; what it counts after that are new restarts.
    fn note_unit(&mut self, unit: &Unit) {
        let Some(now) = unit.restarts else { return };
        let Some(last) = self.units.get_mut(&unit.name) else {
            if self.units.len() < MOST_TRACKED_UNITS {
                self.units.insert(unit.name.clone(), now);
            }
            return;
        };
        let before = std::mem::replace(last, now);
        let restarts = if now >= before { now - before } else { now };
        if restarts == 0 {
            return;
        }
        let known = self.unit_restarts.contains_key(&unit.name) || self.unit_restarts.len() < MOST_UNITS;
        let row = if known { &unit.name } else { OTHER };
        match self.unit_restarts.get_mut(row) {
            Some(count) => *count = count.saturating_add(restarts.into()),
            None => _ = self.unit_restarts.insert(row.to_owned(), restarts.into()),
        }
    }

    fn note_dropped(&mut self, core: &str, points: &[Point]) {
        let mut last = self.softnet_dropped.get(core).copied();
        if last.is_none() && self.softnet_dropped.len() >= MOST_CORES {
            return;
        }
        let drops = self.softnet_drops.get_or_insert(0);
        *drops = drops.saturating_add(rise(&mut last, points));
        if let Some(last) = last {
            self.softnet_dropped.insert(core.to_owned(), last);
        }
    }
}

/// How much a counter rose since `last`, which becomes its newest value. Neither a first value nor a fall is a rise.
fn rise(last: &mut Option<u64>, points: &[Point]) -> u64 {
    let mut risen = 0_u64;
    for point in points {
        risen = risen.saturating_add(last.map_or(0, |last| point.value.saturating_sub(last)));
        *last = Some(point.value);
    }
    risen
}

/// A census only counts; names stay as of the last scan. If it cannot count the dead (in a container it sees some of the
/// directories, but the kernel's count is for the whole node), its other numbers do not fit those of a scan that can.
fn of_census(census: &CgroupCensus, known: ZombieStatus) -> ZombieStatus {
    if census.dying.is_none() && known.dead.is_some() {
        return known;
    }
    ZombieStatus {
        tracked: census.tracked,
        // A truncated walk counted only some of them: no number is better than a wrong one.
        live: (!census.truncated).then_some(census.live),
        dead: census.dying,
        by_parent: known.by_parent,
    }
}

fn of_scan(scan: &ZombieScan, known: ZombieStatus) -> ZombieStatus {
    ZombieStatus {
        tracked: scan.tracked.or(known.tracked),
        live: scan.live.or(known.live),
        dead: scan.dead.or(known.dead),
        by_parent: by_parent(scan),
    }
}

/// The parents with most dead children. Parents that differ only in an id are one, so that short-lived pods do not create ever
/// more series.
fn by_parent(scan: &ZombieScan) -> Vec<(String, u64)> {
    let named = scan.zombies.iter().map(|zombie| {
        let (parent, name) = split(&zombie.path);
        Item { parent, name, count: 1, bytes: 0 }
    });
    // Without names, some kernels still count them by parent.
    let placed = scan.below.iter().filter_map(|below| {
        Some(Item { parent: &below.parent, name: "*", count: below.dead.filter(|&dead| dead > 0)?, bytes: 0 })
    });
    let mut parents: BTreeMap<String, u64> = BTreeMap::new();
    let classes = if scan.zombies.is_empty() { folding::fold(placed) } else { folding::fold(named) }.classes;
    for class in classes {
        let parent = if class.rest_of > 0 { OTHER.to_owned() } else { class.parent };
        *parents.entry(parent).or_default() += class.count;
    }
    let mut parents: Vec<(String, u64)> = parents.into_iter().collect();
    parents.order_by_key(|(parent, dead)| (parent == OTHER, std::cmp::Reverse(*dead)));
    let rest: u64 = parents.iter().skip(MOST_PARENTS).map(|(_, dead)| dead).sum();
    if rest > 0 {
        parents.truncate(MOST_PARENTS);
        parents.push((OTHER.to_owned(), rest));
    }
    parents
}

#[cfg(test)]
mod tests;
