//! What the kernel is at work on, by samples of its stacks on all cores, second by second: see [`coroner_evidence::kernel_work`].
//!
//! What starves a node is often where nobody looks: a profiler of user space sees nothing of a kubelet whose reads of statistics walk over
//! 70,000 dead cgroups, of an agent that has the page tables of large processes read, or of packets that are handled in somebody
//! else's time. So each core's kernel stack is looked at some dozen times a second while the node is watched.
//!
//! **What it costs.** A sample takes about 25 µs of the sampled core in a virtual machine, the interrupt included: at
//! [`RATE_HZ`] that is 0.12 % of each core. One sample of one core in ten seconds is 0.2 % of that core: enough to see a monopolised
//! core, and in seconds a walk that takes a few per cent. The rate has no factor in common with the kernel's own clocks (100, 250,
//! 300, 1,000 Hz), so that it does not run in step with what they do. Our own part is reading a few kilobytes a second for each core.
//! Names cost more than samples: they are asked for when the samples are told, and only if somebody is much in the kernel
//! ([`Naming`]).
//!
//! **Memory.** Each core has a ring of 64 KiB, in which a second of the deepest stacks there are (127 frames) fits and six seconds of usual
//! ones: 13 MB with 192 cores. Samples are kept as a tree of addresses (see `batch.rs`), 4 MB at most.

mod batch;
mod blind;
#[cfg(test)]
mod host_tests;
mod record;
mod rows;
mod symbols;
mod threads;

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use coroner_evidence::{CoreSet, Evidence, Time};
use rustix::time::ClockId;

use crate::perf::{self, Attributes, Event, Ring, flag, sample};
use crate::root::{Root, clock};
use batch::Batch;
use record::Record;
use rows::Sampling;
use symbols::Symbols;
use threads::ThreadNames;

/// Samples a second of each core.
pub const RATE_HZ: u32 = 49;

/// A sample with 127 frames (kernel.perf_event_max_stack) and its marks.
const DEEPEST_SAMPLE: usize = 32 + 130 * 8;

/// What was seen is told at the end, and of a long watch so often: each time may cost a look at all symbols.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Whether functions are looked up by name, which costs some 70 ms of CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// If some core was in the kernel for 30 % of a second, or some process for 2 % of the time. Else what is little is told as
    /// [`WorkKind::Unnamed`](coroner_evidence::WorkKind::Unnamed).
    IfMuch,
    /// Also if it is little.
    Always,
}

/// Samples the kernel from [`KernelSampler::start`] to [`KernelSampler::finish`]. Where it may not, it says so once and
/// sees nothing.
#[derive(Debug)]
pub struct KernelSampler {
    root: Root,
    rate_hz: u32,
    naming: Naming,
    cores: Vec<SampledCore>,
    /// All that were sampled for a while: cores come and go.
    ever: BTreeSet<u32>,
    batch: Batch,
    threads: ThreadNames,
    spent: Duration,
}

#[derive(Debug)]
struct SampledCore {
    number: u32,
    ring: Ring,
    /// By records of losses, for kernels that do not count them.
    lost: u64,
    throttled_since: Option<u64>,
    held_back_ns: u64,
    /// Of what it missed, so much is told already.
    told: u64,
}

impl KernelSampler {
    /// Begins now (`at`). What cannot be seen is noted in the evidence.
    pub fn start(root: &Root, rate_hz: u32, naming: Naming, at: Time, evidence: &mut Evidence) -> KernelSampler {
        let began = clock(ClockId::ThreadCPUTime);
        let mut sampler = KernelSampler {
            root: root.clone(),
            rate_hz: perf::allowed_rate(root, rate_hz),
            naming,
            cores: Vec::new(),
            ever: BTreeSet::new(),
            batch: Batch::new(at),
            threads: ThreadNames::default(),
            spent: Duration::ZERO,
        };
        if !root.is_live() {
            blind::not_live(evidence);
            return sampler;
        }
        sampler.follow_cores(evidence);
        // Without symbols samples mean nothing. The permission to sample is asked for first.
        if !sampler.cores.is_empty()
            && let Err(error) = symbols::can_be_read(root)
        {
            blind::no_symbols(root, &error, evidence);
            sampler.cores.clear();
        }
        let cores = sampler.cores.len();
        let mut error = None;
        sampler.cores.retain(|core| core.ring.enable().map_err(|why| error = Some(why)).is_ok());
        if let Some(error) = error {
            blind::refused(root, &error, cores - sampler.cores.len(), cores, evidence);
        }
        sampler.ever = sampler.cores.iter().map(|core| core.number).collect();
        sampler.spent = clock(ClockId::ThreadCPUTime).since(began);
        sampler
    }

