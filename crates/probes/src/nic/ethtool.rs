//! Driver name and driver statistics from the ethtool ioctl.
//!
//! These commands need no privileges (net/ethtool/ioctl.c, `dev_ethtool`). The kernel holds the RTNL lock while it answers, so
//! during a device reset a call can take as long as the reset.

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;

/// Queries devices of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
    answer: GuardedBuffer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverInfo {
    pub driver: String,
    /// Number of statistics.
    pub statistics: u32,
}

// include/uapi/linux/ethtool.h
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETH_SS_STATS: u32 = 1;
const ETH_GSTRING_LEN: usize = 32;
const DRVINFO_DRIVER: usize = 4;
const DRVINFO_N_STATS: usize = 180;
const STRINGS_LEN: usize = 8;
const STRINGS_DATA: usize = 12;
const STATS_LEN: usize = 4;
const STATS_DATA: usize = 8;

impl Ethtool {
    pub fn open() -> io::Result<Ethtool> {
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            // A kernel without IPv4; any socket will do.
            .or_else(|_| {
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            })?;
        Ok(Ethtool { socket, answer: GuardedBuffer::new()? })
    }

    pub fn driver_info(&mut self, device: &str) -> io::Result<DriverInfo> {
        let info = self.ask(device, &[ETHTOOL_GDRVINFO])?;
        let driver = text(info.get(DRVINFO_DRIVER..DRVINFO_DRIVER + 32).unwrap_or_default());
        Ok(DriverInfo { driver, statistics: number(info, DRVINFO_N_STATS) })
    }

    /// The names of the driver's statistics, in the order of [`Ethtool::statistics`]. Empty if it has none.
    pub fn statistic_names(&mut self, device: &str) -> io::Result<Vec<String>> {
        let strings = match self.ask(device, &[ETHTOOL_GSTRINGS, ETH_SS_STATS]) {
            Ok(strings) => strings,
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let count = number(strings, STRINGS_LEN) as usize;
        let data = strings.get(STRINGS_DATA..).unwrap_or_default();
        Ok(data.chunks_exact(ETH_GSTRING_LEN).take(count).map(text).collect())
    }

    /// The values, into `values`.
    pub fn statistics(&mut self, device: &str, values: &mut Vec<u64>) -> io::Result<()> {
        values.clear();
        let stats = self.ask(device, &[ETHTOOL_GSTATS])?;
        let count = number(stats, STATS_LEN) as usize;
        let data = stats.get(STATS_DATA..).unwrap_or_default();
        values.extend(data.chunks_exact(8).take(count).map(|c| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(c);
            u64::from_ne_bytes(bytes)
        }));
        Ok(())
    }

    fn ask(&mut self, device: &str, command: &[u32]) -> io::Result<&[u8]> {
        let mut name = [0u8; libc::IFNAMSIZ];
        if device.len() >= name.len() || device.as_bytes().contains(&0) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        name[..device.len()].copy_from_slice(device.as_bytes());
        self.answer.start_with(command);
        ioctl(&self.socket, name, &mut self.answer)?;
        Ok(self.answer.bytes())
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

use guarded::{GuardedBuffer, ioctl};

/// The unsafe part: memory that the kernel writes to, and the call that makes it write.
mod guarded {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    use std::ffi::c_void;
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::ptr::null_mut;

    /// Room for 128,000 names. The memory is only backed where the kernel writes.
    const ROOM: usize = 4 << 20;
    const GUARD: usize = 64 << 10;

    /// A buffer followed by an inaccessible guard.
    ///
    /// ETHTOOL_GSTATS and ETHTOOL_GSTRINGS write as many entries as the driver has *at that moment* (net/ethtool/ioctl.c,
    /// `ethtool_get_stats`), whatever size the caller announced: a driver whose queues were just reconfigured can write more
    /// than requested. Here an overlong answer hits the guard, and the call fails with EFAULT.
    #[derive(Debug)]
    pub struct GuardedBuffer {
        start: *mut c_void,
    }

    // SAFETY: the mapping belongs to this value alone and is not tied to a thread.
    unsafe impl Send for GuardedBuffer {}

    impl GuardedBuffer {
        pub fn new() -> io::Result<GuardedBuffer> {
            // SAFETY: a new private mapping at an address of the kernel's choice; its end is made inaccessible before anybody
            // knows of it. ROOM and GUARD are multiples of every page size up to 64 KiB.
            unsafe {
                let start = mmap_anonymous(
                    null_mut(),
                    ROOM + GUARD,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )?;
                let buffer = GuardedBuffer { start };
                mprotect(start.byte_add(ROOM), GUARD, MprotectFlags::empty())?;
                Ok(buffer)
            }
        }

        /// Writes the words at the start of a request.
        pub fn start_with(&mut self, words: &[u32]) {
            // SAFETY: ROOM readable and writable bytes, zeroed when mapped, borrowed mutably through self.
            let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.cast::<u8>(), ROOM) };
            // The kernel's input lies within the first 16 bytes.
            bytes[..16].fill(0);
            for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
                slot.copy_from_slice(&word.to_ne_bytes());
            }
        }

        pub fn bytes(&self) -> &[u8] {
            // SAFETY: as above, shared through &self; the kernel writes only during `ioctl`, which takes &mut.
            unsafe { std::slice::from_raw_parts(self.start.cast::<u8>(), ROOM) }
        }
    }

    impl Drop for GuardedBuffer {
        fn drop(&mut self) {
            // SAFETY: exactly what `new` mapped; no slice of it outlives self.
            let _ = unsafe { munmap(self.start, ROOM + GUARD) };
        }
    }

    #[repr(C)]
    struct Request {
        device: [u8; libc::IFNAMSIZ],
        data: *mut c_void,
        /// struct ifreq is a union of 24 bytes after the name.
        _rest: [usize; 2],
    }

    pub fn ioctl(socket: &OwnedFd, device: [u8; libc::IFNAMSIZ], buffer: &mut GuardedBuffer) -> io::Result<()> {
        const SIOCETHTOOL: u32 = 0x8946;
        let mut request = Request { device, data: buffer.start, _rest: [0; 2] };
        // SAFETY: the kernel reads `request` (as large as struct ifreq) and reads and writes at `data`, by copy_to_user, from
        // its start upwards: within the buffer, or it faults in the guard and the call fails. Both live until it returns.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
