//! Brings a recording to the disk, in the background.
//!
//! The writer only writes into the page cache (its connection has synchronous=OFF): on a busy disk an fsync can take seconds, and a
//! recorder must not block just then. Every few seconds this thread copies the write-ahead log into the file with its own
//! connection, in the order that SQLite needs to survive a power cut: sync the log, copy, sync the file. Appends continue
//! meanwhile.
//!
//! Then it truncates the log, while no append runs. That closes a hole left by synchronous=OFF: a log that the writer restarts in
//! place, unsynced, may after a power cut be an old log with a new middle (SQLite ticket ff5be73dee). A journaling file system
//! (ext4, xfs, btrfs) orders the truncation before what follows.
//!
//! On a disk so slow that appends always come between copy and truncation, the log would grow without bound. A recorder must
//! limit its size, so a log beyond [`MOST_LOG`] is copied and truncated while appends wait.

use super::write::{beside, open_to_write};
use rusqlite::Connection;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bounds what a power cut costs, and what the file lacks without its log after a kill.
pub const SYNC_EVERY: Duration = Duration::from_secs(5);

/// Largest log before appends wait for it.
pub const MOST_LOG: u64 = 4 << 20;
/// How long a large log is left alone after a failed attempt (a reader is in the way, the disk is full).
const AGAIN_AFTER: Duration = Duration::from_millis(200);

pub struct Syncer {
    log: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    gate: Mutex<Gate>,
    wake: Condvar,
}

/// Held during an append, and while the log is truncated.
struct Gate {
    appends: u64,
    /// The size of the log after the last append.
    log: u64,
    every: Duration,
    /// The thread is waiting for the next append, not for its next turn.
    idle: bool,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Gate> {
        // The gate is a few plain values, valid even if a holder of the lock panicked.
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Syncer {
    pub fn start(path: &Path) -> Result<Syncer, String> {
        let db = open_to_write(path).map_err(|e| e.to_string())?;
        // In WAL mode: sync when the log is copied, not at every commit. Does not wait for locks: it retries next time.
        db.execute_batch("PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=0;").map_err(|e| e.to_string())?;
        let shared = Arc::new(Shared {
            gate: Mutex::new(Gate { appends: 0, log: 0, every: SYNC_EVERY, idle: false, stop: false }),
            wake: Condvar::new(),
        });
        let (theirs, log, path) = (Arc::clone(&shared), beside(path, "-wal"), path.to_owned());
        let thread = std::thread::Builder::new()
            .name("recording-sync".to_owned())
            .spawn(move || run(&theirs, &db, &path))
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        Ok(Syncer { log, shared, thread: Some(thread) })
    }

    pub fn set_every(&self, every: Duration) {
        self.shared.lock().every = every;
    }

    /// Runs an append.
    pub fn append<T, E>(&self, append: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut gate = self.shared.lock();
        let done = append();
        gate.appends += 1;
        gate.log = fs::metadata(&self.log).map_or(0, |meta| meta.len());
        let is_awaited = gate.idle || gate.log > MOST_LOG;
        drop(gate);
        if is_awaited {
            self.shared.wake.notify_one();
        }
        done
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // An error means that it panicked, which was printed; the writer's own connection still closes the file properly.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, db: &Connection, path: &Path) {
    let mut due = Instant::now();
    let mut again = due;
    let mut synced = 0;
    loop {
        let mut gate = shared.lock();
        loop {
            let now = Instant::now();
            if gate.stop {
                // Sync once more: the writer's connection closes next and does not sync.
                let _ = copy_log(db, "PASSIVE");
                return;
            }
            let due = if gate.log > MOST_LOG { again.min(due) } else { due };
            if gate.appends != synced && now >= due {
                break;
            }
            gate.idle = gate.appends == synced;
            gate = if gate.idle {
                shared.wake.wait(gate).unwrap_or_else(PoisonError::into_inner)
            } else {
                shared.wake.wait_timeout(gate, due - now).unwrap_or_else(PoisonError::into_inner).0
            };
        }
        let appends = gate.appends;
        due = Instant::now() + gate.every;
        drop(gate);
        if synced == 0 {
            // The file's name must survive as well.
            if let Some(directory) = path.parent() {
                let _ = File::open(directory).and_then(|d| d.sync_all());
            }
        }
        // An error (a full disk) loses nothing: all is in the log, the next append or round hits it again, and `finish` reports
        // it in the end.
        let copied = copy_log(db, "PASSIVE") == Ok(true);
        let mut gate = shared.lock();
        let is_quiet = copied && gate.appends == appends;
        if (is_quiet || gate.log > MOST_LOG) && copy_log(db, "TRUNCATE") == Ok(true) {
            (synced, gate.log) = (gate.appends, 0);
        }
        again = Instant::now() + AGAIN_AFTER;
    }
}

/// Copies the log into the file. Returns whether all of it was copied.
pub fn copy_log(db: &Connection, mode: &str) -> rusqlite::Result<bool> {
    db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        let (busy, log, copied): (bool, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(!busy && log == copied)
    })
}