    /// Whether it sees anything.
    pub fn is_sampling(&self) -> bool {
        !self.cores.is_empty()
    }

    /// CPU time that starting and reading has taken so far, without the samples themselves.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// Takes what is in the rings; about once a second.
    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        if !self.is_sampling() {
            return;
        }
        let began = clock(ClockId::ThreadCPUTime);
        self.drain(at);
        self.follow_cores(evidence);
        self.threads.look(&self.root);
        if self.batch.is_full() || at.since(self.batch.from) >= TELL_EVERY {
            self.tell(at, evidence);
        }
        self.spent += clock(ClockId::ThreadCPUTime).since(began);
    }

    /// Ends it and writes down what was seen since the start.
    pub fn finish(mut self, at: Time, evidence: &mut Evidence) {
        if !self.is_sampling() {
            return;
        }
        for core in &self.cores {
            let _ = core.ring.disable();
        }
        self.drain(at);
        for core in &mut self.cores {
            // Now that it is off, the core need not be asked.
            core.lost = core.lost.max(core.ring.lost().unwrap_or(0));
            self.batch.lose(at, core.missed(at, self.rate_hz));
        }
        self.threads.look(&self.root);
        self.tell(at, evidence);
    }

    fn drain(&mut self, at: Time) {
        let (batch, threads) = (&mut self.batch, &mut self.threads);
        for core in &mut self.cores {
            let SampledCore { number, ring, lost, throttled_since, held_back_ns, .. } = core;
            let sound = ring.drain(|bytes| match record::parse(bytes) {
                Some(Record::Sample(sample)) => {
                    batch.add(*number, &sample);
                    threads.saw(sample.pid, sample.tid);
                }
                Some(Record::Lost(more)) => *lost = lost.saturating_add(more),
                Some(Record::Throttled(since)) => *throttled_since = Some(since),
                Some(Record::Unthrottled(until)) => {
                    let held = throttled_since.take().map_or(0, |since| until.saturating_sub(since));
                    *held_back_ns = held_back_ns.saturating_add(held);
                }
                Some(Record::Named(tid, name)) => threads.named(tid, name),
                Some(Record::Other) | None => {}
            });
            *lost = lost.saturating_add(u64::from(!sound));
            batch.lose(at, core.missed(at, self.rate_hz));
        }
    }

    /// Writes down the batch, and begins another.
    fn tell(&mut self, at: Time, evidence: &mut Evidence) {
        let batch = std::mem::replace(&mut self.batch, Batch::new(at));
        let length = at.since(batch.from);
        let own = std::process::id();
        let symbols = match self.naming == Naming::Always || batch.is_worth_naming(self.rate_hz, length, own) {
            true => match Symbols::read(&self.root, batch.addresses()) {
                Ok(symbols) => Some(symbols),
                // What nobody can tell apart must not be taken for something harmless.
                Err(error) => return blind::no_symbols(&self.root, &error, evidence),
            },
            false => None,
        };
        let sampling = Sampling { to: at, rate_hz: self.rate_hz, cores: self.ever.len() as u32 };
        let comm = |pid, tid| self.threads.name(pid, tid);
        evidence.kernel_work.extend(rows::kernel_work(&batch, symbols.as_ref(), &sampling, &comm));
        self.threads.forget();
    }

    /// Begins with cores that came, and lets go of those that went.
    fn follow_cores(&mut self, evidence: &mut Evidence) {
        const ONLINE: &str = "/sys/devices/system/cpu/online";
        let online = match self.root.read_line(ONLINE).as_deref().map(CoreSet::parse_list) {
            Some(Some(online)) => online,
            // Those that are known go on.
            _ if !self.cores.is_empty() => return,
            _ => return blind::no_cores(&format!("{ONLINE} does not say which cores there are"), evidence),
        };
        let now = clock(ClockId::Monotonic);
        let rate_hz = self.rate_hz;
        let (stay, went) =
            std::mem::take(&mut self.cores).into_iter().partition::<Vec<_>, _>(|core| online.contains(core.number));
        self.cores = stay;
        for mut core in went {
            core.lost = core.lost.max(core.ring.lost().unwrap_or(0));
            self.batch.lose(now, core.missed(now, rate_hz));
        }

        let (mut refused, mut error) = (0, None);
        let known: BTreeSet<u32> = self.cores.iter().map(|core| core.number).collect();
        let began = !self.ever.is_empty();
        for number in online.iter().filter(|number| !known.contains(number)) {
            let ring = open_ring(number, rate_hz).and_then(|ring| {
                // The first ones begin together.
                if began {
                    ring.enable()?;
                    self.ever.insert(number);
                }
                Ok(ring)
            });
            match ring {
                Ok(ring) => {
                    let begun = SampledCore { number, ring, lost: 0, throttled_since: None, held_back_ns: 0, told: 0 };
                    self.cores.push(begun);
                }
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
        if let Some(error) = error {
            blind::refused(&self.root, &error, refused, online.len(), evidence);
        }
    }
}

impl SampledCore {
    /// Samples that the kernel had no room for, and those it held back to save time, since this was asked last.
    fn missed(&mut self, now: Time, rate_hz: u32) -> u64 {
        let still = self.throttled_since.map_or(0, |since| now.0.saturating_sub(since));
        let held_ns = u128::from(self.held_back_ns.saturating_add(still));
        let held = held_ns * u128::from(rate_hz) / 1_000_000_000;
        let all = self.lost.saturating_add(u64::try_from(held).unwrap_or(u64::MAX));
        let more = all.saturating_sub(self.told);
        self.told = self.told.max(all);
        more
    }
}

/// One event by the kernel's own clock, which is not counting yet.
fn open_ring(core: u32, rate_hz: u32) -> io::Result<Ring> {
    let attributes = |read_format| Attributes {
        kind: perf::TYPE_SOFTWARE,
        config: perf::COUNT_SW_CPU_CLOCK,
        sample_period: u64::from(rate_hz),
        // What a record of a sample holds, in this order: process and thread, time, and the chain of return addresses.
        sample_type: sample::TID | sample::TIME | sample::CALLCHAIN,
        read_format,
        // Not exclude_idle: it would also drop interrupts served by an idle core.
        // With a record of each exec: who reads statistics is often gone before we could ask for its name.
        flags: flag::DISABLED
            | flag::EXCLUDE_USER
            | flag::COMM
            | flag::FREQUENCY
            | flag::EXCLUDE_CALLCHAIN_USER
            | flag::USE_CLOCKID,
        clock_id: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    };
    // How many were lost is told from Linux 6.0 on; before, such a wish is refused with EINVAL.
    let event = match Event::open(core, &attributes(perf::READ_FORMAT_LOST)) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Event::open(core, &attributes(0))?,
        event => event?,
    };
    Ring::of(event, ring_bytes(rate_hz))
}

/// Room for more than a second of the deepest stacks.
fn ring_bytes(rate_hz: u32) -> usize {
    let second = rate_hz as usize * DEEPEST_SAMPLE;
    second.next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::probe;

    #[test]
    fn rings_hold_a_second_of_the_deepest_stacks() {
        let bytes = ring_bytes(RATE_HZ);
        assert!(bytes >= RATE_HZ as usize * DEEPEST_SAMPLE);
        assert!(192 * bytes <= 16 << 20, "{bytes}");
    }

    #[test]
    fn a_directory_is_not_sampled() {
        let dir = tempfile::tempdir().unwrap();
        let mut evidence = Evidence::default();
        let mut sampler = KernelSampler::start(&Root::at(dir.path()), RATE_HZ, Naming::Always, Time(1), &mut evidence);
        assert!(!sampler.is_sampling());
        sampler.look(Time(2), &mut evidence);
        sampler.finish(Time(3), &mut evidence);
        assert!(evidence.kernel_work.is_empty(), "nothing seen is not zero");
        assert!(evidence.why_unseen(probe::KERNEL_SAMPLES).is_some());
    }
}
