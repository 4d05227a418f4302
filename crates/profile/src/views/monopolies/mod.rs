//! Monopolies: one thread, or interrupts, on one core for long without a pause. Whoever else is bound to that core gets nothing
//! meanwhile. Samples do not tell whether anybody waited; so a monopoly is a fact about the core, not yet starvation.
//!
//! What a sample cannot tell is said with the result: how sure the length is, how much of the run nobody saw, and how likely it
//! is that a thread with its usual share of the core had that many samples in a row by chance. At 49 Hz a run of 100 ms is five
//! samples, and one of two threads that take turns has five in a row every second.

mod beat;
mod pace;
mod pauses;
mod run;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::clocks::{Clocks, Ticking};
use super::usual::Usual;
use super::{Kind, Kinds};
use crate::model::{Dictionary, EventId, Sample, StackId, TaskId};
use watch::{Rate, Watch};

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The shortest run that counts, in nanoseconds. Schedulers switch within some milliseconds where others want to run; people
    /// notice from about a tenth of a second on.
    pub threshold: u64,
    /// Others may have so many samples in a row, and silence so many intervals, without ending a run: a stopper thread or a lost
    /// sample is no pause …
    pub pause_intervals: u64,
    /// … as long as others' samples stand for no more than this, in nanoseconds. At low rates one sample does.
    pub pause: u64,
    /// Runs that are at least this likely by chance are left out.
    pub chance: f64,
    /// The longest so many are kept.
    pub most: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { threshold: 100_000_000, pause_intervals: 3, pause: 5_000_000, chance: 1e-3, most: 10_000 }
    }
}

/// What a core was taken up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    Thread,
    /// Hard and soft interrupts, whoever they interrupted.
    Interrupts,
}

/// What is on the other side of a run's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// Nothing: the recording begins or ends. The run may be longer.
    #[default]
    Recording,
    /// Somebody else.
    Thread,
    Idle,
    /// No samples: lost, or, with events that do not tick on an idle core, idle.
    Silence,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Monopoly {
    pub core: u32,
    pub by: By,
    /// Whose run it is; for interrupts, who was interrupted most. The name with most samples, if the thread changed it.
    #[serde(skip)]
    pub task: TaskId,
    /// Other names the thread had meanwhile, or others that were interrupted.
    #[serde(skip)]
    pub also: Vec<TaskId>,
    /// The first sample, in nanoseconds.
    pub start: u64,
    /// From the first sample to the last, and one interval, as each sample stands for the time around it. Pauses that ended nothing are in it.
    pub length: u64,
    /// The true length is within this of `length`, if begin and end are others' samples.
    pub uncertainty: u64,
    pub begin: Edge,
    pub end: Edge,
    pub samples: u64,
    /// Samples of others on that core within.
    pub foreign: u64,
    /// Samples of interrupts on top of the thread: in nobody's run.
    pub interrupts: u64,
    /// Share of `samples` in the kernel.
    pub kernel: f64,
    /// Stretches within that have no samples though they should, the longest of them, and all of them, in nanoseconds. What
    /// happened there is not known; `length` has them in it, but is above the threshold without them.
    pub gaps: u64,
    pub longest_gap: u64,
    pub unseen: u64,
    /// Short pauses within, as a real-time thread has them that the kernel throttles: how many, the longest, and all of them, in
    /// nanoseconds. Somebody else had the core, or nobody.
    pub pauses: u64,
    pub longest_pause: u64,
    pub paused: u64,
    /// How likely so many samples with so few pauses are for this thread's share of the core's samples around the run.
    pub chance: f64,
    /// Who else was there last before, and first after.
    #[serde(skip)]
    pub before: Option<TaskId>,
    #[serde(skip)]
    pub after: Option<TaskId>,
    /// Kernel threads of this core that were seen often before and not for longer than the run, longest absence first.
    pub absent: Vec<Absent>,
    /// The most frequent stacks inside with their shares, largest first.
    #[serde(skip)]
    pub stacks: Vec<(StackId, f64)>,
}

impl Monopoly {
    pub fn end_time(&self) -> u64 {
        self.start.saturating_add(self.length)
    }

