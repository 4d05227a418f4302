//! When a probe runs next: after its interval, or later if it is expensive here.

use crate::root::{clock, now};
use coroner_evidence::Time;
use rustix::time::ClockId;
use std::time::Duration;

#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    /// It may use 1/share of a core.
    share: u32,
    last: Time,
    /// The wait that the last turn's cost requires.
    owed: Duration,
    next: Time,
}

impl Pace {
    pub fn new(interval: Duration, share: u32) -> Pace {
        Pace { interval, share, last: Time(0), owed: Duration::ZERO, next: Time(0) }
    }

    pub fn is_due(&self) -> bool {
        now() >= self.next
    }

    /// Runs the probe and delays its next turn according to its cost.
    pub fn pay(&mut self, probe: impl FnOnce(Time)) {
        let at = now();
        let cpu = clock(ClockId::ThreadCPUTime);
        probe(at);
        let cost = clock(ClockId::ThreadCPUTime).since(cpu);
        self.put_off(at, cost);
    }

    /// For a probe whose work is done elsewhere: records its cost.
    pub fn put_off(&mut self, at: Time, cost: Duration) {
        (self.last, self.owed) = (at, cost.saturating_mul(self.share));
        self.next = at + self.interval.max(self.owed);
    }

    /// Moves the next turn forward to this long after the last one, but not before that one's cost is paid.
    pub fn hasten(&mut self, interval: Duration) {
        self.next = self.next.min(self.last + interval.max(self.owed));
    }
}
