//! A node's files in a directory, for tests, and what tests on a real node share.

use crate::Root;
use coroner_evidence::Evidence;
use std::path::Path;
use std::time::{Duration, Instant};

/// Paths are relative to the directory, with or without a leading slash.
pub fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        write(dir.path(), path, text);
    }
    dir
}

pub fn write(dir: &Path, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    let path = place(dir, path.as_ref());
    std::fs::write(path, text).unwrap();
}

pub fn link(dir: &Path, path: &str, target: impl AsRef<Path>) {
    std::os::unix::fs::symlink(target, place(dir, path.as_ref())).unwrap();
}

fn place(dir: &Path, path: &Path) -> std::path::PathBuf {
    let path = dir.join(path.strip_prefix("/").unwrap_or(path));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    path
}

/// What one look at the tree saw.
pub fn seen(dir: &Path, look: impl FnOnce(&Root, &mut Evidence)) -> Evidence {
    let mut evidence = Evidence::default();
    look(&Root::at(dir), &mut evidence);
    evidence
}

/// Polls until the condition holds.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(180), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs in a new thread that keeps only these capabilities.
pub fn with_capabilities<T: Send + 'static>(
    keep: rustix::thread::CapabilitySet,
    run: impl FnOnce() -> T + Send + 'static,
) -> T {
    let thread = std::thread::spawn(move || {
        let sets = rustix::thread::CapabilitySets { effective: keep, permitted: keep, inheritable: keep };
        rustix::thread::set_capabilities(None, sets).unwrap();
        run()
    });
    thread.join().unwrap()
}
