//! Stacks of everything that runs, on all cores, some dozen times a second.
//!
//! Each core has one event and one ring. The event ticks by the processor's cycles where they can be counted, else by the kernel's
//! clock, and leaves a record with the stack of whoever runs there, kernel and user; beside the samples stand records of processes that
//! begin, end, are named and map code. Here records are only handed on: `coroner_profile::live` knows what they mean.
//!
//! **What it costs.** A sample takes about 25 µs of the sampled core in a virtual machine: at 49 Hz 0.12 % of each core.
//! Reading is copying some ten kilobytes a second and core.
//!
//! **Memory.** Rings of 512 KiB on up to 64 cores, smaller ones on more: 32 MiB at most. At 49 Hz that is some ten seconds of usual stacks,
//! at 999 Hz half a second. The kernel owns these pages; what it had no room for is counted.
//!
//! **A starved core** cannot keep us from reading: its ring is memory that any core can read. Nothing here waits for a core, but
//! for beginning or changing its event, which is done by that core itself.

mod blind;
mod core;
#[cfg(test)]
mod host_tests;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use coroner_evidence::{CoreSet, Evidence};
use rustix::time::ClockId;

use crate::perf;
use crate::root::{Root, clock};
use core::{Extras, SAMPLE_TYPE, SampledCore, Ticker};

/// All rings together, and the largest one.
const RINGS_BYTES: usize = 32 << 20;
const LARGEST_RING: usize = 512 << 10;

/// An online core that says nothing for so long was switched off and on in between: its event is dead.
const SILENT: Duration = Duration::from_secs(10);

/// How long a counter of cycles may take to show that it counts.
const COUNTS_WITHIN: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerOptions {
    /// Samples a second of each core.
    pub rate_hz: u32,
}

/// What the records contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFormat {
    /// As perf names it: `cycles` or `cpu-clock`.
    pub event: &'static str,
    /// PERF_SAMPLE_* bits; all other records end with those of them that sample_id_all adds.
    pub sample_type: u64,
    /// Records of mapped files have their build ids instead of device and inode, where they have one.
    pub has_build_ids: bool,
}

/// What one core did not tell, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreLosses {
    pub core: u32,
    /// Records, of whatever kind, that found no room in the ring.
    pub lost: u64,
    /// How long the kernel stopped sampling, because samples took too much of its time.
    pub throttled_ns: u64,
}

/// Samples all cores until it is dropped. Where it may not, it says so once and sees nothing.
#[derive(Debug)]
pub struct Sampler {
    root: Root,
    rate_hz: u32,
    ticker: Ticker,
    extras: Extras,
    cores: Vec<SampledCore>,
    /// What cores that went have lost.
    gone: BTreeMap<u32, CoreLosses>,
}

impl Sampler {
    /// Begins now. What cannot be seen is noted in the evidence.
    pub fn start(root: &Root, options: &SamplerOptions, evidence: &mut Evidence) -> Sampler {
        let mut sampler = Sampler {
            root: root.clone(),
            rate_hz: perf::allowed_rate(root, options.rate_hz),
            ticker: Ticker::CpuClock,
            extras: Extras::None,
            cores: Vec::new(),
            gone: BTreeMap::new(),
        };
        if !root.is_live() {
            blind::not_live(evidence);
            return sampler;
        }
        let Some(online) = sampler.online() else {
            blind::no_cores(&format!("{ONLINE} does not say which cores there are"), evidence);
            return sampler;
        };
        perf::more_files(2 * online.len());
        if !sampler.begin_with(Ticker::Cycles, &online) {
            sampler.begin_with(Ticker::CpuClock, &online);
        }
        // Also says what is refused.
        sampler.follow(&online, evidence);
        sampler
    }

