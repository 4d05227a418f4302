//! A directory that only one coroner process writes: the recorder's, and the journal of `coroner fix`.
//!
//! Whoever may write the directory, or rename one above it, could redirect what we write or forge what we read. So the directory must
//! be ours, and every one above it root's or ours; links on the way are resolved once. A lock (`flock` on the file `lock`, which
//! contains the process id for people) keeps a second process out and is released when its holder exits.

use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum OwnDirectoryError {
    // Whoever prints the chain of causes prints the source.
    #[error("{}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// With what to do about it.
    #[error("{}: {why}", .path.display())]
    Unsafe { path: PathBuf, why: String },
    #[error("{}: in use by pid {pid}", .path.display())]
    Locked { path: PathBuf, pid: String },
    #[error("{}: was removed, moved or replaced while in use; nothing more is written there", .path.display())]
    Gone { path: PathBuf },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> OwnDirectoryError {
    let path = path.to_owned();
    move |source| OwnDirectoryError::Io { path, source }
}

/// Ours alone until dropped.
#[derive(Debug)]
pub struct OwnDirectory {
    path: PathBuf,
    /// Device and inode: another directory may take its path later.
    id: (u64, u64),
    /// Only kept open.
    _lock: File,
}

impl OwnDirectory {
    /// Creates the directory if needed, and takes its lock.
    pub fn take(path: &Path) -> Result<OwnDirectory, OwnDirectoryError> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error(path))?;
        let path = path.canonicalize().map_err(io_error(path))?;
        let about = must_be_safe(&path)?;
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(&lock_path)
            .map_err(io_error(&lock_path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = (&lock).take(32).read_to_string(&mut pid);
            return Err(OwnDirectoryError::Locked { path, pid: pid.trim().to_owned() });
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(io_error(&lock_path))?;
        Ok(OwnDirectory { path, id: (about.dev(), about.ino()), _lock: lock })
    }

    /// With links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if the path no longer leads to the directory that was taken.
    pub fn still_there(&self) -> Result<(), OwnDirectoryError> {
        match id_of(&self.path) {
            Some(id) if id == self.id => Ok(()),
            _ => Err(OwnDirectoryError::Gone { path: self.path.clone() }),
        }
    }
}

/// Device and inode of a directory; `None` for anything else, including a link to one.
pub fn id_of(directory: &Path) -> Option<(u64, u64)> {
    let about = std::fs::symlink_metadata(directory).ok().filter(Metadata::is_dir)?;
    Some((about.dev(), about.ino()))
}

/// Whether somebody holds the lock of this directory.
pub fn is_locked(directory: &Path) -> bool {
    let Ok(lock) = File::open(directory.join("lock")) else { return false };
    flock(&lock, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
}

fn must_be_safe(path: &Path) -> Result<Metadata, OwnDirectoryError> {
    let (us, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let look = |path: &Path| std::fs::symlink_metadata(path).map_err(io_error(path));
    let refuse = |why: String| Err(OwnDirectoryError::Unsafe { path: path.to_owned(), why });
    let about = look(path)?;
    if about.uid() != us {
        return refuse(format!(
            "owned by user {}, but this is user {us}; run as that user or choose another directory",
            about.uid()
        ));
    }
    if about.mode() & 0o022 != 0 {
        return refuse("writable by others; run chmod go-w on it or choose another directory".to_owned());
    }
    for above in path.ancestors().skip(1) {
        let about = look(above)?;
        let name = above.display();
        if about.uid() != us && about.uid() != 0 {
            return refuse(format!(
                "{name} above it is owned by user {}, who could replace it; choose a directory whose parents belong to root or to you",
                about.uid()
            ));
        }
        // In a sticky directory such as /tmp, others cannot rename ours.
        let is_sticky = about.mode() & 0o1000 != 0;
        let is_shared = about.mode() & 0o002 != 0 || (about.mode() & 0o020 != 0 && ![0, group].contains(&about.gid()));
        if is_shared && !is_sticky {
            return refuse(format!(
                "{name} above it is writable by others, who could replace it; run chmod go-w {name} or choose another directory"
            ));
        }
    }
    Ok(about)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn refused(path: &Path) -> String {
        OwnDirectory::take(path).expect_err("refused").to_string()
    }

    #[test]
    fn a_second_process_is_told_who_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let first = OwnDirectory::take(&path).unwrap();
        assert!(is_locked(&path));
        assert!(refused(&path).ends_with(&format!("in use by pid {}", std::process::id())));
        drop(first);
        assert!(!is_locked(&path), "the lock is released with its holder, whatever the file says");
        fs::write(path.join("lock"), "4194305\n").unwrap();
        assert!(OwnDirectory::take(&path).is_ok());
    }

    #[test]
    fn a_link_is_resolved_once_and_a_later_replacement_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        let own = OwnDirectory::take(&link).unwrap();
        assert_eq!(own.path(), real.canonicalize().unwrap());
        fs::remove_file(&link).unwrap();
        own.still_there().unwrap();

        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&real, &elsewhere).unwrap();
        assert!(own.still_there().is_err(), "removed");
        symlink(&elsewhere, &real).unwrap();
        assert!(own.still_there().is_err(), "a link, even to the same directory");
        fs::remove_file(&real).unwrap();
        fs::create_dir(&real).unwrap();
        assert!(own.still_there().unwrap_err().to_string().contains("removed, moved or replaced"), "another one");

        // A link in place of the lock is not followed.
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        symlink(dir.path().join("victim"), other.join("lock")).unwrap();
        assert!(OwnDirectory::take(&other).is_err() && !dir.path().join("victim").exists());
    }

    #[test]
    fn directories_that_others_could_replace_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().join("parent");
        let path = parent.join("own");
        fs::create_dir_all(&path).unwrap();
        let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(&parent, 0o777);
        assert!(
            refused(&path)
                .contains(&format!("{} above it is writable by others", parent.canonicalize().unwrap().display()))
        );
        mode(&parent, 0o1777);
        drop(OwnDirectory::take(&path).unwrap());
        mode(&parent, 0o755);
        mode(&path, 0o775);
        assert!(refused(&path).contains("writable by others; run chmod"));
        mode(&path, 0o700);
        // Only root can change a directory's owner.
        if rustix::process::geteuid().is_root() {
            chown(&parent, Some(12345), None).unwrap();
            assert!(refused(&path).contains("above it is owned by user 12345"), "{}", refused(&path));
            chown(&parent, Some(0), None).unwrap();
            chown(&path, Some(12345), None).unwrap();
            assert!(refused(&path).contains("owned by user 12345, but this is user 0"));
        }
    }
}
