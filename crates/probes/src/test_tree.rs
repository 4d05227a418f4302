//! A node's files in a directory, for tests, and what tests on a real node share.

use crate::Root;
use coroner_evidence::Evidence;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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

/// A thread of this process that repeats the same work on the last core we may use.
pub struct Busy {
    pub tid: u32,
    pub core: u32,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Busy {
    pub fn start(name: &str, mut work: impl FnMut() + Send + 'static) -> Busy {
        let (stop, tid) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (stopped, told) = (Arc::clone(&stop), Arc::clone(&tid));
        let core = *coroner_lab::node::allowed_cores().unwrap().last().unwrap();
        let body = move || {
            let mut cores = rustix::thread::CpuSet::new();
            cores.set(core as usize);
            rustix::thread::sched_setaffinity(None, &cores).unwrap();
            told.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
            while !stopped.load(Ordering::Relaxed) {
                work();
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body).unwrap();
        while tid.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        Busy { tid: tid.load(Ordering::SeqCst), core, stop, thread: Some(thread) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}