    /// Chooses a ticker and begins, if it ticks.
    fn begin_with(&mut self, ticker: Ticker, online: &CoreSet) -> bool {
        let Some(first) = online.iter().next() else { return false };
        let Ok(extras) = core::best_extras(first, ticker, self.rate_hz) else { return false };
        (self.ticker, self.extras) = (ticker, extras);
        self.follow(online, &mut Evidence::default());
        // In some virtual machines a counter of cycles can be had that never counts. Our own work is on one of the cores.
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

    /// Samples a second of each core, as the kernel allows it.
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

    /// Hands on all whole records that are in the rings: the core, and one record with its header. Records of one core are in order.
    pub fn drain(&mut self, take: &mut dyn FnMut(u32, &[u8])) {
        let now = clock(ClockId::Monotonic);
        for core in &mut self.cores {
            core.drain(now, take);
        }
    }

    /// Begins with cores that came, and lets go of those that went; about once a second, after [`Sampler::drain`].
    pub fn follow_cores(&mut self, evidence: &mut Evidence) {
        if self.is_sampling()
            && let Some(online) = self.online()
        {
            self.follow(&online, evidence);
        }
    }

    fn online(&self) -> Option<CoreSet> {
        self.root.read_line(ONLINE).as_deref().and_then(CoreSet::parse_list).filter(|online| !online.is_empty())
    }

    fn follow(&mut self, online: &CoreSet, evidence: &mut Evidence) {
        let now = clock(ClockId::Monotonic);
        // Cycles stand still on an idle core: its silence says nothing.
        let dead = |core: &SampledCore| self.ticker == Ticker::CpuClock && now.since(core.heard) > SILENT;
        let (stay, went) = std::mem::take(&mut self.cores)
            .into_iter()
            .partition::<Vec<_>, _>(|core| online.contains(core.number) && !dead(core));
        self.cores = stay;
        for core in went {
            let losses = core.last_losses(now);
            let sum = self.gone.entry(core.number).or_insert(CoreLosses { core: core.number, ..CoreLosses::default() });
            sum.lost = sum.lost.saturating_add(losses.lost);
            sum.throttled_ns = sum.throttled_ns.saturating_add(losses.throttled_ns);
        }
        let attributes = core::attributes(self.ticker, self.rate_hz, self.extras);
        let ring_bytes = ring_bytes(online.len());
        let (mut refused, mut error) = (0, None);
        for number in online.iter() {
            if self.cores.iter().any(|core| core.number == number) {
                continue;
            }
            let opened = SampledCore::open(number, &attributes, ring_bytes, now);
            match opened.and_then(|core| core.enable().map(|()| core)) {
                Ok(core) => self.cores.push(core),
                // It went offline in this moment.
                Err(gone) if gone.raw_os_error() == Some(libc::ENODEV) => {}
                Err(why) => {
                    refused += 1;
                    let denied = matches!(why.raw_os_error(), Some(libc::EACCES | libc::EPERM));
                    error = Some(why);
                    // It is the same on all others.
                    if denied {
                        refused = online.len() - self.cores.len();
                        break;
                    }
                }
            }
        }
        self.cores.sort_by_key(|core| core.number);
        if let Some(error) = error {
            blind::refused(&self.root, &error, refused, online.len(), evidence);
        }
    }

    /// What each core has lost since the start, those that went included.
    pub fn losses(&self) -> Vec<CoreLosses> {
        let now = clock(ClockId::Monotonic);
        let mut all = self.gone.clone();
        for core in &self.cores {
            let losses = core.losses(now);
            let sum = all.entry(core.number).or_insert(CoreLosses { core: core.number, ..CoreLosses::default() });
            sum.lost = sum.lost.saturating_add(losses.lost);
            sum.throttled_ns = sum.throttled_ns.saturating_add(losses.throttled_ns);
        }
        all.into_values().collect()
    }

    /// Samples one core at another rate, until [`Sampler::relax`]. Waits for that core.
    pub fn escalate(&mut self, core: u32, rate_hz: u32) -> io::Result<()> {
        let rate_hz = perf::allowed_rate(&self.root, rate_hz);
        let attributes = core::attributes(self.ticker, rate_hz, self.extras);
        self.core(core)?.escalate(&attributes)
    }

    /// Back to the usual rate.
    pub fn relax(&mut self, core: u32) -> io::Result<()> {
        self.core(core)?.relax()
    }

    fn core(&mut self, number: u32) -> io::Result<&mut SampledCore> {
        let found = self.cores.iter_mut().find(|core| core.number == number);
        found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("core {number} is not sampled")))
    }
}

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// A power of two.
fn ring_bytes(cores: usize) -> usize {
    let share = (RINGS_BYTES / cores.max(1)).min(LARGEST_RING);
    1 << share.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::probe;

    #[test]
    fn rings_are_bounded_together() {
        for (cores, each) in [(1, 512 << 10), (2, 512 << 10), (64, 512 << 10), (96, 256 << 10), (1024, 32 << 10)] {
            assert_eq!(ring_bytes(cores), each);
            assert!(each * cores <= RINGS_BYTES);
        }
    }

    #[test]
    fn a_directory_is_not_sampled() {
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
