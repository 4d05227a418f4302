//! One core, sampled by one event.

use std::collections::VecDeque;

use super::beat::Beat;
use super::pace::{Change, Pace};
use super::pauses::{Bridge, Since};
use super::run::{Follows, Owner, Run, Samples, Step, Tracker, around};
use super::{Absent, By, Edge, Monopoly, MonopolyOptions, SampleKind, Usual, rank};
use crate::model::{Dictionary, Sample, StrId, TaskId};
use coroner_evidence::Order;

const TOP_STACKS: usize = 5;
const TOP_ABSENT: usize = 3;
/// This many earlier times in a row mean that the clock was set back for good.
const BACK_FOR_GOOD: u32 = 3;
/// A kernel thread unseen for longer no longer belongs to this core; nor is one awaited for longer after a run.
const LOOK_AROUND: u64 = 10_000_000_000;
/// A kernel thread seen this often within that time belongs to the core.
const OFTEN: u64 = 3;
const MOST_WORKERS: usize = 32;

#[derive(Debug, Default)]
pub(super) struct CoreWatch {
    core: u32,
    pace: Pace,
    beat: Beat,
    last: Option<u64>,
    /// The time the last sample represents, if its event tells.
    last_stands_for: Option<u64>,
    /// It was seen idle: then silence means lost samples, otherwise it may mean idle.
    idle_seen: bool,
    back: u32,
    threads: Tracker,
    /// The runs of `threads`, held until they are over.
    bridge: Bridge,
    interrupts: Tracker,
    workers: Vec<Worker>,
    /// Recent threads not yet in `workers`.
    sightings: VecDeque<(TaskId, u64)>,
    found: Vec<Monopoly>,
    /// From this position of `found` on, what came after is not yet known.
    open: usize,
    /// Found runs that may still turn out to be chance.
    doubtful: Vec<Doubtful>,
    pub used: u64,
    pub late: u64,
    pub restarts: u64,
    pub by_chance: u64,
    pub not_kept: u64,
}

/// What is known about the sampling rate.
pub(super) struct Rate<'u> {
    /// Of all cores, for events that do not tick on an idle core.
    pub usual: Option<&'u mut Usual>,
    /// The nanoseconds that the sample represents.
    pub stands_for: Option<u64>,
}

/// A run of few samples. If its thread has a share of the core afterwards, it just takes turns with others.
#[derive(Debug)]
struct Doubtful {
    /// Its position in `found`.
    at: usize,
    owner: Owner,
    samples: Samples,
    /// The distance of its samples: later ones may come faster and are weighted down to this rate.
    interval: u64,
    /// Nanoseconds.
    own: u64,
    seen: u64,
}

impl Doubtful {
    /// Samples of its own thread afterwards, and of all, at the run's rate.
    fn afterwards(&self) -> (u64, u64) {
        (self.own / self.interval, self.seen / self.interval)
    }
}

/// A kernel thread that works for this core.
#[derive(Debug)]
struct Worker {
    /// All kworkers of a core count as one.
    name: StrId,
    task: TaskId,
    first: u64,
    last: u64,
    seen: u64,
}

impl CoreWatch {
    pub fn new(core: u32) -> CoreWatch {
        CoreWatch { core, ..CoreWatch::default() }
    }

