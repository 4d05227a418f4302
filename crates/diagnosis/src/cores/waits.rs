//! Who waited for a core.
//!
//! The kernel adds a wait to schedstat's second field only when it ends (kernel/sched/stats.h, sched_info_arrive and
//! sched_info_dequeue). A thread that still waits is in state `R`, and its run time, slices and ticks stand still: then the
//! time between the samples is the wait.
//!
//! Waiting alone is no harm: on a full node every thread waits its turn, a few milliseconds at a time, and that adds up.
//! Starvation differs from taking turns by the length of a single wait, for which the counters give a lower bound
//! ([`Wait::longest_ns`]).

use super::threads::{ThreadLine, Threads, Who};
use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{Evidence, Order, Source, Time, Window};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// A victim waited at least this long in the window. Some NIC rings overflow in less, and people notice.
pub const VICTIM_WAITED_NS: u64 = 100_000_000;
/// Over a long window, short waits add up that nobody noticed. If no single wait is that long, they must be this share of the
/// window: 100 ms of the usual five seconds.
const VICTIM_WAITED_PART: f64 = 0.02;
/// A single wait of this length is not taking turns among a few: a slice of the fair scheduler is 3 ms (kernel/sched/fair.c,
/// sysctl_sched_base_slice), with tuned's throughput profile 10 to 15 ms.
pub const LONG_WAIT_NS: u64 = 20_000_000;
/// A thread pinned to a crowded core waits at least this share of the time …
pub const CROWDED_WAIT: f64 = 1.0 / 3.0;
/// … and runs at least this share: one that runs less does not need more.
pub const CROWDED_RUN: f64 = 0.1;
/// If the cgroup's CPU quota explains this share of a wait, it is throttling, which has its own code.
const THROTTLED_PART: f64 = 0.5;

