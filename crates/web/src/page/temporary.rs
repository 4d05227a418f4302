//! A profile too large for memory becomes a recording in our own directory, which is removed when we exit. After a `kill -9` the
//! next `coroner view` removes it: its lock is no longer held.

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PREFIX: &str = "coroner-view-";
/// A younger one may still be unlocked because it is just being created.
const YOUNG: Duration = Duration::from_secs(60);

pub struct Temporary {
    directory: tempfile::TempDir,
    /// Locked as long as we run.
    _lock: File,
}

impl Temporary {
    pub fn new() -> anyhow::Result<Temporary> {
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir();
        let directory = directory.with_context(|| {
            format!(
                "{}: cannot create a temporary directory; set TMPDIR to another place",
                std::env::temp_dir().display()
            )
        })?;
        let lock = File::open(directory.path()).and_then(|lock| {
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            Ok(lock)
        });
        let lock = lock.with_context(|| directory.path().display().to_string())?;
        Ok(Temporary { directory, _lock: lock })
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("profile.coroner")
    }
}

/// Removes what crashed instances of our user left behind.
pub fn remove_stale() {
    remove_stale_in(&std::env::temp_dir(), YOUNG);
}

fn remove_stale_in(place: &Path, young: Duration) {
    let us = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        // Does not follow links.
        let Ok(about) = entry.metadata() else { continue };
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX) && about.is_dir() && about.uid() == us;
        let is_young = about.modified().ok().and_then(|at| at.elapsed().ok()).is_none_or(|age| age < young);
        if !is_ours || is_young {
            continue;
        }
        let lock = File::open(entry.path());
        if lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlocked_directories_are_removed_and_locked_ones_stay() {
        let place = tempfile::tempdir().unwrap();
        let made = |name: &str| {
            let path = place.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("profile.coroner"), "x").unwrap();
            path
        };
        let (stale, held, other) = (made("coroner-view-a"), made("coroner-view-b"), made("somebody-else"));
        let lock = File::open(&held).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        std::os::unix::fs::symlink(&other, place.path().join("coroner-view-c")).unwrap();
        remove_stale_in(place.path(), YOUNG);
        assert!(stale.exists(), "too young to be judged");
        remove_stale_in(place.path(), Duration::ZERO);
        assert!(!stale.exists() && held.exists() && other.join("profile.coroner").exists());
        drop(lock);
        remove_stale_in(place.path(), Duration::ZERO);
        assert!(!held.exists());
    }
}