    pub fn take(
        &mut self,
        options: &MonopolyOptions,
        names: &Dictionary,
        sample: &Sample,
        time: u64,
        kind: SampleKind,
        rate: Rate<'_>,
    ) {
        if self.last.is_some_and(|last| time < last) {
            self.back += 1;
            if self.back < BACK_FOR_GOOD {
                self.late += 1;
                return;
            }
            self.restart(options, names);
        }
        self.back = 0;
        self.used += 1;
        let follows = self.follows(options, time, rate);
        self.idle_seen |= kind == SampleKind::Idle;
        let task = names.task(sample.task);
        let idle_task = task.is_idle_task(&names.strings);
        let owner = match (task.tid, task.pid) {
            _ if idle_task => Owner::Idle,
            (Some(tid), pid) => Owner::Thread(pid, tid),
            (None, _) => Owner::Named(task.comm),
        };
        let aside = kind == SampleKind::Irq;
        let stands_for = self.last_stands_for.unwrap_or(0);
        let kernel = kind == SampleKind::Kernel;
        let step = Step { owner, aside, kernel, task: sample.task, stack: sample.stack, time, stands_for };
        let mut ended = Vec::new();
        for doubtful in &mut self.doubtful {
            let own = doubtful.owner == owner && !aside || doubtful.owner == Owner::Interrupts && aside;
            doubtful.seen = doubtful.seen.saturating_add(self.pace.interval());
            if own {
                doubtful.own = doubtful.own.saturating_add(self.pace.interval());
            }
        }
        self.threads.take(options, step, follows, &mut ended);
        let mut over = Vec::new();
        ended.drain(..).for_each(|run| self.bridge.take(run, &mut over));
        self.bridge.look(&step, (self.pace.interval(), options.pause), self.threads.current(), &mut over);
        let owner = match kind {
            SampleKind::Irq => Owner::Interrupts,
            SampleKind::Idle => Owner::Idle,
            _ => Owner::Other,
        };
        let step = Step { owner, aside: false, kernel: aside, ..step };
        self.interrupts.take(options, step, follows, &mut ended);
        self.decide(false);
        over.into_iter().for_each(|(run, since)| self.end(options, names, run, since));
        ended.into_iter().for_each(|run| self.end(options, names, run, Since::default()));
        if !idle_task {
            self.sightings.push_back((sample.task, time));
        }
        // The end of a run is known only some samples later, or after a possible pause.
        let over_since = self.bridge.may_be_over_since(self.threads.current()).unwrap_or(u64::MAX);
        while self.sightings.len() as u64 > options.pause_intervals.saturating_add(1)
            && self.sightings.front().is_some_and(|(_, time)| *time <= over_since)
        {
            self.see_next(names);
        }
    }

    fn follows(&mut self, options: &MonopolyOptions, time: u64, rate: Rate<'_>) -> Follows {
        let off_beat = rate.stands_for.is_some_and(|period| self.beat.is_off(time, period));
        // If the rate changes, use the slower one.
        let stands_for = rate.stands_for.max(std::mem::replace(&mut self.last_stands_for, rate.stands_for));
        let Some(last) = self.last.replace(time) else {
            return Follows { interval: 0, silence: None, lost: false, slower: false };
        };
        let distance = time.saturating_sub(last);
        let known = self.pace.interval();
        let change = self.pace.add(distance);
        let mut interval = if known == 0 || change == Change::Slower { self.pace.interval() } else { known };
        let mut lost = true;
        if let Some(usual) = rate.usual {
            usual.add(distance);
            interval = interval.min(usual.interval().saturating_mul(2));
            lost = false;
        } else if let Some(stands_for) = stands_for.filter(|_| !self.idle_seen) {
            interval = interval.min(stands_for);
            lost = off_beat;
        }
        let silent = interval > 0 && distance > interval.saturating_mul(options.pause_intervals.max(1));
        Follows { interval, silence: silent.then_some(distance), lost, slower: change == Change::Slower }
    }

    /// The clock went back: what follows is unrelated to what was.
    fn restart(&mut self, options: &MonopolyOptions, names: &Dictionary) {
        self.restarts += 1;
        self.close(options, names, Edge::Recording);
        self.threads = Tracker::default();
        self.interrupts = Tracker::default();
        self.workers.clear();
        self.pace = Pace::default();
        self.beat = Beat::default();
        self.last = None;
    }

    fn close(&mut self, options: &MonopolyOptions, names: &Dictionary, edge: Edge) {
        let mut ended = Vec::new();
        self.threads.end_all(options, edge, self.pace.interval(), &mut ended);
        let mut over = Vec::new();
        ended.drain(..).for_each(|run| self.bridge.take(run, &mut over));
        self.bridge.close(&mut over);
        over.into_iter().for_each(|(run, since)| self.end(options, names, run, since));
        self.interrupts.end_all(options, edge, self.pace.interval(), &mut ended);
        ended.into_iter().for_each(|run| self.end(options, names, run, Since::default()));
        while !self.sightings.is_empty() {
            self.see_next(names);
        }
        for found in &mut self.found[self.open..] {
            settle(found);
        }
        self.decide(true);
        self.drop_chance(options);
        self.open = self.found.len();
    }

