//! One core that is sampled: its event, its ring, and what it lost.

use std::io;

use coroner_evidence::Time;

use super::CoreLosses;
use crate::perf::record::{LOST, THROTTLE, UNTHROTTLE};
use crate::perf::{self, Attributes, Event, HEADER, Ring, flag, sample};

/// What each sample holds, in the kernel's order: process and thread, time, core, period, and the chain of return addresses.
pub(super) const SAMPLE_TYPE: u64 = sample::TID | sample::TIME | sample::CPU | sample::PERIOD | sample::CALLCHAIN;

/// The smallest ring: a second of usual stacks at 49 Hz.
const LEAST_RING: usize = 32 << 10;

/// What ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ticker {
    /// Comes as an interrupt that cannot be masked: sees also what runs with interrupts off. Stands still on an idle core.
    Cycles,
    /// The kernel's own clock, which every machine has. Ticks on an idle core, too.
    CpuClock,
}

/// What a kernel can add to the records. Each kernel knows all that an older one knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extras {
    /// Linux 6.0: how many records were lost.
    Lost,
    /// 5.12: build ids of mapped files.
    BuildIds,
    /// 5.1: code of the kernel's that comes and goes (BPF programs).
    KernelSymbols,
    None,
}

impl Extras {
    const ALL: [Extras; 4] = [Extras::Lost, Extras::BuildIds, Extras::KernelSymbols, Extras::None];

    pub fn has_build_ids(self) -> bool {
        matches!(self, Extras::Lost | Extras::BuildIds)
    }
}

pub(super) fn attributes(ticker: Ticker, rate_hz: u32, extras: Extras) -> Attributes {
    let (kind, config) = match ticker {
        Ticker::Cycles => (perf::TYPE_HARDWARE, perf::COUNT_HW_CPU_CYCLES),
        Ticker::CpuClock => (perf::TYPE_SOFTWARE, perf::COUNT_SW_CPU_CLOCK),
    };
    let more = match extras {
        Extras::Lost | Extras::BuildIds => flag::BUILD_ID | flag::KSYMBOL,
        Extras::KernelSymbols => flag::KSYMBOL,
        Extras::None => 0,
    };
    Attributes {
        kind,
        config,
        sample_period: u64::from(rate_hz),
        sample_type: SAMPLE_TYPE,
        read_format: if extras == Extras::Lost { perf::READ_FORMAT_LOST } else { 0 },
        // Not exclude_idle: it would also drop interrupts served by an idle core. Not mmap_data: only code is looked up.
        flags: flag::DISABLED
            | flag::FREQUENCY
            | flag::MMAP
            | flag::MMAP2
            | flag::COMM
            | flag::COMM_EXEC
            | flag::TASK
            | flag::SAMPLE_ID_ALL
            | flag::USE_CLOCKID
            | more,
        clock_id: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    }
}

/// What this kernel can add, by asking it for an event on `core`.
pub(super) fn best_extras(core: u32, ticker: Ticker, rate_hz: u32) -> io::Result<Extras> {
    let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
    for extras in Extras::ALL {
        match Event::open(core, &attributes(ticker, rate_hz, extras)) {
            Ok(_) => return Ok(extras),
            // What a kernel does not know it calls invalid.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

#[derive(Debug)]
pub(super) struct SampledCore {
    pub number: u32,
    ring: Ring,
    /// By records of losses: reading the event's own count would interrupt the core, and wait where the core does not answer.
    lost: u64,
    throttled_since: Option<u64>,
    throttled_ns: u64,
    /// When it said something last.
    pub heard: Time,
}

impl SampledCore {
    /// An event that is not counting yet.
    pub fn open(number: u32, attributes: &Attributes, ring_bytes: usize, now: Time) -> io::Result<SampledCore> {
        let mut bytes = ring_bytes;
        let ring = loop {
            match Ring::open(number, attributes, bytes) {
                // Without CAP_IPC_LOCK the kernel grants but some memory (perf_event_mlock_kb), of which others may hold a part.
                Err(error) if error.raw_os_error() == Some(libc::EPERM) && bytes > LEAST_RING => bytes /= 2,
                ring => break ring?,
            }
        };
        Ok(SampledCore { number, ring, lost: 0, throttled_since: None, throttled_ns: 0, heard: now })
    }

    pub fn enable(&self) -> io::Result<()> {
        self.ring.enable()
    }

    pub fn count(&self) -> u64 {
        self.ring.owner().count().unwrap_or(0)
    }

    pub fn drain(&mut self, now: Time, take: &mut dyn FnMut(u32, &[u8])) {
        let SampledCore { number, ring, lost, throttled_since, throttled_ns, heard } = self;
        let sound = ring.drain(|record| {
            *heard = now;
            let word = |at: usize| record.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
            match record.get(..4).and_then(|kind| kind.try_into().ok()).map_or(0, u32::from_ne_bytes) {
                // The event's id, then how many.
                LOST => *lost = lost.saturating_add(word(HEADER + 8).unwrap_or(1)),
                THROTTLE => *throttled_since = word(HEADER),
                UNTHROTTLE => {
                    let (since, until) = (throttled_since.take(), word(HEADER));
                    let held = since.zip(until).map_or(0, |(since, until)| until.saturating_sub(since));
                    *throttled_ns = throttled_ns.saturating_add(held);
                }
                _ => {}
            }
            take(*number, record);
        });
        if !sound {
            *lost = lost.saturating_add(1);
        }
    }

    /// Samples at another rate until [`SampledCore::relax`]. By an event of its own: a clock's event that gets another period goes
    /// on to tell the old one in its samples (kernel/events/core.c: perf_swevent_hrtimer, `last_period`).
    pub fn escalate(&mut self, attributes: &Attributes) -> io::Result<()> {
        let faster = Event::open(self.number, attributes)?;
        let before = self.ring.take_added();
        self.ring.add(faster)?;
        // It begins before the other ends, so that no birth of a process is missed. One that both tell does no harm.
        self.ring.events()[1].enable()?;
        self.ring.owner().disable()?;
        self.ended(before);
        Ok(())
    }

    pub fn relax(&mut self) -> io::Result<()> {
        self.ring.owner().enable()?;
        let ended = self.ring.take_added();
        self.ended(ended);
        Ok(())
    }

    fn ended(&mut self, events: Vec<Event>) {
        // Their unthrottling will not come.
        if !events.is_empty() {
            self.throttled_since = None;
        }
    }

    pub fn losses(&self, now: Time) -> CoreLosses {
        let still = self.throttled_since.map_or(0, |since| now.0.saturating_sub(since));
        CoreLosses { core: self.number, lost: self.lost, throttled_ns: self.throttled_ns.saturating_add(still) }
    }

    /// What was lost until now, when nothing comes any more: the kernel's own count has also what no record told.
    pub fn last_losses(&self, now: Time) -> CoreLosses {
        let losses = self.losses(now);
        CoreLosses { lost: losses.lost.max(self.ring.lost().unwrap_or(0)), ..losses }
    }
}
