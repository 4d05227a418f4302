//! The recorder's directory: who may write it, and what lies where.

use anyhow::{Context, bail};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
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
            .with_context(|| format!("{}: cannot create it", incidents(&path).display()))?;
        is_ours(&path)?;
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&lock_path)
            .with_context(|| format!("{}: cannot open it", lock_path.display()))?;
        if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = lock.read_to_string(&mut pid);
            bail!(
                "{}: another recorder (pid {}) is writing here; stop it or choose another directory",
                path.display(),
                pid.trim()
            );
        }
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .with_context(|| format!("{}: cannot write it", lock_path.display()))?;
        Ok(OwnDirectory { path, _lock: lock })
    }
}

/// Others could lay links there that lead what we write elsewhere, or take our files away.
fn is_ours(path: &Path) -> anyhow::Result<()> {
    let about = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    let us = rustix::process::geteuid().as_raw();
    if about.uid() != us {
        bail!(
            "{}: owned by user {}, but this is user {us}; record as that user or choose another directory",
            path.display(),
            about.uid()
        );
    }
    if about.mode() & 0o022 != 0 {
        bail!("{}: writable by others; run chmod go-w on it or choose another directory", path.display());
    }
    Ok(())
}

/// Whether a recorder writes into this directory now.
pub fn is_live(path: &Path) -> bool {
    let Ok(lock) = File::open(path.join("lock")) else { return false };
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared) {
        Ok(()) => false,
        Err(error) => error == rustix::io::Errno::WOULDBLOCK,
    }
}

/// Whether we may not look into it: then nobody knows whether a recorder runs there.
pub fn is_closed(path: &Path) -> bool {
    File::open(path.join("lock")).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

pub fn incidents(directory: &Path) -> PathBuf {
    directory.join("incidents")
}

pub fn control_socket(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

/// A file that says where a running recorder keeps its directory is here, named by the recorder's process id.
pub const RUNNING: &str = "/run/coroner/recorders";
/// Tests have a place of their own: this variable names it.
const RUNNING_VARIABLE: &str = "CORONER_RUNNING";

fn place_of_running() -> PathBuf {
    std::env::var_os(RUNNING_VARIABLE).filter(|place| !place.is_empty()).map_or_else(|| RUNNING.into(), PathBuf::from)
}

/// Tells other commands where a recorder runs, as long as this lives.
#[derive(Debug)]
pub struct Registration {
    file: PathBuf,
}

/// A recorder that cannot say where it is records as well: commands then need its directory's name.
pub fn register(directory: &Path) -> anyhow::Result<Registration> {
    register_in(&place_of_running(), directory)
}

fn register_in(place: &Path, directory: &Path) -> anyhow::Result<Registration> {
    let directory = std::path::absolute(directory).with_context(|| directory.display().to_string())?;
    let made = DirBuilder::new().recursive(true).mode(0o755).create(place);
    made.with_context(|| format!("{}: cannot create it", place.display()))?;
    forget_the_dead(place);
    let file = place.join(std::process::id().to_string());
    // Under another name first: who looks finds all of it or nothing.
    let new = place.join(format!("{}.new", std::process::id()));
    std::fs::write(&new, directory.as_os_str().as_bytes())
        .and_then(|()| std::fs::rename(&new, &file))
        .with_context(|| format!("{}: cannot write it", file.display()))?;
    Ok(Registration { file })
}

impl Drop for Registration {
    fn drop(&mut self) {
        // If it stays, the lock says that nobody is there.
        let _ = std::fs::remove_file(&self.file);
    }
}

/// The directories of the recorders that run on this node and that we may read. What a killed one left is passed over.
pub fn running() -> Vec<PathBuf> {
    running_in(&place_of_running())
}

/// Why there is none, for messages.
pub fn none_runs() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => "no recorder is running on this node",
        false => "no recorder that you may see is running on this node (root sees all)",
    }
}

/// `None` if none runs. Of several nobody knows which is meant.
pub fn the_running_one() -> anyhow::Result<Option<PathBuf>> {
    let mut running = running();
    if running.len() > 1 {
        let listed: Vec<String> = running.iter().map(|dir| dir.display().to_string()).collect();
        bail!("several recorders are running; choose one: --dir {}", listed.join(", or --dir "));
    }
    Ok(running.pop())
}

/// What killed recorders left.
fn forget_the_dead(place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let of = std::fs::read(entry.path()).map(|path| PathBuf::from(std::ffi::OsString::from_vec(path)));
        if of.is_ok_and(|directory| !is_live(&directory)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn running_in(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let is_number = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    let mut directories: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().filter(|entry| is_number(&entry.file_name())))
        .filter_map(|entry| std::fs::read(entry.path()).ok())
        .map(|path| PathBuf::from(std::ffi::OsString::from_vec(path)))
        .filter(|directory| directory.is_absolute() && is_live(directory))
        .collect();
    directories.sort();
    directories.dedup();
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_recorder_is_found_and_what_a_killed_one_left_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (place, mine, dead) = (dir.path().join("run"), dir.path().join("mine"), dir.path().join("dead"));
        assert_eq!(running_in(&place), [""; 0].map(PathBuf::from));
        drop(OwnDirectory::take(&dead).unwrap());
        let own = OwnDirectory::take(&mine).unwrap();
        let registration = register_in(&place, &own.path).unwrap();
        std::fs::write(place.join("4194305"), dead.as_os_str().as_bytes()).unwrap();
        std::fs::write(place.join("4194306"), b"/no/such/directory").unwrap();
        std::fs::write(place.join("README"), mine.as_os_str().as_bytes()).unwrap();
        assert_eq!(running_in(&place), std::slice::from_ref(&mine));
        drop(own);
        assert!(running_in(&place).is_empty(), "nobody holds the lock");
        drop(registration);
        assert!(!place.join(std::process::id().to_string()).exists());
    }
}
