//! What the kernel spends its time on, from stack samples of all cores, second by second: see [`coroner_evidence::kernel_work`].
//!
//! A node often starves where nobody looks: a user-space profiler does not see a kubelet whose statistics reads walk 70,000 dead
//! cgroups, an agent that makes the kernel walk page tables of large processes, or packets handled in another process's time. So
//! each core's kernel stack is sampled a few dozen times a second while the node is watched.
//!
//! **Cost.** A sample takes about 25 µs of the sampled core in a virtual machine, including the interrupt: at [`RATE_HZ`] that is
//! 0.12 % of each core. One sample of a core in ten seconds stands for 0.2 % of its time: enough to see a monopolised core, and
//! within seconds a walk that takes a few per cent. The rate has no factor in common with the kernel's own clocks (100, 250, 300,
//! 1,000 Hz), so it does not run in step with them. We read a few kilobytes a second per core. Names cost more than samples: they
//! are looked up when samples are reported, and only if something spends much time in the kernel ([`Naming`]).
//!
//! **Memory.** Each core has a ring of 64 KiB, which holds a second of the deepest possible stacks (127 frames) or six seconds of
//! usual ones: 13 MB with 192 cores. Samples are kept as a tree of addresses (see `batch.rs`), 4 MB at most.

mod batch;
mod blind;
#[cfg(test)]
mod host_tests;
mod rows;
pub(crate) mod symbols;
mod threads;

use std::time::Duration;

use coroner_evidence::perf::{Attr, Fields, HEADER, SideRecord, kind, record_header, sample, sample_bit};
use coroner_evidence::{Evidence, Time};
use rustix::time::ClockId;

use crate::perf::cores::{CoreLosses, EventRequest, ONLINE, SampledCores, online};
use crate::perf::{self, Attributes, Event, flag};
use crate::root::{Root, clock};
use batch::Batch;
use rows::Sampling;
use threads::ThreadNames;

/// Samples per second on each core.
pub const RATE_HZ: u32 = 49;

/// Content of a sample: process and thread, time, call chain.
const SAMPLE_TYPE: u64 = sample_bit::TID | sample_bit::TIME | sample_bit::CALLCHAIN;

/// Bytes of a sample with 127 frames (kernel.perf_event_max_stack) and context markers.
const DEEPEST_SAMPLE: usize = 32 + 130 * 8;

/// How often a long watch reports before its end: each report may cost a read of all symbols.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Whether functions are looked up by name, which costs about 70 ms of CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// If a core was in the kernel for 30 % of a second, a process for 5 % of a core, or all processes for 10 % of a core.
    /// Otherwise it is reported as [`WorkKind::Unnamed`](coroner_evidence::WorkKind::Unnamed).
    IfMuch,
    Always,
}

/// Samples the kernel from [`KernelSampler::start`] to [`KernelSampler::finish`]. If it may not, it says so once and sees
/// nothing.
#[derive(Debug)]
pub struct KernelSampler {
    root: Root,
    rate_hz: u32,
    read_format: u64,
    naming: Naming,
    cores: SampledCores,
    /// Missing samples reported so far.
    lost: u64,
    batch: Batch,
    threads: ThreadNames,
    spent: Duration,
}

impl KernelSampler {
    /// Starts now (`at`). What cannot be seen is noted in the evidence.
    pub fn start(root: &Root, rate_hz: u32, naming: Naming, at: Time, evidence: &mut Evidence) -> KernelSampler {
        let began = clock(ClockId::ThreadCPUTime);
        let rate_hz = perf::allowed_rate(root, rate_hz);
        let mut sampler = KernelSampler {
            root: root.clone(),
            rate_hz,
            read_format: if root.is_live() { read_format(root, rate_hz) } else { 0 },
            naming,
            cores: SampledCores::default(),
            lost: 0,
            batch: Batch::new(at),
            threads: ThreadNames::default(),
            spent: Duration::ZERO,
        };
        if !root.is_live() {
            blind::SAMPLED.not_live(evidence);
            return sampler;
        }
        sampler.follow_cores(evidence);
        // Without symbols samples are useless. Checked second: being allowed to sample comes first.
        if sampler.is_sampling()
            && let Err(error) = symbols::can_be_read(root)
        {
            blind::no_symbols(root, &error, evidence);
            sampler.cores.clear();
        }
        sampler.spent = clock(ClockId::ThreadCPUTime).since(began);
        sampler
    }

    /// Whether it sees anything.
    pub fn is_sampling(&self) -> bool {
        !self.cores.is_empty()
    }

    /// CPU time spent on starting and reading so far, without the samples themselves.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// Reads the rings. Call about once a second.
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

