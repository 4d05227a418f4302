//! Files below an untrusted root: a mounted image, an unpacked container.
//!
//! Absolute symbolic links in such a tree refer to the tree, not to this machine, and they may be hostile. So every path is
//! walked component by component with `O_PATH | O_NOFOLLOW`: links are read and resolved here, `..` never climbs above the root,
//! and loops end. openat2(2) with RESOLVE_IN_ROOT would do the same, but needs Linux 5.6 and is blocked by some sandboxes.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::root::{ReadError, Root};

/// As many links as the kernel follows in one path (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Components of a path after expanding all links.
const MAX_COMPONENTS: usize = 4096;

/// Names read from one directory. A real unit directory has some hundreds.
const MAX_NAMES: usize = 50_000;

/// Bytes reserved before reading a file.
const MAX_RESERVED: u64 = 1 << 20;

/// Cached directories, so that not every file is walked to from the root. Each holds some descriptors.
const MAX_REMEMBERED: usize = 32;

/// A directory on the path, and its name.
type Entered = (Arc<OwnedFd>, String);

/// The root of a file tree that is never left. Directories are cached, so use a new tree for each look.
#[derive(Debug)]
pub struct Tree {
    root: Root,
    top: Arc<OwnedFd>,
    /// The directories that a path leads through, with links resolved.
    remembered: Mutex<HashMap<String, Vec<Entered>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    File,
    Directory,
    Link,
    /// Masks a unit; no other device does.
    NullDevice,
    Other,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: String,
    pub kind: FileKind,
}

/// Something that exists, with its path free of links.
#[derive(Debug)]
pub struct ResolvedPath {
    /// Absolute within the tree.
    pub path: String,
    pub kind: FileKind,
    pub bytes: u64,
    /// Its directory and its name there; the root has no name.
    parent: Arc<OwnedFd>,
    name: String,
}

impl ResolvedPath {
    /// Its directory and its name there, for the `*at` system calls.
    pub fn at(&self) -> (&OwnedFd, &str) {
        (&self.parent, if self.name.is_empty() { "." } else { &self.name })
    }
}

impl Tree {
    pub fn open(root: &Root) -> Result<Tree, ReadError> {
        let path = root.path("/");
        match openat(CWD, &path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(top) => Ok(Tree { root: root.clone(), top: Arc::new(top), remembered: Mutex::default() }),
            Err(e) => Err(ReadError::Io { path, source: e.into() }),
        }
    }

    pub fn root(&self) -> &Root {
        &self.root
    }

    /// What the path leads to, following all links.
    pub fn find(&self, path: &str) -> io::Result<ResolvedPath> {
        self.walk(path, true)
    }

    /// The same, but does not follow a link at the end.
    pub fn find_link(&self, path: &str) -> io::Result<ResolvedPath> {
        self.walk(path, false)
    }

    pub fn exists(&self, path: &str) -> io::Result<bool> {
        match self.find(path) {
            Ok(_) => Ok(true),
            Err(e) if is_absent(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// A regular file's content, at most `limit` bytes. A longer file is an error, not truncated.
    pub fn read(&self, path: &str, limit: u64) -> io::Result<Vec<u8>> {
        self.read_place(&self.find(path)?, limit)
    }

    pub fn read_place(&self, place: &ResolvedPath, limit: u64) -> io::Result<Vec<u8>> {
        // Reserve the whole size for a single read, within a limit: the reported size is not trusted.
        let mut bytes = Vec::with_capacity(place.bytes.min(limit).min(MAX_RESERVED) as usize + 1);
        self.open_place(place)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes")));
        }
        Ok(bytes)
    }

    /// Opens regular files only: opening a device or a pipe may have side effects or block forever.
    pub fn open_place(&self, place: &ResolvedPath) -> io::Result<std::fs::File> {
        if place.kind != FileKind::File {
            return Err(io::Error::other("not a regular file"));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&*place.parent, place.name.as_str(), flags, Mode::empty())?;
        if kind_of(&fstat(&file)?) != FileKind::File {
            return Err(io::Error::other("not a regular file"));
        }
        Ok(file.into())
    }

    /// The target of a link, not resolved.
    pub fn link_target(&self, path: &str) -> io::Result<String> {
        let place = self.find_link(path)?;
        if place.kind != FileKind::Link {
            return Err(Errno::INVAL.into());
        }
        read_link(&place.parent, &place.name)
    }

    /// A path with links resolved except one at its end; components that do not exist stay as they are. systemd compares this with
    /// its search path to distinguish an alias from a linked file (`chase` with CHASE_NOFOLLOW | CHASE_NONEXISTENT).
    pub fn simplified(&self, path: &str) -> io::Result<String> {
        match self.find_link(path) {
            Ok(place) => return Ok(place.path),
            Err(e) if !is_absent(&e) => return Err(e),
            Err(_) => {}
        }
        let path = format!("/{}", path.trim_start_matches('/'));
        let mut known = path.as_str();
        while known != "/" {
            known = split(known).0;
            match self.find(known) {
                Ok(place) => return Ok(lexically(&format!("{}/{}", place.path, &path[known.len()..]))),
                Err(e) if !is_absent(&e) => return Err(e),
                Err(_) => {}
            }
        }
        Ok(lexically(&path))
    }

    /// Names in a directory, sorted. Names that are not UTF-8 cannot be units and are skipped.
    pub fn list(&self, path: &str) -> io::Result<Vec<Entry>> {
        let place = self.find(path)?;
        if place.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (parent, name) = place.at();
        let directory = openat(parent, name, flags, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::RegularFile => FileKind::File,
                FileType::Directory => FileKind::Directory,
                FileType::Symlink => FileKind::Link,
                _ => match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => kind_of(&stat),
                    Err(_) => FileKind::Other,
                },
            };
            entries.push(Entry { name: name.to_owned(), kind });
            if entries.len() > MAX_NAMES {
                return Err(io::Error::other(format!("more than {MAX_NAMES} names in one directory")));
            }
        }
        entries.sort_unstable();
        Ok(entries)
    }