    /// What the owner had of the time from its beginning to its end, between 0 and 1.
    pub fn share(&self) -> f64 {
        1.0 - self.paused.min(self.length) as f64 / self.length.max(1) as f64
    }
}

/// A kernel thread that did not run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Absent {
    #[serde(skip)]
    pub task: TaskId,
    /// From when it was seen last before the run to when it was seen again, or to when nobody looked any more.
    pub length: u64,
    /// Whether it was seen again.
    pub came_back: bool,
    /// How far apart it was seen before, on average.
    pub usual: u64,
}

/// What the finder went by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    pub used: u64,
    /// Samples without a time or a core.
    pub left_out: u64,
    /// Samples of events that do not tick, or that tick less well.
    pub other_events: u64,
    /// Samples older than others of their core: not used.
    pub late: u64,
    /// Times the clock of a core went back for good, as in two files put together.
    pub restarts: u64,
    /// Runs long enough, but as likely by chance; those of the last samples are not yet in it.
    pub by_chance: u64,
    /// Monopolies shorter than those kept.
    pub not_kept: u64,
}

/// Finds monopolies in samples that have times and cores; others are passed over. Memory follows the number of cores.
#[derive(Debug, Default)]
pub struct Finder {
    options: Options,
    kinds: Kinds,
    clocks: Clocks,
    usual: HashMap<EventId, Usual>,
    /// By core and event: which event is best for a core is known at the end.
    watches: HashMap<(u32, EventId), Watch>,
    coverage: Coverage,
}

impl Finder {
    pub fn new(options: Options) -> Finder {
        Finder { options, ..Finder::default() }
    }

    pub fn add(&mut self, names: &Dictionary, sample: &Sample) {
        if !self.clocks.wants(names, sample.event) {
            self.coverage.other_events += 1;
            return;
        }
        let (Some(core), Some(time)) = (sample.core, sample.time) else {
            self.coverage.left_out += 1;
            return;
        };
        let kind = self.kinds.kind(names, sample);
        let ticks = self.clocks.of(names, sample.event);
        let watch = self.watches.entry((core, sample.event)).or_insert_with(|| Watch::new(core));
        let usual = (ticks != Ticking::Always).then(|| self.usual.entry(sample.event).or_default());
        watch.take(&self.options, names, sample, time, kind, Rate { usual, stands_for: ticks.time_of(sample) });
    }

    /// What was found so far went by.
    pub fn coverage(&self) -> Coverage {
        let mut coverage = self.coverage.clone();
        let best = self.best();
        for (key, watch) in &self.watches {
            if best.get(&key.0) == Some(&key.1) {
                coverage.used += watch.used;
                coverage.late += watch.late;
                coverage.restarts += watch.restarts;
                coverage.by_chance += watch.by_chance;
                coverage.not_kept += watch.not_kept;
            } else {
                coverage.other_events += watch.used + watch.late;
            }
        }
        coverage
    }

    /// For each core the event with the most samples.
    fn best(&self) -> HashMap<u32, EventId> {
        let mut best: HashMap<u32, (u64, std::cmp::Reverse<EventId>)> = HashMap::new();
        for ((core, event), watch) in &self.watches {
            let this = (watch.used, std::cmp::Reverse(*event));
            best.entry(*core).and_modify(|other| *other = this.max(*other)).or_insert(this);
        }
        best.into_iter().map(|(core, (_, event))| (core, event.0)).collect()
    }

    /// The monopolies, the longest first.
    pub fn finish(mut self, names: &Dictionary) -> Vec<Monopoly> {
        let best = self.best();
        let mut found = Vec::new();
        for ((core, event), watch) in std::mem::take(&mut self.watches) {
            if best.get(&core) == Some(&event) {
                found.extend(watch.finish(&self.options, names));
            }
        }
        rank(&mut found);
        found.truncate(self.options.most);
        found
    }
}

fn rank(found: &mut [Monopoly]) {
    found.sort_by_key(|monopoly| (std::cmp::Reverse(monopoly.length), monopoly.start, monopoly.core));
}
