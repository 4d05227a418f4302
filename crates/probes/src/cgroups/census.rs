//! Cgroup directories against what the kernel tracks.
//!
//! kernfs keeps `st_nlink = 2 + subdirectories` (kernfs_refresh_inode in fs/kernfs/inode.c), so a directory with two links is
//! a leaf and need not be opened. That spares reading some forty file names in each of thousands of leaves.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use coroner_evidence::CrowdedParent;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, fstat, openat, statat};

use super::mounts::Hierarchy;
use crate::{ParseError, ReadError, Root};

/// More directories than this are not counted. The memory controller's ids end at 65,535, so a tree of this size is not one
/// of memory cgroups that work.
pub(super) const MAX_DIRECTORIES: u64 = 200_000;

/// So many parents are named.
const CROWDED: usize = 10;

/// The kernel's own count of a hierarchy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Live and dying cgroups, the root included.
    pub tracked: Option<u64>,
    /// Only v2 says so.
    pub live: Option<u64>,
    /// Only v2 says so.
    pub dying: Option<u64>,
    /// `dying` counts memory cgroups, not cgroups in general.
    pub dying_is_of_memory: bool,
}

impl Counts {
    pub fn read(root: &Root, hierarchy: &Hierarchy) -> Result<Counts, ReadError> {
        if hierarchy.version == 1 {
            let tracked = root.read_parsed("/proc/cgroups", |text| parse_proc_cgroups(text, "memory"))?;
            return Ok(Counts { tracked, ..Counts::default() });
        }
        let stat = root.read(&hierarchy.file("cgroup.stat"))?;
        Ok(Counts::of_cgroup_stat(&stat))
    }

    /// cgroup.stat of v2; `nr_dying_descendants` since 4.14, `nr_dying_subsys_memory` since 6.12.
    fn of_cgroup_stat(text: &str) -> Counts {
        let live = value_of(text, "nr_descendants").map(|n| n.saturating_add(1));
        let dying_cgroups = value_of(text, "nr_dying_descendants");
        let dying_memory = value_of(text, "nr_dying_subsys_memory");
        Counts {
            tracked: live.and_then(|live| Some(live.saturating_add(dying_cgroups?))),
            live,
            dying: dying_memory.or(dying_cgroups),
            dying_is_of_memory: dying_memory.is_some(),
        }
    }
}

/// The value after a key in a file of `key value` lines.
pub(super) fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix([' ', '\t'])?.trim().parse().ok())
}

/// num_cgroups of a controller. `None` if the file has no such row: kernels without v1 memory leave it out.
pub(super) fn parse_proc_cgroups(text: &str, controller: &str) -> Result<Option<u64>, ParseError> {
    for (i, line) in text.lines().enumerate() {
        let mut fields = line.split_whitespace();
        if fields.next() != Some(controller) {
            continue;
        }
        let number = fields.nth(1).and_then(|n| n.parse().ok());
        return match number {
            Some(n) => Ok(Some(n)),
            None => Err(ParseError::new(i + 1, "controller, hierarchy and number of cgroups")),
        };
    }
    Ok(None)
}

/// Cgroups with a process in or below them: parent → names of such children. Paths are below the mount.
#[derive(Debug, Default)]
pub(super) struct Populated {
    children: HashMap<String, HashSet<String>>,
}

impl Populated {
    pub fn of_paths<'p>(paths: impl IntoIterator<Item = &'p String>, hierarchy: &Hierarchy) -> Populated {
        let mut populated = Populated::default();
        for path in paths {
            let Some(mut path) = hierarchy.below(path) else { continue };
            while !path.is_empty() {
                let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
                match populated.children.get_mut(parent) {
                    Some(names) => {
                        if !names.insert(name.to_owned()) {
                            break; // its ancestors are in already
                        }
                    }
                    None => {
                        populated.children.insert(parent.to_owned(), HashSet::from([name.to_owned()]));
                    }
                }
                path = parent;
            }
        }
        populated
    }
}

/// What a walk over the directories found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Directories, the root included.
    pub live: u64,
    /// Of those, without a process in or below them.
    pub empty: u64,
    pub crowded: Vec<CrowdedParent>,
    pub truncated: bool,
    /// Directories that could not be listed, and why the first of them could not.
    pub unreadable: u64,
    pub unreadable_why: Option<String>,
}

