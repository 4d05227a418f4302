//! Runs: who has a core, sample by sample.

use std::collections::{HashMap, VecDeque};

use super::{Edge, MonopolyOptions};
use crate::model::{StackId, StrId, TaskId};

/// Whom a sample belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// By pid and tid, whatever its name.
    Thread(Option<u32>, u32),
    /// By name, if the file has no tids.
    Named(StrId),
    Interrupts,
    /// The core idles.
    Idle,
    /// Anybody this tracker does not track.
    #[default]
    Other,
}

/// One sample of a core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub owner: Owner,
    /// It was interrupted: the time is not its own.
    pub aside: bool,
    pub kernel: bool,
    pub task: TaskId,
    pub stack: StackId,
    pub time: u64,
    /// In nanoseconds; 0 if its event does not tell.
    pub stands_for: u64,
}

/// How a sample follows the previous one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Follows {
    pub interval: u64,
    /// The time in which there should have been samples.
    pub silence: Option<u64>,
    /// The silence means lost samples: the clock also ticks on an idle core, or the tick came late.
    pub lost: bool,
    /// Earlier apparent silence was a slower rate.
    pub slower: bool,
}

#[derive(Debug, Default)]
pub(super) struct Run {
    pub owner: Owner,
    pub task: TaskId,
    /// Its tasks with their samples: several if the thread changed its name, or for interrupts.
    pub tasks: Vec<(TaskId, u64)>,
    pub start: u64,
    pub last: u64,
    /// Sampling intervals at both ends.
    pub interval: (u64, u64),
    pub samples: u64,
    /// The time they represent.
    pub stands_for: u64,
    pub kernel: u64,
    pub foreign: u64,
    pub aside: u64,
    aside_since: u64,
    pub gaps: u64,
    pub longest_gap: u64,
    /// Time without samples.
    pub unseen: u64,
    /// Gaps that may turn out to be a slower rate.
    young_gaps: Vec<u64>,
    pub before: Option<TaskId>,
    pub begin: Edge,
    pub end: Edge,
    /// The owner's share of the core outside the run.
    pub share: f64,
    /// The most samples between two pauses.
    pub most_in_a_row: u64,
    /// Bridged pauses, in which others or nobody had the core: how many, the longest, and their total, in nanoseconds.
    pub pauses: u64,
    pub longest_pause: u64,
    pub paused: u64,
    /// Others' samples after its last one, before its end was known.
    pub others_since: u64,
    pub stacks: HashMap<StackId, u64>,
}

/// A day-long run has many stacks; beyond this the rare ones are dropped.
const MOST_STACKS: usize = 4096;
const MOST_TASKS: usize = 64;

impl Run {
    fn new(first: &Step, interval: u64, before: Option<TaskId>, begin: Edge) -> Run {
        Run {
            owner: first.owner,
            task: first.task,
            start: first.time,
            last: first.time,
            interval: (interval, interval),
            before,
            begin,
            ..Run::default()
        }
    }

    fn take(&mut self, step: &Step, interval: u64) {
        self.last = step.time;
        self.interval.1 = interval;
        if self.interval.0 == 0 {
            self.interval.0 = interval;
        }
        self.samples += 1;
        self.stands_for = self.stands_for.saturating_add(step.stands_for);
        self.kernel += u64::from(step.kernel);
        self.aside += std::mem::take(&mut self.aside_since);
        if let Some((_, samples)) = self.tasks.iter_mut().find(|(task, _)| *task == step.task) {
            *samples += 1;
        } else if self.tasks.len() < MOST_TASKS {
            self.tasks.push((step.task, 1));
        }
        *self.stacks.entry(step.stack).or_default() += 1;
        self.forget_rare_stacks();
    }

    fn forget_rare_stacks(&mut self) {
        if self.stacks.len() > MOST_STACKS {
            let mut counts: Vec<u64> = self.stacks.values().copied().collect();
            let middle = *counts.select_nth_unstable(MOST_STACKS / 2).1;
            self.stacks.retain(|_, count| *count > middle);
        }
    }

