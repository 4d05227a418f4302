//! Runs: who has a core, sample after sample.

use std::collections::{HashMap, VecDeque};

use super::{Edge, Options};
use crate::model::{StackId, StrId, TaskId};

/// Who a sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// By its numbers, whatever it calls itself.
    Thread(Option<u32>, u32),
    /// By its name, where the file has no numbers.
    Named(StrId),
    Interrupts,
    /// The core idles.
    Idle,
    /// Somebody who is not of interest here.
    Other,
}

/// One sample of a core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub owner: Owner,
    /// It was interrupted: its time is not its own.
    pub aside: bool,
    pub kernel: bool,
    pub task: TaskId,
    pub stack: StackId,
    pub time: u64,
    /// In nanoseconds; 0 if its event does not say.
    pub stands_for: u64,
}

/// How a sample follows the one before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Follows {
    pub interval: u64,
    /// There should have been samples in between.
    pub silence: Option<u64>,
    /// The silence is a loss of samples: the clock ticks on an idle core too, or ticked late because it could not.
    pub lost: bool,
    /// What looked like silence before was a slower rate.
    pub slower: bool,
}

#[derive(Debug)]
pub(super) struct Run {
    pub owner: Owner,
    pub task: TaskId,
    /// The tasks under it with their samples: more than one if the thread changed its name, or for interrupts.
    pub tasks: Vec<(TaskId, u64)>,
    pub start: u64,
    pub last: u64,
    /// Sampling intervals at both ends.
    pub interval: (u64, u64),
    pub samples: u64,
    /// The time that they stand for.
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
    /// The share of the core that its owner had otherwise.
    pub share: f64,
    /// The most samples between two pauses.
    pub most_in_a_row: u64,
    /// Stretches within that others had, or nobody, and that ended nothing: how many, the longest, and all of them, in nanoseconds.
    pub pauses: u64,
    pub longest_pause: u64,
    pub paused: u64,
    /// Others' samples after its last, before it was known that it had ended.
    pub others_since: u64,
    pub stacks: HashMap<StackId, u64>,
}

/// A run of a day has many stacks; the rare ones go when there are more than this.
const MOST_STACKS: usize = 4096;
const MOST_TASKS: usize = 64;

impl Run {
    fn new(first: &Step, interval: u64, before: Option<TaskId>, begin: Edge) -> Run {
        Run {
            owner: first.owner,
            task: first.task,
            tasks: Vec::new(),
            start: first.time,
            last: first.time,
            interval: (interval, interval),
            samples: 0,
            stands_for: 0,
            kernel: 0,
            foreign: 0,
            aside: 0,
            aside_since: 0,
            gaps: 0,
            longest_gap: 0,
            unseen: 0,
            young_gaps: Vec::new(),
            before,
            begin,
            end: Edge::Recording,
            share: 0.0,
            most_in_a_row: 0,
            pauses: 0,
            longest_pause: 0,
            paused: 0,
            others_since: 0,
            stacks: HashMap::new(),
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

    /// Goes on with a run of the same owner, after a pause.
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

    /// The gaps so far were gaps.
    fn settle_gaps(&mut self) {
        for gap in std::mem::take(&mut self.young_gaps) {
            self.gaps += 1;
            self.longest_gap = self.longest_gap.max(gap);
            self.unseen = self.unseen.saturating_add(gap);
        }
    }

    /// Between the first and the last sample, and half an interval before and after.
    pub fn length(&self) -> u64 {
        self.last.saturating_sub(self.start).saturating_add(self.uncertainty())
    }

    pub fn uncertainty(&self) -> u64 {
        self.interval.0 / 2 + self.interval.1 / 2 + (self.interval.0 & self.interval.1 & 1)
    }
}

/// Who had the core of late, to tell what is unusual.
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

    /// The share of an owner in the latest `of` samples.
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

/// A share that is not 0 only because nobody looked longer.
fn share(own: u64, of: u64) -> f64 {
    (own as f64 + 0.5) / (of as f64 + 1.0)
}

/// A thread that has nearly all of a core is taken to leave a tenth: else no run of it would ever be out of the ordinary.
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
    /// How likely they are by chance for one with this share of the core.
    pub fn chance(self, share: f64) -> f64 {
        in_a_row(share, self.in_a_row).min(self.with_pauses(share))
    }

    /// How likely they are for one with `own` of `of` samples otherwise.
    pub fn chance_among(self, own: u64, of: u64) -> f64 {
        self.chance(share(own, of))
    }

    /// Whether they are beyond chance for anybody.
    pub fn are_beyond_chance(self, options: &Options) -> bool {
        self.chance(MOST_SHARE) < options.chance
    }

    /// How likely so few pauses are among so many samples. How many samples come until the next pause is drawn anew each time (a geometric
    /// distribution, here by the continuous one), so their sum has a Gamma distribution.
    fn with_pauses(self, share: f64) -> f64 {
        let stretches = self.pauses + 1;
        let sum = self.all.saturating_sub(stretches) as f64 * -share.min(MOST_SHARE).ln();
        if sum <= stretches as f64 {
            return 1.0;
        }
        // The terms alone may be too small or too large for a number, their logarithms are not.
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

/// Around a run twice as many samples as it has are looked at, besides those of late: who comes and goes has a share only then.
pub(super) fn around(samples: u64) -> u64 {
    samples.saturating_mul(2).min(RECENT)
}

/// Watches one core for runs of one sort of owner.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    run: Option<Run>,
    /// Others' samples since the run's last. If it does not go on, their runs begin with them.
    pending: Vec<Step>,
    recent: Recent,
    /// The two threads that were here last, the later one first.
    latest: [Option<(Owner, TaskId)>; 2],
    edge: Edge,
}

impl Tracker {
    /// What runs now.
    pub fn current(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    pub fn take(&mut self, options: &Options, step: Step, follows: Follows, ended: &mut Vec<Run>) {
        if follows.slower
            && let Some(run) = &mut self.run
        {
            run.young_gaps.clear();
        }
        if let Some(silence) = follows.silence {
            let own = self.run.as_ref().is_some_and(|run| run.owner == step.owner) && self.pending.is_empty();
            // A gap as long as what counts as a monopoly could hide anything.
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

    /// Ends what runs, and what others' samples since may have begun.
    pub fn end_all(&mut self, options: &Options, edge: Edge, interval: u64, ended: &mut Vec<Run>) {
        while self.run.is_some() {
            let pending = self.end(edge, ended);
            for step in pending {
                self.follow(options, step, interval, ended);
            }
        }
        self.edge = edge;
    }

    fn follow(&mut self, options: &Options, step: Step, interval: u64, ended: &mut Vec<Run>) {
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
        // A stopper thread may have a millisecond; two threads that take turns are no monopoly.
        let brief = pending <= options.pause_intervals && pending.saturating_mul(interval) <= options.pause;
        let few = run.foreign + pending <= 1 + run.samples / 50;
        if step.owner != Owner::Idle && brief && few {
            self.pending.push(step);
            return;
        }
        let edge = if step.owner == Owner::Idle { Edge::Idle } else { Edge::Thread };
        let mut steps = self.end(edge, ended);
        steps.push(step);
        // Each has fewer to look at again than this one had.
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
