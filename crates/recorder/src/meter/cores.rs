//! Cores: how long nobody else could use each, as it was full in the kernel or a real-time thread had it, and which is the busiest.

use crate::real_time::{LATE, OWNED, RealTimeThreads};
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
    /// When a core was full, and not in the kernel: by whom is known when its threads have been told.
    unjudged: Vec<(u32, Window)>,
    /// One look a second, of the last ten.
    looks: VecDeque<CoreTimes>,
    full: BTreeMap<u32, Full>,
    worst: Option<(u32, f64)>,
}

#[derive(Default)]
struct Full {
    ns: u64,
    /// Counted until then.
    until: Time,
    /// Looked at until then.
    seen_until: Time,
    /// The same, but only what kept the core from serving its NIC queues.
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
    pub fn note(&mut self, looks: &[CoreTimes], real_time: &RealTimeThreads) {
        for look in looks {
            for core in &look.cores {
                self.full.entry(core.core).or_default();
            }
            self.recent.core_times.push(look.clone());
            let since = *self.counted.get_or_insert(look.at);
            if look.at.since(since) >= COUNT_EVERY {
                self.count(look, real_time);
            }
        }
    }

    fn count(&mut self, newest: &CoreTimes, real_time: &RealTimeThreads) {
        self.counted = Some(newest.at);
        let timeline = Timeline::of(&self.recent);
        for stretch in timeline.stretches(Saturation::Kernel) {
            self.full.entry(stretch.core).or_default().add(stretch.window, stretch.shares.softirq < SERVING);
        }
        for stretch in timeline.stretches(Saturation::Busy) {
            let full = self.full.entry(stretch.core).or_default();
            let from = stretch.window.from.max(full.until).max(full.seen_until);
            if from < stretch.window.to {
                full.seen_until = stretch.window.to;
                self.unjudged.push((stretch.core, Window { from, to: stretch.window.to }));
            }
        }
        let full = &mut self.full;
        self.unjudged.retain(|(core, window)| {
            // Of a window that a count cut short, the second that it ends is judged.
            let about = Window { from: window.from.min(window.to - COUNT_EVERY), to: window.to };
            let is_taken = real_time.share(*core, about).is_some_and(|had| had.share >= OWNED);
            if is_taken {
                full.entry(*core).or_default().add(*window, true);
            }
            !is_taken && newest.at.since(window.to) <= LATE
        });
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