    /// Appends a run of the same owner, after a pause.
    pub fn join(&mut self, next: Run, pause: u64) {
        self.last = next.last;
        self.interval.1 = next.interval.1;
        self.samples += next.samples;
        self.stands_for = self.stands_for.saturating_add(next.stands_for);
        self.kernel += next.kernel;
        self.foreign += next.foreign;
        self.aside += next.aside;
        self.gaps += next.gaps;
        self.longest_gap = self.longest_gap.max(next.longest_gap);
        self.unseen = self.unseen.saturating_add(next.unseen);
        self.end = next.end;
        self.most_in_a_row = self.most_in_a_row.max(next.most_in_a_row);
        self.pauses += 1 + next.pauses;
        self.longest_pause = self.longest_pause.max(pause).max(next.longest_pause);
        self.paused = self.paused.saturating_add(pause).saturating_add(next.paused);
        for (task, samples) in next.tasks {
            if let Some((_, known)) = self.tasks.iter_mut().find(|(known, _)| *known == task) {
                *known += samples;
            } else if self.tasks.len() < MOST_TASKS {
                self.tasks.push((task, samples));
            }
        }
        for (stack, count) in next.stacks {
            *self.stacks.entry(stack).or_default() += count;
        }
        self.forget_rare_stacks();
    }

    pub fn samples(&self) -> Samples {
        Samples { all: self.samples, in_a_row: self.most_in_a_row, pauses: self.pauses }
    }

    /// Confirms the recent gaps.
    fn settle_gaps(&mut self) {
        for gap in std::mem::take(&mut self.young_gaps) {
            self.gaps += 1;
            self.longest_gap = self.longest_gap.max(gap);
            self.unseen = self.unseen.saturating_add(gap);
        }
    }

    /// From the first to the last sample, plus half an interval at each end.
    pub fn length(&self) -> u64 {
        self.last.saturating_sub(self.start).saturating_add(self.uncertainty())
    }

    pub fn uncertainty(&self) -> u64 {
        self.interval.0 / 2 + self.interval.1 / 2 + (self.interval.0 & self.interval.1 & 1)
    }
}

/// Who had the core recently, to tell what is unusual.
#[derive(Debug, Default)]
struct Recent {
    runs: VecDeque<(Owner, u64)>,
    samples: u64,
}

const RECENT: u64 = 512;

impl Recent {
    fn push(&mut self, owner: Owner, samples: u64) {
        let samples = samples.min(RECENT);
        match self.runs.back_mut() {
            Some((last, count)) if *last == owner => *count += samples,
            _ => self.runs.push_back((owner, samples)),
        }
        self.samples += samples;
        while self.samples > RECENT {
            let Some((_, first)) = self.runs.front_mut() else { break };
            let cut = (self.samples - RECENT).min(*first);
            *first -= cut;
            self.samples -= cut;
            if *first == 0 {
                self.runs.pop_front();
            }
        }
    }

    /// An owner's share of the latest `of` samples.
    fn share(&self, owner: Owner, of: u64) -> f64 {
        let (mut own, mut left) = (0, of);
        for (other, samples) in self.runs.iter().rev() {
            let samples = left.min(*samples);
            own += if *other == owner { samples } else { 0 };
            left -= samples;
            if left == 0 {
                break;
            }
        }
        share(own, of - left)
    }
}

/// A share that is never 0: with more samples it might not be.
fn share(own: u64, of: u64) -> f64 {
    (own as f64 + 0.5) / (of as f64 + 1.0)
}

/// Upper bound for a thread's usual share: with nearly all of a core, no run of it would ever be unusual.
const MOST_SHARE: f64 = 0.9;

/// The samples of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Samples {
    pub all: u64,
    /// The most between two pauses.
    pub in_a_row: u64,
    pub pauses: u64,
}

impl Samples {
    /// The probability by chance for a thread with this share of the core.
    pub fn chance(self, share: f64) -> f64 {
        in_a_row(share, self.in_a_row).min(self.with_pauses(share))
    }

    /// The probability for a thread with `own` of `of` samples otherwise.
    pub fn chance_among(self, own: u64, of: u64) -> f64 {
        self.chance(share(own, of))
    }

    /// Whether chance cannot explain them for any share.
    pub fn are_beyond_chance(self, options: &MonopolyOptions) -> bool {
        self.chance(MOST_SHARE) < options.chance
    }

    /// The probability of so few pauses among so many samples. The number of samples between two pauses is geometric (approximated
    /// as exponential), so their sum has a Gamma distribution.
    fn with_pauses(self, share: f64) -> f64 {
        let stretches = self.pauses + 1;
        let sum = self.all.saturating_sub(stretches) as f64 * -share.min(MOST_SHARE).ln();
        if sum <= stretches as f64 {
            return 1.0;
        }
        // The terms may under- or overflow; their logarithms do not.
        let (mut term, mut chance) = (-sum, (-sum).exp());
        for n in 1..stretches {
            term += (sum / n as f64).ln();
            chance += term.exp();
        }
        chance.min(1.0)
    }
}

fn in_a_row(share: f64, samples: u64) -> f64 {
    share.min(MOST_SHARE).powf(samples.saturating_sub(1) as f64)
}

