//! What the finder must find: threads that take a core for themselves at random times, among threads that share. Each working
//! thread reads the clock all the time and records when it was on which core. The finder never sees these records.

use crate::random::Random;
use anyhow::{Context, bail};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: u64 = 1_000_000;
/// A thread with a longer gap between clock readings was off its core, if the kernel counted a switch.
const PAUSE: u64 = 2 * MS;
/// Shorter stretches do not matter.
const NOTED: u64 = 20 * MS;

pub fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Context switches of this thread.
fn switches() -> i64 {
    // SAFETY: getrusage writes one rusage into the zeroed struct that we own; all-zero is a valid rusage.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    usage.ru_nvcsw + usage.ru_nivcsw
}

/// A thread's own records.
struct Notes {
    what: &'static str,
    tid: i32,
    text: String,
    all: Arc<Mutex<String>>,
}

impl Notes {
    fn new(what: &'static str, all: &Arc<Mutex<String>>) -> Notes {
        Notes { what, tid: gettid().as_raw_nonzero().get(), text: String::new(), all: all.clone() }
    }

    /// Works until a given time.
    fn work(&mut self, until: u64) {
        let mut start = monotonic_ns();
        let mut last = start;
        let mut core = sched_getcpu();
        let mut seen = switches();
        while last < until {
            let mut sum = 0u64;
            for n in 0..500u64 {
                sum = std::hint::black_box(sum.wrapping_add(n * n));
            }
            let now = monotonic_ns();
            if now - last > PAUSE {
                // Without a switch, the hypervisor or an interrupt had the core: no other thread ran here.
                let switched = std::mem::replace(&mut seen, switches()) != seen;
                if switched {
                    self.note(core, start, last);
                    start = now;
                    core = sched_getcpu();
                }
            } else if core != sched_getcpu() {
                self.note(core, start, last);
                start = now;
                core = sched_getcpu();
            } else {
                // Do not count short switches for the next long pause.
                if now / (10 * MS) != last / (10 * MS) {
                    seen = switches();
                }
            }
            last = now;
        }
        self.note(core, start, last);
    }

    fn note(&mut self, core: usize, start: u64, end: u64) {
        if end.saturating_sub(start) >= NOTED {
            let _ = writeln!(self.text, "{} {} {core} {start} {end}", self.what, self.tid);
        }
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        if let Ok(mut all) = self.all.lock() {
            all.push_str(&self.text);
        }
    }
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

/// Makes the calling thread real-time.
fn real_time(policy: i32) -> bool {
    let parameter = libc::sched_param { sched_priority: 20 };
    // SAFETY: reads one sched_param that we own.
    unsafe { libc::sched_setscheduler(0, policy, &parameter) == 0 }
}

fn name(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.to_owned())
}

/// Works for `seconds` and writes `what tid core start end` (nanoseconds of CLOCK_MONOTONIC) for each stretch to `truth`.
pub fn run(seed: u64, seconds: u64, threshold_ms: u64, truth: &Path) -> anyhow::Result<()> {
    // If our parent is gone, nobody needs the load.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let policy_allowed = std::thread::spawn(|| real_time(libc::SCHED_FIFO)).join();
    if !policy_allowed.is_ok_and(|allowed| allowed) {
        bail!("real-time threads are not allowed here: run as root");
    }
    let mut draw = Random::new(seed);
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let notes = Arc::new(Mutex::new(String::new()));
    let stop = Arc::new(AtomicBool::new(false));
    let end = monotonic_ns() + seconds * 1000 * MS;
    let mut threads = Vec::new();
    for core in &cores {
        let core = *core;
        // Two that never pause and share, so neither is ever alone on a core.
        for _ in 0..2 {
            let notes = notes.clone();
            threads.push(name("sharer").spawn(move || {
                pin(core);
                Notes::new("sharer", &notes).work(end);
            })?);
        }
        let (work, pause) = (draw.between(MS, 8 * MS), draw.between(MS, 6 * MS));
        let (notes, stop) = (notes.clone(), stop.clone());
        threads.push(name("server").spawn(move || {
            pin(core);
            let mut notes = Notes::new("server", &notes);
            while monotonic_ns() < end && !stop.load(Ordering::Relaxed) {
                notes.work(monotonic_ns() + work);
                std::thread::sleep(Duration::from_nanos(pause));
            }
        })?);
    }
    let mut at = monotonic_ns() + 500 * MS;
    let mut bursts = Vec::new();
    while at + 1200 * MS < end {
        let core = cores[draw.below(cores.len() as u64) as usize];
        let (what, policy, length) = match draw.below(10) {
            // Just too short.
            0 | 1 => ("short", libc::SCHED_FIFO, threshold_ms * draw.between(50, 90) / 100),
            // Not real-time: it shares the core.
            2 => ("fair", libc::SCHED_OTHER, draw.between(200, 800)),
            n => ("burst", if n % 2 == 0 { libc::SCHED_FIFO } else { libc::SCHED_RR }, draw.between(60, 800)),
        };
        bursts.push((at, core, what, policy, length * MS));
        at += length * MS + draw.between(100, 900) * MS;
    }
    // One thread per burst, started before its time; some sleep and do the next burst as well.
    for core in &cores {
        for (what, policy) in [
            ("burst", libc::SCHED_FIFO),
            ("burst", libc::SCHED_RR),
            ("short", libc::SCHED_FIFO),
            ("fair", libc::SCHED_OTHER),
        ] {
            let mine: Vec<(u64, u64)> = bursts
                .iter()
                .filter(|burst| burst.1 == *core && burst.2 == what && burst.3 == policy)
                .map(|burst| (burst.0, burst.4))
                .collect();
            let (core, notes) = (*core, notes.clone());
            threads.push(name(what).spawn(move || {
                pin(core);
                if policy != libc::SCHED_OTHER {
                    real_time(policy);
                }
                let mut notes = Notes::new(what, &notes);
                for (at, length) in mine {
                    std::thread::sleep(Duration::from_nanos(at.saturating_sub(monotonic_ns())));
                    notes.work(monotonic_ns() + length);
                }
            })?);
        }
    }
    for thread in threads {
        if thread.join().is_err() {
            bail!("a thread of the load failed");
        }
    }
    stop.store(true, Ordering::Relaxed);
    let notes = notes.lock().map_err(|_| anyhow::anyhow!("notes"))?;
    std::fs::write(truth, notes.as_bytes()).with_context(|| truth.display().to_string())
}
