//! Monopolies: one thread, or interrupts, on one core for a long time without a pause. Other threads pinned to that core get
//! nothing meanwhile. Samples do not show whether any waited, so a monopoly is a fact about the core, not yet starvation.
//!
//! Each result states its uncertainty: of the length, how much of the run was not sampled, and how likely a thread with its usual
//! share of the core has that many samples in a row by chance. At 49 Hz a run of 100 ms is five samples, and one of two
//! alternating threads has five in a row about every second.

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
use super::{Kinds, SampleKind};
use crate::model::{Dictionary, EventId, Sample, StackId, TaskId};
use coroner_evidence::Order;
use watch::{CoreWatch, Rate};

#[derive(Clone, Debug, PartialEq)]
pub struct MonopolyOptions {
    /// The shortest run that counts, in nanoseconds. The scheduler switches within milliseconds if others want to run; people notice
    /// delays from about a tenth of a second.
    pub threshold: u64,
    /// Up to this many samples of others, or intervals of silence, in a row do not end a run: a stopper thread or a lost sample is
    /// no pause …
    pub pause_intervals: u64,
    /// … as long as others' samples represent no more than this, in nanoseconds. At low rates a single sample is more.
    pub pause: u64,
    /// Runs at least this likely by chance are left out.
    pub chance: f64,
    /// At most this many are kept, the longest.
    pub most: usize,
}

impl Default for MonopolyOptions {
    fn default() -> MonopolyOptions {
        MonopolyOptions { threshold: 100_000_000, pause_intervals: 3, pause: 5_000_000, chance: 1e-3, most: 10_000 }
    }
}

/// Who had the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    Thread,
    /// Hard and soft interrupts, whoever they interrupted.
    Interrupts,
}

/// What is beyond an end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// Nothing: the recording begins or ends here. The run may be longer.
    #[default]
    Recording,
    /// Another thread.
    Thread,
    Idle,
    /// No samples: lost, or idle if the event does not tick on an idle core.
    Silence,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Monopoly {
    pub core: u32,
    pub by: By,
    /// Whose run it is; for interrupts, who was interrupted most. If the thread changed its name, the one with the most samples.
    #[serde(skip)]
    pub task: TaskId,
    /// Other names of the thread during the run, or other interrupted threads.
    #[serde(skip)]
    pub also: Vec<TaskId>,
    /// The first sample, in nanoseconds.
    pub start: u64,
    /// From the first to the last sample plus one interval, as a sample represents the time around it. Includes bridged pauses.
    pub length: u64,
    /// The true length is within this of `length`, if others' samples are at both ends.
    pub uncertainty: u64,
    pub begin: Edge,
    pub end: Edge,
    pub samples: u64,
    /// Others' samples on that core during the run.
    pub foreign: u64,
    /// Interrupt samples on top of the thread: in nobody's run.
    pub interrupts: u64,
    /// Share of `samples` in the kernel.
    pub kernel: f64,
    /// Gaps that should have samples: how many, the longest, and their total, in nanoseconds. What happened in them is unknown;
    /// `length` includes them, but exceeds the threshold without them.
    pub gaps: u64,
    pub longest_gap: u64,
    pub unseen: u64,
    /// Short pauses, such as those of a throttled real-time thread: how many, the longest, and their total, in nanoseconds. Somebody
    /// else had the core, or nobody.
    pub pauses: u64,
    pub longest_pause: u64,
    pub paused: u64,
    /// The probability of this many samples with this few pauses, given the thread's share of the core's samples around the run.
    pub chance: f64,
    /// The last other thread before the run, and the first after it.
    #[serde(skip)]
    pub before: Option<TaskId>,
    #[serde(skip)]
    pub after: Option<TaskId>,
    /// Kernel threads of this core, often seen before, that were absent for longer than the run; longest absence first.
    pub absent: Vec<Absent>,
    /// The most frequent stacks of the run with their shares, largest first.
    #[serde(skip)]
    pub stacks: Vec<(StackId, f64)>,
}

impl Monopoly {
    pub fn end_time(&self) -> u64 {
        self.start.saturating_add(self.length)
    }

    /// The owner's share of the run's length, between 0 and 1.
    pub fn share(&self) -> f64 {
        1.0 - self.paused.min(self.length) as f64 / self.length.max(1) as f64
    }
}

/// A kernel thread that did not run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Absent {
    #[serde(skip)]
    pub task: TaskId,
    /// From its last sample before the run to its next, or to the end of the samples.
    pub length: u64,
    /// Whether it was seen again.
    pub came_back: bool,
    /// Mean time between its samples before the run.
    pub usual: u64,
}

/// What the result is based on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    pub used: u64,
    /// Samples without a time or core.
    pub left_out: u64,
    /// Samples of events that are no clock, or a worse one.
    pub other_events: u64,
    /// Samples older than earlier ones of their core: not used.
    pub late: u64,
    /// How often a core's clock went back for good, as in two concatenated files.
    pub restarts: u64,
    /// Runs that were long enough but may be chance; those of the last samples are not included yet.
    pub by_chance: u64,
    /// Monopolies dropped in favour of `most` longer ones.
    pub not_kept: u64,
}

/// Finds monopolies in samples that have a time and a core; others are ignored. Memory follows the number of cores.
#[derive(Debug, Default)]
pub struct Finder {
    options: MonopolyOptions,
    kinds: Kinds,
    clocks: Clocks,
    usual: HashMap<EventId, Usual>,
    /// By core and event: the best event of a core is known only at the end.
    watches: HashMap<(u32, EventId), CoreWatch>,
    coverage: Coverage,
}

impl Finder {
    pub fn new(options: MonopolyOptions) -> Finder {
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
        let watch = self.watches.entry((core, sample.event)).or_insert_with(|| CoreWatch::new(core));
        let usual = (ticks != Ticking::Always).then(|| self.usual.entry(sample.event).or_default());
        watch.take(&self.options, names, sample, time, kind, Rate { usual, stands_for: ticks.time_of(sample) });
    }

    /// What the result so far is based on.
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

    /// For each core, the event with the most samples.
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
    found.order_by_key(|monopoly| (std::cmp::Reverse(monopoly.length), monopoly.start, monopoly.core));
}
