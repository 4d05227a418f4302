//! The recorder's directory: its layout, and where recorders run.

use anyhow::{Context, anyhow};
use coroner_evidence::own_directory::{self, OwnDirectory, OwnDirectoryError};
use std::fs::{DirBuilder, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Locks the directory and creates what each has. Fails if another recorder uses it.
pub fn take(path: &Path) -> anyhow::Result<OwnDirectory> {
    let own = OwnDirectory::take(path).map_err(|error| match error {
        OwnDirectoryError::Locked { path, pid } => anyhow!(
            "{}: another recorder (pid {pid}) is writing here; stop it or choose another directory",
            path.display()
        ),
        other => other.into(),
    })?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(incidents(own.path()));
    made.with_context(|| format!("cannot create {}", incidents(own.path()).display()))?;
    Ok(own)
}

/// Whether a recorder is writing into this directory.
pub fn is_live(path: &Path) -> bool {
    own_directory::is_locked(path)
}

/// Whether a recorder has ever written here.
pub fn is_recorders(path: &Path) -> bool {
    path.join("lock").exists()
}

/// Whether we may not read it: then we do not know whether a recorder runs there.
pub fn is_closed(path: &Path) -> bool {
    File::open(path.join("lock")).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

pub fn incidents(directory: &Path) -> PathBuf {
    directory.join("incidents")
}

pub fn control_socket(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

/// Holds one file per running recorder, named by its process id, with the path of its directory.
pub const RUNNING: &str = "/run/coroner/recorders";
/// Overrides it in tests.
const RUNNING_VARIABLE: &str = "CORONER_RUNNING";

fn place_of_running() -> PathBuf {
    std::env::var_os(RUNNING_VARIABLE).filter(|place| !place.is_empty()).map_or_else(|| RUNNING.into(), PathBuf::from)
}

/// Tells other commands where this recorder runs, until dropped.
#[derive(Debug)]
pub struct Registration {
    file: PathBuf,
}

/// If this fails, the recorder can still record: commands then need its directory's path.
pub fn register(directory: &Path) -> anyhow::Result<Registration> {
    register_in(&place_of_running(), directory)
}

fn register_in(place: &Path, directory: &Path) -> anyhow::Result<Registration> {
    let directory = std::path::absolute(directory).with_context(|| directory.display().to_string())?;
    let made = DirBuilder::new().recursive(true).mode(0o755).create(place);
    made.with_context(|| format!("cannot create {}", place.display()))?;
    forget_the_dead(place);
    let file = place.join(std::process::id().to_string());
    // Written under another name and renamed: readers find all of it or nothing.
    let new = place.join(format!("{}.new", std::process::id()));
    std::fs::write(&new, directory.as_os_str().as_bytes())
        .and_then(|()| std::fs::rename(&new, &file))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(Registration { file })
}

impl Drop for Registration {
    fn drop(&mut self) {
        // If it stays, the released lock shows that no recorder runs.
        let _ = std::fs::remove_file(&self.file);
    }
}

/// The directories of recorders that run on this node and that we may read. Leftovers of killed ones are skipped.
pub fn running() -> Vec<PathBuf> {
    running_in(&place_of_running())
}

/// The message when there is none.
pub fn none_runs() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => "no recorder is running on this node",
        false => "no recorder visible to you is running on this node (root sees all)",
    }
}

/// `None` if none runs; an error if there are several, as we cannot know which is meant.
pub fn the_running_one() -> Result<Option<PathBuf>, SeveralRun> {
    let mut running = running();
    if running.len() > 1 { Err(SeveralRun(running)) } else { Ok(running.pop()) }
}

/// The directories of several running recorders.
#[derive(Debug)]
pub struct SeveralRun(Vec<PathBuf>);

impl SeveralRun {
    /// `how` comes before each directory: `--dir`.
    pub fn choose(&self, how: &str) -> anyhow::Error {
        let listed: Vec<String> = self.0.iter().map(|dir| format!("{how} {}", dir.display())).collect();
        anyhow!("several recorders are running; choose one: {}", listed.join(", or "))
    }
}

/// Removes what killed recorders left.
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
    fn a_running_recorder_is_found_but_not_a_killed_one() {
        let dir = tempfile::tempdir().unwrap();
        let (place, mine, dead) = (dir.path().join("run"), dir.path().join("mine"), dir.path().join("dead"));
        assert_eq!(running_in(&place), [""; 0].map(PathBuf::from));
        drop(take(&dead).unwrap());
        let own = take(&mine).unwrap();
        let registration = register_in(&place, own.path()).unwrap();
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
