//! Reads small files below /proc without allocating: relative to an open directory, into a reused buffer.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::{Errno, pread, read, retry_on_intr};

use super::stat::parse_u64;
use crate::{ReadError, Root};

/// The node's /proc, kept open.
#[derive(Debug)]
pub struct ProcDir {
    directory: OwnedFd,
    /// Its pids are those of our system calls.
    pub own_namespace: bool,
}

impl ProcDir {
    pub fn open(root: &Root) -> Result<ProcDir, ReadError> {
        let path = root.path("/proc");
        match rustix::fs::open(&path, DIRECTORY, Mode::empty()) {
            Ok(directory) => {
                let mut proc = ProcDir { directory, own_namespace: false };
                let mut link = [0; 512];
                let own = proc.read_link(&TaskPath::named("self"), &mut link).and_then(parse_u64);
                let own_pid = u64::try_from(rustix::process::getpid().as_raw_nonzero().get()).ok();
                proc.own_namespace = root.is_live() && own.is_some() && own == own_pid;
                Ok(proc)
            }
            Err(errno) => Err(ReadError::Io { path, source: errno.into() }),
        }
    }

    pub fn try_clone(&self) -> std::io::Result<ProcDir> {
        Ok(ProcDir { directory: self.directory.try_clone()?, own_namespace: self.own_namespace })
    }