/// Counts the directories below `top`. Paths of crowded parents are relative to it.
///
/// The root counts as populated: kernel threads live there, and an empty node has nobody to ask.
pub(super) fn walk(top: &Path, populated: &Populated, limit: u64) -> io::Result<Walk> {
    let top = rustix::fs::open(top, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut found = Walk { live: 1, ..Walk::default() };
    let mut buffer = vec![MaybeUninit::uninit(); 32 * 1024];
    // Told by the root, which is always read: whether the number of links can be believed. Some file systems say 1.
    let mut links_tell = true;
    let mut leaves_of_root = Vec::new();
    let mut pending = VecDeque::from([String::new()]);
    while let Some(path) = pending.pop_front() {
        let opened;
        let dir = if path.is_empty() {
            top.as_fd()
        } else {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(&top, path.as_str(), flags, Mode::empty()) {
                Ok(fd) => {
                    opened = fd;
                    opened.as_fd()
                }
                Err(e) if is_gone(e) => continue,
                Err(e) => {
                    found.unreadable += 1;
                    found.unreadable_why.get_or_insert_with(|| format!("{path}: {e}"));
                    continue;
                }
            }
        };
        let names = populated.children.get(path.as_str());
        let mut parent = CrowdedParent { path, children: 0, empty: Some(0), dying: None, example: None };
        let mut entries = RawDir::new(dir, &mut buffer);
        let mut below = Vec::new();
        let mut listed_all = true;
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    if !is_gone(e) {
                        found.unreadable += 1;
                        found.unreadable_why.get_or_insert_with(|| format!("{}: {e}", parent.path));
                    }
                    listed_all = false;
                    break;
                }
            };
            let name = entry.file_name();
            if !matches!(entry.file_type(), FileType::Directory | FileType::Unknown)
                || matches!(name.to_bytes(), b"." | b"..")
            {
                continue;
            }
            let Some(subdirectories) = subdirectories_of(dir, name) else { continue };
            if found.live >= limit {
                found.truncated = true;
                listed_all = false;
                break;
            }
            found.live += 1;
            parent.children += 1;
            let name = name.to_string_lossy();
            if !names.is_some_and(|n| n.contains(name.as_ref())) {
                found.empty += 1;
                parent.empty = parent.empty.map(|n| n + 1);
            }
            if parent.example.is_none() {
                parent.example = Some(name.clone().into_owned());
            }
            let leaf = subdirectories == Some(0);
            if leaf && parent.path.is_empty() {
                leaves_of_root.push(name.into_owned());
            } else if !leaf || !links_tell {
                below.push(if parent.path.is_empty() { name.into_owned() } else { format!("{}/{name}", parent.path) });
            }
        }
        if parent.path.is_empty() && listed_all {
            links_tell = links_of(&top) == Some(parent.children);
            if !links_tell {
                below.append(&mut leaves_of_root);
            }
        }
        if parent.children > 0 {
            note_crowded(&mut found.crowded, parent);
        }
        if found.truncated {
            break;
        }
        pending.extend(below);
    }
    Ok(found)
}

fn is_gone(e: rustix::io::Errno) -> bool {
    matches!(e, rustix::io::Errno::NOENT | rustix::io::Errno::NODEV)
}

/// How many subdirectories a directory has by its links; the inner `None` if the file system does not tell. The outer one if
/// it is no directory, or gone.
fn subdirectories_of(parent: impl AsFd, name: &CStr) -> Option<Option<u64>> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::Directory).then(|| (stat.st_nlink as u64).checked_sub(2))
}

fn links_of(dir: &OwnedFd) -> Option<u64> {
    (fstat(dir).ok()?.st_nlink as u64).checked_sub(2)
}

fn note_crowded(crowded: &mut Vec<CrowdedParent>, parent: CrowdedParent) {
    let place = crowded.partition_point(|known| known.children >= parent.children);
    if place < CROWDED {
        crowded.insert(place, parent);
        crowded.truncate(CROWDED);
    }
}

/// Dying descendants of a directory, where its cgroup.stat says so (v2).
pub(super) fn dying_below(root: &Root, hierarchy: &Hierarchy, below: &str) -> Option<u64> {
    let directory = hierarchy.file(below);
    Counts::of_cgroup_stat(&root.read(&format!("{directory}/cgroup.stat")).ok()?).dying
}
