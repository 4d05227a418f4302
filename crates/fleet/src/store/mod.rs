//! Where reports are stored: see [`Store`]. Here the embedded store: one SQLite file, one thread that writes, and a connection for each
//! query.
//!
//! A request is acknowledged after the commit that contains it. Requests that wait together share a commit.

mod choice;
pub mod clickhouse;
pub mod dump;
mod episodes;
pub mod growth;
pub mod hours;
pub mod incidents;
pub mod look;
pub mod read;
mod schema;
pub mod stacks;
pub mod write;

pub use choice::{Reader, Store};

use crate::ingest::Batch;
use coroner_evidence::own_directory::OwnDirectory;
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;
use write::{Retention, StoreError, Stored};

/// Requests that wait for a commit; more are told to come later.
const MOST_WAITING: usize = 512;
/// In one commit.
const MOST_TOGETHER: usize = 256;
/// What comes within this time after the first shares its commit.
const TOGETHER_WITHIN: Duration = Duration::from_millis(10);
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
const RESERVE_BYTES: usize = 4 << 20;

/// Why a request was not stored.
#[derive(Debug)]
pub enum NotStored {
    /// It may be sent again later.
    Busy,
    NotItself(String),
    /// The store failed: disk full, for example.
    Failed(String),
}

struct Waiting {
    key: String,
    batches: Vec<Batch>,
    answer: oneshot::Sender<Result<Stored, NotStored>>,
}

/// Counters since the start.
#[derive(Debug, Default, Clone)]
pub struct StoreStatus {
    pub batches: u64,
    pub repeated: u64,
    pub rows: u64,
    pub refused_stacks: u64,
    pub commits: u64,
    pub failed_commits: u64,
    pub trouble: Option<String>,
}

pub struct SqliteStore {
    path: PathBuf,
    to_writer: SyncSender<Waiting>,
    status: Arc<Mutex<StoreStatus>>,
    thread: Option<JoinHandle<()>>,
    /// Held as long as we write there.
    _own: OwnDirectory,
}

pub fn unix_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64
}

impl SqliteStore {
    pub fn open(directory: &Path, retention: Retention) -> anyhow::Result<SqliteStore> {
        let own = OwnDirectory::take(directory)?;
        let path = own.path().join("fleet.db");
        let db = schema::open(&path)?;
        let (to_writer, waiting) = sync_channel(MOST_WAITING);
        let status = Arc::new(Mutex::new(StoreStatus::default()));
        let theirs = Arc::clone(&status);
        let reserve = Reserve(own.path().join("reserve"));
        let write = move || write_all(db, &waiting, retention, &theirs, &reserve);
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(write)?;
        Ok(SqliteStore { path, to_writer, status, thread: Some(thread), _own: own })
    }

    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Returns when the batches are on disk.
    pub async fn store(&self, key: String, batches: Vec<Batch>) -> Result<Stored, NotStored> {
        let (answer, stored) = oneshot::channel();
        match self.to_writer.try_send(Waiting { key, batches, answer }) {
            Ok(()) => stored.await.unwrap_or(Err(NotStored::Failed("the store has stopped".to_owned()))),
            Err(TrySendError::Full(_)) => Err(NotStored::Busy),
            Err(TrySendError::Disconnected(_)) => Err(NotStored::Failed("the store has stopped".to_owned())),
        }
    }

    pub fn reader(&self) -> anyhow::Result<Connection> {
        schema::open_to_read(&self.path)
    }

    pub fn status(&self) -> StoreStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        let size = |suffix: &str| std::fs::metadata(format!("{}{suffix}", self.path.display())).map_or(0, |m| m.len());
        size("") + size("-wal")
    }
}

impl Drop for SqliteStore {
    /// Writes what waits.
    fn drop(&mut self) {
        let (closed, _) = sync_channel(0);
        drop(std::mem::replace(&mut self.to_writer, closed));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}

/// Room that is given up when the disk is full, so that old rows can be removed.
struct Reserve(PathBuf);

impl Reserve {
    /// Again, if it was given up and there is room.
    fn keep(&self) {
        if !self.0.exists() && std::fs::write(&self.0, vec![0; RESERVE_BYTES]).is_err() {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn release(&self) -> bool {
        std::fs::remove_file(&self.0).is_ok()
    }
}

fn write_all(
    mut db: Connection,
    waiting: &Receiver<Waiting>,
    retention: Retention,
    status: &Mutex<StoreStatus>,
    reserve: &Reserve,
) {
    let mut expire_at = Instant::now();
    loop {
        // Also if reports always wait.
        let until = expire_at.saturating_duration_since(Instant::now());
        let first = if until.is_zero() { Err(RecvTimeoutError::Timeout) } else { waiting.recv_timeout(until) };
        let first = match first {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => {
                let more = match write::expire(&db, retention, unix_now()) {
                    Ok(more) => {
                        reserve.keep();
                        more
                    }
                    // Removing rows needs room, too.
                    Err(error) if is_full(&error) => {
                        reserve.release() && {
                            let more = write::expire(&db, retention, unix_now()).unwrap_or(false);
                            let _ = db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
                            more
                        }
                    }
                    Err(error) => {
                        eprintln!("coroner fleet: old rows could not be removed: {error}");
                        false
                    }
                };
                let pause = if more { TOGETHER_WITHIN } else { EXPIRE_EVERY };
                expire_at = Instant::now() + pause;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut together = vec![first];
        let until = Instant::now() + TOGETHER_WITHIN;
        while together.len() < MOST_TOGETHER {
            match waiting.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(next) => together.push(next),
                Err(_) => break,
            }
        }
        commit(&mut db, together, status);
    }
}

/// Stores all of them in one transaction, and then answers.
fn commit(db: &mut Connection, together: Vec<Waiting>, status: &Mutex<StoreStatus>) {
    let now = unix_now();
    let mut outcome = || -> Result<Vec<Result<Stored, NotStored>>, rusqlite::Error> {
        let mut tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut answers = Vec::with_capacity(together.len());
        for request in &together {
            answers.push(match write::store(&mut tx, &request.key, &request.batches, now) {
                Ok(stored) => Ok(stored),
                Err(StoreError::NotItself(why)) => Err(NotStored::NotItself(why)),
                Err(StoreError::Db(error)) => return Err(error),
            });
        }
        tx.commit()?;
        Ok(answers)
    };
    let outcome = outcome();
    {
        let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
        match &outcome {
            Ok(answers) => {
                status.commits += 1;
                status.trouble = None;
                for stored in answers.iter().flatten() {
                    status.batches += stored.batches;
                    status.repeated += stored.repeated;
                    status.rows += stored.rows;
                    status.refused_stacks += stored.refused_stacks;
                }
            }
            Err(error) => {
                status.failed_commits += 1;
                let trouble = error.to_string();
                if status.trouble.as_ref() != Some(&trouble) {
                    eprintln!("coroner fleet: the store failed: {trouble}");
                }
                status.trouble = Some(trouble);
            }
        }
    }
    match outcome {
        Ok(answers) => together.into_iter().zip(answers).for_each(|(request, answer)| {
            let _ = request.answer.send(answer);
        }),
        Err(error) => together.into_iter().for_each(|request| {
            let _ = request.answer.send(Err(NotStored::Failed(error.to_string())));
        }),
    }
}

/// The store of a test.
#[cfg(test)]
pub fn open_to_read(directory: &Path) -> anyhow::Result<Connection> {
    schema::open_to_read(&directory.join("fleet.db"))
}

#[cfg(test)]
mod look_tests;
#[cfg(test)]
pub mod tests;