    pub fn open_file(&self, path: &TaskPath) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.directory, path.as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    pub fn open_directory(&self, path: &TaskPath) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.directory, path.as_c_str(), DIRECTORY, Mode::empty())
    }

    /// Reads with one system call: for files under a page, which the kernel returns whole.
    pub fn read_once<'b>(&self, path: &TaskPath, buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        read_once_at(&self.directory, path, buffer)
    }

    /// Reads up to the end or `limit`. Clears the buffer first.
    pub fn read_all(&self, path: &TaskPath, limit: usize, buffer: &mut Vec<u8>) -> Result<(), Errno> {
        let file = self.open_file(path)?;
        buffer.clear();
        while buffer.len() < limit {
            let filled = buffer.len();
            buffer.resize((filled + 4096).min(limit), 0);
            let count = retry_on_intr(|| read(&file, &mut buffer[filled..]));
            buffer.truncate(filled + count.unwrap_or(0));
            if count? == 0 {
                break;
            }
        }
        Ok(())
    }

    pub fn read_link<'b>(&self, path: &TaskPath, buffer: &'b mut [u8; 512]) -> Option<&'b [u8]> {
        let length = rustix::fs::readlinkat_raw(&self.directory, path.as_c_str(), &mut buffer[..]).ok()?;
        buffer.get(..length)
    }

    /// Device and inode of the file behind a path.
    pub fn file_id(&self, path: &TaskPath) -> Option<(u64, u64)> {
        let stat = rustix::fs::statat(&self.directory, path.as_c_str(), rustix::fs::AtFlags::empty()).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    pub fn exists(&self, path: &TaskPath) -> bool {
        rustix::fs::accessat(&self.directory, path.as_c_str(), rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty())
            .is_ok()
    }

    /// Lists all processes.
    pub fn pids(&self, into: &mut Vec<u32>, limit: usize) -> Result<(), Errno> {
        let listing = rustix::fs::openat(&self.directory, c".", DIRECTORY, Mode::empty())?;
        numbers_in(&listing, into, limit)
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

pub fn read_once_at<'b>(directory: impl AsFd, path: &TaskPath, buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let file = rustix::fs::openat(directory, path.as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let length = retry_on_intr(|| read(&file, &mut *buffer))?;
    Ok(buffer.get(..length).unwrap_or_default())
}

/// Reads a file kept open, from the start.
pub fn reread(file: impl AsFd, buffer: &mut [u8]) -> Result<&[u8], Errno> {
    let length = retry_on_intr(|| pread(&file, &mut *buffer, 0))?;
    Ok(buffer.get(..length).unwrap_or_default())
}

/// Lists the entries of an open directory whose names are numbers, up to `limit`.
pub fn numbers_in(directory: impl AsFd, into: &mut Vec<u32>, limit: usize) -> Result<(), Errno> {
    into.clear();
    let mut space = [MaybeUninit::uninit(); 16 * 1024];
    let mut entries = RawDir::new(directory, &mut space);
    while let Some(entry) = entries.next() {
        if let Some(number) = number_of(entry?.file_name()) {
            if into.len() >= limit {
                break;
            }
            into.push(number);
        }
    }
    Ok(())
}

fn number_of(name: &CStr) -> Option<u32> {
    parse_u64(name.to_bytes()).and_then(|n| u32::try_from(n).ok())
}

/// A path such as `22842/task/22850/stat`, built on the stack.
pub struct TaskPath {
    bytes: [u8; TaskPath::SIZE],
    length: usize,
}

impl TaskPath {
    // Two numbers of at most ten digits, plus our own file names.
    const SIZE: usize = 64;

    pub fn of_process(pid: u32, file: &str) -> TaskPath {
        TaskPath::empty().number(pid).text("/").text(file)
    }

    pub fn of_thread(pid: u32, tid: u32, file: &str) -> TaskPath {
        TaskPath::empty().number(pid).text("/task/").number(tid).text("/").text(file)
    }

    /// Relative to /proc/PID/task.
    pub fn of_sibling(tid: u32, file: &str) -> TaskPath {
        TaskPath::empty().number(tid).text("/").text(file)
    }

    pub fn named(file: &str) -> TaskPath {
        TaskPath::empty().text(file)
    }

    pub fn of_open_file(pid: u32, number: u32) -> TaskPath {
        TaskPath::empty().number(pid).text("/fd/").number(number)
    }

    fn empty() -> TaskPath {
        TaskPath { bytes: [0; TaskPath::SIZE], length: 0 }
    }

    fn text(mut self, text: &str) -> TaskPath {
        // The last byte stays 0. Longer paths are truncated; no caller comes near.
        let room = TaskPath::SIZE - 1 - self.length;
        let text = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.length..self.length + text.len()].copy_from_slice(text);
        self.length += text.len();
        self
    }

    fn number(self, number: u32) -> TaskPath {
        let mut digits = [0u8; 10];
        let mut at = digits.len();
        let mut rest = number;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(std::str::from_utf8(&digits[at..]).unwrap_or_default())
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl std::fmt::Display for TaskPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/proc/{}", String::from_utf8_lossy(&self.bytes[..self.length]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_as_in_proc() {
        assert_eq!(TaskPath::of_thread(1, u32::MAX, "schedstat").to_string(), "/proc/1/task/4294967295/schedstat");
        assert_eq!(TaskPath::of_sibling(0, "stat").as_c_str(), c"0/stat");
        assert_eq!(TaskPath::of_process(10, "cgroup").as_c_str(), c"10/cgroup");
        assert_eq!(TaskPath::of_thread(u32::MAX, u32::MAX, &"x".repeat(99)).as_c_str().count_bytes(), 63);
    }

    #[test]
    fn a_large_file_is_read_up_to_the_limit() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("proc/7")).unwrap();
        std::fs::write(tree.path().join("proc/7/environ"), vec![b'x'; 10_000]).unwrap();
        let proc = ProcDir::open(&Root::at(tree.path())).unwrap();
        let mut buffer = Vec::new();
        proc.read_all(&TaskPath::of_process(7, "environ"), 1 << 20, &mut buffer).unwrap();
        assert_eq!(buffer.len(), 10_000);
        proc.read_all(&TaskPath::of_process(7, "environ"), 5_000, &mut buffer).unwrap();
        assert_eq!(buffer.len(), 5_000);
        let mut pids = Vec::new();
        proc.pids(&mut pids, 10).unwrap();
        assert_eq!(pids, [7]);
    }
}
