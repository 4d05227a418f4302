//! One row per minute of the node. Segments are evicted within days; a fleet can keep these rows for long.
//!
//! Counts come from the meter of /metrics: a row holds how much they rose since the minute before. Minutes are those of the wall
//! clock; if the recorder started or stopped within one, its row covers only a part of it.

use super::meter::Meter;
use super::status::{NodeStatus, ZombieStatus};
use coroner_diagnosis::cores::timeline::{Shares, Timeline, Totals};
use coroner_evidence::recording::{CoreMinute, RollupRow};
use coroner_evidence::{Clocks, Evidence, Point, Source, Wall};
use std::collections::{BTreeMap, HashMap};

const MINUTE_NS: u64 = 60_000_000_000;
const STALLS: [&str; 3] = ["cpu", "memory", "io"];
/// Cgroups with a quota whose last count is remembered. No healthy node has that many.
const MOST_THROTTLED: usize = 20_000;

#[derive(Default)]
pub struct Rollup {
    /// The meter when the minute began.
    before: NodeStatus,
    /// The minute, counted from 1970.
    minute: Option<u64>,
    /// Core times when the minute began.
    cores: Totals,
    stalls: [Rise; 3],
    /// By cgroup.
    throttled: HashMap<String, Rise>,
    /// By counter: some kernels have one for each zone.
    direct_reclaim: HashMap<String, Rise>,
    saw_memory: bool,
    lost: HashMap<String, u64>,
    lost_samples: Option<u64>,
    /// Whether any evidence of units came, and of NICs.
    saw_units: bool,
    saw_nics: bool,
}

/// A counter: its last value, and how much it rose in this minute.
#[derive(Default)]
struct Rise {
    last: Option<u64>,
    by: u64,
}

impl Rise {
    fn note(&mut self, points: &[Point]) {
        for point in points {
            self.by += self.last.map_or(0, |last| point.value.saturating_sub(last));
            self.last = Some(point.value);
        }
    }

    fn take(&mut self) -> Option<u64> {
        self.last.map(|_| std::mem::take(&mut self.by))
    }
}

impl Rollup {
    pub fn new() -> Rollup {
        Rollup::default()
    }

    /// Takes a fragment. When a minute has ended, returns its row; the caller adds the number of samples and
    /// the recorder's own CPU time.
    ///
    /// `meter` must not have taken the fragment yet; `cores` may have.
    pub fn note(&mut self, fragment: &Evidence, meter: &Meter, cores: &Timeline, clocks: Clocks) -> Option<RollupRow> {
        let minute = clocks.wall.0 / MINUTE_NS;
        let ended = self.minute.replace(minute).filter(|before| *before != minute);
        let row = ended.map(|minute| self.row(minute, meter.node(), cores));
        self.take(fragment);
        row
    }

    fn take(&mut self, fragment: &Evidence) {
        self.saw_units |= !fragment.units.is_empty();
        self.saw_nics |= !fragment.nics.is_empty() || !fragment.log.is_empty();
        for (series, points) in fragment.counters.iter() {
            match (series.source, series.name.as_str()) {
                (Source::Pressure, "some_us") => {
                    if let Some(i) = STALLS.iter().position(|what| *what == series.subject) {
                        self.stalls[i].note(points);
                    }
                }
                (Source::CgroupCpu, "throttled_us")
                    if self.throttled.len() < MOST_THROTTLED || self.throttled.contains_key(&series.subject) =>
                {
                    self.throttled.entry(series.subject.clone()).or_default().note(points);
                }
                (Source::Vmstat, name) => {
                    self.saw_memory = true;
                    if name.starts_with("pgsteal_direct") {
                        self.direct_reclaim.entry(name.to_owned()).or_default().note(points);
                    }
                }
                (Source::Sampler, "lost") => {
                    let lost = self.lost_samples.get_or_insert(0);
                    // Counted from the recorder's start, so the first value counts as a rise.
                    let last = self.lost.entry(series.subject.clone()).or_default();
                    for point in points {
                        *lost += point.value.saturating_sub(*last);
                        *last = point.value;
                    }
                }
                _ => {}
            }
        }
    }

    fn row(&mut self, minute: u64, now: NodeStatus, cores: &Timeline) -> RollupRow {
        let before = std::mem::replace(&mut self.before, now.clone());
        let by_core = by_core(cores.since(&self.cores), &before, &now);
        self.cores = cores.totals();
        let all = by_core.len() as f64;
        let worst = by_core.iter().max_by(|a, b| a.system.total_cmp(&b.system));
        let sum = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
        let rose = |now: Option<u64>, before: Option<u64>| now.map(|now| now.saturating_sub(before.unwrap_or(0)));
        let ZombieStatus { tracked, live, dead, .. } = now.zombies.clone().unwrap_or_default();
        let [cpu_stall_us, memory_stall_us, io_stall_us] = [0, 1, 2].map(|i| self.stalls[i].take());
        RollupRow {
            minute: Wall(minute * MINUTE_NS),
            cores: u32::try_from(by_core.len()).ok().filter(|cores| *cores > 0),
            busy_mean: (all > 0.0).then(|| rounded(by_core.iter().map(|core| core.busy).sum::<f64>() / all)),
            busy_max: by_core.iter().map(|core| core.busy).max_by(f64::total_cmp),
            worst_core: worst.map(|core| core.core),
            worst_core_system: worst.map(|core| core.system),
            zombies_tracked: tracked,
            zombies_live: live,
            zombies_dead: dead,
            unit_restarts: self.saw_units.then(|| sum(&now.unit_restarts).saturating_sub(sum(&before.unit_restarts))),
            nic_resets: self.saw_nics.then(|| sum(&now.nic_resets).saturating_sub(sum(&before.nic_resets))),
            softnet_drops: rose(now.softnet_drops, before.softnet_drops),
            oom_kills: rose(now.oom_kills, before.oom_kills),
            cpu_stall_us,
            memory_stall_us,
            io_stall_us,
            samples: None,
            lost_samples: self.lost_samples.as_mut().map(std::mem::take),
            starved_queues: now.starved_queues,
            throttled_us: rises(&mut self.throttled),
            direct_reclaim_pages: self.saw_memory.then(|| rises(&mut self.direct_reclaim).unwrap_or(0)),
            own_cpu_us: None,
            by_core,
        }
    }
}

