//! A tmpfs of our own.

use super::complain;
use crate::run_id::RunId;
use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

/// A tmpfs below the runtime directory. Its drop unmounts it, which also frees the pages in it.
#[derive(Debug)]
pub struct TmpfsMount {
    dir: PathBuf,
}

impl TmpfsMount {
    pub fn create(what: &str, size_bytes: u64, inodes: u64) -> Result<TmpfsMount> {
        let run = RunId::of_this_process();
        let dir = run.runtime_dir().join(what);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let options = CString::new(format!("size={size_bytes},nr_inodes={inodes},mode=700"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        if let Err(error) = mount(run.name(what), &dir, "tmpfs", flags, options.as_c_str()) {
            let _ = remove_runtime_dir(&run.runtime_dir());
            return Err(error).with_context(|| format!("cannot mount a tmpfs at {}", dir.display()));
        }
        Ok(TmpfsMount { dir })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for TmpfsMount {
    fn drop(&mut self) {
        // Detach: a file still open somewhere shall not keep the mount in the tree.
        if let Err(error) = unmount(&self.dir, UnmountFlags::DETACH) {
            complain(&self.dir.display().to_string(), &error);
        }
        let _ = fs::remove_dir(&self.dir);
        if let Some(run_dir) = self.dir.parent() {
            let _ = fs::remove_dir(run_dir);
            let _ = run_dir.parent().map(fs::remove_dir);
        }
    }
}

/// Unmounts and removes what a run kept in its runtime directory. Removes only empty directories: never a file.
pub fn remove_runtime_dir(run_dir: &Path) -> Result<()> {
    for entry in fs::read_dir(run_dir).with_context(|| run_dir.display().to_string())?.flatten() {
        let path = entry.path();
        while unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
        fs::remove_dir(&path).with_context(|| path.display().to_string())?;
    }
    fs::remove_dir(run_dir).with_context(|| run_dir.display().to_string())
}
