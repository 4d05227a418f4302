//! The file system of a node, out of which nothing leads.
//!
//! `--root /proc/PID/root` is the file system of somebody else, perhaps of somebody hostile: a symbolic link in it would lead us, who are
//! root, into our own /etc. The kernel itself resolves every path below that root (openat2, RESOLVE_IN_ROOT), and what is done is done in
//! a directory that we hold, so that nobody can put another one in its place between the look and the deed.

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, readlinkat, renameat,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// No file of systemd's, and no machine id, is larger.
const MOST: u64 = 1 << 20;

/// As the kernel's own MAXSYMLINKS.
const MOST_LINKS: usize = 40;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What a symbolic link on the way means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// It leads to somewhere below the same root: `/lib` is `/usr/lib`.
    Follow,
    /// Somebody put it there to lead us elsewhere.
    Refuse,
}

#[derive(Debug)]
pub struct Tree {
    top: OwnedFd,
    /// For people.
    path: PathBuf,
}

impl Tree {
    /// The path itself is the user's word: links in it are followed, also the magic one that `/proc/PID/root` is.
    pub fn open(path: &Path) -> io::Result<Tree> {
        Ok(Tree { top: openat(CWD, path, DIRECTORY, Mode::empty())?, path: path.to_owned() })
    }

    /// A place in it, for people: nothing is ever opened by this.
    pub fn shown(&self, within: &str) -> PathBuf {
        self.path.join(within.trim_start_matches('/'))
    }

    /// A directory in it; the last part of the path is never a link where links are refused.
    pub fn directory(&self, within: &str, links: Links) -> io::Result<OwnedFd> {
        Ok(self.resolve(within, DIRECTORY, links)?)
    }

    /// A file in it, to be read or only held.
    pub fn open_file(&self, within: &str, flags: OFlags, links: Links) -> io::Result<OwnedFd> {
        // A FIFO in a foreign tree would let us wait for ever; what is only held is not opened, and openat2 wants no more flags there.
        let wait = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        Ok(self.resolve(within, flags | OFlags::CLOEXEC | wait, links)?)
    }

    fn resolve(&self, within: &str, flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
        let within = within.trim_start_matches('/');
        let within = if within.is_empty() { "." } else { within };
        let mut how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        if links == Links::Refuse {
            how |= ResolveFlags::NO_SYMLINKS;
        }
        match openat2(&self.top, within, flags, Mode::empty(), how) {
            // Before Linux 5.6, or a filter that does not know it.
            Err(Errno::NOSYS | Errno::PERM) => self.walk(within, flags, links),
            // Somebody renamed something on the way while we looked: the kernel asks to try again.
            Err(Errno::AGAIN) => openat2(&self.top, within, flags, Mode::empty(), how),
            other => other,
        }
    }

