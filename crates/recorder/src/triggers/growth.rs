//! Counters that rise too fast: packets dropped by a core, dead memory cgroups.

use super::super::trigger::Trigger;
use super::trigger;
use coroner_diagnosis::Code;
use coroner_diagnosis::words::count;
use coroner_evidence::cores::MAX_CORES;
use coroner_evidence::{Evidence, Order, Source, Time};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

const SOFTNET_WINDOW: Duration = Duration::from_secs(10);
/// One overload drops packets in bursts; a minute without drops ends it.
const SOFTNET_OVER: Duration = Duration::from_secs(60);
const ZOMBIE_WINDOW: Duration = Duration::from_secs(600);

/// How much a value rose within a window.
#[derive(Debug, Default)]
struct Rise {
    /// The lowest value in each part of the window, oldest first; the first may be older than the window.
    points: VecDeque<(Time, u64)>,
}

impl Rise {
    /// Takes a value and returns how far it is above the lowest in the window. Probes report a value only when it changed, so the
    /// last one before the window still held when the window began.
    fn take(&mut self, at: Time, value: u64, window: Duration) -> u64 {
        // Thirty parts are fine enough and bound the memory.
        let part = window / 30;
        let has_more = self.points.len() > 1;
        match self.points.back_mut() {
            Some((since, lowest)) if at.since(*since) < part && has_more => *lowest = (*lowest).min(value),
            _ => self.points.push_back((at, value)),
        }
        while self.points.get(1).is_some_and(|(second, _)| at.since(*second) >= window) {
            self.points.pop_front();
        }
        let lowest = self.points.iter().map(|(_, value)| *value).min().unwrap_or(value);
        value.saturating_sub(lowest)
    }

    fn clear(&mut self) {
        self.points.clear();
    }
}

/// Packets that a core dropped because its backlog was full.
pub struct SoftnetTrigger {
    threshold: u64,
    cores: HashMap<u32, Drops>,
}

#[derive(Debug, Default)]
struct Drops {
    rise: Rise,
    last: Option<(Time, u64)>,
    /// Fired, and not over.
    fired: bool,
}

impl SoftnetTrigger {
    pub fn new(threshold: u64) -> SoftnetTrigger {
        SoftnetTrigger { threshold, cores: HashMap::new() }
    }

    pub fn look(&mut self, fragment: &Evidence, found: &mut Vec<Trigger>) {
        if self.threshold == 0 || !fragment.counters.has(Source::Softnet) {
            return;
        }
        for subject in fragment.counters.subjects(Source::Softnet) {
            let Some(core) = subject.strip_prefix("cpu").and_then(|n| n.parse::<u32>().ok()) else { continue };
            if core as usize >= MAX_CORES {
                continue;
            }
            let drops = self.cores.entry(core).or_default();
            for point in fragment.counters.points(Source::Softnet, subject, "dropped") {
                if let Some(dropped) = drops.take(point.at, point.value, self.threshold) {
                    let text =
                        format!("core {core} dropped {} packets within 10 s: its backlog was full", count(dropped));
                    found.push(trigger(Code::SoftnetDrop, None, format!("core {core}"), Some(core), point.at, text));
                }
            }
        }
    }
}

impl Drops {
    fn take(&mut self, at: Time, value: u64, threshold: u64) -> Option<u64> {
        if let Some((since, before)) = self.last {
            if value < before {
                // The counter was reset: the core was offline.
                self.rise.clear();
            }
            if value != before && at.since(since) >= SOFTNET_OVER {
                self.fired = false;
            }
        }
        // An unchanged value that is reported again is no drop.
        if self.last.is_none_or(|(_, before)| value != before) {
            self.last = Some((at, value));
        }
        let dropped = self.rise.take(at, value, SOFTNET_WINDOW);
        let fires = dropped >= threshold && !self.fired;
        self.fired |= fires;
        fires.then_some(dropped)
    }
}

/// Memory cgroups that were removed but not freed.
pub struct ZombieTrigger {
    threshold: u64,
    /// Sources count slightly different things, so each is compared only with itself.
    sources: HashMap<String, Rise>,
    fired: bool,
}

impl ZombieTrigger {
    pub fn new(threshold: u64) -> ZombieTrigger {
        ZombieTrigger { threshold, sources: HashMap::new(), fired: false }
    }

