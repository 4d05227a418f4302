//! The clock of the kernel log, measured against CLOCK_MONOTONIC.
//!
//! printk stamps lines with local_clock(), which no system call reads. But perf stamps its records with the same function
//! unless told otherwise (kernel/events/core.c, `perf_clock`), and a thread may watch itself: it opens a perf event that counts
//! nothing and notes renamings, gives itself the name it already has, and reads from the ring when that was.

use crate::root::now;
use coroner_evidence::Time;

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
    let mut ring = ring::Ring::open()?;
    // The narrowest of three: being interrupted between the two looks at CLOCK_MONOTONIC only widens them.
    (0..3)
        .filter_map(|_| {
            let before = now();
            ring::rename_to_same_name()?;
            let after = now();
            Some(Reading { local_ns: ring.newest_time()?, before, after })
        })
        .min_by_key(|reading| reading.after.since(reading.before))
}

/// The one unsafe part: the perf event and its ring.
mod ring {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use rustix::param::page_size;
    use std::ffi::c_void;
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicU64, Ordering};

    // include/uapi/linux/perf_event.h
    const PERF_TYPE_SOFTWARE: u32 = 1;
    const PERF_COUNT_SW_DUMMY: u64 = 9;
    const PERF_SAMPLE_TIME: u64 = 1 << 2;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HV: u64 = 1 << 6;
    const COMM: u64 = 1 << 9;
    const SAMPLE_ID_ALL: u64 = 1 << 18;
    const PERF_FLAG_FD_CLOEXEC: u64 = 8;
    const PERF_RECORD_COMM: u32 = 3;
    const DATA_HEAD: usize = 1024;

    /// PERF_ATTR_SIZE_VER0.
    #[repr(C)]
    struct Attributes {
        kind: u32,
        size: u32,
        config: u64,
        sample_period: u64,
        sample_type: u64,
        read_format: u64,
        flags: u64,
        wakeup: u32,
        bp_type: u32,
        config1: u64,
    }

    pub struct Ring {
        start: *mut c_void,
        page: usize,
        /// How far the ring was read.
        tail: u64,
        _event: OwnedFd,
    }

    impl Ring {
        pub fn open() -> Option<Ring> {
            // The flags are a bit field of the C compiler, which starts at the other end on big-endian machines.
            if cfg!(target_endian = "big") {
                return None;
            }
            let attributes = Attributes {
                kind: PERF_TYPE_SOFTWARE,
                size: size_of::<Attributes>() as u32,
                config: PERF_COUNT_SW_DUMMY,
                sample_period: 0,
                sample_type: PERF_SAMPLE_TIME,
                read_format: 0,
                flags: EXCLUDE_KERNEL | EXCLUDE_HV | COMM | SAMPLE_ID_ALL,
                wakeup: 0,
                bp_type: 0,
                config1: 0,
            };
            let page = page_size();
            // SAFETY: the kernel reads `size` bytes at `attributes`; what it returns is a new descriptor that nobody else owns.
            let event = unsafe {
                let fd = libc::syscall(
                    libc::SYS_perf_event_open,
                    &raw const attributes,
                    0 as libc::pid_t, // this thread
                    -1 as libc::c_int,
                    -1 as libc::c_int,
                    PERF_FLAG_FD_CLOEXEC,
                );
                if fd < 0 {
                    return None;
                }
                OwnedFd::from_raw_fd(fd as i32)
            };
            // SAFETY: a new mapping of one page of control and one of data, as perf wants it, at an address of its choice.
            let start = unsafe {
                mmap(null_mut(), 2 * page, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &event, 0).ok()?
            };
            Some(Ring { start, page, tail: 0, _event: event })
        }

        /// The time of the last renaming since the previous call.
        pub fn newest_time(&mut self) -> Option<u64> {
            // SAFETY: data_head is an aligned u64 in the control page, which the kernel writes with a barrier after the data.
            let head = unsafe { AtomicU64::from_ptr(self.start.byte_add(DATA_HEAD).cast()) }.load(Ordering::Acquire);
            let mut newest = None;
            while self.tail < head {
                let size = (self.word(self.tail) >> 48) as u16;
                let kind = self.word(self.tail) as u32;
                if size < 16 || !size.is_multiple_of(8) {
                    return None;
                }
                if kind == PERF_RECORD_COMM {
                    // The sample id closes the record; its only part is the time.
                    newest = Some(self.word(self.tail + u64::from(size) - 8));
                }
                self.tail += u64::from(size);
            }
            newest
        }

        /// The eight bytes at a position of the ring; records are made of such words.
        fn word(&self, position: u64) -> u64 {
            let offset = (position as usize % self.page) & !7;
            // SAFETY: offset + 8 ≤ page, within the data page, aligned; the kernel wrote it before data_head passed it.
            unsafe { self.start.byte_add(self.page + offset).cast::<u64>().read_volatile() }
        }
    }

    impl Drop for Ring {
        fn drop(&mut self) {
            // SAFETY: exactly what `open` mapped; nothing borrows it.
            let _ = unsafe { munmap(self.start, 2 * self.page) };
        }
    }

    pub fn rename_to_same_name() -> Option<()> {
        let name = rustix::thread::name().ok()?;
        rustix::thread::set_name(&name).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_at_the_pace_of_the_monotonic_clock() {
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
        // Not more than a tenth of a percent apart.
        assert!(local >= least - least / 1000 && local <= most + most / 1000, "{least} ≤ {local} ≤ {most}");
    }
}
