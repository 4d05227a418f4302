//! Monopolies: one thread on one core for long without a pause. Whoever else is bound to that core starves meanwhile.

use std::collections::HashMap;

use serde::Serialize;

use super::{Kind, Kinds};
use crate::model::{Dictionary, Sample, StackId, TaskId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The shortest run that counts, in nanoseconds. Schedulers switch within some milliseconds where others want to run; people
    /// notice from about a tenth of a second on.
    pub threshold: u64,
    /// Pauses up to so many sampling intervals do not end a run: a stopper thread or a lost sample is no pause.
    pub pause_intervals: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { threshold: 100_000_000, pause_intervals: 3 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Monopoly {
    pub core: u32,
    #[serde(skip)]
    pub task: TaskId,
    /// Nanoseconds.
    pub start: u64,
    pub length: u64,
    pub samples: u64,
    /// Samples of others on that core within.
    pub foreign: u64,
    /// Who was there last before.
    #[serde(skip)]
    pub before: Option<TaskId>,
    /// The most frequent stacks inside with their shares, largest first.
    #[serde(skip)]
    pub stacks: Vec<(StackId, f64)>,
}

const TOP_STACKS: usize = 5;

#[derive(Debug)]
struct Run {
    task: TaskId,
    tid: Option<u32>,
    start: u64,
    last: u64,
    samples: u64,
    /// Others' samples since `last`.
    foreign_since: u64,
    /// The first of them: if its thread goes on, its own run began there.
    challenger: Option<Sample>,
    foreign: u64,
    before: Option<TaskId>,
    stacks: HashMap<StackId, u64>,
}

/// Finds monopolies in samples that have times and cores; others are passed over.
#[derive(Debug, Default)]
pub struct Finder {
    options: Options,
    kinds: Kinds,
    /// The first samples, until the sampling interval is known by them.
    first: Vec<Sample>,
    interval: Option<u64>,
    runs: HashMap<u32, Run>,
    last_on: HashMap<u32, TaskId>,
    found: Vec<Monopoly>,
}

/// So many samples tell the interval.
const ENOUGH: usize = 10_000;

impl Finder {
    pub fn new(options: Options) -> Finder {
        Finder { options, ..Finder::default() }
    }

    pub fn add(&mut self, names: &Dictionary, sample: &Sample) {
        match self.interval {
            Some(interval) => self.take(names, sample, interval),
            None => {
                self.first.push(*sample);
                if self.first.len() == ENOUGH {
                    self.begin(names);
                }
            }
        }
    }

    fn begin(&mut self, names: &Dictionary) {
        let interval = interval(&self.first);
        self.interval = Some(interval);
        for sample in std::mem::take(&mut self.first) {
            self.take(names, &sample, interval);
        }
    }

    pub fn finish(mut self, names: &Dictionary) -> Vec<Monopoly> {
        if self.interval.is_none() {
            self.begin(names);
        }
        let interval = self.interval.unwrap_or(0);
        for (core, run) in std::mem::take(&mut self.runs) {
            end(core, run, interval, &self.options, &mut self.found);
        }
        self.found.sort_by_key(|monopoly| (monopoly.start, monopoly.core));
        self.found
    }

    fn take(&mut self, names: &Dictionary, sample: &Sample, interval: u64) {
        let Finder { options, kinds, runs, last_on, found, .. } = self;
        let sample = *sample;
        let pause = interval.saturating_mul(options.pause_intervals);
        let (Some(core), Some(time)) = (sample.core, sample.time) else { return };
        let idle = kinds.kind(names, &sample) == Kind::Idle;
        let tid = names.task(sample.task).tid;
        let mut challenger = None;
        let mut before = last_on.get(&core).copied();
        if let Some(run) = runs.get_mut(&core) {
            let own = !idle && tid.is_some() && run.tid == tid;
            if own && time.saturating_sub(run.last) <= pause.max(interval) + interval / 2 {
                run.foreign += std::mem::take(&mut run.foreign_since);
                run.challenger = None;
                take(run, &sample, time);
                last_on.insert(core, sample.task);
                return;
            }
            // Two threads that take turns are no monopoly: others may have one sample in fifty.
            let few = run.foreign + run.foreign_since < 1 + run.samples / 50;
            if !own && few && time.saturating_sub(run.last) <= pause {
                run.foreign_since += 1;
                if !idle {
                    run.challenger.get_or_insert(sample);
                    last_on.insert(core, sample.task);
                }
                return;
            }
            if let Some(run) = runs.remove(&core) {
                challenger = run.challenger.filter(|first| names.task(first.task).tid == tid);
                before = if challenger.is_some() { Some(run.task) } else { before };
                end(core, run, interval, options, found);
            }
        }
        if !idle {
            let before = before.filter(|task| names.task(*task).tid != tid);
            let start = challenger.and_then(|first| first.time).unwrap_or(time);
            let mut run = Run {
                task: sample.task,
                tid,
                start,
                last: start,
                samples: 0,
                foreign_since: 0,
                challenger: None,
                foreign: 0,
                before,
                stacks: HashMap::new(),
            };
            if let Some(first) = challenger {
                take(&mut run, &first, start);
            }
            take(&mut run, &sample, time);
            runs.insert(core, run);
            last_on.insert(core, sample.task);
        }
    }
}

fn take(run: &mut Run, sample: &Sample, time: u64) {
    run.last = time;
    run.samples += 1;
    *run.stacks.entry(sample.stack).or_default() += 1;
}

fn end(core: u32, run: Run, interval: u64, options: &Options, found: &mut Vec<Monopoly>) {
    // A sample stands for the interval around it.
    let length = run.last.saturating_sub(run.start) + interval;
    if length < options.threshold || run.samples < 2 {
        return;
    }
    let mut stacks: Vec<(StackId, u64)> = run.stacks.into_iter().collect();
    stacks.sort_by_key(|(stack, count)| (std::cmp::Reverse(*count), *stack));
    stacks.truncate(TOP_STACKS);
    let stacks = stacks.into_iter().map(|(stack, count)| (stack, count as f64 / run.samples as f64)).collect();
    let Run { task, start, samples, foreign, before, .. } = run;
    found.push(Monopoly { core, task, start, length, samples, foreign, before, stacks });
}

/// The usual distance of two samples on one core: the median.
fn interval(samples: &[Sample]) -> u64 {
    let mut last: HashMap<u32, u64> = HashMap::new();
    let mut distances = Vec::new();
    for sample in samples {
        let (Some(core), Some(time)) = (sample.core, sample.time) else { continue };
        if let Some(before) = last.insert(core, time) {
            distances.push(time.saturating_sub(before));
        }
    }
    if distances.is_empty() {
        return 0;
    }
    let middle = distances.len() / 2;
    *distances.select_nth_unstable(middle).1
}
