//! The ring in which the kernel leaves the samples of one core. All `unsafe` of sampling is here.
//!
//! One event for each core, counted by the kernel's own clock (`PERF_COUNT_SW_CPU_CLOCK`), which every machine has, virtual ones
//! too. Layouts are those of include/uapi/linux/perf_event.h; the structure has the size it had in Linux 4.8
//! (PERF_ATTR_SIZE_VER5), which every later kernel takes.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// What a record of a sample holds, in this order: process and thread, time, and the chain of return addresses.
pub(super) const SAMPLE_TYPE: u64 = SAMPLE_TID | SAMPLE_TIME | SAMPLE_CALLCHAIN;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;

const TYPE_SOFTWARE: u32 = 1;
const COUNT_SW_CPU_CLOCK: u64 = 0;
const READ_FORMAT_LOST: u64 = 1 << 4;

const DISABLED: u64 = 1 << 0;
const EXCLUDE_USER: u64 = 1 << 4;
const COMM: u64 = 1 << 9;
const FREQUENCY: u64 = 1 << 10;
const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
const USE_CLOCKID: u64 = 1 << 25;

const FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;

/// Where struct perf_event_mmap_page keeps what we need of it.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// struct perf_event_attr.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_freq: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

/// Samples of one core, until it is dropped.
#[derive(Debug)]
pub(super) struct Ring {
    event: OwnedFd,
    /// The control page, and after it the data.
    base: NonNull<u8>,
    page: usize,
    data_size: usize,
    tail: u64,
    tells_lost: bool,
    /// A record that goes over the end of the ring, in one piece.
    whole: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone and is bound to no thread.
unsafe impl Send for Ring {}

impl Ring {
    /// An event on this core that is not counting yet. `pages` is a power of two.
    pub fn open(core: u32, rate_hz: u32, pages: usize) -> io::Result<Ring> {
        // How many were lost is told from Linux 6.0 on; before, such a wish is refused with EINVAL.
        let (event, tells_lost) = match open_event(core, rate_hz, READ_FORMAT_LOST) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (open_event(core, rate_hz, 0)?, false),
            event => (event?, true),
        };
        let page = rustix::param::page_size();
        let data_size = page * pages.next_power_of_two();
        // Writable, so that the kernel keeps what we have not read yet and counts what it has no room for
        // (kernel/events/ring_buffer.c).
        // SAFETY: a new shared mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                page + data_size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                event.as_fd(),
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Ring { event, base, page, data_size, tail: 0, tells_lost, whole: Vec::new() })
    }

    pub fn enable(&self) -> io::Result<()> {
        self.control(IOC_ENABLE)
    }

    pub fn disable(&self) -> io::Result<()> {
        self.control(IOC_DISABLE)
    }

    fn control(&self, request: libc::c_ulong) -> io::Result<()> {
        // SAFETY: these two requests take no pointer.
        match unsafe { libc::ioctl(self.event.as_raw_fd(), request as _, 0) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// How many samples found no room since the beginning; `None` on kernels that do not count them.
    pub fn lost(&self) -> Option<u64> {
        if !self.tells_lost {
            return None;
        }
        // The count of the event itself (nanoseconds), then the lost.
        let mut words = [0u8; 16];
        let mut event = std::fs::File::from(self.event.try_clone().ok()?);
        event.read_exact(&mut words).ok()?;
        words[8..].try_into().ok().map(u64::from_ne_bytes)
    }

    /// Hands over each record that is there now (at most one ring full), and makes room.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        // Acquire: what the kernel wrote before it moved the head is there for us (ring_buffer.c: perf_output_put_handle).
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let room = self.data_size as u64;
        // More than a ring full is impossible; whatever it is, nothing of it can be trusted.
        if head.wrapping_sub(self.tail) > room {
            self.tail = head;
        }
        while self.tail != head {
            let left = head.wrapping_sub(self.tail).min(room) as usize;
            let at = (self.tail % room) as usize;
            let size = if left < HEADER { 0 } else { record_size(self.data(at, HEADER)) };
            // No record is like this: skip all, rather than read what nobody wrote.
            if size < HEADER || size > left {
                self.tail = head;
                break;
            }
            let first = size.min(self.data_size - at);
            if first == size {
                each(self.data(at, size));
            } else {
                let mut whole = std::mem::take(&mut self.whole);
                whole.clear();
                whole.extend_from_slice(self.data(at, first));
                whole.extend_from_slice(self.data(0, size - first));
                each(&whole);
                self.whole = whole;
            }
            self.tail = self.tail.wrapping_add(size as u64);
        }
        // Release: all reads above are done before the kernel may write there again.
        self.position(DATA_TAIL).store(self.tail, Ordering::Release);
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the control page is mapped as long as self lives, the fields are aligned u64, and both sides touch them as
        // atomics only.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Bytes between tail and head, which the kernel does not touch until we move the tail.
    fn data(&self, at: usize, length: usize) -> &[u8] {
        assert!(at <= self.data_size && length <= self.data_size - at);
        // SAFETY: checked to be within the mapping; `drain` asks only for what lies between tail and head.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(self.page + at), length) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, not used after this.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.page + self.data_size) };
    }
}

/// struct perf_event_header: type, misc, size. Records are aligned to 8 bytes, so that a header never goes over the end.
pub(super) const HEADER: usize = 8;

fn record_size(header: &[u8]) -> usize {
    usize::from(u16::from_ne_bytes([header[6], header[7]]))
}

fn open_event(core: u32, rate_hz: u32, read_format: u64) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: TYPE_SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: COUNT_SW_CPU_CLOCK,
        sample_freq: u64::from(rate_hz),
        sample_type: SAMPLE_TYPE,
        read_format,
        // Not exclude_idle: it would also drop interrupts served by an idle core.
        // With a record of each exec: who reads statistics is often gone before we could ask for its name.
        flags: DISABLED | EXCLUDE_USER | COMM | FREQUENCY | EXCLUDE_CALLCHAIN_USER | USE_CLOCKID,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    };
    let core = i32::try_from(core).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: the attributes live through the call and have the size they claim.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(&attributes),
            -1 as libc::pid_t,
            core,
            -1 as libc::c_int,
            FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new file descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