/// Twice as many samples as the run has are considered around it: a thread that comes and goes has a share only there.
pub(super) fn around(samples: u64) -> u64 {
    samples.saturating_mul(2).min(RECENT)
}

/// Tracks the runs of one kind of owner on one core.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    run: Option<Run>,
    /// Others' samples since the run's last. If the run does not continue, theirs begin with them.
    pending: Vec<Step>,
    recent: Recent,
    /// The last two threads on the core, latest first.
    latest: [Option<(Owner, TaskId)>; 2],
    edge: Edge,
}

impl Tracker {
    /// The run in progress.
    pub fn current(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    pub fn take(&mut self, options: &MonopolyOptions, step: Step, follows: Follows, ended: &mut Vec<Run>) {
        if follows.slower
            && let Some(run) = &mut self.run
        {
            run.young_gaps.clear();
        }
        if let Some(silence) = follows.silence {
            let own = self.run.as_ref().is_some_and(|run| run.owner == step.owner) && self.pending.is_empty();
            // A gap as long as the threshold could hide anything.
            if own && follows.lost && silence <= options.threshold {
                if let Some(run) = &mut self.run {
                    run.young_gaps.push(silence.saturating_sub(follows.interval));
                }
            } else {
                self.end_all(options, Edge::Silence, follows.interval, ended);
            }
        } else if !follows.slower
            && let Some(run) = &mut self.run
        {
            run.settle_gaps();
        }
        self.follow(options, step, follows.interval, ended);
    }

    /// Ends the current run, and any that others' samples since began.
    pub fn end_all(&mut self, options: &MonopolyOptions, edge: Edge, interval: u64, ended: &mut Vec<Run>) {
        while self.run.is_some() {
            let pending = self.end(edge, ended);
            for step in pending {
                self.follow(options, step, interval, ended);
            }
        }
        self.edge = edge;
    }

    fn follow(&mut self, options: &MonopolyOptions, step: Step, interval: u64, ended: &mut Vec<Run>) {
        let Some(run) = &mut self.run else {
            self.begin(step, interval);
            return;
        };
        if run.owner == step.owner {
            if step.aside {
                run.aside_since += 1;
                return;
            }
            run.foreign += self.pending.len() as u64;
            for foreign in self.pending.drain(..) {
                self.latest = [self.latest[0], Some((foreign.owner, foreign.task))];
            }
            run.take(&step, interval);
            return;
        }
        let pending = self.pending.len() as u64 + 1;
        // A stopper thread may take a millisecond; alternating threads are no monopoly.
        let brief = pending <= options.pause_intervals && pending.saturating_mul(interval) <= options.pause;
        let few = run.foreign + pending <= 1 + run.samples / 50;
        if step.owner != Owner::Idle && brief && few {
            self.pending.push(step);
            return;
        }
        let edge = if step.owner == Owner::Idle { Edge::Idle } else { Edge::Thread };
        let mut steps = self.end(edge, ended);
        steps.push(step);
        // Terminates: each has fewer pending steps than this one.
        for step in steps {
            self.follow(options, step, interval, ended);
        }
    }

    fn end(&mut self, edge: Edge, ended: &mut Vec<Run>) -> Vec<Step> {
        if let Some(mut run) = self.run.take() {
            run.settle_gaps();
            run.end = edge;
            let near = self.recent.share(run.owner, around(run.samples));
            run.share = self.recent.share(run.owner, RECENT).max(near);
            run.most_in_a_row = run.samples;
            run.others_since = self.pending.len() as u64;
            self.recent.push(run.owner, run.samples);
            ended.push(run);
        }
        std::mem::take(&mut self.pending)
    }

    fn begin(&mut self, step: Step, interval: u64) {
        let edge = match step.owner {
            Owner::Idle => Edge::Idle,
            _ => Edge::Thread,
        };
        let begin = std::mem::replace(&mut self.edge, edge);
        match step.owner {
            Owner::Idle | Owner::Other => self.recent.push(step.owner, 1),
            _ if step.aside => {}
            _ => {
                let other = self.latest.into_iter().flatten().find(|(owner, _)| *owner != step.owner);
                let mut run = Run::new(&step, interval, other.map(|(_, task)| task), begin);
                run.take(&step, interval);
                self.run = Some(run);
            }
        }
        if matches!(step.owner, Owner::Thread(..) | Owner::Named(_)) {
            self.latest = [
                Some((step.owner, step.task)),
                self.latest.into_iter().flatten().find(|(owner, _)| *owner != step.owner),
            ];
        }
    }
}
