//! One event on one core.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bits of [`Attributes::flags`].
pub(crate) mod flag {
    pub const DISABLED: u64 = 1 << 0;
    pub const EXCLUDE_USER: u64 = 1 << 4;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    pub const MMAP: u64 = 1 << 8;
    pub const COMM: u64 = 1 << 9;
    pub const FREQUENCY: u64 = 1 << 10;
    pub const TASK: u64 = 1 << 13;
    pub const WATERMARK: u64 = 1 << 14;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
    pub const MMAP2: u64 = 1 << 23;
    pub const COMM_EXEC: u64 = 1 << 24;
    pub const USE_CLOCKID: u64 = 1 << 25;
    /// Linux 5.1.
    pub const KSYMBOL: u64 = 1 << 29;
    /// Linux 5.12.
    pub const BUILD_ID: u64 = 1 << 34;
}

/// struct perf_event_attr with its size in Linux 4.8 (PERF_ATTR_SIZE_VER5), which every later kernel accepts.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attributes {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    /// The frequency with [`flag::FREQUENCY`].
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    /// Bytes with [`flag::WATERMARK`].
    pub wakeup: u32,
    pub breakpoint_type: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clock_id: i32,
    pub sample_regs_interrupt: u64,
    pub aux_watermark: u32,
    pub sample_max_stack: u16,
    pub reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

const FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;

/// An open event; drop closes it.
#[derive(Debug)]
pub(crate) struct Event {
    file: File,
    tells_lost: bool,
}

impl Event {
    /// For all processes on one core.
    pub fn open(core: u32, attributes: &Attributes) -> io::Result<Event> {
        let core = i32::try_from(core).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        Event::of(-1, core, attributes)
    }

    /// For the calling thread, wherever it runs.
    pub fn of_this_thread(attributes: &Attributes) -> io::Result<Event> {
        Event::of(0, -1, attributes)
    }

    /// Sets the size of the attributes.
    fn of(pid: libc::pid_t, core: libc::c_int, attributes: &Attributes) -> io::Result<Event> {
        let attributes = Attributes { size: size_of::<Attributes>() as u32, ..*attributes };
        // SAFETY: the attributes outlive the call and have the size they state.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                std::ptr::from_ref(&attributes),
                pid,
                core,
                -1 as libc::c_int,
                FLAG_FD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new file descriptor that nobody else owns.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        Ok(Event { file, tells_lost: attributes.read_format & super::READ_FORMAT_LOST != 0 })
    }

    pub fn enable(&self) -> io::Result<()> {
        self.control(IOC_ENABLE, 0)
    }

    pub fn disable(&self) -> io::Result<()> {
        self.control(IOC_DISABLE, 0)
    }

    /// Writes into the ring of `owner` from now on.
    pub fn write_into(&self, owner: &Event) -> io::Result<()> {
        self.control(IOC_SET_OUTPUT, owner.file.as_raw_fd() as libc::c_ulong)
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: these requests take a number and touch no memory of ours.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, argument) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// The count since it was opened.
    pub fn count(&self) -> Option<u64> {
        self.read().map(|(count, _)| count)
    }

    /// Records lost since it was opened; `None` on kernels that do not count them. If the event is enabled, this interrupts the
    /// core and waits for it.
    pub fn lost(&self) -> Option<u64> {
        self.read().and_then(|(_, lost)| lost)
    }

    fn read(&self) -> Option<(u64, Option<u64>)> {
        let mut words = [0u8; 16];
        let wanted = if self.tells_lost { 16 } else { 8 };
        (&self.file).read_exact(&mut words[..wanted]).ok()?;
        let word = |at: usize| words[at..at + 8].try_into().ok().map(u64::from_ne_bytes);
        Some((word(0)?, if self.tells_lost { word(8) } else { None }))
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
