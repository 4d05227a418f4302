//! Bridges pauses that do not end a run.
//!
//! The kernel throttles real-time threads so that others get some time: before Linux 6.12 for 50 ms of each second
//! (`sched_rt_runtime_us`), whether anybody wants to run or not; since then only while others run, 50 ms per second on average,
//! occasionally 200 or 300 ms at once. Threads kept waiting 19 times as long as they may run are starved, so all of this is one
//! run, reported with the owner's share. Alternating threads differ: neither has nearly all of the time.

use super::run::{Owner, Run, Step};

/// The longest pause.
const LONGEST: u64 = 350_000_000;
/// The thread's time before a pause is at least this many times the pause …
const BEFORE: u64 = 10;
/// … its time right before and right after it this many times …
const BESIDE: u64 = 2;
/// … and its total this many times all pauses.
const OF_ALL: u64 = 8;
/// An idle core has room for everybody. Only a pause that looks like throttling is not the thread's own.
const LONGEST_IDLE: u64 = 110_000_000;
const BEFORE_IDLE: u64 = 800_000_000;
/// Shorter runs are not held back.
const LEAST: u64 = 100_000_000;

/// Holds a run back until it is clear that it does not continue.
#[derive(Debug, Default)]
pub(super) struct Bridge {
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    run: Run,
    /// Length of the latest part without a pause.
    latest: u64,
    /// Others' samples since, and its own that are too few to continue the run.
    foreign: u64,
    own: u64,
    since: Since,
}

/// Sampled time since a run ended, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Since {
    /// Of its own thread.
    pub own: u64,
    pub all: u64,
}

impl Bridge {
    /// Takes the core's next run and passes on those that are over.
    pub fn take(&mut self, run: Run, over: &mut Vec<(Run, Since)>) {
        if let Some(held) = &mut self.held {
            if held.goes_on_with(&run) {
                held.join(run);
                return;
            }
            if run.last <= held.waits_until() {
                // Short, and within what may still be a pause.
                if run.owner == held.run.owner {
                    held.own += run.samples;
                }
                over.push((run, Since::default()));
                return;
            }
        }
        self.close(over);
        if run.length() < LEAST {
            over.push((run, Since::default()));
        } else {
            let (latest, foreign) = (run.length(), run.others_since);
            self.held = Some(Held { run, latest, foreign, own: 0, since: Since::default() });
        }
    }

    /// A sample came that represents `interval`; `current` is the run in progress. A run may turn out to have begun `patience` earlier.
    pub fn look(
        &mut self,
        step: &Step,
        (interval, patience): (u64, u64),
        current: Option<&Run>,
        over: &mut Vec<(Run, Since)>,
    ) {
        let Some(held) = &mut self.held else { return };
        held.since.all = held.since.all.saturating_add(interval);
        let is_own = step.owner == held.run.owner;
        if is_own && !step.aside {
            held.since.own = held.since.own.saturating_add(interval);
        }
        let is_back = current.is_some_and(|run| run.owner == held.run.owner);
        // Others' time while it runs again is counted there.
        if !is_own && !is_back && step.owner != Owner::Idle {
            held.foreign += 1;
        }
        let until = held.waits_until();
        let in_time = current.is_some_and(|run| run.start <= until);
        if !(is_back && in_time) && step.time > until.saturating_add(patience) {
            self.close(over);
        }
    }

    /// The held run's last sample, if it may be over.
    pub fn may_be_over_since(&self, current: Option<&Run>) -> Option<u64> {
        let held = self.held.as_ref()?;
        (!current.is_some_and(|run| held.goes_on_with(run))).then_some(held.run.last)
    }

    /// Ends the held run.
    pub fn close(&mut self, over: &mut Vec<(Run, Since)>) {
        over.extend(self.held.take().map(|held| (held.run, held.since)));
    }
}

impl Held {
    /// The thread's time so far.
    fn had(&self) -> u64 {
        self.run.length().saturating_sub(self.run.paused)
    }

    /// A run that begins later is a separate one.
    fn waits_until(&self) -> u64 {
        let longest = (self.had() / BEFORE).min(self.latest / BESIDE).min(LONGEST);
        self.run.last.saturating_add(longest).saturating_add(self.run.interval.1)
    }

    fn pause_before(&self, next: &Run) -> u64 {
        next.start.saturating_sub(self.run.last).saturating_sub(self.run.interval.1)
    }

    fn goes_on_with(&self, next: &Run) -> bool {
        let pause = self.pause_before(next);
        let busy = (self.foreign + self.own).saturating_mul(self.run.interval.1);
        let idle = busy < pause / 2;
        let all = next.last.saturating_sub(self.run.start);
        next.owner == self.run.owner
            && matches!(next.owner, Owner::Thread(..) | Owner::Named(_))
            && next.start <= self.waits_until()
            && next.length() / BESIDE >= pause
            && all / OF_ALL >= self.run.paused.saturating_add(pause)
            && (!idle || self.had() >= BEFORE_IDLE && pause <= LONGEST_IDLE)
    }

    fn join(&mut self, next: Run) {
        let (pause, latest, others_since) = (self.pause_before(&next), next.length(), next.others_since);
        self.run.join(next, pause);
        self.run.foreign += self.foreign;
        (self.latest, self.foreign, self.own, self.since) = (latest, others_since, 0, Since::default());
    }
}
