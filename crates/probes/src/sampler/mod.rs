//! Stacks of everything that runs, on all cores, a few dozen times a second.
//!
//! Each core has one event and one ring. The event is driven by CPU cycles where they can be counted, else by the kernel's clock,
//! and records the kernel and user stack of whatever runs there. The ring also has records of processes that start, end, change
//! name and map code. Records are only passed on here; `coroner_profile::live` interprets them.
//!
//! **Cost.** A sample takes about 25 µs of the sampled core in a virtual machine: at 49 Hz 0.12 % of each core. Reading copies
//! about ten kilobytes per second and core.
//!
//! **Memory.** Rings of 512 KiB on up to 64 cores, smaller on more: 32 MiB at most. At 49 Hz that holds about ten seconds of
//! usual stacks, at 999 Hz half a second. The kernel owns these pages; lost records are counted.
//!
//! **A starved core** cannot keep us from reading: any core can read its ring. We wait for a core only to start or change its
//! event, which that core itself must do.

mod event;
#[cfg(test)]
mod host_tests;

use std::io;
use std::time::Duration;

use coroner_evidence::{CoreSet, Evidence, probe};
use rustix::time::ClockId;

use crate::perf;
use crate::perf::blind::Sampled;
use crate::perf::cores::{EventRequest, ONLINE, SampledCores, online};
use crate::root::{Root, clock};
use event::{Extras, SAMPLE_TYPE, Ticker};

const SAMPLED: Sampled = Sampled { probe: probe::SAMPLES, what: "which functions run on each core (stack samples)" };

pub use crate::perf::cores::CoreLosses;

/// Size of all rings together, and of the largest one.
const RINGS_BYTES: usize = 32 << 20;
const LARGEST_RING: usize = 512 << 10;

/// How long a cycle counter may take to show that it counts.
const COUNTS_WITHIN: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerOptions {
    /// Samples per second on each core.
    pub rate_hz: u32,
}

/// What the records contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFormat {
    /// perf's name for it: `cycles` or `cpu-clock`.
    pub event: &'static str,
    /// PERF_SAMPLE_* bits; all other records end with the subset that sample_id_all adds.
    pub sample_type: u64,
    /// mmap records carry build ids, where files have one, instead of device and inode.
    pub has_build_ids: bool,
}

/// Samples all cores until dropped. If it may not, it says so once and sees nothing.
#[derive(Debug)]
pub struct Sampler {
    root: Root,
    rate_hz: u32,
    ticker: Ticker,
    extras: Extras,
    cores: SampledCores,
}

impl Sampler {
    /// Starts now. What cannot be seen is noted in the evidence.
    pub fn start(root: &Root, options: &SamplerOptions, evidence: &mut Evidence) -> Sampler {
        let mut sampler = Sampler {
            root: root.clone(),
            rate_hz: perf::allowed_rate(root, options.rate_hz),
            ticker: Ticker::CpuClock,
            extras: Extras::None,
            cores: SampledCores::default(),
        };
        if !root.is_live() {
            SAMPLED.not_live(evidence);
            return sampler;
        }
        let Some(online) = online(root) else {
            SAMPLED.no_cores(&format!("{ONLINE} does not list the cores"), evidence);
            return sampler;
        };
        perf::more_files(2 * online.len());
        if !sampler.begin_with(Ticker::Cycles, &online) {
            sampler.begin_with(Ticker::CpuClock, &online);
        }
        // This also reports refused cores.
        sampler.follow(&online, evidence);
        sampler
    }

    /// Starts with this ticker; false if it does not tick.
    fn begin_with(&mut self, ticker: Ticker, online: &CoreSet) -> bool {
        let Some(first) = online.iter().next() else { return false };
        let Ok(extras) = event::best_extras(first, ticker, self.rate_hz) else { return false };
        (self.ticker, self.extras) = (ticker, extras);
        self.follow(online, &mut Evidence::default());
        // In some virtual machines a cycle counter can be opened but never counts. We run on one of the cores, so one must tick.
        let began = clock(ClockId::Monotonic);
        let counts = |sampler: &Sampler| sampler.cores.iter().any(|core| core.count() > 0);
        while !counts(self) {
            if clock(ClockId::Monotonic).since(began) > COUNTS_WITHIN {
                self.cores.clear();
                return false;
            }
        }
        true
    }