    /// The same without the kernel's help: part by part, each of them held, and `..` is the one that was held before.
    fn walk(&self, within: &str, flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
        let mut held = vec![openat(&self.top, ".", DIRECTORY, Mode::empty())?];
        let mut parts = parts_of(Path::new(within));
        let mut followed = 0;
        while let Some(part) = parts.pop_front() {
            if part == ".." {
                // Above the root is the root.
                held.truncate((held.len() - 1).max(1));
                continue;
            }
            let at = held.last().ok_or(Errno::NOENT)?;
            let next = openat(at, &part, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            match FileType::from_raw_mode(fstat(&next)?.st_mode) {
                FileType::Symlink => {
                    followed += 1;
                    if links == Links::Refuse || followed > MOST_LINKS {
                        return Err(Errno::LOOP);
                    }
                    let to = PathBuf::from(OsString::from_vec(readlinkat(&next, "", Vec::new())?.into_bytes()));
                    if to.is_absolute() {
                        held.truncate(1);
                    }
                    let mut there = parts_of(&to);
                    there.append(&mut parts);
                    parts = there;
                }
                FileType::Directory => held.push(next),
                _ if parts.is_empty() => {
                    let found = openat(at, &part, flags | OFlags::NOFOLLOW, Mode::empty())?;
                    // Somebody may have put a link there since; O_PATH opens that itself.
                    return match FileType::from_raw_mode(fstat(&found)?.st_mode) {
                        FileType::Symlink => Err(Errno::LOOP),
                        _ => Ok(found),
                    };
                }
                _ => return Err(Errno::NOTDIR),
            }
        }
        openat(held.last().ok_or(Errno::NOENT)?, ".", flags, Mode::empty())
    }

    /// The text of a file; an error if it is not there.
    pub fn read_to_string(&self, within: &str) -> io::Result<String> {
        let file = File::from(self.open_file(within, OFlags::RDONLY, Links::Follow)?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut text = String::new();
        file.take(MOST).read_to_string(&mut text)?;
        Ok(text)
    }

    /// A directory in it, which is made if it is not there, with those above it.
    pub fn make_directory(&self, within: &str) -> io::Result<OwnedFd> {
        let mut at = String::new();
        for part in within.split('/').filter(|part| !part.is_empty()) {
            let above = self.directory(&at, Links::Follow)?;
            match mkdirat(&above, part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            at = format!("{at}/{part}");
        }
        self.directory(within, Links::Follow)
    }
}

/// Names and `..`; what leads nowhere is left out.
fn parts_of(path: &Path) -> VecDeque<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(part).collect()
}

/// What stands under a name in a directory: `None` if there is nothing.
pub fn kind(directory: &OwnedFd, name: &str) -> io::Result<Option<FileType>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(about) => Ok(Some(FileType::from_raw_mode(about.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Where a link in a directory leads; an error if it is none.
pub fn link(directory: impl AsFd, name: &OsStr) -> io::Result<PathBuf> {
    let to = readlinkat(directory, name, Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(to.into_bytes())))
}

pub fn make_link(directory: &OwnedFd, name: &str, to: &str) -> io::Result<()> {
    Ok(symlinkat(to, directory, name)?)
}

/// What is in a directory: names, and what they are. Names that are no text are not systemd's, and are left out.
pub fn entries(directory: BorrowedFd<'_>) -> io::Result<Vec<(String, FileType)>> {
    let readable = openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut all = Vec::new();
    for entry in Dir::new(readable)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." {
            continue;
        }
        // Some file systems do not tell the kind with the name.
        let kind = match entry.file_type() {
            FileType::Unknown => FileType::from_raw_mode(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode),
            kind => kind,
        };
        all.push((name.to_owned(), kind));
    }
    Ok(all)
}

/// Beside it first, then in its place: whoever reads it finds the old or the new. A link in its place is replaced, not followed.
pub fn write(directory: &OwnedFd, name: &str, text: &str) -> io::Result<()> {
    let new = format!(".{name}.new");
    match unlinkat(directory, new.as_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, new.as_str(), flags, Mode::from_raw_mode(0o644))?);
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| Ok(renameat(directory, new.as_str(), directory, name)?));
    if written.is_err() {
        let _ = unlinkat(directory, new.as_str(), AtFlags::empty());
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A tree of somebody hostile, and beside it what must not be touched.
    fn hostile() -> (tempfile::TempDir, Tree, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
        fs::create_dir_all(inside.join("etc")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("secret"), "ours").unwrap();
        symlink(&outside, inside.join("etc/absolute")).unwrap();
        symlink("../../outside", inside.join("etc/relative")).unwrap();
        symlink(outside.join("secret"), inside.join("etc/file")).unwrap();
        symlink("/proc/self/root", inside.join("etc/magic")).unwrap();
        symlink("/etc", inside.join("config")).unwrap();
        fs::write(inside.join("etc/own"), "theirs").unwrap();
        let tree = Tree::open(&inside).unwrap();
        (dir, tree, outside)
    }

    #[test]
    fn no_link_leads_out_and_those_within_do_what_they_do_for_its_owner() {
        let (_dir, tree, outside) = hostile();
        for way in ["etc/absolute", "etc/relative", "etc/magic/etc", "../outside", "etc/../../outside"] {
            let there = tree.directory(way, Links::Follow);
            assert!(there.is_err(), "{way} leads out: {there:?}");
        }
        assert!(tree.read_to_string("/etc/file").is_err(), "read through a link that leads out");
        assert!(tree.make_directory("etc/absolute/made").is_err());
        assert!(tree.make_directory("etc/relative/made").is_err());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "something was made outside");
        assert_eq!(tree.read_to_string("/config/own").unwrap(), "theirs", "an absolute link is one of its own root");
        assert!(tree.directory("config", Links::Refuse).is_err());
        symlink("again", tree.shown("etc/again")).unwrap();
        // Without openat2 it is the same.
        for way in ["etc/absolute", "etc/relative", "etc/magic/etc", "../outside", "etc/own/x", "etc/again", "nowhere"]
        {
            let (walked, kernels) = (tree.walk(way, DIRECTORY, Links::Follow), tree.directory(way, Links::Follow));
            assert!(walked.is_err() && kernels.is_err(), "{way}: {walked:?} {kernels:?}");
        }
        let same = |way: &str, flags: OFlags| {
            let inode = |fd: OwnedFd| fstat(&fd).unwrap().st_ino;
            let walked = tree.walk(way, flags, Links::Follow).unwrap_or_else(|e| panic!("{way}: {e}"));
            assert_eq!(inode(walked), inode(tree.resolve(way, flags, Links::Follow).unwrap()), "{way}");
        };
        for way in [".", "etc", "config", "..", "../../etc", "config/../config"] {
            same(way, DIRECTORY);
        }
        same("config/own", OFlags::PATH);
        assert!(tree.walk("config/own", OFlags::PATH, Links::Refuse).is_err());
        assert!(tree.walk("etc/file", OFlags::PATH, Links::Follow).is_err(), "led out");
    }

    #[test]
    fn a_link_where_a_file_is_written_is_replaced_and_not_followed() {
        let (_dir, tree, outside) = hostile();
        let etc = tree.make_directory("/etc/deep/er").unwrap();
        symlink(outside.join("secret"), tree.shown("etc/deep/er/x.conf")).unwrap();
        symlink(outside.join("secret"), tree.shown("etc/deep/er/.x.conf.new")).unwrap();
        write(&etc, "x.conf", "new").unwrap();
        assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "ours");
        assert_eq!(tree.read_to_string("etc/deep/er/x.conf").unwrap(), "new");
        assert_eq!(kind(&etc, "x.conf").unwrap(), Some(FileType::RegularFile));
        assert_eq!(entries(etc.as_fd()).unwrap().len(), 1, "nothing else stays");
    }
}
