//! How much of the kernel's work goes into memory cgroups and reclaim, by samples of its stacks on all cores.
//!
//! Dead cgroups cost most where nobody looks: a profiler of user space sees nothing of a kubelet whose reads of statistics
//! walk over 70,000 of them. So each core's kernel stack is looked at some dozen times a second while the node is watched, and what is
//! found is summed up at once: [`KernelSamples`] has the counts, who it was, and the innermost functions. What the two
//! counts mean is said in `symbols.rs`.
//!
//! **What it costs.** A sample takes about 25 µs of the sampled core in a virtual machine, the interrupt included: at
//! [`RATE_HZ`] that is 0.12 % of each core. One sample of one core in ten seconds is 0.2 % of that core: enough to see a monopolised core, and in
//! seconds a walk that takes a few per cent. The rate has no factor in common with the kernel's own clocks (100, 250, 300, 1,000 Hz),
//! so that it does not run in step with what they do. Our own part is reading a few kilobytes a second for each core.
//!
//! **Memory.** Each core has a ring of 64 KiB, in which a second of the deepest stacks there are (127 frames) fits and six seconds of usual
//! ones: 13 MB with 192 cores. Of the symbols only some two hundred address ranges are kept.

mod blind;
#[cfg(test)]
mod host_tests;
mod record;
mod symbols;
mod tally;

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use coroner_evidence::{CoreSet, Evidence, Time};
use rustix::time::ClockId;

use crate::perf::{self, Attributes, Event, Ring, flag, sample};
use crate::root::{Root, clock};
use record::Record;
use symbols::Symbols;
use tally::Tally;

/// Samples a second of each core.
pub const RATE_HZ: u32 = 49;

/// A sample with 127 frames (kernel.perf_event_max_stack) and its marks.
const DEEPEST_SAMPLE: usize = 32 + 130 * 8;

const MOST_TASKS: usize = 8;
const MOST_SYMBOLS: usize = 12;

/// A process that had ended before its name could be asked for.
const GONE: &str = "(gone)";

/// Names of tasks are sought as long as these live; so many at each look.
const NAMES_EACH_LOOK: usize = 256;

/// Samples the kernel from [`KernelSampler::start`] to [`KernelSampler::finish`]. Where it may not, it says so once and
/// sees nothing.
#[derive(Debug)]
pub struct KernelSampler {
    root: Root,
    rate_hz: u32,
    from: Time,
    symbols: Symbols,
    cores: Vec<SampledCore>,
    /// All that were sampled for a while: cores come and go.
    ever: BTreeSet<u32>,
    tally: Tally,
    lost: u64,
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
}

impl KernelSampler {
    /// Begins now (`at`). What cannot be seen is noted in the evidence.
    pub fn start(root: &Root, rate_hz: u32, at: Time, evidence: &mut Evidence) -> KernelSampler {
        let began = clock(ClockId::ThreadCPUTime);
        let mut sampler = KernelSampler {
            root: root.clone(),
            rate_hz: perf::allowed_rate(root, rate_hz),
            from: at,
            symbols: Symbols::default(),
            cores: Vec::new(),
            ever: BTreeSet::new(),
            tally: Tally::default(),
            lost: 0,
            spent: Duration::ZERO,
        };
        if !root.is_live() {
            blind::not_live(evidence);
            return sampler;
        }
        sampler.follow_cores(evidence);
        // Without symbols samples mean nothing. They take longest, so the permission to sample is asked for first.
        if !sampler.cores.is_empty() {
            match Symbols::read(root) {
                Ok(symbols) => sampler.symbols = symbols,
                Err(error) => {
                    blind::no_symbols(root, &error, evidence);
                    sampler.cores.clear();
                }
            }
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
    pub fn look(&mut self, _at: Time, evidence: &mut Evidence) {
        if !self.is_sampling() {
            return;
        }
        let began = clock(ClockId::ThreadCPUTime);
        self.drain();
        self.follow_cores(evidence);
        self.name_tasks();
        self.spent += clock(ClockId::ThreadCPUTime).since(began);
    }

    /// Ends it and writes down what was seen since the start.
    pub fn finish(mut self, at: Time, evidence: &mut Evidence) {
        if self.ever.is_empty() || !self.is_sampling() {
            return;
        }
        for core in &self.cores {
            let _ = core.ring.disable();
        }
        self.drain();
        self.name_tasks();
        for core in std::mem::take(&mut self.cores) {
            self.lost = self.lost.saturating_add(core.missed(at, self.rate_hz));
        }
        let _ = evidence;
    }

    fn drain(&mut self) {
        let (tally, symbols) = (&mut self.tally, &self.symbols);
        for SampledCore { ring, lost, throttled_since, held_back_ns, .. } in &mut self.cores {
            ring.drain(|bytes| match record::parse(bytes) {
                Some(Record::Sample(sample)) => tally.add(sample, symbols),
                Some(Record::Lost(more)) => *lost = lost.saturating_add(more),
                Some(Record::Throttled(since)) => *throttled_since = Some(since),
                Some(Record::Unthrottled(until)) => {
                    let held = throttled_since.take().map_or(0, |since| until.saturating_sub(since));
                    *held_back_ns = held_back_ns.saturating_add(held);
                }
                Some(Record::Named(pid, name)) => tally.name(pid, name),
                Some(Record::Other) | None => {}
            });
        }
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
        self.lost = went.into_iter().fold(self.lost, |lost, core| lost.saturating_add(core.missed(now, rate_hz)));

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
                    self.cores.push(SampledCore { number, ring, lost: 0, throttled_since: None, held_back_ns: 0 });
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

    fn name_tasks(&mut self) {
        let names = &self.tally.names;
        let nameless = self.tally.tasks.iter_mut().filter(|(_, task)| task.comm.is_none());
        for (&pid, task) in nameless.take(NAMES_EACH_LOOK) {
            task.comm = Some(match pid {
                // The idle task's own work, or a task that this pid namespace does not show (kernel/events/core.c:
                // perf_event_pid_type).
                0 => "(idle task, or of another pid namespace)".to_owned(),
                u32::MAX => "(exiting)".to_owned(),
                _ => names.get(&pid).cloned().or_else(|| comm(&self.root, pid)).unwrap_or_else(|| GONE.to_owned()),
            });
        }
    }
}

fn comm(root: &Root, pid: u32) -> Option<String> {
    root.read_line(&format!("/proc/{pid}/comm"))
}

impl SampledCore {
    /// Samples that the kernel had no room for, and those it held back to save time.
    fn missed(self, now: Time, rate_hz: u32) -> u64 {
        let still = self.throttled_since.map_or(0, |since| now.0.saturating_sub(since));
        let held_ns = u128::from(self.held_back_ns.saturating_add(still));
        let held = held_ns * u128::from(rate_hz) / 1_000_000_000;
        self.ring.lost().unwrap_or(self.lost).saturating_add(u64::try_from(held).unwrap_or(u64::MAX))
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
        let mut sampler = KernelSampler::start(&Root::at(dir.path()), RATE_HZ, Time(1), &mut evidence);
        assert!(!sampler.is_sampling());
        sampler.look(Time(2), &mut evidence);
        sampler.finish(Time(3), &mut evidence);
        assert!(evidence.kernel_samples.is_empty(), "nothing seen is not zero");
        assert!(evidence.why_unseen(probe::KERNEL_SAMPLES).is_some());
    }
}
