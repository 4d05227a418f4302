//! Delete files that keep dead cgroups: only if named, still the same files, and not open anywhere.

use super::free_zombies::below;
use super::{Done, Hands, StepError, Undone};
use crate::tree::{Links, Tree};
use coroner_diagnosis::words::{bytes, count, list, plural};
use coroner_evidence::Evidence;
use coroner_probes::zombies::{LookOptions, look};
use rustix::fs::{AtFlags, FileType, fstatfs, major, minor, statat, unlinkat};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `statfs.f_type` of a tmpfs (include/uapi/linux/magic.h).
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// After this many files, check again who has them open: deleting that many takes some milliseconds.
const LOOKED_AT: usize = 1_000;
/// The kernel frees the cgroups in the background.
const SETTLE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteFiles {
    pub files: Vec<NamedFile>,
    /// The live cgroup below which the dead ones are.
    pub cgroup: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    pub path: String,
    /// A process whose mount namespace has that path, if ours does not.
    pub seen_by: Option<u32>,
    pub device: (u32, u32),
    pub inode: u64,
    pub bytes: u64,
}

impl NamedFile {
    /// The root of the mount namespace that has it.
    fn root(&self) -> PathBuf {
        match self.seen_by {
            Some(pid) => PathBuf::from(format!("/proc/{pid}/root")),
            None => PathBuf::from("/"),
        }
    }

    /// Where we reach it.
    pub fn place(&self) -> PathBuf {
        self.root().join(self.path.trim_start_matches('/'))
    }

    /// Checks that it is still the same file. Holds the directory open, so that nobody can swap it between check and unlink.
    fn check(&self) -> Result<Held, StepError> {
        let place = self.place();
        let failed = |e: rustix::io::Errno| StepError::failed(format!("{}: {e}", place.display()));
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(StepError::refused(format!("{} is not a file", self.path)));
        };
        // The kernel's path has no symbolic links: one in it was planted to lead us elsewhere.
        let within = parent.strip_prefix(self.root()).unwrap_or(parent);
        let within = within.to_str().ok_or_else(|| StepError::refused(format!("{} is not valid UTF-8", self.path)))?;
        let directory = Tree::open(&self.root())
            .and_then(|tree| tree.directory(within, Links::Refuse))
            .map_err(|e| StepError::io(&place, e))?;
        let about = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        let is_it = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile
            && about.st_ino == self.inode
            && (major(about.st_dev), minor(about.st_dev)) == self.device;
        if !is_it {
            return Err(StepError::refused(format!("{} is no longer the same file", self.path)));
        }
        if fstatfs(&directory).map_err(failed)?.f_type != TMPFS_MAGIC {
            return Err(StepError::refused(format!("{} is not on a tmpfs: reclaim frees what it keeps", self.path)));
        }
        Ok(Held { directory, name: name.to_owned(), stat: (about.st_dev, about.st_ino) })
    }
}

/// A file in a directory that is held open.
struct Held {
    directory: OwnedFd,
    name: OsString,
    stat: (u64, u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesBefore {
    pub dead: Option<u64>,
    pub files: u64,
}

impl DeleteFiles {
    pub fn prepare(&self, _hands: &mut Hands<'_>) -> Result<FilesBefore, StepError> {
        nobody_uses(&self.files)?;
        Ok(FilesBefore { dead: self.dead(), files: self.files.len() as u64 })
    }

    fn dead(&self) -> Option<u64> {
        let scan = look(&LookOptions { pins: false, ..LookOptions::default() }, &mut Evidence::default())?;
        below(&scan, &self.cgroup).or(scan.dead)
    }

    pub fn act(&self, before: &FilesBefore, hands: &mut Hands<'_>) -> Result<Done, StepError> {
        let (mut deleted, mut held) = (0u64, 0u64);
        for chunk in self.files.chunks(LOOKED_AT) {
            // Somebody may have opened one while the others were deleted.
            nobody_uses(chunk).map_err(|error| match deleted {
                0 => error,
                _ => StepError::failed(format!("{error}; {deleted} files were already deleted")),
            })?;
            for file in chunk {
                if hands.is_stopped() {
                    return Err(StepError::failed(format!("stopped after deleting {deleted} files")));
                }
                let held_file = file.check()?;
                unlinkat(&held_file.directory, &held_file.name, AtFlags::empty()).map_err(|e| {
                    StepError::failed(format!("{}: {e}; {deleted} files were already deleted", file.path))
                })?;
                deleted += 1;
                held += file.bytes;
            }
        }
        let until = Instant::now() + SETTLE;
        let mut dead = self.dead();
        while dead >= before.dead && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(200));
            dead = self.dead();
        }
        let freed = before.dead.zip(dead).map(|(before, now)| before.saturating_sub(now));
        let mut words = format!("{} deleted ({})", plural(deleted, "file", "files"), bytes(held));
        if let (Some(freed), Some(dead)) = (freed, dead) {
            words.push_str(&format!("; {} freed, {} left", plural(freed, "dead cgroup", "dead cgroups"), count(dead)));
        }
        let mut done = Done::new(words, json!({"deleted": deleted, "freed": freed, "dead_after": dead}));
        if freed == Some(0) {
            done.in_vain = Some("the files are deleted, but no dead cgroup was freed".to_owned());
        }
        Ok(done)
    }

