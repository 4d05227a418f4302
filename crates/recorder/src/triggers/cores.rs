//! Cores that nobody else can use: full in the kernel, or taken by a real-time thread.
//!
//! A core that is full of ordinary programs is everyday work: its run queue takes turns, and it begins no incident.

use super::super::real_time::{LATE, OWNED, RealTimeThreads};
use super::super::trigger::{Over, Trigger};
use super::trigger;
use coroner_diagnosis::Code;
use coroner_diagnosis::cores::timeline::SATURATED;
use coroner_evidence::cores::{MAX_CORES, TICKS_PER_SECOND};
use coroner_evidence::{CoreTicks, Evidence, Time, Window};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Looks come every 100 ms but not exactly: ten steps of 99 ms are a second, too.
const JITTER: Duration = Duration::from_millis(25);
/// A window cuts through its first and its last tick.
const TICK_SLACK: f64 = 1.0;
/// With this part of the time accounted for, the rest is noise of counting (as in the diagnosis).
const ACCOUNTED: f64 = 0.9;
/// A core that was full is so until it had some room: one that hovers about the threshold is the same incident.
const ROOM: f64 = 0.8;
/// Real-time threads have left a core when they had less than a quarter of it.
const LEFT: f64 = 0.25;
/// Bounds what is kept of each core, whatever the configuration says.
const LONGEST: Duration = Duration::from_secs(60);
const MOST_LOOKS: usize = 640;

pub struct CoreTriggers {
    /// Zero: never.
    full_for: Duration,
    cores: BTreeMap<u32, Core>,
}

#[derive(Debug, Default)]
struct Core {
    looks: VecDeque<Look>,
    /// Highest value of each counter so far: idle and iowait step backwards by some ticks.
    highest: [u64; 8],
    /// The latest time that it was full, and whether it was so in the kernel.
    full: Option<(Window, bool)>,
    /// Until when it was full, and full in the kernel, if it was.
    full_until: Time,
    in_kernel_until: Time,
    /// Of the last `full_for`.
    kernel_share: f64,
    fired: Option<Fired>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    at: Time,
    /// Ticks since the first look.
    kernel: u64,
    /// Not stolen ones: what the hypervisor took, nobody on this node used.
    busy: u64,
    all: u64,
}

/// What was told and is not over.
#[derive(Debug, Clone, PartialEq)]
struct Fired {
    since: Time,
    by: FiredBy,
}

#[derive(Debug, Clone, PartialEq)]
enum FiredBy {
    Kernel,
    /// This thread (`spin[4711] (SCHED_FIFO 50)`) had most of it: so long until it was judged last, and seen last then.
    RealTime {
        who: String,
        comm: String,
        held: Duration,
        judged: Time,
        seen: Time,
    },
}

impl CoreTriggers {
    pub fn new(full_for: Duration) -> CoreTriggers {
        CoreTriggers { full_for: full_for.min(LONGEST), cores: BTreeMap::new() }
    }

    pub fn look(
        &mut self,
        fragment: &Evidence,
        real_time: &RealTimeThreads,
        found: &mut Vec<Trigger>,
        over: &mut Vec<Over>,
    ) {
        if self.full_for.is_zero() {
            return;
        }
        for times in &fragment.core_times {
            for ticks in times.cores.iter().filter(|ticks| (ticks.core as usize) < MAX_CORES) {
                self.cores.entry(ticks.core).or_default().take(times.at, ticks, self.full_for);
            }
            // A core that went offline begins anew when it comes back.
            self.cores.retain(|number, core| {
                let stays = core.looks.back().is_some_and(|look| look.at >= times.at);
                if !stays {
                    over.extend(core.end(*number));
                }
                stays
            });
        }
        for (number, core) in &mut self.cores {
            found.extend(core.judge(*number, real_time, self.full_for, over));
        }
    }
}

impl Core {
    fn take(&mut self, at: Time, ticks: &CoreTicks, full_for: Duration) {
        let values =
            [ticks.user, ticks.nice, ticks.system, ticks.irq, ticks.softirq, ticks.steal, ticks.iowait, ticks.idle];
        let mut step = [0; 8];
        for ((step, highest), value) in step.iter_mut().zip(&mut self.highest).zip(values) {
            *step = value.saturating_sub(*highest);
            *highest = value.max(*highest);
        }
        let [user, nice, system, irq, softirq, ..] = step;
        let kernel = system + irq + softirq;
        let look = match self.looks.back() {
            Some(last) if at <= last.at => return,
            Some(last) => {
                let all = step.iter().sum::<u64>();
                let elapsed = at.since(last.at).as_secs_f64() * TICKS_PER_SECOND as f64;
                // More than twice the time that passed is no time: counters of another boot, or a core that was away.
                if all as f64 > 2.0 * elapsed + 20.0 {
                    self.looks.clear();
                    self.highest = values;
                    Look { at, kernel: 0, busy: 0, all: 0 }
                } else {
                    Look {
                        at,
                        kernel: last.kernel + kernel,
                        busy: last.busy + kernel + user + nice,
                        all: last.all + all,
                    }
                }
            }
            None => Look { at, kernel: 0, busy: 0, all: 0 },
        };
        self.looks.push_back(look);
        // One look before the window is enough.
        while self.looks.len() > MOST_LOOKS || self.looks.get(1).is_some_and(|l| at.since(l.at) > full_for + JITTER) {
            self.looks.pop_front();
        }
        let Some(shares) = self.last(full_for) else { return };
        self.kernel_share = shares.kernel;
        if shares.is_full(shares.busy) {
            let in_kernel = shares.is_full(shares.kernel);
            self.full = Some((shares.window, in_kernel));
            self.full_until = at;
            if in_kernel {
                self.in_kernel_until = at;
            }
        }
    }

