//! The few calls that need `unsafe`, each with its safety argument.

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Makes the command die with SIGKILL when the thread that started it ends, however that ends.
pub fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let arm = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent died before the line above, the signal never comes.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    // SAFETY: the closure runs between fork and exec and makes two plain system calls; it neither allocates nor locks
    // (`from_raw_os_error` stores the number in place).
    unsafe { command.pre_exec(arm) };
}

/// Calls `handler` on SIGINT, SIGTERM and SIGHUP. It must be async-signal-safe: only store to an atomic.
pub fn handle_end_signals(handler: extern "C" fn(libc::c_int)) {
    for signal in END_SIGNALS {
        // SAFETY: the handler is a plain function that lives as long as the program. No SA_RESTART: a sleep must end early.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

const END_SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Another scheduling class (`libc::SCHED_…`) for the calling thread; `priority` must be 0 unless it is a real-time class.
pub fn become_class(policy: libc::c_int, priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: `param` outlives the call, which only reads it.
    if unsafe { libc::sched_setscheduler(0, policy, &param) } == 0 { Ok(()) } else { Err(last_error()) }
}

/// `struct sched_attr` in its first version (include/uapi/linux/sched/types.h), which every kernel accepts.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// SCHED_DEADLINE for the calling thread: `runtime` of every `period`.
pub fn become_deadline(runtime: Duration, period: Duration) -> io::Result<()> {
    const SCHED_DEADLINE: u32 = 6;
    let period = period.as_nanos() as u64;
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: SCHED_DEADLINE,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: runtime.as_nanos() as u64,
        deadline: period,
        period,
    };
    // SAFETY: the kernel reads `size` bytes of `attr`, which outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// Whoever writes to this file system waits until it is thawed. `dir` may be any file or directory on it.
pub fn freeze(dir: BorrowedFd<'_>) -> io::Result<()> {
    // linux/fs.h: _IOWR('X', 119, int)
    freeze_ioctl(dir, 0xc004_5877)
}

pub fn thaw(dir: BorrowedFd<'_>) -> io::Result<()> {
    // linux/fs.h: _IOWR('X', 120, int)
    freeze_ioctl(dir, 0xc004_5878)
}

fn freeze_ioctl(dir: BorrowedFd<'_>, request: u32) -> io::Result<()> {
    // SAFETY: neither request uses its argument (fs/ioctl.c, ioctl_fsfreeze and ioctl_fsthaw).
    if unsafe { libc::ioctl(dir.as_raw_fd(), request as libc::Ioctl, 0) } == 0 { Ok(()) } else { Err(last_error()) }
}

/// Gives a thread the ordinary class; no error if it is gone.
pub fn become_ordinary(tid: u32) {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` outlives the call, which only reads it.
    unsafe { libc::sched_setscheduler(tid as libc::pid_t, libc::SCHED_OTHER, &param) };
}

/// Gives the calling thread, the only one of its process, its own mount namespace.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: only unsharing the descriptor table (FILES) can confuse other threads; this does not.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(io::Error::from)
}

/// Gives the calling thread its own network namespace.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: as above.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(io::Error::from)
}

/// A file mapped for reading. Dropping the page cache spares mapped pages (mm/truncate.c, mapping_evict_folio); reclaim does
/// not: see `hold_pages`.
#[derive(Debug)]
pub struct Mapping {
    address: *mut libc::c_void,
    bytes: usize,
}

impl Mapping {
    pub fn of(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: the kernel chooses the address: no memory that is in use changes.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, read, shared, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED { Err(last_error()) } else { Ok(Mapping { address, bytes }) }
    }

    /// How many of its pages are in memory.
    pub fn resident(&self) -> io::Result<usize> {
        let mut pages = vec![0u8; self.bytes.div_ceil(rustix::param::page_size())];
        // SAFETY: the range is our mapping; mincore writes one byte per page of it, and `pages` has that many.
        if unsafe { libc::mincore(self.address, self.bytes, pages.as_mut_ptr()) } != 0 {
            return Err(last_error());
        }
        Ok(pages.iter().filter(|&&p| p & 1 != 0).count())
    }

    /// How many of its touched pages are on each NUMA node.
    pub fn nodes(&self) -> io::Result<BTreeMap<i32, u64>> {
        let offsets = (0..self.bytes).step_by(rustix::param::page_size());
        // SAFETY: within the mapping.
        let pages: Vec<_> = offsets.map(|at| unsafe { self.address.add(at) }).collect();
        let mut nodes = BTreeMap::new();
        for node in move_pages(&pages, std::ptr::null())?.into_iter().filter(|&n| n >= 0) {
            *nodes.entry(node).or_insert(0) += 1;
        }
        Ok(nodes)
    }

    /// Keeps every page in memory until the pipes are dropped, even if somebody pages out cold memory (DAMON). A page in a pipe
    /// has one more reference, so reclaim puts it back on its list; mlock would move it to another list.
    pub fn hold_pages(&self) -> io::Result<Vec<(PipeReader, PipeWriter)>> {
        let mut held = Vec::new();
        let mut at = 0;
        while at < self.bytes {
            let (reader, writer) = io::pipe()?;
            // A pipe holds 16 pages at first; root may have more, others up to 1 MiB.
            let _ = rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES);
            let room = rustix::pipe::fcntl_getpipe_size(&writer)?.min(self.bytes - at);
            // SAFETY: within the mapping.
            let from = unsafe { self.address.cast::<u8>().add(at) };
            let pages = [libc::iovec { iov_base: from.cast(), iov_len: room }];
            // SAFETY: the range is in our mapping, which nobody writes to; the kernel reads one iovec.
            let taken = unsafe { libc::vmsplice(writer.as_raw_fd(), pages.as_ptr(), 1, libc::SPLICE_F_NONBLOCK) };
            match taken {
                n if n > 0 => at += n as usize,
                0 => return Err(io::ErrorKind::WriteZero.into()),
                _ => return Err(last_error()),
            }
            held.push((reader, writer));
        }
        Ok(held)
    }

    /// Puts all its pages into our page table.
    pub fn touch(&self) {
        for at in (0..self.bytes).step_by(rustix::param::page_size()) {
            // SAFETY: within the mapping, which is readable and as long as the file; nobody else can shorten that: its file
            // system is the lab's own and mounted read-only.
            unsafe { std::ptr::read_volatile(self.address.cast::<u8>().add(at)) };
        }
    }
}

const PIPE_BYTES: usize = 1 << 20;

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference was ever given out.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}

/// move_pages(2) of this process. Without nodes it moves nothing and returns where each page is.
fn move_pages(pages: &[*mut libc::c_void], nodes: *const libc::c_int) -> io::Result<Vec<libc::c_int>> {
    let mut status = vec![0; pages.len()];
    // SAFETY: the kernel only looks at the addresses in `pages`; it reads as many of them as told, and writes as many statuses.
    // `nodes` is null or, with no page at all, not read.
    let done =
        unsafe { libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), nodes, status.as_mut_ptr(), 0) };
    if done < 0 { Err(last_error()) } else { Ok(status) }
}

/// Moves pages from per-CPU batches onto their LRU lists: move_pages does so first (mm/migrate.c, do_pages_move), even with
/// nothing to move.
pub fn drain_lru_batches() -> io::Result<()> {
    move_pages(&[], &0).map(drop)
}

/// The switches of `ethtool -K` that veth needs, from linux/ethtool.h.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum Offload {
    TxChecksum = 0x17,
    Tso = 0x1f,
    Gso = 0x24,
    Gro = 0x2c,
}

#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

/// Switches one offload of a device of the network namespace in which `socket` was opened.
pub fn set_offload(socket: BorrowedFd<'_>, device: &str, offload: Offload, on: bool) -> io::Result<()> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let mut value = EthtoolValue { cmd: offload as u32, data: u32::from(on) };
    // SAFETY: all-zero bytes are a valid `ifreq`: it holds only integers, arrays of them and a raw pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads and writes one `ethtool_value` behind ifr_data for these commands (net/ethtool/ioctl.c); both
    // structures outlive the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) } == 0 { Ok(()) } else { Err(last_error()) }
}

/// Makes the kernel split each send into datagrams of `bytes`.
pub fn segment_datagrams(socket: impl AsFd, bytes: i32) -> io::Result<()> {
    // linux/udp.h
    const UDP_SEGMENT: libc::c_int = 103;
    // SAFETY: the kernel reads one int, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_UDP,
            UDP_SEGMENT,
            (&raw const bytes).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(last_error()) }
}

/// Forks a child that runs `body` and then sleeps until it is killed; it dies with its parent. Returns the child's pid.
///
/// Only for a process with one thread: the child then owns a consistent copy of everything, and may allocate.
pub fn fork_sleeper(body: impl FnOnce()) -> io::Result<Pid> {
    let parent = getpid();
    // SAFETY: the caller has one thread, so no lock is held by a thread that does not exist in the child. The child never
    // returns from this function: no guard of the parent is dropped twice.
    match unsafe { libc::fork() } {
        -1 => Err(last_error()),
        0 => {
            for signal in END_SIGNALS {
                // SAFETY: restores the default action in the child.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            let armed = set_parent_process_death_signal(Some(Signal::KILL)).is_ok() && getppid() == Some(parent);
            if armed && std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok() {
                loop {
                    // SAFETY: no arguments, no memory.
                    unsafe { libc::pause() };
                }
            }
            // SAFETY: ends the child at once, without running destructors that belong to the parent.
            unsafe { libc::_exit(1) }
        }
        pid => Pid::from_raw(pid).ok_or_else(last_error),
    }
}

fn last_error() -> io::Error {
    io::Error::last_os_error()
}
