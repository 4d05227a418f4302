//! Where the node's files are, and how reading them can fail.

use coroner_evidence::{Clocks, Time, Wall};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

/// The root of the examined file tree: `/` on a live node, a directory in tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Root(PathBuf);

/// Larger than any file we read on a sane node (/proc/interrupts of 1,024 cores has 6 MB).
const MAX_FILE: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: {error}")]
    Parse { path: PathBuf, error: ParseError },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected {expected}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    pub expected: String,
}

impl ParseError {
    pub fn new(line: usize, expected: impl Into<String>) -> ParseError {
        ParseError { line, expected: expected.into() }
    }
}

impl ReadError {
    pub fn is_not_found(&self) -> bool {
        self.kind() == Some(io::ErrorKind::NotFound)
    }

    pub fn is_denied(&self) -> bool {
        self.kind() == Some(io::ErrorKind::PermissionDenied)
    }

    fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            ReadError::Io { source, .. } => Some(source.kind()),
            ReadError::Parse { .. } => None,
        }
    }
}

impl Root {
    /// The node we run on.
    pub fn live() -> Root {
        Root(PathBuf::from("/"))
    }

    pub fn at(path: impl Into<PathBuf>) -> Root {
        Root(path.into())
    }

    /// Whether syscalls (ioctl, netlink, affinity) describe the same node as the files.
    pub fn is_live(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// Where an absolute path of the node, e.g. `/proc/stat`, is found.
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.0.join(absolute.trim_start_matches('/'))
    }

    /// Opens without blocking: the path may be a pipe that nobody writes to. In a foreign tree, which may contain anything, only
    /// regular files are read.
    fn open(&self, path: &Path) -> io::Result<File> {
        let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        if !self.is_live() && !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        Ok(file)
    }

    /// The whole file, with invalid UTF-8 replaced.
    pub fn read(&self, absolute: &str) -> Result<String, ReadError> {
        let path = self.path(absolute);
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            self.open(&path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(into_text(bytes)),
            Err(source) => Err(ReadError::Io { path, source }),
        }
    }

    /// Reads and parses; a parse error names the file.
    pub fn read_parsed<T>(
        &self,
        absolute: &str,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, ReadError> {
        let text = self.read(absolute)?;
        parse(&text).map_err(|error| ReadError::Parse { path: self.path(absolute), error })
    }

    /// The first line, trimmed; `None` if the file is missing, unreadable or empty.
    pub fn read_line(&self, absolute: &str) -> Option<String> {
        let text = self.read(absolute).ok()?;
        let line = text.lines().next()?.trim().trim_end_matches('\0');
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// Names in a directory, sorted.
    pub fn list(&self, absolute: &str) -> Result<Vec<String>, ReadError> {
        let path = self.path(absolute);
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(&path)? {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
            names.sort_unstable();
            Ok(names)
        };
        list().map_err(|source| ReadError::Io { path, source })
    }
}

fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// A file that is read repeatedly: kept open, with a reused buffer.
#[derive(Debug)]
pub struct ReusedFile {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl ReusedFile {
    pub fn open(root: &Root, absolute: &str) -> Result<ReusedFile, ReadError> {
        let path = root.path(absolute);
        match root.open(&path) {
            Ok(file) => Ok(ReusedFile { path, file, buffer: Vec::with_capacity(4096) }),
            Err(source) => Err(ReadError::Io { path, source }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's current content.
    pub fn read(&mut self) -> Result<&[u8], ReadError> {
        let mut filled = 0;
        loop {
            if filled == self.buffer.len() {
                let grown = (self.buffer.len() * 2).clamp(4096, MAX_FILE as usize);
                if grown == self.buffer.len() {
                    break;
                }
                self.buffer.resize(grown, 0);
            }
            match self.file.read_at(&mut self.buffer[filled..], filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ReadError::Io { path: self.path.clone(), source }),
            }
        }
        Ok(&self.buffer[..filled])
    }
}

/// CLOCK_MONOTONIC, now.
pub fn now() -> Time {
    clock(rustix::time::ClockId::Monotonic)
}

pub(crate) fn clock(id: rustix::time::ClockId) -> Time {
    let t = rustix::time::clock_gettime(id);
    Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// The node's clocks, now.
pub fn read_clocks() -> Clocks {
    use rustix::time::ClockId::{Boottime, Realtime};
    Clocks { at: now(), wall: Wall(clock(Realtime).0), boot_ns: clock(Boottime).0 }
}

/// CPU time used by this process.
pub fn own_cpu() -> Duration {
    Duration::from_nanos(clock(rustix::time::ClockId::ProcessCPUTime).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_place_of_a_file_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap();
        assert!(made.success());
        let root = Root::at(dir.path());
        let error = root.read("/pipe").unwrap_err().to_string();
        assert!(error.contains("pipe") && error.contains("not a regular file"), "{error}");
        assert!(ReusedFile::open(&root, "/pipe").is_err());
    }
}