    fn walk(&self, path: &str, follow_last: bool) -> io::Result<ResolvedPath> {
        // Remaining components, the next one last.
        let mut ahead: Vec<String> = Vec::new();
        push_components(&mut ahead, path)?;
        // Directories entered so far, without the root.
        let mut inside: Vec<Entered> = Vec::new();
        let mut links = 0;
        let (directory, last) = split(path);
        // A path that ends in `/.` is the directory itself.
        let mut to_remember = ahead.len() > 1 && ahead[0] == last;
        if to_remember && let Some(known) = self.recall(directory) {
            inside = known;
            ahead.truncate(1);
            to_remember = false;
        }
        while let Some(name) = ahead.pop() {
            if to_remember && ahead.is_empty() {
                to_remember = false;
                self.remember(directory, &inside);
            }
            if name == ".." {
                inside.pop();
                continue;
            }
            let here: &OwnedFd = inside.last().map_or(&self.top, |(fd, _)| fd);
            let stat = statat(here, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = kind_of(&stat);
            let last = ahead.is_empty();
            if kind == FileKind::Link && (follow_last || !last) {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = read_link(here, &name)?;
                if target.starts_with('/') {
                    inside.clear();
                }
                push_components(&mut ahead, &target)?;
                continue;
            }
            if last {
                let mut path = String::new();
                for (_, name) in &inside {
                    path.push('/');
                    path.push_str(name);
                }
                path.push('/');
                path.push_str(&name);
                let parent = inside.pop().map_or_else(|| self.top.clone(), |(fd, _)| fd);
                return Ok(ResolvedPath { path, kind, bytes: u64::try_from(stat.st_size).unwrap_or(0), parent, name });
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let entered = openat(here, name.as_str(), flags, Mode::empty())?;
            inside.push((Arc::new(entered), name));
        }
        // The path ended in `..` or was `/`: a directory already entered.
        let path: String = inside.iter().map(|(_, name)| format!("/{name}")).collect();
        let (parent, name) = match inside.pop() {
            Some((_, name)) => match inside.pop() {
                Some((fd, _)) => (fd, name),
                None => (self.top.clone(), name),
            },
            None => (self.top.clone(), String::new()),
        };
        let path = if path.is_empty() { "/".to_owned() } else { path };
        Ok(ResolvedPath { path, kind: FileKind::Directory, bytes: 0, parent, name })
    }

    fn recall(&self, directory: &str) -> Option<Vec<Entered>> {
        self.remembered.lock().ok()?.get(directory).cloned()
    }

    fn remember(&self, directory: &str, inside: &[Entered]) {
        if let Ok(mut remembered) = self.remembered.lock() {
            if remembered.len() >= MAX_REMEMBERED {
                remembered.clear();
            }
            remembered.insert(directory.to_owned(), inside.to_vec());
        }
    }
}

/// Nothing exists there: a component is missing, or is not a directory.
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Directory and last component.
pub fn split(path: &str) -> (&str, &str) {
    let path = path.trim_end_matches('/');
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => ("/", path),
    }
}

/// The last component of a path.
pub fn base_name(path: &str) -> &str {
    split(path).1
}

fn push_components(ahead: &mut Vec<String>, path: &str) -> io::Result<()> {
    let components = path.split('/').filter(|c| !c.is_empty() && *c != ".");
    let count = components.clone().count();
    if ahead.len() + count > MAX_COMPONENTS {
        return Err(Errno::NAMETOOLONG.into());
    }
    ahead.extend(components.rev().map(str::to_owned));
    Ok(())
}

fn lexically(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for component in path.split('/') {
        match component {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            name => kept.push(name),
        }
    }
    format!("/{}", kept.join("/"))
}

fn read_link(directory: &OwnedFd, name: &str) -> io::Result<String> {
    let target = readlinkat(directory, name, Vec::new())?;
    match target.into_string() {
        Ok(target) if !target.is_empty() => Ok(target),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the link target is not UTF-8")),
    }
}

fn kind_of(stat: &rustix::fs::Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        // The null device is 1:3 (Documentation/admin-guide/devices.txt).
        FileType::CharacterDevice if (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == (1, 3) => {
            FileKind::NullDevice
        }
        _ => FileKind::Other,
    }
}

#[cfg(test)]
#[path = "tree/tests.rs"]
mod tests;