    /// Whether it sees anything.
    pub fn is_sampling(&self) -> bool {
        !self.cores.is_empty()
    }

    /// Samples per second on each core, as allowed by the kernel.
    pub fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    pub fn format(&self) -> RecordFormat {
        RecordFormat {
            event: match self.ticker {
                Ticker::Cycles => "cycles",
                Ticker::CpuClock => "cpu-clock",
            },
            sample_type: SAMPLE_TYPE,
            has_build_ids: self.extras.has_build_ids(),
        }
    }

    /// Passes on all complete records in the rings: the core, and one record with its header. Records of one core are in order.
    pub fn drain(&mut self, take: &mut dyn FnMut(u32, &[u8])) {
        self.cores.drain(clock(ClockId::Monotonic), take);
    }

    /// Adds cores that came online and drops those that went offline. Call every few seconds, after [`Sampler::drain`].
    pub fn follow_cores(&mut self, evidence: &mut Evidence) {
        if self.is_sampling()
            && let Some(online) = online(&self.root)
        {
            self.follow(&online, evidence);
        }
    }

    fn follow(&mut self, online: &CoreSet, evidence: &mut Evidence) {
        let wanted = EventRequest {
            attributes: event::attributes(self.ticker, self.rate_hz, self.extras),
            ring_bytes: ring_bytes(online.len()),
            // Cycles do not tick on an idle core, so its silence means nothing.
            always_ticks: self.ticker == Ticker::CpuClock,
        };
        if let Err(refused) = self.cores.follow(online, &wanted, clock(ClockId::Monotonic)) {
            SAMPLED.refused(&self.root, &refused, evidence);
        }
    }

    /// What each core has lost since the start, including cores now offline.
    pub fn losses(&self) -> Vec<CoreLosses> {
        self.cores.losses(clock(ClockId::Monotonic))
    }

    /// Samples one core at another rate until [`Sampler::relax`]. Waits for that core.
    pub fn escalate(&mut self, core: u32, rate_hz: u32) -> io::Result<()> {
        let rate_hz = perf::allowed_rate(&self.root, rate_hz);
        let attributes = event::attributes(self.ticker, rate_hz, self.extras);
        self.cores.core(core)?.escalate(&attributes)
    }

    /// Back to the usual rate.
    pub fn relax(&mut self, core: u32) -> io::Result<()> {
        self.cores.core(core)?.relax()
    }
}

/// A power of two.
fn ring_bytes(cores: usize) -> usize {
    let share = (RINGS_BYTES / cores.max(1)).min(LARGEST_RING);
    1 << share.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_bounded_together() {
        for (cores, each) in [(1, 512 << 10), (2, 512 << 10), (64, 512 << 10), (96, 256 << 10), (1024, 32 << 10)] {
            assert_eq!(ring_bytes(cores), each);
            assert!(each * cores <= RINGS_BYTES);
        }
    }

    #[test]
    fn a_directory_tree_is_not_sampled() {
        let dir = tempfile::tempdir().unwrap();
        let mut evidence = Evidence::default();
        let mut sampler = Sampler::start(&Root::at(dir.path()), &SamplerOptions { rate_hz: 49 }, &mut evidence);
        assert!(!sampler.is_sampling());
        sampler.drain(&mut |_, _| panic!("nothing is there"));
        sampler.follow_cores(&mut evidence);
        assert!(sampler.losses().is_empty());
        assert!(sampler.escalate(0, 999).is_err());
        assert_eq!(evidence.unseen.len(), 1);
        assert_eq!(evidence.unseen[0].probe, probe::SAMPLES);
    }
}