/// Of all of them; `None` if there is none.
fn rises(of: &mut HashMap<String, Rise>) -> Option<u64> {
    (!of.is_empty()).then(|| of.values_mut().filter_map(Rise::take).sum())
}

fn by_core(shares: Vec<(u32, Shares)>, before: &NodeStatus, now: &NodeStatus) -> Vec<CoreMinute> {
    let saturated = |status: &NodeStatus, core| status.saturated_seconds.get(&core).copied().unwrap_or(0.0);
    let of = |(core, shares): (u32, Shares)| CoreMinute {
        core,
        busy: rounded(shares.busy()),
        system: rounded(shares.kernel()),
        saturated_s: rounded((saturated(now, core) - saturated(before, core)).max(0.0)),
    };
    shares.into_iter().map(of).collect()
}

/// Three digits are more than the kernel's ticks support.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real_time::RealTimeThreads;
    use coroner_evidence::{CoreTicks, CoreTimes, Time, Unit};
    use std::time::Duration;

    /// A tenth of a second: core 0 idles; core 1 is in the kernel from second 70 on.
    fn tenth(i: u64) -> (Evidence, Clocks) {
        let at = Time::from_millis(1_000_000 + i * 100);
        let ticks = i * 10;
        let full = ticks.saturating_sub(7000);
        let cores = vec![
            CoreTicks { core: 0, idle: ticks, ..CoreTicks::default() },
            CoreTicks { core: 1, idle: ticks - full, system: full, ..CoreTicks::default() },
        ];
        let mut seen = Evidence { core_times: vec![CoreTimes { at, cores }], ..Evidence::default() };
        if i.is_multiple_of(10) {
            seen.counters.push(Source::Softnet, "cpu1", "dropped", at, 100 + i / 10);
            seen.counters.push(Source::Pressure, "cpu", "some_us", at, i * 7);
            seen.counters.push(Source::Sampler, "cpu0", "lost", at, i / 100);
            seen.counters.push(Source::CgroupCpu, "/job", "throttled_us", at, 500 + i);
            seen.counters.push(Source::CgroupCpu, "/other", "throttled_us", at, i * 2);
            seen.counters.push(Source::Vmstat, "", "pgsteal_direct_normal", at, i * 3);
            seen.counters.push(Source::Vmstat, "", "pgsteal_kswapd", at, i * 100);
            let restarts = Some((i / 100) as u32);
            seen.units.push(Unit { at, name: "ecs.service".into(), restarts, ..Unit::default() });
        }
        // 1,780,000,000 is 40 s into a minute.
        (seen, Clocks { at, wall: Wall(1_780_000_000_000_000_000 + i * 100_000_000), boot_ns: 0 })
    }

    #[test]
    fn each_minute_has_a_row() {
        let mut rollup = Rollup::new();
        let mut meter = Meter::new();
        let mut cores = Timeline::keeping(Duration::from_secs(3));
        let mut note = |(seen, now): (Evidence, Clocks)| {
            seen.core_times.iter().for_each(|look| cores.look(look));
            let row = rollup.note(&seen, &meter, &cores, now);
            meter.note(&seen, &cores, &RealTimeThreads::default());
            row
        };
        let rows: Vec<RollupRow> = (0..=2000).map(tenth).filter_map(&mut note).collect();
        let minutes: Vec<u64> = rows.iter().map(|row| row.minute.0 / 1_000_000_000).collect();
        assert_eq!(minutes, [1_779_999_960, 1_780_000_020, 1_780_000_080, 1_780_000_140]);
        // The first covers only 20 s.
        assert_eq!((rows[0].busy_mean, rows[0].softnet_drops, rows[0].unit_restarts), (Some(0.0), Some(19), Some(1)));
        let second = &rows[1];
        assert_eq!((second.cores, second.worst_core), (Some(2), Some(1)));
        assert!((second.worst_core_system.unwrap() - 10.0 / 60.0).abs() < 0.01, "{second:?}");
        assert!((second.by_core[1].saturated_s - 10.0).abs() < 1.1, "{second:?}");
        assert_eq!(second.by_core[0].saturated_s, 0.0);
        let third = &rows[2];
        assert_eq!((third.busy_max, third.busy_mean), (Some(1.0), Some(0.5)));
        assert_eq!((third.softnet_drops, third.unit_restarts, third.lost_samples), (Some(60), Some(6), Some(6)));
        assert_eq!((third.cpu_stall_us, third.io_stall_us), (Some(4200), None));
        assert_eq!((third.throttled_us, third.direct_reclaim_pages), (Some(1800), Some(1800)));
        // What was not seen is not zero.
        assert_eq!((third.zombies_dead, third.oom_kills, third.nic_resets, third.samples), (None, None, None, None));
        assert_eq!((third.starved_queues, third.own_cpu_us), (None, None));
    }
}
