//! Brings a recording to the disk, beside the writer.
//!
//! The writer only writes into the page cache (its connection has synchronous=OFF): a busy disk can make an fsync last for
//! seconds, and whoever watches a node must not stand still just then. Every few seconds this thread copies the write-ahead log
//! into the file with a connection of its own, in the order that SQLite needs to survive a power cut: sync the log, copy, sync
//! the file. Appends go on meanwhile.
//!
//! Then it cuts the log to nothing, while no append runs. That closes a hole which synchronous=OFF would leave: a log that the
//! writer starts over in place, unsynced, may after a power cut be an old log with a new middle (SQLite ticket ff5be73dee).
//! A file system with a journal (ext4, xfs, btrfs) instead orders the cut before what comes after it.
//!
//! On a disk so slow that appends always come between copy and cut, the log would never be cut and grow without end. A recorder
//! has to keep its size, so a log beyond [`MOST_LOG`] is copied and cut while appends wait.

use super::write::{beside, open_to_write};
use rusqlite::Connection;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bounds what a power cut costs, and what the file alone lacks beside its log after a kill.
pub const SYNC_EVERY: Duration = Duration::from_secs(5);

/// What the log may grow to before appends wait for it.
pub const MOST_LOG: u64 = 4 << 20;
/// After an attempt that was in vain (a reader is in the way, the disk is full) a large log is left alone for so long.
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

/// Held during an append, and while the log is cut.
struct Gate {
    appends: u64,
    /// The size of the log after the last append.
    log: u64,
    every: Duration,
    /// The thread waits for the next append, not for the time to copy it.
    idle: bool,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Gate> {
        // The gate is a few plain values, right at any moment, whoever panicked.
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Syncer {
    pub fn start(path: &Path) -> Result<Syncer, String> {
        let db = open_to_write(path).map_err(|e| e.to_string())?;
        // In WAL mode: sync when the log is copied, not at every commit. No waiting: what is locked now is done next time.
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
            // An error is its panic, which has been printed; the writer's own connection still closes the file well.
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
                // Synced once more: the writer's connection closes next, and it does not sync.
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
            // The file's name is to survive as well.
            if let Some(directory) = path.parent() {
                let _ = File::open(directory).and_then(|d| d.sync_all());
            }
        }
        // An error (a full disk) is no loss: all is in the log, the next append or the next round meets it again, and the
        // last word on it is `finish`.
        let copied = copy_log(db, "PASSIVE") == Ok(true);
        let mut gate = shared.lock();
        let is_quiet = copied && gate.appends == appends;
        if (is_quiet || gate.log > MOST_LOG) && copy_log(db, "TRUNCATE") == Ok(true) {
            (synced, gate.log) = (gate.appends, 0);
        }
        again = Instant::now() + AGAIN_AFTER;
    }
}

/// Copies the log into the file. True if all of it was copied.
pub fn copy_log(db: &Connection, mode: &str) -> rusqlite::Result<bool> {
    db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        let (busy, log, copied): (bool, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(!busy && log == copied)
    })
}
