//! Cores that nothing else can use: full of kernel work, or taken by a real-time thread.
//!
//! A core full of ordinary programs is normal: its run queue takes turns. It triggers no incident.

use super::super::real_time::{LATE, OWNED, RealTimeThreads};
use super::super::trigger::{Over, Trigger};
use super::trigger;
use coroner_diagnosis::Code;
use coroner_diagnosis::cores::timeline::{CoreLine, LOOK_JITTER_NS, Saturation, Timeline};
use coroner_diagnosis::key::{KeySubject, key};
use coroner_evidence::{Time, Window};
use std::collections::BTreeMap;
use std::time::Duration;

/// A full core counts as full until it is below this for a second: hovering around the threshold is one incident.
const ROOM: f64 = 0.8;
/// Real-time threads have left a core once they have less than this of it.
const LEFT: f64 = 0.25;
/// Its owner is determined over the last part of a long stretch only: real-time threads are remembered for ten seconds.
const LONGEST_ASKED: Duration = Duration::from_secs(5);

pub struct CoreTriggers {
    /// Zero: never.
    full_for: Duration,
    cores: BTreeMap<u32, Core>,
}

#[derive(Debug, Default)]
struct Core {
    fired: Option<Fired>,
    /// Everything up to here was reported: a stretch that ended before triggers nothing.
    told_until: Time,
}

/// Reported, and not over.
#[derive(Debug, Clone, PartialEq)]
struct Fired {
    since: Time,
    by: FiredBy,
}

#[derive(Debug, Clone, PartialEq)]
enum FiredBy {
    Kernel,
    /// This thread (`spin[4711] (SCHED_FIFO 50)`) had most of it.
    RealTime {
        who: String,
        comm: String,
        /// How long it ran there, and until when, by the last look at it.
        held: Duration,
        ran_until: Time,
        /// When it was last seen there.
        seen: Time,
    },
}

impl CoreTriggers {
    pub fn new(full_for: Duration) -> CoreTriggers {
        CoreTriggers { full_for, cores: BTreeMap::new() }
    }

    pub fn look(
        &mut self,
        cores: &Timeline,
        real_time: &RealTimeThreads,
        found: &mut Vec<Trigger>,
        over: &mut Vec<Over>,
    ) {
        let Some(now) = cores.newest().filter(|_| !self.full_for.is_zero()) else { return };
        for (number, line) in &cores.lines {
            let core = self.cores.entry(*number).or_default();
            match cores.is_online(*number) {
                true => found.extend(core.judge(*number, line, now, real_time, self.full_for, over)),
                false => over.extend(core.end(*number, line)),
            }
        }
    }
}

impl CoreTriggers {
    /// Whether a core was reported at this time or later.
    pub fn told_of(&self, core: u32, since: Time) -> bool {
        self.cores.get(&core).is_some_and(|core| core.fired.is_some() || core.told_until >= since)
    }
}

impl Core {
    fn judge(
        &mut self,
        number: u32,
        line: &CoreLine,
        now: Time,
        real_time: &RealTimeThreads,
        full_for: Duration,
        over: &mut Vec<Over>,
    ) -> Option<Trigger> {
        let is_over = match &mut self.fired {
            None => false,
            Some(Fired { by: FiredBy::Kernel, .. }) => {
                line.last_second().is_some_and(|shares| shares.taken(Saturation::Kernel) < ROOM)
            }
            Some(Fired { by: FiredBy::RealTime { who, held, ran_until, seen, .. }, .. }) => {
                let lately = full_for.min(LONGEST_ASKED);
                let had = real_time.share(number, Window { from: now - lately, to: now });
                let owns = had.as_ref().is_some_and(|had| had.share >= OWNED);
                let it = had.filter(|had| had.most == *who);
                if let Some(had) = &it {
                    *held += had.ran.to.since(had.ran.from.max(*ran_until));
                    *ran_until = had.ran.to.max(*ran_until);
                    if had.share >= LEFT {
                        *seen = now;
                    }
                }
                // Another thread has the core, or this one was not seen: it sleeps, moved or exited.
                (owns && it.is_none()) || now.since(*seen) >= full_for + LATE
            }
        };
        if is_over {
            over.extend(self.end(number, line));
        }
        if self.fired.is_some() {
            return None;
        }
        // The last part of the stretch, if it is new and long enough.
        let full = |of: Saturation, at_most: Duration| {
            let window = line.latest(of)?.window;
            let is_new = window.to > self.told_until && now.since(window.to) <= LATE;
            let is_long = window.length() + Duration::from_nanos(LOOK_JITTER_NS) >= full_for;
            (is_new && is_long).then(|| Window { from: window.from.max(window.to - at_most), to: window.to })
        };
        let window = full(Saturation::Busy, full_for.min(LONGEST_ASKED))?;
        if let Some(had) = real_time.share(number, window).filter(|had| had.share >= OWNED) {
            let by = FiredBy::RealTime {
                who: had.most.clone(),
                comm: had.comm.clone(),
                held: had.ran.to.min(window.to).since(window.from),
                ran_until: had.ran.to,
                seen: now,
            };
            let text = format!("{} had core {number} to itself", had.most);
            let begun = self.begin(number, Code::CoreMonopolised, by, window, text);
            let key = key(Code::CoreMonopolised, Some(KeySubject::Command(&had.comm)));
            return Some(Trigger { by: Some(had.comm), key, ..begun });
        }
        let window = full(Saturation::Kernel, full_for)?;
        let text = format!("core {number} was full of kernel work");
        Some(self.begin(number, Code::CoreSaturated, FiredBy::Kernel, window, text))
    }

    fn begin(&mut self, number: u32, code: Code, by: FiredBy, window: Window, text: String) -> Trigger {
        self.fired = Some(Fired { since: window.from, by });
        let begun = trigger(code, None, subject(number), Some(number), window.to, text);
        Trigger { since: Some(window.from), ..begun }
    }

    /// The end of what was reported, if anything was.
    fn end(&mut self, number: u32, line: &CoreLine) -> Option<Over> {
        let until = |of: Saturation| line.latest(of).map_or(Time(0), |full| full.window.to);
        let Fired { since, by } = self.fired.take()?;
        self.told_until = until(Saturation::Busy).max(until(Saturation::Kernel));
        let (code, by, lasted, until) = match by {
            FiredBy::Kernel => {
                let until = until(Saturation::Kernel).max(since);
                (Code::CoreSaturated, None, until.since(since), until)
            }
            FiredBy::RealTime { comm, held, ran_until, .. } => {
                let until = until(Saturation::Busy).min(ran_until).max(since);
                (Code::CoreMonopolised, Some(comm), held.min(until.since(since)), until)
            }
        };
        Some(Over { code: code.as_str().to_owned(), subject: subject(number), by, lasted, until })
    }
}

fn subject(core: u32) -> String {
    format!("core {core}")
}

#[cfg(test)]
mod tests;
