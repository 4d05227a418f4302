//! A frozen file system, thawed on drop.

use super::complain;
use crate::syscalls;
use anyhow::{Context, Result};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Drop it before the processes that write to the file system: until then they cannot be killed.
#[derive(Debug)]
pub struct Freeze {
    path: PathBuf,
    dir: File,
}

impl Freeze {
    /// Of the file system mounted at `dir`.
    pub fn of(dir: &Path) -> Result<Freeze> {
        let file = File::open(dir).with_context(|| dir.display().to_string())?;
        syscalls::freeze(file.as_fd()).with_context(|| format!("cannot freeze {}", dir.display()))?;
        Ok(Freeze { path: dir.to_owned(), dir: file })
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        if let Err(error) = syscalls::thaw(self.dir.as_fd()) {
            complain(&format!("the frozen {}", self.path.display()), &error);
        }
    }
}

/// For mounts of the lab whose runner was killed.
pub(super) fn thaw_if_frozen(dir: &Path) {
    if let Ok(dir) = File::open(dir) {
        // An error if it is not frozen.
        let _ = syscalls::thaw(dir.as_fd());
    }
}