    /// Sets the probability of doubtful runs once enough was seen, or of all.
    fn decide(&mut self, all: bool) {
        let found = &mut self.found;
        self.doubtful.retain(|doubtful| {
            let found = &mut found[doubtful.at];
            let (own, seen) = doubtful.afterwards();
            let open = seen < around(found.samples) && !all;
            if !open {
                found.chance = found.chance.max(doubtful.samples.chance_among(own, seen));
            }
            open
        });
    }

    /// Drops runs that may be chance.
    fn drop_chance(&mut self, options: &MonopolyOptions) {
        let before = self.found.len();
        self.found.retain(|found| found.chance < options.chance);
        self.by_chance += (before - self.found.len()) as u64;
    }

    pub fn finish(mut self, options: &MonopolyOptions, names: &Dictionary) -> Vec<Monopoly> {
        self.close(options, names, Edge::Recording);
        self.found
    }

    fn end(&mut self, options: &MonopolyOptions, names: &Dictionary, run: Run, since: Since) {
        let length = run.length();
        if length.saturating_sub(run.unseen).saturating_sub(run.paused) < options.threshold || run.samples < 2 {
            return;
        }
        // It may have slept between its samples.
        let is_thin = run.stands_for > 0 && run.stands_for.saturating_mul(2) < length;
        if is_thin && !self.idle_seen {
            return;
        }
        let chance = run.samples().chance(run.share);
        if chance >= options.chance {
            self.by_chance += 1;
            return;
        }
        let mut stacks: Vec<_> = run.stacks.iter().map(|(stack, count)| (*stack, *count)).collect();
        stacks.order_by_key(|(stack, count)| (std::cmp::Reverse(*count), *stack));
        stacks.truncate(TOP_STACKS);
        let mut tasks = run.tasks.clone();
        tasks.order_by_key(|(task, samples)| (std::cmp::Reverse(*samples), *task));
        let task = tasks.first().map_or(run.task, |(task, _)| *task);
        let by = if run.owner == Owner::Interrupts { By::Interrupts } else { By::Thread };
        let comm = names.task(task).comm;
        let other_name = |task: &TaskId| by == By::Interrupts || names.task(*task).comm != comm;
        let share = |count: u64| count as f64 / run.samples as f64;
        self.found.push(Monopoly {
            core: self.core,
            by,
            task,
            also: tasks[1..].iter().map(|(task, _)| *task).filter(other_name).take(TOP_STACKS).collect(),
            start: run.start,
            length,
            uncertainty: run.uncertainty(),
            begin: run.begin,
            end: run.end,
            samples: run.samples,
            foreign: run.foreign,
            interrupts: run.aside,
            kernel: share(run.kernel),
            gaps: run.gaps,
            longest_gap: run.longest_gap,
            unseen: run.unseen,
            pauses: run.pauses,
            longest_pause: run.longest_pause,
            paused: run.paused,
            chance,
            before: run.before,
            after: None,
            absent: self.absent(&run),
            stacks: stacks.into_iter().map(|(stack, count)| (stack, share(count))).collect(),
        });
        let samples = run.samples();
        if !samples.are_beyond_chance(options) {
            let (at, interval) = (self.found.len() - 1, (length / run.samples).max(1));
            let Since { own, all: seen } = since;
            self.doubtful.push(Doubtful { at, owner: run.owner, samples, interval, own, seen });
        }
        if self.found.len() >= options.most.saturating_mul(2).max(16) {
            self.found[self.open..].iter_mut().for_each(settle);
            self.decide(true);
            self.drop_chance(options);
            rank(&mut self.found);
            self.not_kept += self.found.len().saturating_sub(options.most) as u64;
            self.found.truncate(options.most);
            self.open = self.found.len();
        }
    }

