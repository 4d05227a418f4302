//! Cores: how long each was full of kernel work, and which is the busiest.

use coroner_diagnosis::cores::timeline::{Saturation, Timeline};
use coroner_evidence::{CoreTimes, Evidence, Time, Window};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A core is full if it was so for a second. The looks of a little more than that are kept, so that no such second is cut in two.
const KEPT: Duration = Duration::from_millis(1_200);
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// The busiest core is that of the last ten seconds.
const WORST_OVER: Duration = Duration::from_secs(10);
/// Softirqs this much of the time mean that the core serves its queues.
const SERVING: f64 = 0.5;

#[derive(Default)]
pub struct CoreMeter {
    /// Only its looks at the cores, of the last second or two.
    recent: Evidence,
    counted: Option<Time>,
    /// One look a second, of the last ten.
    looks: VecDeque<CoreTimes>,
    full: BTreeMap<u32, Full>,
    worst: Option<(u32, f64)>,
}

#[derive(Default)]
struct Full {
    ns: u64,
    until: Time,
    /// The same, but only what kept the core from serving its NIC queues.
    not_serving_until: Option<Time>,
}

impl CoreMeter {
    pub fn note(&mut self, looks: &[CoreTimes]) {
        for look in looks {
            for core in &look.cores {
                self.full.entry(core.core).or_default();
            }
            self.recent.core_times.push(look.clone());
            let since = *self.counted.get_or_insert(look.at);
            if look.at.since(since) >= COUNT_EVERY {
                self.count(look);
            }
        }
    }

    fn count(&mut self, newest: &CoreTimes) {
        self.counted = Some(newest.at);
        for stretch in Timeline::of(&self.recent).stretches(Saturation::Kernel) {
            let full = self.full.entry(stretch.core).or_default();
            full.ns += stretch.window.to.since(stretch.window.from.max(full.until)).as_nanos() as u64;
            full.until = full.until.max(stretch.window.to);
            if stretch.shares.softirq < SERVING {
                full.not_serving_until = Some(stretch.window.to);
            }
        }
        let old = newest.at - KEPT;
        self.recent.core_times.retain(|look| look.at >= old);

        self.looks.push_back(newest.clone());
        while self.looks.get(1).is_some_and(|second| newest.at.since(second.at) >= WORST_OVER) {
            self.looks.pop_front();
        }
        self.worst = self.looks.front().and_then(|oldest| busiest(oldest, newest));
        // Cores that are gone for long have no row any more.
        let present = |core: u32| newest.cores.iter().any(|c| c.core == core);
        self.full.retain(|core, full| full.ns > 0 || present(*core));
    }

    pub fn saturated_seconds(&self) -> BTreeMap<u32, f64> {
        self.full.iter().map(|(core, full)| (*core, full.ns as f64 / 1e9)).collect()
    }

    pub fn worst(&self) -> Option<(u32, f64)> {
        self.worst
    }

    /// Whether anything was counted yet.
    pub fn is_counting(&self) -> bool {
        !self.looks.is_empty()
    }

    /// Whether the core was full of other things than its NIC queues within this time.
    pub fn was_taken(&self, core: u32, within: Duration) -> bool {
        let Some(now) = self.counted else { return false };
        let until = self.full.get(&core).and_then(|full| full.not_serving_until);
        until.is_some_and(|until| now.since(until) < within)
    }
}

fn busiest(oldest: &CoreTimes, newest: &CoreTimes) -> Option<(u32, f64)> {
    let both = Evidence { core_times: vec![oldest.clone(), newest.clone()], ..Evidence::default() };
    let window = Window { from: oldest.at, to: newest.at };
    let timeline = Timeline::of(&both);
    let shares = timeline.lines.iter().filter_map(|(core, line)| Some((*core, line.shares(window)?.busy())));
    shares.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(core, busy)| (core, busy.clamp(0.0, 1.0)))
}
