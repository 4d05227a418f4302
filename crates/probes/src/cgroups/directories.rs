//! Walks cgroup directories, each parent before its children.
//!
//! kernfs keeps `st_nlink = 2 + subdirectories` (kernfs_refresh_inode in fs/kernfs/inode.c), so a directory with two links is a
//! leaf and need not be opened. That saves reading about forty file names in each of thousands of leaves.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, fstat, openat, statat};
use rustix::io::Errno;

/// More directories are not counted. Memory controller ids end at 65,535, so a tree of this size cannot be all memory cgroups.
pub(crate) const MAX_DIRECTORIES: u64 = 200_000;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory found by a walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Directory<'w> {
    /// In the order of the walk; the top, which is not passed on, is 0.
    pub number: u32,
    /// The number of its parent.
    pub parent: u32,
    /// Relative to the top; empty for the top itself. A cgroup's name may be any bytes.
    pub parent_path: &'w [u8],
    pub parent_fd: BorrowedFd<'w>,
    pub name: &'w CStr,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// Directories, including the top.
    pub count: u64,
    /// It ended early: at its limit or on request.
    pub truncated: bool,
    /// Directories that could not be listed, and the reason for the first.
    pub unreadable: u64,
    pub unreadable_why: Option<String>,
}

pub(crate) fn open(top: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(top, DIRECTORY, Mode::empty())?)
}

/// Opens a directory below an open one; the empty path reopens that one, to list it from the start.
pub(crate) fn open_below(top: impl AsFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    openat(top, path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
}

/// Calls `each` for every directory below `top`; at most `limit` directories including the top.
pub(crate) fn walk(
    top: impl AsFd,
    limit: u64,
    mut each: impl FnMut(&Directory<'_>) -> ControlFlow<()>,
) -> io::Result<Walked> {
    let top = open_below(top, b"")?;
    let mut walked = Walked { count: 1, ..Walked::default() };
    let mut buffer = list_buffer();
    // Whether link counts can be trusted, checked at the top, which is always listed. Some file systems always report 1.
    let mut links_tell = true;
    let mut leaves_of_top = Vec::new();
    let mut pending = VecDeque::from([(Vec::new(), 0)]);
    while let Some((path, parent)) = pending.pop_front() {
        let opened;
        let dir = if path.is_empty() {
            top.as_fd()
        } else {
            match open_below(&top, &path) {
                Ok(fd) => {
                    opened = fd;
                    opened.as_fd()
                }
                Err(e) if is_gone(e) => continue,
                Err(e) => {
                    walked.note_unreadable(&path, e);
                    continue;
                }
            }
        };
        let mut children = 0;
        let mut below = Vec::new();
        let listed = list(dir, &mut buffer, |name, subdirectories| {
            if walked.count >= limit {
                walked.truncated = true;
                return ControlFlow::Break(());
            }
            let number = walked.count.min(u32::MAX.into()) as u32;
            let directory = Directory { number, parent, parent_path: &path, parent_fd: dir, name };
            walked.count += 1;
            children += 1;
            if each(&directory).is_break() {
                walked.truncated = true;
                return ControlFlow::Break(());
            }
            let leaf = subdirectories == Some(0);
            if leaf && path.is_empty() {
                leaves_of_top.push((name.to_bytes().to_vec(), number));
            } else if !leaf || !links_tell {
                below.push((join(&path, name.to_bytes()), number));
            }
            ControlFlow::Continue(())
        });
        match listed {
            Err(e) if !is_gone(e) => walked.note_unreadable(&path, e),
            Ok(()) if path.is_empty() && !walked.truncated => {
                links_tell = links_of(&top) == Some(children);
                if !links_tell {
                    below.append(&mut leaves_of_top);
                }
            }
            _ => {}
        }
        if walked.truncated {
            break;
        }
        pending.extend(below);
    }
    Ok(walked)
}

impl Walked {
    fn note_unreadable(&mut self, path: &[u8], e: Errno) {
        self.unreadable += 1;
        self.unreadable_why.get_or_insert_with(|| format!("/{}: {e}", String::from_utf8_lossy(path)));
    }
}

pub(crate) fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

pub(crate) fn list_buffer() -> Vec<MaybeUninit<u8>> {
    vec![MaybeUninit::uninit(); 32 * 1024]
}

/// Calls `each` for every subdirectory, with its own number of subdirectories by link count; `None` if that is unknown.
pub(crate) fn list(
    dir: BorrowedFd<'_>,
    buffer: &mut [MaybeUninit<u8>],
    mut each: impl FnMut(&CStr, Option<u64>) -> ControlFlow<()>,
) -> rustix::io::Result<()> {
    let mut entries = RawDir::new(dir, buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(entry.file_type(), FileType::Directory | FileType::Unknown)
            || matches!(name.to_bytes(), b"." | b"..")
        {
            continue;
        }
        let Some(subdirectories) = subdirectories_of(dir, name) else { continue };
        if each(name, subdirectories).is_break() {
            break;
        }
    }
    Ok(())
}

pub(crate) fn is_gone(e: Errno) -> bool {
    matches!(e, Errno::NOENT | Errno::NODEV)
}

/// Number of subdirectories by link count; the inner `None` if the file system does not tell, the outer if it is no directory
/// or gone.
fn subdirectories_of(parent: impl AsFd, name: &CStr) -> Option<Option<u64>> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::Directory).then(|| (stat.st_nlink as u64).checked_sub(2))
}

fn links_of(dir: &OwnedFd) -> Option<u64> {
    (fstat(dir).ok()?.st_nlink as u64).checked_sub(2)
}
