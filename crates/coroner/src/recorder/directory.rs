//! The recorder's directory: who may write it, and what lies where.

use anyhow::{Context, bail};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A directory that only we write, as long as this lives.
pub struct OwnDirectory {
    pub path: PathBuf,
    /// Held, not used.
    _lock: File,
}

impl OwnDirectory {
    /// Makes the directory if it is not there, and takes its lock. Another recorder's is refused.
    pub fn take(path: &Path) -> anyhow::Result<OwnDirectory> {
        let path = std::path::absolute(path).with_context(|| path.display().to_string())?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(incidents(&path))
            .with_context(|| format!("{}: cannot be made", incidents(&path).display()))?;
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .with_context(|| format!("{}: cannot be opened", lock_path.display()))?;
        if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = lock.read_to_string(&mut pid);
            bail!(
                "{}: another recorder (pid {}) writes here; stop it, or choose another directory",
                path.display(),
                pid.trim()
            );
        }
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .with_context(|| format!("{}: cannot be written", lock_path.display()))?;
        Ok(OwnDirectory { path, _lock: lock })
    }
}

/// Whether a recorder writes into this directory now.
pub fn is_live(path: &Path) -> bool {
    let Ok(lock) = File::open(path.join("lock")) else { return false };
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared) {
        Ok(()) => false,
        Err(error) => error == rustix::io::Errno::WOULDBLOCK,
    }
}

pub fn incidents(directory: &Path) -> PathBuf {
    directory.join("incidents")
}

pub fn control_socket(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

/// A file that says where a running recorder keeps its directory is here, named by the recorder's process id.
pub const RUNNING: &str = "/run/coroner/recorders";
