//! Reads files of live cgroups while cgroups come and go.

use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use super::arithmetic::{Amounts, Sums};
use crate::cgroups::directories::{self, is_gone};

/// memory.stat has a few kilobytes; a larger file is something else.
const MAX_FILE: usize = 256 * 1024;

/// Reads small files into one reused buffer.
#[derive(Debug)]
pub(super) struct Files {
    buffer: Vec<u8>,
    path: Vec<u8>,
}

/// Why something about a cgroup is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unknown {
    #[error("it was removed while being read")]
    Gone,
    #[error("out of time")]
    OutOfTime,
    /// With the file's path relative to the open directory.
    #[error("{0}")]
    Unreadable(String),
}

impl Files {
    pub fn new() -> Files {
        Files { buffer: vec![0; 16 * 1024], path: Vec::new() }
    }

    /// Reads a file of the open directory if `name` is empty, else of its child `name`.
    pub fn read(&mut self, dir: BorrowedFd<'_>, name: &[u8], file: &str) -> Result<&[u8], Unknown> {
        self.path.clear();
        if !name.is_empty() {
            self.path.extend_from_slice(name);
            self.path.push(b'/');
        }
        self.path.extend_from_slice(file.as_bytes());
        match read_into(&mut self.buffer, dir, &self.path) {
            Ok(length) => Ok(&self.buffer[..length]),
            // If only the file is missing, this is another kind of cgroup than we thought.
            Err(e) if is_gone(e) && !(e == Errno::NOENT && exists(dir, name)) => Err(Unknown::Gone),
            Err(e) => Err(self.unreadable(e)),
        }
    }

    /// Reads and parses a file.
    pub fn parse<T>(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        file: &str,
        parser: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, Unknown> {
        match parser(self.read(dir, name, file)?) {
            Some(value) => Ok(value),
            None => Err(self.unreadable("unexpected content")),
        }
    }

    fn unreadable(&self, why: impl fmt::Display) -> Unknown {
        Unknown::Unreadable(format!("{}: {why}", String::from_utf8_lossy(&self.path)))
    }

    /// Whether a file is empty, without reading all of it.
    pub fn is_empty(&mut self, dir: BorrowedFd<'_>, file: &str) -> Result<bool, Unknown> {
        let mut byte = [0u8; 16];
        let some = open(dir, file.as_bytes()).and_then(|fd| rustix::io::read(&fd, &mut byte));
        match some {
            Ok(length) => Ok(length == 0),
            Err(e) if is_gone(e) => Err(Unknown::Gone),
            Err(e) => Err(Unknown::Unreadable(format!("{file}: {e}"))),
        }
    }
}

fn open(dir: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    // NONBLOCK: it might be a pipe without a writer.
    openat(dir, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn read_into(buffer: &mut Vec<u8>, dir: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<usize> {
    let file = open(dir, path)?;
    let mut filled = 0;
    loop {
        if filled == buffer.len() {
            if filled >= MAX_FILE {
                return Ok(filled);
            }
            buffer.resize((filled * 2).clamp(4096, MAX_FILE), 0);
        }
        match rustix::io::read(&file, &mut buffer[filled..]) {
            Ok(0) => return Ok(filled),
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Every live cgroup has this file; a removed directory has none, but still links (kernfs_iop_getattr in fs/kernfs/inode.c).
fn exists(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    let name = if name.is_empty() { b"." } else { name };
    statat(dir, directories::join(name, b"cgroup.procs"), AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// What is charged below a cgroup, minus what its live children account for.
///
/// Its sums are read before and after its children's, and the smaller reading counts: a child created in between is missing in
/// the first, one removed is missing in the second. So changes during the read make the result too small, never too large;
/// without changes it is exact.
pub(super) fn below_and_not_in_children(
    top: &OwnedFd,
    path: &[u8],
    until: Instant,
    mut sums_of: impl FnMut(BorrowedFd<'_>, &[u8]) -> Result<Sums, Unknown>,
) -> Result<Amounts, Unknown> {
    let unreadable =
        |e: Errno| if is_gone(e) { Unknown::Gone } else { Unknown::Unreadable(format!("cannot list it: {e}")) };
    let dir = directories::open_below(top, path).map_err(unreadable)?;
    let dir = dir.as_fd();
    let before = sums_of(dir, b"")?.below();
    let mut children = Amounts::NOTHING;
    let mut failed = None;
    let listed = directories::list(dir, &mut directories::list_buffer(), |name, _| {
        if Instant::now() >= until {
            failed = Some(Unknown::OutOfTime);
            return ControlFlow::Break(());
        }
        match sums_of(dir, name.to_bytes()) {
            Ok(sums) => children = children.plus(sums.all),
            // Its memory was freed with it, or is now held by a dead cgroup; the second reading accounts for either.
            Err(Unknown::Gone) => {}
            Err(e) => {
                failed = Some(e);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    });
    listed.map_err(unreadable)?;
    if let Some(failed) = failed {
        return Err(failed);
    }
    Ok(before.least(sums_of(dir, b"")?.below()).less(children))
}

/// The directories found by a walk, stored as parent and name.
#[derive(Debug)]
pub(super) struct Places(Vec<(u32, Box<[u8]>)>);

impl Places {
    /// Contains only the top.
    pub fn new() -> Places {
        Places(vec![(0, Box::default())])
    }

    pub fn add(&mut self, directory: &directories::Directory<'_>) {
        self.0.push((directory.parent, directory.name.to_bytes().into()));
    }

    /// Path below the top.
    pub fn path(&self, number: usize) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = number;
        // A parent has a smaller number than its child.
        while at > 0
            && let Some((parent, name)) = self.0.get(at)
        {
            names.push(name);
            at = *parent as usize;
        }
        names.iter().rev().fold(Vec::new(), |path, name| directories::join(&path, name))
    }
}
