//! How often each probe runs: often for a short watch, rarely for one of months.

use super::pace::Pace;
use crate::waits::WaitPace;
use std::time::Duration;

pub const CORES_EVERY: Duration = Duration::from_millis(100);

/// When each probe on the caller's thread is due.
#[derive(Debug)]
pub struct Paces {
    pub turn: Duration,
    pub hot_threads: Pace,
    /// Hot threads kept off a core, where hot threads are read only once a second.
    pub waiting_threads: Option<Pace>,
    pub all_threads: Pace,
    pub counters: Pace,
    pub softirqs: Pace,
    /// A table of cores × interrupts, so its cost grows with the square of the node's size.
    pub interrupts: Pace,
    pub nic_counters: Pace,
    /// Which core serves a queue changes rarely: irqbalance moves interrupts every 10 s.
    pub nic_map: Pace,
    pub cgroups: Pace,
    /// The sample rings hold a few seconds; reading too late loses samples.
    pub kernel_work: Pace,
    pub waits: WaitPace,
}

/// A probe may use this share of one core: 1/200 = 0.5 %.
const PROBE_SHARE: u32 = 200;
/// The scan of all threads finds the owner of a starved core, so with thousands of threads it may use 2 %.
const ALL_THREADS_SHARE: u32 = 50;

/// Reading samples late saves nothing.
const KERNEL_WORK_SHARE: u32 = 1;

/// In a recorder each probe may use 0.1 %, the scan of all threads 0.4 %: stack samples name the owner of a core meanwhile.
const RECORDER_SHARE: u32 = 1000;
const RECORDER_THREADS_SHARE: u32 = 250;

impl Paces {
    /// For a watch of seconds or minutes.
    pub fn close() -> Paces {
        let pace = |millis, share| Pace::new(Duration::from_millis(millis), share);
        Paces {
            turn: Duration::from_millis(200),
            hot_threads: pace(200, PROBE_SHARE),
            waiting_threads: None,
            all_threads: pace(1000, ALL_THREADS_SHARE),
            counters: pace(1000, PROBE_SHARE),
            // More often than the others: whether a full core still handles packets must be known within its second.
            softirqs: pace(200, PROBE_SHARE),
            interrupts: pace(2000, PROBE_SHARE),
            nic_counters: pace(1000, PROBE_SHARE),
            nic_map: pace(10_000, PROBE_SHARE),
            cgroups: pace(1000, PROBE_SHARE),
            kernel_work: pace(1000, KERNEL_WORK_SHARE),
            waits: WaitPace::CLOSE,
        }
    }

    /// For an endless watch.
    pub fn recorder() -> Paces {
        let pace = |millis, share| Pace::new(Duration::from_millis(millis), share);
        Paces {
            turn: Duration::from_millis(250),
            hot_threads: pace(1000, RECORDER_SHARE),
            // At each turn. On a healthy node there are none.
            waiting_threads: Some(pace(0, RECORDER_SHARE)),
            all_threads: pace(5000, RECORDER_THREADS_SHARE),
            counters: pace(1000, RECORDER_SHARE),
            softirqs: pace(1000, RECORDER_SHARE),
            interrupts: pace(10_000, RECORDER_SHARE),
            nic_counters: pace(2000, RECORDER_SHARE),
            nic_map: pace(60_000, RECORDER_SHARE),
            cgroups: pace(2000, RECORDER_SHARE),
            kernel_work: pace(1000, KERNEL_WORK_SHARE),
            waits: WaitPace::RECORDER,
        }
    }
}