    /// The last `full_for`, if that much was seen.
    fn last(&self, full_for: Duration) -> Option<Shares> {
        let to = self.looks.back()?;
        let from = self.looks.iter().rev().find(|look| to.at.since(look.at) + JITTER >= full_for)?;
        let elapsed = to.at.since(from.at).as_secs_f64() * TICKS_PER_SECOND as f64;
        let all = (to.all - from.all) as f64;
        let whole = if all >= ACCOUNTED * elapsed { all } else { elapsed };
        Some(Shares {
            window: Window { from: from.at, to: to.at },
            kernel: (to.kernel - from.kernel) as f64 / whole.max(1.0),
            busy: (to.busy - from.busy) as f64 / whole.max(1.0),
            whole,
        })
    }

    fn judge(
        &mut self,
        number: u32,
        real_time: &RealTimeThreads,
        full_for: Duration,
        over: &mut Vec<Over>,
    ) -> Option<Trigger> {
        let now = self.looks.back()?.at;
        let is_over = match &mut self.fired {
            None => false,
            Some(Fired { by: FiredBy::Kernel, .. }) => self.kernel_share < ROOM,
            Some(Fired { by: FiredBy::RealTime { who, held, judged, seen, .. }, .. }) => {
                let lately = Window { from: now - full_for, to: now };
                let had = real_time.share(number, lately);
                let is_it = had.as_ref().is_some_and(|had| had.most == *who);
                let owns = had.as_ref().is_some_and(|had| had.share >= OWNED);
                if is_it && owns {
                    *held += now.since(*judged);
                }
                *judged = now;
                if is_it && had.is_some_and(|had| had.share >= LEFT) {
                    *seen = now;
                }
                // Another one has it now; or it is not to be seen: it sleeps, moved or ended.
                (owns && !is_it) || now.since(*seen) >= full_for + LATE
            }
        };
        if is_over {
            over.extend(self.end(number));
        }
        let (window, in_kernel) = self.full?;
        if self.fired.is_some() || now.since(window.to) > LATE {
            self.full = None;
            return None;
        }
        if let Some(had) = real_time.share(number, window).filter(|had| had.share >= OWNED) {
            let (who, comm, held) = (had.most.clone(), had.comm.clone(), window.length());
            let by = FiredBy::RealTime { who, comm, held, judged: window.to, seen: now };
            let text = format!("{} had core {number} to itself", had.most);
            let begun = self.begin(number, Code::CoreMonopolised, by, window, text);
            return Some(Trigger { by: Some(had.comm), ..begun });
        }
        if in_kernel {
            let text = format!("core {number} was in the kernel without a pause");
            return Some(self.begin(number, Code::CoreSaturated, FiredBy::Kernel, window, text));
        }
        None
    }

    fn begin(&mut self, number: u32, code: Code, by: FiredBy, window: Window, text: String) -> Trigger {
        self.fired = Some(Fired { since: window.from, by });
        let begun = trigger(code, subject(number), Some(number), window.to, text);
        Trigger { since: Some(window.from), ..begun }
    }

    /// What is told when it is over, if anything had begun.
    fn end(&mut self, number: u32) -> Option<Over> {
        let Fired { since, by } = self.fired.take()?;
        let (code, by, lasted, until) = match by {
            FiredBy::Kernel => {
                let until = self.in_kernel_until.max(since);
                (Code::CoreSaturated, None, until.since(since), until)
            }
            FiredBy::RealTime { comm, held, seen, .. } => {
                let until = self.full_until.min(seen).max(since);
                (Code::CoreMonopolised, Some(comm), held.min(until.since(since)), until)
            }
        };
        Some(Over { code: code.as_str().to_owned(), subject: subject(number), by, lasted, until })
    }
}

fn subject(core: u32) -> String {
    format!("core {core}")
}

struct Shares {
    window: Window,
    kernel: f64,
    busy: f64,
    /// Ticks.
    whole: f64,
}

impl Shares {
    fn is_full(&self, share: f64) -> bool {
        share * self.whole >= SATURATED * self.whole - TICK_SLACK
    }
}

#[cfg(test)]
mod tests;
