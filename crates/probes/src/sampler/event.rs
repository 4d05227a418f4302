//! The event opened on each core.

use std::io;

use coroner_evidence::perf::sample_bit;

use crate::perf::{self, Attributes, Event, flag};

/// Content of a sample, in the kernel's order: process and thread, time, core, period, call chain.
pub(super) const SAMPLE_TYPE: u64 =
    sample_bit::TID | sample_bit::TIME | sample_bit::CPU | sample_bit::PERIOD | sample_bit::CALLCHAIN;

/// What triggers samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ticker {
    /// A non-maskable interrupt: also sees code that runs with interrupts off. Does not tick on an idle core.
    Cycles,
    /// The kernel's CPU clock, available on every machine. Ticks on an idle core too.
    CpuClock,
}

/// Optional record content; each kernel supports all that older ones do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extras {
    /// Linux 6.0: number of lost records.
    Lost,
    /// 5.12: build ids of mapped files.
    BuildIds,
    /// 5.1: kernel code that comes and goes (BPF programs).
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

/// What this kernel supports, found by opening events on `core`.
pub(super) fn best_extras(core: u32, ticker: Ticker, rate_hz: u32) -> io::Result<Extras> {
    let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
    for extras in Extras::ALL {
        match Event::open(core, &attributes(ticker, rate_hz, extras)) {
            Ok(_) => return Ok(extras),
            // The kernel rejects unknown flags with EINVAL.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}
