//! perf_event_open(2): events of one core and the ring of their records. All its `unsafe` is here.
//!
//! Layouts are those of include/uapi/linux/perf_event.h; [`coroner_evidence::perf`] parses the records.

pub(crate) mod blind;
pub(crate) mod cores;
mod event;
mod ring;

pub(crate) use event::{Attributes, Event, flag};
pub(crate) use ring::Ring;

use crate::Root;

/// The kernel's software events: every machine has its CPU clock, virtual ones too.
pub(crate) const TYPE_SOFTWARE: u32 = 1;
pub(crate) const COUNT_SW_CPU_CLOCK: u64 = 0;
/// Counts nothing.
pub(crate) const COUNT_SW_DUMMY: u64 = 9;
pub(crate) const TYPE_HARDWARE: u32 = 0;
pub(crate) const COUNT_HW_CPU_CYCLES: u64 = 0;
pub(crate) const TYPE_TRACEPOINT: u32 = 2;

/// Reading an event also returns the number of lost records (Linux 6.0).
pub(crate) const READ_FORMAT_LOST: u64 = 1 << 4;

/// A higher rate would hurt the node.
const MAX_RATE_HZ: u32 = 1000;

/// Keeps to the kernel's limit, which it lowers where sampling is slow (kernel/events/core.c: perf_sample_event_took).
pub(crate) fn allowed_rate(root: &Root, rate_hz: u32) -> u32 {
    let limit = root.read_line("/proc/sys/kernel/perf_event_max_sample_rate").and_then(|text| text.parse().ok());
    rate_hz.min(limit.unwrap_or(MAX_RATE_HZ)).clamp(1, MAX_RATE_HZ)
}

/// Raises the soft limit for `count` more open files (often 1024), up to the hard limit.
pub(crate) fn more_files(count: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = (count as u64).saturating_add(512);
    if limit.current.is_some_and(|soft| soft < wanted) {
        let raised = limit.maximum.map_or(wanted, |hard| hard.min(wanted));
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_limit_is_respected() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = dir.path().join("proc/sys/kernel");
        std::fs::create_dir_all(&kernel).unwrap();
        let root = Root::at(dir.path());
        assert_eq!(allowed_rate(&root, 0), 1);
        assert_eq!(allowed_rate(&root, 49), 49);
        assert_eq!(allowed_rate(&root, 99_999), MAX_RATE_HZ);
        std::fs::write(kernel.join("perf_event_max_sample_rate"), "25\n").unwrap();
        assert_eq!(allowed_rate(&root, 49), 25);
        std::fs::write(kernel.join("perf_event_max_sample_rate"), "0\n").unwrap();
        assert_eq!(allowed_rate(&root, 49), 1);
    }
}
