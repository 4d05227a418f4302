//! Cores: how long each was full of kernel work or taken by a real-time thread, and which is the busiest.

use crate::real_time::{LATE, OWNED, RealTimeThreads};
use coroner_diagnosis::cores::timeline::{Saturation, Shares, Timeline, Totals, worst_of};
use coroner_evidence::{Time, Window};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const COUNT_EVERY: Duration = Duration::from_secs(1);
/// The busiest core is determined over this time.
const WORST_OVER: Duration = Duration::from_secs(10);
/// With this share of softirq time, the core is serving its NIC queues.
const SERVING: f64 = 0.5;

#[derive(Default)]
pub struct CoreMeter {
    counted: Option<Time>,
    /// Windows in which a core was full, but not of kernel work: judged once its threads have been reported.
    unjudged: Vec<(u32, Window)>,
    /// One per second, for the last ten.
    totals: VecDeque<(Time, Totals)>,
    full: BTreeMap<u32, Full>,
    worst: Option<(u32, f64)>,
}

#[derive(Default)]
struct Full {
    ns: u64,
    /// Counted up to here.
    until: Time,
    /// Looked at up to here.
    seen_until: Time,
    /// Like `until`, but only for what kept the core from serving its NIC queues.
    not_serving_until: Option<Time>,
}

impl Full {
    fn add(&mut self, window: Window, keeps_queues_waiting: bool) {
        self.ns += window.to.since(window.from.max(self.until)).as_nanos() as u64;
        self.until = self.until.max(window.to);
        if keeps_queues_waiting {
            self.not_serving_until = self.not_serving_until.max(Some(window.to));
        }
    }
}

impl CoreMeter {
    pub fn note(&mut self, cores: &Timeline, real_time: &RealTimeThreads) {
        let Some(now) = cores.newest() else { return };
        let since = *self.counted.get_or_insert(now);
        if now.since(since) >= COUNT_EVERY {
            self.counted = Some(now);
            self.count(now, cores, real_time);
        }
    }

    fn count(&mut self, now: Time, cores: &Timeline, real_time: &RealTimeThreads) {
        for stretch in cores.stretches(Saturation::Kernel) {
            let lately = cores.shares(stretch.core, last_second_of(stretch.window)).unwrap_or(stretch.shares);
            self.full.entry(stretch.core).or_default().add(stretch.window, lately.softirq < SERVING);
        }
        for stretch in cores.stretches(Saturation::Busy) {
            let full = self.full.entry(stretch.core).or_default();
            let from = stretch.window.from.max(full.until).max(full.seen_until);
            if from < stretch.window.to {
                full.seen_until = stretch.window.to;
                self.unjudged.push((stretch.core, Window { from, to: stretch.window.to }));
            }
        }
        let full = &mut self.full;
        self.unjudged.retain(|(core, window)| {
            // If a count cut the window short, judge the second that ends with it.
            let about = Window { from: window.from.min(window.to - COUNT_EVERY), to: window.to };
            let is_taken = real_time.share(*core, about).is_some_and(|had| had.share >= OWNED);
            if is_taken {
                full.entry(*core).or_default().add(*window, true);
            }
            !is_taken && now.since(window.to) <= LATE
        });
        // Offline cores that were never full have no row.
        for core in cores.lines.keys().filter(|core| cores.is_online(**core)) {
            self.full.entry(*core).or_default();
        }
        self.full.retain(|core, full| full.ns > 0 || cores.is_online(*core));

        self.totals.push_back((now, cores.totals()));
        while self.totals.get(1).is_some_and(|(second, _)| now.since(*second) >= WORST_OVER) {
            self.totals.pop_front();
        }
        self.worst = self.totals.front().and_then(|(from, before)| {
            let full_ns = |core: u32| {
                let latest = cores.lines.get(&core).and_then(|line| line.latest(Saturation::Busy));
                latest.map_or(0, |full| full.window.to.since(full.window.from.max(*from)).as_nanos() as u64)
            };
            let busy = |(core, shares): (u32, Shares)| (core, shares.busy().clamp(0.0, 1.0), full_ns(core));
            worst_of(cores.since(before).into_iter().map(busy))
        });
    }

    pub fn saturated_seconds(&self) -> BTreeMap<u32, f64> {
        self.full.iter().map(|(core, full)| (*core, full.ns as f64 / 1e9)).collect()
    }

    pub fn worst(&self) -> Option<(u32, f64)> {
        self.worst
    }

    /// Whether counting has begun.
    pub fn is_counting(&self) -> bool {
        !self.totals.is_empty()
    }

    /// Whether something other than its NIC queues filled the core within this time.
    pub fn was_taken(&self, core: u32, within: Duration) -> bool {
        let Some(now) = self.counted else { return false };
        let until = self.full.get(&core).and_then(|full| full.not_serving_until);
        until.is_some_and(|until| now.since(until) < within)
    }
}

fn last_second_of(window: Window) -> Window {
    Window { from: window.from.max(window.to - COUNT_EVERY), to: window.to }
}
