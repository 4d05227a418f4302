//! Monopolies: one thread on one core for long without a pause. Whoever else is bound to that core starves meanwhile.

use std::collections::HashMap;

use serde::Serialize;

use super::{Kind, Kinds, Selection};
use crate::model::{Sample, StackId, TaskId};

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

/// Finds monopolies among the selected samples. They need times and cores; others are passed over.
pub fn find(selection: &Selection<'_>, kinds: &Kinds<'_>, options: &Options) -> Vec<Monopoly> {
    let profile = selection.profile();
    let interval = interval(selection);
    let pause = interval.saturating_mul(options.pause_intervals);
    let mut runs: HashMap<u32, Run> = HashMap::new();
    let mut last_on: HashMap<u32, TaskId> = HashMap::new();
    let mut found = Vec::new();
    for sample in selection.samples() {
        let (Some(core), Some(time)) = (sample.core, sample.time) else { continue };
        let idle = kinds.kind(&sample) == Kind::Idle;
        let tid = profile.task(sample.task).tid;
        let mut challenger = None;
        let mut before = last_on.get(&core).copied();
        if let Some(run) = runs.get_mut(&core) {
            let own = !idle && tid.is_some() && run.tid == tid;
            if own && time.saturating_sub(run.last) <= pause.max(interval) + interval / 2 {
                run.foreign += std::mem::take(&mut run.foreign_since);
                run.challenger = None;
                take(run, &sample, time);
                last_on.insert(core, sample.task);
                continue;
            }
            // Two threads that take turns are no monopoly: others may have one sample in fifty.
            let few = run.foreign + run.foreign_since < 1 + run.samples / 50;
            if !own && few && time.saturating_sub(run.last) <= pause {
                run.foreign_since += 1;
                if !idle {
                    run.challenger.get_or_insert(sample);
                    last_on.insert(core, sample.task);
                }
                continue;
            }
            if let Some(run) = runs.remove(&core) {
                challenger = run.challenger.filter(|first| profile.task(first.task).tid == tid);
                before = if challenger.is_some() { Some(run.task) } else { before };
                end(core, run, interval, options, &mut found);
            }
        }
        if !idle {
            let before = before.filter(|task| profile.task(*task).tid != tid);
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
    for (core, run) in runs {
        end(core, run, interval, options, &mut found);
    }
    found.sort_by_key(|monopoly| (monopoly.start, monopoly.core));
    found
}

fn take(run: &mut Run, sample: &Sample, time: u64) {
    run.last = time;
    run.samples += 1;
    *run.stacks.entry(sample.stack).or_default() += 1;
}

fn end(core: u32, run: Run, interval: u64, options: &Options, found: &mut Vec<Monopoly>) {
    // A sample stands for the interval around it.
    let length = run.last - run.start + interval;
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
fn interval(selection: &Selection<'_>) -> u64 {
    /// Enough to know a median by.
    const ENOUGH: usize = 10_000;
    let mut last: HashMap<u32, u64> = HashMap::new();
    let mut distances = Vec::new();
    for sample in selection.samples() {
        let (Some(core), Some(time)) = (sample.core, sample.time) else { continue };
        if let Some(before) = last.insert(core, time) {
            distances.push(time - before);
            if distances.len() == ENOUGH {
                break;
            }
        }
    }
    if distances.is_empty() {
        return 0;
    }
    let middle = distances.len() / 2;
    *distances.select_nth_unstable(middle).1
}