    /// The kernel threads that ran here before the run and not during it.
    fn absent(&self, run: &Run) -> Vec<Absent> {
        let often = |worker: &&Worker| {
            worker.seen >= OFTEN && worker.last < run.start && worker.last.saturating_add(LOOK_AROUND) > run.start
        };
        let absent = |worker: &Worker| Absent {
            task: worker.task,
            length: run.last.saturating_sub(worker.last),
            came_back: false,
            usual: worker.last.saturating_sub(worker.first) / (worker.seen - 1).max(1),
        };
        self.workers.iter().filter(often).map(absent).collect()
    }

    /// Notes the current thread, for ended and future runs.
    fn see_next(&mut self, names: &Dictionary) {
        let Some((id, time)) = self.sightings.pop_front() else { return };
        let task = names.task(id);
        let name = worker_name(names.strings.get(task.comm)).map(|_| task.comm);
        let same =
            |a: StrId, b: StrId| a == b || worker_name(names.strings.get(a)) == worker_name(names.strings.get(b));
        let mut still_open = self.found.len();
        for (at, found) in self.found.iter_mut().enumerate().skip(self.open) {
            let own = names.task(found.task);
            if time <= found.end_time().saturating_sub(found.uncertainty) {
                still_open = still_open.min(at);
                continue;
            }
            let is_own = found.by == By::Thread && own.tid == task.tid && (own.tid.is_some() || own.comm == task.comm);
            if found.after.is_none() && !is_own {
                found.after = Some(id);
            }
            if let Some(name) = name {
                for absent in found.absent.iter_mut().filter(|absent| !absent.came_back) {
                    if same(names.task(absent.task).comm, name) {
                        let last = found.start.saturating_add(found.length).saturating_sub(found.uncertainty);
                        absent.length = absent.length.saturating_add(time.saturating_sub(last));
                        absent.came_back = true;
                    }
                }
            }
            let waits = found.after.is_none() || found.absent.iter().any(|absent| !absent.came_back);
            if waits && time < found.end_time().saturating_add(LOOK_AROUND) {
                still_open = still_open.min(at);
            } else {
                settle(found);
            }
        }
        self.open = still_open;
        let Some(name) = name else { return };
        let new = Worker { name, task: id, first: time, last: time, seen: 1 };
        match self.workers.iter().position(|worker| same(worker.name, name)) {
            Some(at) if self.workers[at].last.saturating_add(LOOK_AROUND) > time => {
                let worker = &mut self.workers[at];
                worker.task = id;
                worker.last = time;
                worker.seen += 1;
            }
            Some(at) => self.workers[at] = new,
            None => {
                if self.workers.len() >= MOST_WORKERS {
                    self.workers.retain(|worker| worker.last.saturating_add(LOOK_AROUND) > time);
                }
                if self.workers.len() < MOST_WORKERS {
                    self.workers.push(new);
                }
            }
        }
    }
}

/// Keeps the absences that are longer than the run and than usual.
fn settle(found: &mut Monopoly) {
    let length = found.length;
    found.absent.retain(|absent| absent.length >= length && absent.length > absent.usual.saturating_mul(2));
    found.absent.order_by_key(|absent| (std::cmp::Reverse(absent.length), absent.task));
    found.absent.truncate(TOP_ABSENT);
}

/// The name of a per-core kernel thread without its variable part.
fn worker_name(comm: &str) -> Option<&str> {
    if let Some(rest) = comm.strip_prefix("kworker/") {
        // `kworker/3:1-events` is per core; `kworker/u8:2` works for any core.
        let (core, _) = rest.split_once(':')?;
        return core.bytes().all(|byte| byte.is_ascii_digit()).then(|| &comm[.."kworker/".len() + core.len()]);
    }
    let fixed = ["ksoftirqd/", "napi/", "rcuc/", "ktimers/", "irq/"];
    fixed.iter().any(|prefix| comm.starts_with(prefix)).then_some(comm)
}
