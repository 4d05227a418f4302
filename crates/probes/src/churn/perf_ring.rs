//! Tracepoints read by perf_event_open(2): the events of one core in one ring that the kernel shares with us.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// struct perf_event_attr of include/uapi/linux/perf_event.h, as far as Linux 4.1 had it (PERF_ATTR_SIZE_VER5).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clock_id: i32,
    sample_regs_interrupt: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const PERF_TYPE_TRACEPOINT: u32 = 2;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_RAW: u64 = 1 << 10;
const DISABLED: u64 = 1;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
const WATERMARK: u64 = 1 << 14;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const USE_CLOCKID: u64 = 1 << 25;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
const PERF_EVENT_IOC_SET_OUTPUT: libc::c_ulong = 0x2405;

/// struct perf_event_mmap_page: where its head and tail are.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// One core's tracepoints, and births, deaths and names of its processes, in one ring.
#[derive(Debug)]
pub(super) struct Ring {
    control: *mut u8,
    data_bytes: usize,
    page: usize,
    /// The first owns the ring, the others write into it.
    events: Vec<OwnedFd>,
    record: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone and is reached through it only.
unsafe impl Send for Ring {}

impl Ring {
    /// `data_bytes` is a power of two of pages. It wakes who polls when a quarter is full.
    pub fn open(core: u32, tracepoints: &[u32], data_bytes: usize) -> io::Result<Ring> {
        let mut events: Vec<OwnedFd> = Vec::with_capacity(tracepoints.len());
        for &id in tracepoints {
            let with_tasks = if events.is_empty() { TASK | COMM } else { 0 };
            events.push(open_event(core, id, with_tasks, (data_bytes / 4) as u32)?);
        }
        let owner = events.first().ok_or(io::ErrorKind::InvalidInput)?;
        let page = rustix::param::page_size();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours; `Ring` unmaps it.
        let control = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page + data_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                owner.as_raw_fd(),
                0,
            )
        };
        if control == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = Ring { control: control.cast(), data_bytes, page, events, record: Vec::new() };
        let owner = &ring.events[0];
        for event in &ring.events[1..] {
            control_event(event.as_fd(), PERF_EVENT_IOC_SET_OUTPUT, owner.as_raw_fd() as libc::c_ulong)?;
        }
        for event in &ring.events {
            control_event(event.as_fd(), PERF_EVENT_IOC_ENABLE, 0)?;
        }
        Ok(ring)
    }

    /// Ready when a quarter of the ring is full.
    pub fn pollable(&self) -> BorrowedFd<'_> {
        self.events[0].as_fd()
    }

    /// Hands out each new record: its type, and what follows its header. False if the ring makes no sense: its content is then
    /// passed over.
    pub fn drain(&mut self, mut tell: impl FnMut(u32, &[u8])) -> bool {
        // SAFETY: both words lie in the first page of our mapping, aligned; the kernel writes the head, only we the tail, and
        // neither is reached in another way than as an atomic.
        let (head, tail) = unsafe {
            (&*self.control.add(DATA_HEAD).cast::<AtomicU64>(), &*self.control.add(DATA_TAIL).cast::<AtomicU64>())
        };
        let end = head.load(Ordering::Acquire);
        fence(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        let mut sound = end.wrapping_sub(at) <= self.data_bytes as u64;
        while sound && at != end {
            let left = end.wrapping_sub(at);
            let mut header = [0; 8];
            self.copy(at, &mut header);
            let [t0, t1, t2, t3, _, _, s0, s1] = header;
            let size = u16::from_ne_bytes([s0, s1]);
            if size < 8 || u64::from(size) > left {
                sound = false;
                break;
            }
            let mut record = std::mem::take(&mut self.record);
            record.resize(usize::from(size) - 8, 0);
            self.copy(at.wrapping_add(8), &mut record);
            tell(u32::from_ne_bytes([t0, t1, t2, t3]), &record);
            self.record = record;
            at = at.wrapping_add(u64::from(size));
        }
        tail.store(end, Ordering::Release);
        sound
    }

    /// Copies out of the data, round its end.
    fn copy(&self, at: u64, to: &mut [u8]) {
        let at = (at % self.data_bytes as u64) as usize;
        let first = to.len().min(self.data_bytes - at);
        let second = (to.len() - first).min(self.data_bytes);
        // SAFETY: `at + first` and `second` are at most data_bytes, which follow the first page; the kernel does not write
        // between tail and head, and `to` is memory of ours.
        unsafe {
            let data = self.control.add(self.page);
            std::ptr::copy_nonoverlapping(data.add(at), to.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(data, to.as_mut_ptr().add(first), second);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, not used after this.
        unsafe { libc::munmap(self.control.cast(), self.page + self.data_bytes) };
    }
}

fn open_event(core: u32, tracepoint: u32, more: u64, watermark: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: PERF_TYPE_TRACEPOINT,
        size: size_of::<Attributes>() as u32,
        config: u64::from(tracepoint),
        sample_period: 1,
        sample_type: SAMPLE_TID | SAMPLE_TIME | SAMPLE_RAW,
        flags: DISABLED | WATERMARK | SAMPLE_ID_ALL | USE_CLOCKID | more,
        wakeup_watermark: watermark,
        clock_id: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads `size` bytes of the attributes, which live that long, and gives back a new file or an error.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            -1 as libc::pid_t,
            core as libc::c_int,
            -1 as libc::c_int,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn control_event(event: BorrowedFd, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: these two requests take a number, and touch no memory of ours.
    let done = unsafe { libc::ioctl(event.as_raw_fd(), request as _, argument) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const _: () = assert!(size_of::<Attributes>() == 112);
