//! Real-time threads: which there are, and how much of a core each had lately.

use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{Clocks, Evidence, ThreadKey, Time, Window};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A node has some hundreds, most of them kernel threads (a handful per core).
const MOST: usize = 8192;
/// Each segment describes all threads again and lasts ten minutes: a thread not described for this long is gone.
const FORGOTTEN: Duration = Duration::from_secs(1800);
/// What a thread did before says nothing about this second.
const KEPT: Duration = Duration::from_secs(10);
const MOST_SAMPLES: usize = 64;
/// Real-time threads own a core if they have half of it, as in the finding core-monopolised. The kernel withholds 5 % from them
/// (sched_rt_runtime_us), or more with a smaller budget.
pub const OWNED: f64 = 0.5;
/// Threads are reported later than cores, on a loaded node by a second or so.
pub const LATE: Duration = Duration::from_secs(2);
/// Threads are read some hundred milliseconds apart from cores.
const APART: Duration = Duration::from_millis(300);

#[derive(Debug, Default)]
pub struct RealTimeThreads {
    threads: HashMap<ThreadKey, RealTimeThread>,
    clocks: Option<Clocks>,
}

#[derive(Debug)]
struct RealTimeThread {
    comm: String,
    class: SchedulingClass,
    priority: u8,
    last_told: Time,
    /// Oldest first.
    samples: VecDeque<Ran>,
}

#[derive(Debug, Clone, Copy)]
struct Ran {
    at: Time,
    core: u32,
    run_ns: u64,
}

/// A spinning real-time thread gets this much of a core; the rest goes to others (sched_rt_runtime_us 950000).
const THROTTLED: f64 = 0.95;

/// What real-time threads had of a core.
#[derive(Debug, Clone, PartialEq)]
pub struct RealTimeShare {
    /// All of them together, as a share of time, not of busy time.
    pub share: f64,
    /// The thread with the largest share: `spin[4711] (SCHED_FIFO 50)`.
    pub most: String,
    /// Its name.
    pub comm: String,
    /// From the last but one look at it, for as long as it ran since: it may have stopped before the last look.
    pub ran: Window,
}

impl RealTimeThreads {
    pub fn note(&mut self, fragment: &Evidence) {
        if let Some(clocks) = fragment.clocks.last() {
            self.clocks = Some(*clocks);
        }
        for thread in &fragment.threads {
            if !thread.class.is_real_time() {
                self.threads.remove(&thread.key);
                continue;
            }
            if self.threads.len() >= MOST && !self.threads.contains_key(&thread.key) {
                self.threads.retain(|_, known| thread.at.since(known.last_told) < FORGOTTEN);
                if self.threads.len() >= MOST {
                    continue;
                }
            }
            let known = self.threads.entry(thread.key).or_insert_with(|| RealTimeThread {
                comm: String::new(),
                class: thread.class,
                priority: thread.rt_priority,
                last_told: thread.at,
                samples: VecDeque::new(),
            });
            known.comm.clone_from(&thread.comm);
            (known.class, known.priority, known.last_told) = (thread.class, thread.rt_priority, thread.at);
        }
        for sample in &fragment.thread_samples {
            let Some(thread) = self.threads.get_mut(&sample.key) else { continue };
            let ticks = sample.user_ticks.saturating_add(sample.system_ticks);
            let run_ns = sample.sched.map_or(ticks.saturating_mul(10_000_000), |sched| sched.run_ns);
            if thread.samples.is_empty()
                && let Some(born) = self.clocks.and_then(|clocks| birth(&clocks, sample.key))
                && sample.at.since(born) < KEPT
                && sample.at > born
            {
                // It had run for 0 ns at its birth: so the first look at a young thread already yields a share.
                thread.samples.push_back(Ran { at: born, core: sample.core, run_ns: 0 });
            }
            thread.last_told = sample.at;
            thread.samples.push_back(Ran { at: sample.at, core: sample.core, run_ns });
            while thread.samples.len() > MOST_SAMPLES
                || thread.samples.front().is_some_and(|first| sample.at.since(first.at) > KEPT)
            {
                thread.samples.pop_front();
            }
        }
    }

    /// Their share of a core around this window. `None` if none of them was seen there.
    pub fn share(&self, core: u32, window: Window) -> Option<RealTimeShare> {
        let shares = self.threads.iter().filter_map(|(key, thread)| Some((thread.share(core, window)?, key, thread)));
        let shares: Vec<_> = shares.collect();
        let ((_, ran), key, most) = shares.iter().max_by(|a, b| a.0.0.total_cmp(&b.0.0))?;
        let priority = if most.priority > 0 { format!(" {}", most.priority) } else { String::new() };
        Some(RealTimeShare {
            share: shares.iter().map(|((share, _), _, _)| share).sum(),
            ran: *ran,
            comm: most.comm.clone(),
            most: format!("{}[{}] ({}{priority})", most.comm, key.tid, most.class.as_str()),
        })
    }
}

impl RealTimeThread {
    /// Its share around this window, and when it ran.
    fn share(&self, core: u32, window: Window) -> Option<(f64, Window)> {
        let last = self.samples.iter().rposition(|ran| ran.at <= window.to + APART)?;
        let to = self.samples[last];
        if to.at < window.from || to.core != core {
            return None;
        }
        // The latest look at least half a window earlier: what it did before that must not dilute its share now.
        let long_enough = window.length() / 2;
        let mut earlier = self.samples.range(..last).rev().filter(|ran| to.at.since(ran.at) >= long_enough);
        let from = earlier.next().filter(|from| from.core == core)?;
        let ran = Duration::from_nanos(to.run_ns.saturating_sub(from.run_ns));
        let until = to.at.min(from.at + ran.div_f64(THROTTLED));
        let share = ran.as_nanos() as f64 / to.at.since(from.at).as_nanos().max(1) as f64;
        Some((share, Window { from: from.at, to: until }))
    }
}

/// When a thread started: the kernel gives that in ticks of the clock that keeps running during suspend.
fn birth(clocks: &Clocks, key: ThreadKey) -> Option<Time> {
    let suspended = clocks.boot_ns.checked_sub(clocks.at.0)?;
    key.started.checked_mul(10_000_000)?.checked_sub(suspended).map(Time)
}
