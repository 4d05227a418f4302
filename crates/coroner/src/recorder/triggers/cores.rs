//! Cores that nobody else can use: full in the kernel, or taken by a real-time thread.
//!
//! A core that is full of ordinary programs is everyday work: its run queue takes turns, and it begins no incident.

use super::super::trigger::Trigger;
use super::real_time::RealTimeThreads;
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
/// Real-time threads own a core of which they have half, as in the finding core-monopolised. The kernel takes 5 % from them
/// (sched_rt_runtime_us), or more with a smaller budget.
const OWNED: f64 = 0.5;
/// … and have left it when they had less than a quarter.
const LEFT: f64 = 0.25;
/// Threads are told later than cores, on a loaded node by a second or so.
const LATE: Duration = Duration::from_secs(2);
/// Bounds what is kept of each core, whatever the configuration says.
const LONGEST: Duration = Duration::from_secs(60);
const MOST_LOOKS: usize = 640;

pub struct CoreTriggers {
    /// Zero: never.
    full_for: Duration,
    cores: BTreeMap<u32, Core>,
    real_time: RealTimeThreads,
}

#[derive(Debug, Default)]
struct Core {
    looks: VecDeque<Look>,
    /// Highest value of each counter so far: idle and iowait step backwards by some ticks.
    highest: [u64; 8],
    /// The latest time that it was full, and whether it was so in the kernel.
    full: Option<(Window, bool)>,
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

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fired {
    Kernel,
    /// Last seen then.
    RealTime(Time),
}

impl CoreTriggers {
    pub fn new(full_for: Duration) -> CoreTriggers {
        CoreTriggers { full_for: full_for.min(LONGEST), cores: BTreeMap::new(), real_time: RealTimeThreads::default() }
    }

    pub fn look(&mut self, fragment: &Evidence, found: &mut Vec<Trigger>) {
        if self.full_for.is_zero() {
            return;
        }
        self.real_time.note(fragment);
        for times in &fragment.core_times {
            for ticks in times.cores.iter().filter(|ticks| (ticks.core as usize) < MAX_CORES) {
                self.cores.entry(ticks.core).or_default().take(times.at, ticks, self.full_for);
            }
            // A core that went offline begins anew when it comes back.
            self.cores.retain(|_, core| core.looks.back().is_some_and(|look| look.at >= times.at));
        }
        for (number, core) in &mut self.cores {
            found.extend(core.judge(*number, &self.real_time, self.full_for));
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
        if self.fired == Some(Fired::Kernel) && shares.kernel < ROOM {
            self.fired = None;
        }
        if shares.is_full(shares.busy) {
            self.full = Some((shares.window, shares.is_full(shares.kernel)));
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

    fn judge(&mut self, number: u32, real_time: &RealTimeThreads, full_for: Duration) -> Option<Trigger> {
        let now = self.looks.back()?.at;
        if let Some(Fired::RealTime(seen)) = self.fired {
            let lately = Window { from: now - full_for, to: now };
            match real_time.share(number, lately) {
                Some(had) if had.share >= LEFT => self.fired = Some(Fired::RealTime(now)),
                // Not to be seen: it sleeps, moved or ended.
                _ if now.since(seen) >= full_for + LATE => self.fired = None,
                _ => {}
            }
        }
        let (window, in_kernel) = self.full?;
        if self.fired.is_some() || now.since(window.to) > LATE {
            self.full = None;
            return None;
        }
        let subject = format!("core {number}");
        let seconds = window.length().as_secs_f64();
        if let Some(had) = real_time.share(number, window).filter(|had| had.share >= OWNED) {
            self.fired = Some(Fired::RealTime(now));
            let text = format!("{} had core {number} for itself for {seconds:.1} s", had.most);
            let trigger = trigger(Code::CoreMonopolised, subject, Some(number), window.to, text);
            return Some(Trigger { by: Some(had.comm), ..trigger });
        }
        if in_kernel {
            self.fired = Some(Fired::Kernel);
            let text = format!("core {number} was in the kernel for {seconds:.1} s without a pause");
            return Some(trigger(Code::CoreSaturated, subject, Some(number), window.to, text));
        }
        None
    }
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