/// How long one thread waited for one core between two samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wait {
    pub line: usize,
    /// When it may have waited; at least as long as `ns`.
    pub window: Window,
    pub ns: u64,
    /// The part spent in single waits of at least [`LONG_WAIT_NS`]; a lower bound.
    pub long_ns: u64,
    /// A lower bound of the longest single wait: the mean; what does not fit between the two samples and so was under way at
    /// the first; or as long as it was seen waiting.
    pub longest_ns: u64,
    /// Still waiting when last seen.
    pub open: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Harm {
    /// Kept off the core for a long time at a stretch.
    Starved,
    /// Takes turns on the only core it may run on, and gets far less than it wants.
    Crowded,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Victim {
    pub who: Who,
    pub harm: Harm,
    /// How long it waited for the core.
    pub waited_ns: u64,
    pub longest_ns: u64,
    pub still_waiting: bool,
    #[serde(skip)]
    pub line: usize,
    /// When its longest wait was.
    #[serde(skip)]
    pub window: Window,
    /// When its first long wait began.
    #[serde(skip)]
    pub since: Time,
    /// When its last wait ended, or was seen last.
    #[serde(skip)]
    pub until: Time,
}

/// All waits, by core.
#[derive(Debug, Default)]
pub struct Waits {
    by_core: BTreeMap<u32, Vec<Wait>>,
    /// How long each cgroup was throttled, by path.
    throttled_ns: HashMap<String, u64>,
}

impl Waits {
    pub fn of(evidence: &Evidence, threads: &Threads) -> Waits {
        let mut waits = Waits::default();
        for subject in evidence.counters.subjects(Source::CgroupCpu) {
            if let Some(us) = evidence.counters.moved(Source::CgroupCpu, subject, "throttled_us")
                && us > 0
            {
                waits.throttled_ns.insert(subject.to_owned(), us.saturating_mul(1000));
            }
        }
        for (index, line) in threads.lines.iter().enumerate() {
            // SCHED_IDLE threads asked to run only when no other thread wants to.
            if line.about.is_none_or(|t| t.class != SchedulingClass::Idle) {
                waits.follow(index, line);
            }
        }
        waits
    }

    fn follow(&mut self, index: usize, line: &ThreadLine) {
        let Some(first) = line.samples.first() else { return };
        // Since when every sample has shown it waiting.
        let mut waiting_since: Option<Time> = None;
        for pair in line.samples.windows(2) {
            let [before, after] = pair else { continue };
            let (Some(b), Some(a)) = (before.sched, after.sched) else {
                waiting_since = None;
                continue;
            };
            let nothing_moved = (a.run_ns, a.slices, after.user_ticks, after.system_ticks)
                == (b.run_ns, b.slices, before.user_ticks, before.system_ticks);
            let ended = a.wait_ns.saturating_sub(b.wait_ns);
            let length = after.at.since(before.at).as_nanos() as u64;
            let seen_waiting = waiting_since.map_or(0, |since| before.at.since(since).as_nanos() as u64);

            if ended > 0 {
                // At most `length` of what ended here lies between the samples; the rest is one wait that began before.
                let straddling = seen_waiting.max(ended.saturating_sub(length)).min(ended);
                let slices = a.slices.saturating_sub(b.slices).max(1);
                let mean = ended / slices;
                let rest = ended - straddling;
                let long_ns = if mean >= LONG_WAIT_NS {
                    ended
                } else if straddling >= LONG_WAIT_NS {
                    let rest_mean = rest / slices.saturating_sub(1).max(1);
                    if rest_mean >= LONG_WAIT_NS { ended } else { straddling }
                } else {
                    0
                };
                // Nothing is known of the time before the first sample.
                let watched = after.at.since(first.at).as_nanos() as u64;
                let from = before.at.min(Time(after.at.0.saturating_sub(ended))).max(first.at);
                // It waited where it was seen, unless it moved while it slept.
                let core = if before.core == after.core || before.state == 'R' { Some(before.core) } else { None };
                if let Some(core) = core {
                    self.by_core.entry(core).or_default().push(Wait {
                        line: index,
                        window: Window { from, to: after.at },
                        ns: ended.min(watched),
                        long_ns: long_ns.min(watched),
                        longest_ns: mean.max(straddling).min(watched),
                        open: false,
                    });
                }
            }
            let waits_on = nothing_moved && ended == 0 && before.state == 'R' && after.state == 'R';
            waiting_since =
                if waits_on && before.core == after.core { waiting_since.or(Some(before.at)) } else { None };
        }
        if let (Some(since), Some(last)) = (waiting_since, line.samples.last()) {
            let ns = last.at.since(since).as_nanos() as u64;
            self.by_core.entry(last.core).or_default().push(Wait {
                line: index,
                window: Window { from: since, to: last.at },
                ns,
                long_ns: if ns >= LONG_WAIT_NS { ns } else { 0 },
                longest_ns: ns,
                open: true,
            });
        }
    }

    /// The threads harmed by waiting for a core within these windows, which must not overlap; longest wait first. `run_ns` gives
    /// a thread's run time.
    pub fn victims(
        &self,
        threads: &Threads,
        core: u32,
        windows: &[Window],
        run_ns: impl Fn(usize) -> f64,
    ) -> Vec<Victim> {
        #[derive(Clone, Copy)]
        struct Total {
            ns: u64,
            long_ns: u64,
            longest_ns: u64,
            open: bool,
            window: Window,
            since: Time,
            until: Time,
        }
        let mut by_thread: BTreeMap<usize, Total> = BTreeMap::new();
        let waits = || self.by_core.get(&core).into_iter().flatten();
        for (wait, window) in windows.iter().flat_map(|window| waits().map(move |wait| (wait, window))) {
            let overlap = Window { from: wait.window.from.max(window.from), to: wait.window.to.min(window.to) };
            if overlap.from >= overlap.to {
                continue;
            }
            let most = overlap.length().as_nanos() as u64;
            let total = by_thread.entry(wait.line).or_insert(Total {
                ns: 0,
                long_ns: 0,
                longest_ns: 0,
                open: false,
                window: overlap,
                since: overlap.to,
                until: overlap.to,
            });
            if wait.long_ns > 0 {
                total.since = total.since.min(overlap.from);
            }
            total.ns = total.ns.saturating_add(wait.ns.min(most));
            total.long_ns = total.long_ns.saturating_add(wait.long_ns.min(most));
            let longest = wait.longest_ns.min(most);
            if longest > total.longest_ns {
                total.longest_ns = longest;
                total.window = overlap;
            }
            total.open |= wait.open;
            total.until = total.until.max(overlap.to);
        }
        let length_ns = windows.iter().map(|window| window.length().as_nanos() as u64).fold(0, u64::saturating_add);
        let length = length_ns as f64;
        let mut victims = Vec::new();
        for (line, total) in by_thread {
            // Estimates may overlap; together they are no longer than the windows.
            let ns = total.ns.min(length_ns);
            let long_ns = total.long_ns.min(ns);
            if ns < VICTIM_WAITED_NS {
                continue;
            }
            let enough = VICTIM_WAITED_NS.max((VICTIM_WAITED_PART * length) as u64);
            let thread = &threads.lines[line];
            if self.throttled_ns(thread) as f64 >= THROTTLED_PART * ns as f64 {
                continue;
            }
            let harm = if total.longest_ns >= VICTIM_WAITED_NS || long_ns >= enough {
                Harm::Starved
            } else if !thread.is_kernel()
                && thread.only_core() == Some(core)
                && ns as f64 >= CROWDED_WAIT * length
                && run_ns(line) >= CROWDED_RUN * length
            {
                Harm::Crowded
            } else {
                continue;
            };
            victims.push(Victim {
                who: thread.who(),
                harm,
                waited_ns: if harm == Harm::Starved { long_ns } else { ns },
                longest_ns: total.longest_ns,
                still_waiting: total.open,
                line,
                window: total.window,
                since: total.since.min(total.window.from),
                until: total.until,
            });
        }
        victims.order_by_key(|v| std::cmp::Reverse(v.waited_ns));
        victims
    }

    /// The longest single wait of the threads that pass `of`; a lower bound.
    pub fn longest_ns(&self, of: impl Fn(u32, usize) -> bool) -> u64 {
        let waits = self.by_core.iter().flat_map(|(core, waits)| waits.iter().map(move |w| (*core, w)));
        waits.filter(|(core, w)| of(*core, w.line)).map(|(_, w)| w.longest_ns).max().unwrap_or(0)
    }

    /// The same for one core within a window.
    pub fn longest_within(&self, core: u32, window: Window, of: impl Fn(usize) -> bool) -> u64 {
        let within = |w: &&Wait| w.window.from < window.to && w.window.to > window.from && of(w.line);
        self.by_core.get(&core).into_iter().flatten().filter(within).map(|w| w.longest_ns).max().unwrap_or(0)
    }

    /// Total wait of each thread, by index into [`Threads::lines`]; threads whose quota explains it are left out.
    pub fn by_line(&self, threads: &Threads) -> BTreeMap<usize, u64> {
        let mut by_line: BTreeMap<usize, u64> = BTreeMap::new();
        for wait in self.by_core.values().flatten() {
            let sum = by_line.entry(wait.line).or_default();
            *sum = sum.saturating_add(wait.ns);
        }
        by_line.retain(|&line, ns| (self.throttled_ns(&threads.lines[line]) as f64) < THROTTLED_PART * *ns as f64);
        by_line
    }

    /// The cores that threads waited for.
    pub fn cores(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_core.keys().copied()
    }

    /// The kernel counts throttled time as waiting, too (the thread stays on its queue). The quota may belong to any ancestor
    /// cgroup.
    fn throttled_ns(&self, thread: &ThreadLine) -> u64 {
        let Some(path) = thread.process.and_then(|p| p.cpu_cgroup.as_deref()) else { return 0 };
        if self.throttled_ns.is_empty() {
            return 0;
        }
        let mut longest = 0;
        let mut path = path.trim_end_matches('/');
        while !path.is_empty() {
            longest = longest.max(self.throttled_ns.get(path).copied().unwrap_or(0));
            path = path.rfind('/').map_or("", |at| &path[..at]);
        }
        longest
    }
}
