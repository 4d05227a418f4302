//! A node's file tree that no link leads out of.
//!
//! `--root /proc/PID/root` is somebody else's file tree, and they may be hostile: a symbolic link in it could lead us, who are root,
//! into our own /etc. So the kernel resolves every path inside that root (openat2, RESOLVE_IN_ROOT), and we act relative to a
//! directory fd, so that nobody can swap the directory between check and use.

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

/// No unit file or machine id is larger.
const MOST: u64 = 1 << 20;

/// The kernel's MAXSYMLINKS.
const MOST_LINKS: usize = 40;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What to do with symbolic links in a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Follow them inside the root: `/lib` is `/usr/lib`.
    Follow,
    /// There should be none: somebody planted it to lead us elsewhere.
    Refuse,
}

#[derive(Debug)]
pub struct Tree {
    top: OwnedFd,
    /// For messages.
    path: PathBuf,
}

impl Tree {
    /// The user chose this path, so links in it are followed, including the magic link `/proc/PID/root`.
    pub fn open(path: &Path) -> io::Result<Tree> {
        Ok(Tree { top: openat(CWD, path, DIRECTORY, Mode::empty())?, path: path.to_owned() })
    }

    /// A path for messages; never opened.
    pub fn shown(&self, within: &str) -> PathBuf {
        self.path.join(within.trim_start_matches('/'))
    }

    /// With [`Links::Refuse`], the last part must not be a link either.
    pub fn directory(&self, within: &str, links: Links) -> io::Result<OwnedFd> {
        Ok(self.resolve(within, DIRECTORY, links)?)
    }

    pub fn open_file(&self, within: &str, flags: OFlags, links: Links) -> io::Result<OwnedFd> {
        // Opening a planted FIFO would block for ever. O_PATH does not open it, and openat2 rejects other flags with it.
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
            // Before Linux 5.6, or a seccomp filter that does not know it.
            Err(Errno::NOSYS | Errno::PERM) => self.walk(within, flags, links),
            // A component was renamed meanwhile: the kernel asks to retry.
            Err(Errno::AGAIN) => openat2(&self.top, within, flags, Mode::empty(), how),
            other => other,
        }
    }

    /// The same without openat2: component by component, holding an fd of each; `..` pops one.
    fn walk(&self, within: &str, flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
        let mut held = vec![openat(&self.top, ".", DIRECTORY, Mode::empty())?];
        let mut parts = parts_of(Path::new(within));
        let mut followed = 0;
        while let Some(part) = parts.pop_front() {
            if part == ".." {
                // The parent of the root is the root.
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
                    // It may have become a link meanwhile; O_PATH opens the link itself.
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

    pub fn read_to_string(&self, within: &str) -> io::Result<String> {
        let file = File::from(self.open_file(within, OFlags::RDONLY, Links::Follow)?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut text = String::new();
        file.take(MOST).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Creates the directory and its parents if they do not exist.
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

/// Names and `..`, without `/` and `.`.
fn parts_of(path: &Path) -> VecDeque<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(part).collect()
}

/// The type of a directory entry; `None` if it does not exist.
pub fn kind(directory: &OwnedFd, name: &str) -> io::Result<Option<FileType>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(about) => Ok(Some(FileType::from_raw_mode(about.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The target of a link; an error if it is not a link.
pub fn link(directory: impl AsFd, name: &OsStr) -> io::Result<PathBuf> {
    let to = readlinkat(directory, name, Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(to.into_bytes())))
}

pub fn make_link(directory: &OwnedFd, name: &str, to: &str) -> io::Result<()> {
    Ok(symlinkat(to, directory, name)?)
}

/// The entries of a directory. Names that are not UTF-8 are not systemd's and are left out.
pub fn entries(directory: BorrowedFd<'_>) -> io::Result<Vec<(String, FileType)>> {
    let readable = openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut all = Vec::new();
    for entry in Dir::new(readable)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." {
            continue;
        }
        // Some file systems do not report the type with the name.
        let kind = match entry.file_type() {
            FileType::Unknown => FileType::from_raw_mode(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode),
            kind => kind,
        };
        all.push((name.to_owned(), kind));
    }
    Ok(all)
}

/// Writes beside it, then renames: readers see the old or the new text. A link in its place is replaced, not followed.
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

    /// A hostile tree, and a directory outside of it that must not be touched.
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
    fn links_are_followed_inside_the_root_and_never_out_of_it() {
        let (_dir, tree, outside) = hostile();
        for way in ["etc/absolute", "etc/relative", "etc/magic/etc", "../outside", "etc/../../outside"] {
            let there = tree.directory(way, Links::Follow);
            assert!(there.is_err(), "{way} leads out: {there:?}");
        }
        assert!(tree.read_to_string("/etc/file").is_err(), "read through a link that leads out");
        assert!(tree.make_directory("etc/absolute/made").is_err());
        assert!(tree.make_directory("etc/relative/made").is_err());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "something was created outside");
        assert_eq!(tree.read_to_string("/config/own").unwrap(), "theirs", "an absolute link starts at the tree's root");
        assert!(tree.directory("config", Links::Refuse).is_err());
        symlink("again", tree.shown("etc/again")).unwrap();
        // The same without openat2.
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
    fn write_replaces_a_link_and_does_not_follow_it() {
        let (_dir, tree, outside) = hostile();
        let etc = tree.make_directory("/etc/deep/er").unwrap();
        symlink(outside.join("secret"), tree.shown("etc/deep/er/x.conf")).unwrap();
        symlink(outside.join("secret"), tree.shown("etc/deep/er/.x.conf.new")).unwrap();
        write(&etc, "x.conf", "new").unwrap();
        assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "ours");
        assert_eq!(tree.read_to_string("etc/deep/er/x.conf").unwrap(), "new");
        assert_eq!(kind(&etc, "x.conf").unwrap(), Some(FileType::RegularFile));
        assert_eq!(entries(etc.as_fd()).unwrap().len(), 1, "nothing else is left");
    }
}