    /// Stops and reports the rest.
    pub fn finish(mut self, at: Time, evidence: &mut Evidence) {
        if !self.is_sampling() {
            return;
        }
        self.cores.stop();
        self.drain(at);
        self.note_losses(at, &self.cores.last_losses(at));
        self.threads.look(&self.root);
        self.tell(at, evidence);
    }

    fn drain(&mut self, at: Time) {
        let (batch, threads) = (&mut self.batch, &mut self.threads);
        let attr = Attr { sample_type: SAMPLE_TYPE, ..Attr::default() };
        self.cores.drain(at, &mut |core, record| {
            let ((kind, misc, _), body) = (record_header(record, false), &record[HEADER..]);
            if kind == kind::SAMPLE {
                if let Some(sample) = sample::parse(Fields::new(body, false), &attr) {
                    batch.add(core, &sample);
                    threads.saw(sample.pid, sample.tid);
                }
            } else if let Some(SideRecord::Named { tid, name, .. }) = SideRecord::parse(kind, misc, body, false) {
                threads.named(tid, name);
            }
        });
        self.note_losses(at, &self.cores.losses(at));
    }

    /// Notes samples newly lost: those without room in the ring, and those throttled by the kernel.
    fn note_losses(&mut self, at: Time, losses: &[CoreLosses]) {
        let missing = |core: &CoreLosses| core.lost.saturating_add(core.held_back(self.rate_hz));
        let all = losses.iter().fold(0u64, |sum, core| sum.saturating_add(missing(core)));
        self.batch.lose(at, all.saturating_sub(self.lost));
        self.lost = self.lost.max(all);
    }

    /// Reports the batch and starts another.
    fn tell(&mut self, at: Time, evidence: &mut Evidence) {
        let batch = std::mem::replace(&mut self.batch, Batch::new(at));
        let length = at.since(batch.from);
        let own = std::process::id();
        let symbols = match self.naming == Naming::Always || batch.is_worth_naming(self.rate_hz, length, own) {
            true => match symbols::read(&self.root, &batch.addresses()) {
                Ok(symbols) => Some(symbols),
                // Unnamed work might be taken for harmless, so report none of it.
                Err(error) => return blind::no_symbols(&self.root, &error, evidence),
            },
            false => None,
        };
        let sampling = Sampling { to: at, rate_hz: self.rate_hz, cores: self.cores.iter().count() as u32 };
        let who = |pid, tid| self.threads.who(pid, tid);
        evidence.kernel_work.extend(rows::kernel_work(&batch, symbols.as_ref(), &sampling, &who));
        self.threads.forget();
    }

    fn follow_cores(&mut self, evidence: &mut Evidence) {
        let Some(online) = online(&self.root) else {
            // Known cores continue.
            if !self.is_sampling() {
                blind::SAMPLED.no_cores(&format!("{ONLINE} does not list the cores"), evidence);
            }
            return;
        };
        perf::more_files(online.len());
        let attributes = attributes(self.rate_hz, self.read_format);
        // An idle core need not tick, and one in user code produces no samples.
        let wanted = EventRequest { attributes, ring_bytes: ring_bytes(self.rate_hz), always_ticks: false };
        if let Err(refused) = self.cores.follow(&online, &wanted, clock(ClockId::Monotonic)) {
            blind::SAMPLED.refused(&self.root, &refused, evidence);
        }
    }
}

/// An event driven by the kernel's CPU clock.
fn attributes(rate_hz: u32, read_format: u64) -> Attributes {
    Attributes {
        kind: perf::TYPE_SOFTWARE,
        config: perf::COUNT_SW_CPU_CLOCK,
        sample_period: u64::from(rate_hz),
        sample_type: SAMPLE_TYPE,
        read_format,
        // Not exclude_idle: it would also drop interrupts served by an idle core.
        // COMM: a process that reads statistics is often gone before we could look up its name.
        flags: flag::DISABLED
            | flag::EXCLUDE_USER
            | flag::COMM
            | flag::FREQUENCY
            | flag::EXCLUDE_CALLCHAIN_USER
            | flag::USE_CLOCKID,
        clock_id: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    }
}

/// Linux 6.0 and later count lost records; older kernels reject the flag with EINVAL.
fn read_format(root: &Root, rate_hz: u32) -> u64 {
    let first = online(root).and_then(|online| online.iter().next()).unwrap_or(0);
    match Event::open(first, &attributes(rate_hz, perf::READ_FORMAT_LOST)) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => 0,
        _ => perf::READ_FORMAT_LOST,
    }
}

/// Room for at least a second of the deepest stacks.
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
    fn a_directory_tree_is_not_sampled() {
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