    pub fn undo(&self, _before: &FilesBefore, _hands: &mut Hands<'_>, _force: bool) -> Result<Undone, StepError> {
        let names: Vec<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
        Ok(Undone::CannotBe(format!("deleted files cannot be restored: {}", list(&names, 3))))
    }
}

/// Fails unless they are still the same files and nobody has one open or mapped.
fn nobody_uses(files: &[NamedFile]) -> Result<(), StepError> {
    let mut ids = Vec::new();
    for file in files {
        ids.push(Id { stat: file.check()?.stat, mapped: (file.device, file.inode) });
    }
    let users = users_of(&ids);
    let Some((i, who)) = users.first() else { return Ok(()) };
    let more = if users.len() > 1 { format!(", and {} more are in use", users.len() - 1) } else { String::new() };
    Err(StepError::refused(format!("{} is in use by {who}{more}: stop that first (`fuser -v`)", files[*i].path)))
}

/// A file as in stat and as in /proc/PID/maps.
struct Id {
    stat: (u64, u64),
    mapped: ((u32, u32), u64),
}

/// The files that are open or mapped, each with the name of one process.
fn users_of(files: &[Id]) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let Ok(processes) = fs::read_dir("/proc") else { return found };
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let mut note = |is_it: &dyn Fn(&Id) -> bool| {
            if let Some(i) = files.iter().position(is_it).filter(|i| !found.iter().any(|(known, _)| known == i)) {
                let comm = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                found.push((i, format!("{}[{pid}]", comm.trim())));
            }
        };
        for open in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            if let Ok(about) = fs::metadata(open.path()) {
                note(&|file| file.stat == (about.dev(), about.ino()));
            }
        }
        let maps = fs::read_to_string(process.path().join("maps")).unwrap_or_default();
        for mapped in maps.lines().filter_map(mapped) {
            note(&|file| file.mapped == mapped);
        }
    }
    found
}

/// `7f… r--p 00000000 08:01 1234 /lib/x.so`
fn mapped(line: &str) -> Option<((u32, u32), u64)> {
    let mut fields = line.split_whitespace().skip(3);
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode: u64 = fields.next()?.parse().ok().filter(|inode| *inode != 0)?;
    Some(((u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?), inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_named_with_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let (open, closed) = (dir.path().join("open"), dir.path().join("closed"));
        fs::write(&closed, "x").unwrap();
        let _held = fs::File::create(&open).unwrap();
        let id = |path| {
            let about = fs::metadata(path).unwrap();
            Id { stat: (about.dev(), about.ino()), mapped: ((0, 0), about.ino()) }
        };
        let users = users_of(&[id(&closed), id(&open)]);
        assert_eq!(users.len(), 1, "{users:?}");
        assert_eq!(users[0].0, 1);
        assert!(users[0].1.contains(&format!("[{}]", std::process::id())), "{users:?}");
    }

    #[test]
    fn maps_lines_are_parsed() {
        assert_eq!(mapped("7f00-7f01 r--p 00000000 fe:01 1234  /lib/x"), Some(((0xfe, 1), 1234)));
        assert_eq!(mapped("7f00-7f01 rw-p 00000000 00:00 0 [heap]"), None);
    }

    #[test]
    fn another_file_of_the_same_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "x").unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        let file =
            NamedFile { path: path.display().to_string(), seen_by: None, device: (0, 0), inode: inode + 1, bytes: 1 };
        assert!(matches!(file.check(), Err(StepError::Refused(_))));
    }
}