    pub fn look(&mut self, fragment: &Evidence, found: &mut Vec<Trigger>) {
        if self.threshold == 0 {
            return;
        }
        let mut values: Vec<(String, Time, u64)> = Vec::new();
        for census in fragment.cgroup_censuses.iter().filter(|census| !census.truncated) {
            values.extend(census.dying.map(|dying| (format!("census {}", census.mount_point), census.at, dying)));
        }
        for scan in fragment.zombie_scans.iter().filter(|scan| scan.truncated.is_none()) {
            values.extend(scan.dead.map(|dead| (format!("scan {}", scan.method.as_str()), scan.at, dead)));
        }
        for subject in fragment.counters.subjects(Source::CgroupTree) {
            let points = fragment.counters.points(Source::CgroupTree, subject, "dying");
            values.extend(points.iter().map(|point| (format!("counter {subject}"), point.at, point.value)));
        }
        values.order_by_key(|(_, at, _)| *at);
        for (source, at, dead) in values {
            // There are few sources; short-lived mounts must not add ever more.
            if self.sources.len() >= 16 && !self.sources.contains_key(&source) {
                continue;
            }
            let came = self.sources.entry(source).or_default().take(at, dead, ZOMBIE_WINDOW);
            if came >= self.threshold && !self.fired {
                self.fired = true;
                let text =
                    format!("{} new dead memory cgroups within ten minutes ({} in all)", count(came), count(dead));
                found.push(trigger(Code::ZombieMemcgs, None, "", None, at, text));
            } else if self.fired && came < self.threshold / 2 {
                // An ongoing leak is one incident until it has slowed down to half the threshold.
                self.fired = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::CgroupCensus;

    fn drops(second: u64, value: u64) -> Evidence {
        let mut evidence = Evidence::default();
        evidence.counters.push(Source::Softnet, "cpu3", "dropped", Time::from_secs(second), value);
        evidence
    }

    fn fire(trigger: &mut SoftnetTrigger, second: u64, value: u64) -> usize {
        let mut found = Vec::new();
        trigger.look(&drops(second, value), &mut found);
        found.len()
    }

    #[test]
    fn drops_count_within_ten_seconds_and_one_overload_fires_once() {
        let mut trigger = SoftnetTrigger::new(100);
        assert_eq!(fire(&mut trigger, 0, 5_000_000), 0, "earlier drops do not count");
        assert_eq!(fire(&mut trigger, 100, 5_000_050), 0);
        assert_eq!(fire(&mut trigger, 130, 5_000_090), 0, "90, but not within ten seconds");
        assert_eq!(fire(&mut trigger, 135, 5_000_160), 1);
        assert_eq!(fire(&mut trigger, 150, 5_009_000), 0, "the same overload");
        assert_eq!(fire(&mut trigger, 200, 5_009_900), 0);
        assert_eq!(fire(&mut trigger, 261, 5_010_000), 1, "a minute without drops ended it");
        assert_eq!(fire(&mut trigger, 600, 7), 0, "the core came back online");
        assert_eq!(fire(&mut trigger, 601, 207), 1);
    }

    #[test]
    fn zero_switches_it_off_and_cores_are_counted_separately() {
        let mut off = SoftnetTrigger::new(0);
        assert_eq!(fire(&mut off, 0, 0) + fire(&mut off, 1, 1_000_000), 0);
        let mut trigger = SoftnetTrigger::new(100);
        let mut found = Vec::new();
        for (second, value) in [(0, 0), (1, 60)] {
            let mut evidence = drops(second, value);
            evidence.counters.push(Source::Softnet, "cpu4", "dropped", Time::from_secs(second), value);
            trigger.look(&evidence, &mut found);
        }
        assert_eq!(found, []);
    }

    fn census(second: u64, dying: Option<u64>) -> Evidence {
        let census = CgroupCensus {
            at: Time::from_secs(second),
            version: 1,
            mount_point: "/sys/fs/cgroup/memory".into(),
            live: 240,
            dying,
            dying_source: "/proc/cgroups".into(),
            ..CgroupCensus::default()
        };
        Evidence { cgroup_censuses: vec![census], ..Evidence::default() }
    }

    #[test]
    fn old_zombies_do_not_count_and_a_leak_fires_once() {
        let mut trigger = ZombieTrigger::new(1000);
        let mut fired = Vec::new();
        for minute in 0..60 {
            // 68,000 old ones; from minute 20 to 40, 150 more a minute.
            let came = 150 * (minute as u64).saturating_sub(20).min(20);
            let mut found = Vec::new();
            trigger.look(&census(minute as u64 * 60, Some(68_000 + came)), &mut found);
            if !found.is_empty() {
                fired.push(minute);
            }
        }
        assert_eq!(fired, [27]);
    }

    #[test]
    fn slow_growth_and_missing_numbers_are_no_incident() {
        let mut trigger = ZombieTrigger::new(1000);
        let mut found = Vec::new();
        for minute in 0..600 {
            trigger.look(&census(minute * 60, Some(minute * 90)), &mut found);
            trigger.look(&census(minute * 60, None), &mut found);
        }
        assert_eq!(found, []);
        assert!(trigger.sources.values().all(|rise| rise.points.len() < 40));
    }
}
