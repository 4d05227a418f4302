//! The clock of the kernel log, measured against CLOCK_MONOTONIC.
//!
//! printk stamps lines with local_clock(), which no system call reads. But perf stamps its records with the same function by
//! default (kernel/events/core.c, `perf_clock`), and a thread may watch itself: it opens a perf event that counts nothing but
//! records renames, sets its own name again, and reads the time of that from the ring.

use crate::perf::{self, Attributes, Event, Ring, flag};
use crate::root::now;
use coroner_evidence::Time;
use coroner_evidence::perf::{Attr, HEADER, kind, record_header, sample_bit};

/// local_clock and CLOCK_MONOTONIC at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub local_ns: u64,
    /// CLOCK_MONOTONIC just before and just after.
    pub before: Time,
    pub after: Time,
}

/// Reads the clock; `None` if perf is denied (perf_event_paranoid of 3, seccomp in containers) or not built in.
pub fn read() -> Option<Reading> {
    let attributes = Attributes {
        kind: perf::TYPE_SOFTWARE,
        config: perf::COUNT_SW_DUMMY,
        sample_type: sample_bit::TIME,
        flags: flag::EXCLUDE_KERNEL | flag::EXCLUDE_HYPERVISOR | flag::COMM | flag::SAMPLE_ID_ALL,
        ..Attributes::default()
    };
    let attr = Attr { sample_type: attributes.sample_type, sample_id_all: true, ..Attr::default() };
    let mut ring = Ring::of(Event::of_this_thread(&attributes).ok()?, 1).ok()?;
    let name = rustix::thread::name().ok()?;
    // The narrowest of three: an interruption between the two reads of CLOCK_MONOTONIC only widens the interval.
    (0..3)
        .filter_map(|_| {
            let before = now();
            rustix::thread::set_name(&name).ok()?;
            let after = now();
            let mut renamed = None;
            ring.drain(|record| {
                if record_header(record, false).0 == kind::COMM {
                    renamed = attr.time_of(kind::COMM, &record[HEADER..], false);
                }
            });
            Some(Reading { local_ns: renamed?, before, after })
        })
        .min_by_key(|reading| reading.after.since(reading.before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_at_the_rate_of_the_monotonic_clock() {
        let Some(first) = read() else { return };
        assert!(first.before <= first.after && first.local_ns > 0);
        let until = now() + std::time::Duration::from_millis(50);
        while now() < until {
            std::hint::spin_loop();
        }
        let second = read().unwrap();
        let local = second.local_ns - first.local_ns;
        let least = second.before.since(first.after).as_nanos() as u64;
        let most = second.after.since(first.before).as_nanos() as u64;
        // At most 0.1 % apart.
        assert!(local >= least - least / 1000 && local <= most + most / 1000, "{least} ≤ {local} ≤ {most}");
    }
}
