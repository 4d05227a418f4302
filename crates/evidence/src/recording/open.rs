//! Opens a recording for reading, and never changes it or anything beside it that matters.
//!
//! A sealed recording is one plain file. One that is being written, or whose writer was killed, has its youngest rows in a
//! write-ahead log beside it (FILE-wal), and SQLite by itself wants to write in order to read that: an index of the log
//! (FILE-shm), and on closing the log's content into the file. Here a reader may have no right to write, or only a copy of some
//! of the files, and what it reads may be the only trace of an incident.

use super::RecordingError;
use super::confine::{self, Steps};
use super::write::beside;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

pub struct Opened {
    pub db: Connection,
    pub steps: Steps,
    /// What of the recording cannot be reached this way, and why.
    pub missing: Vec<(String, String)>,
}

pub fn open(path: &Path) -> Result<Opened, RecordingError> {
    let owned = || path.to_owned();
    // Only looked at, not opened: closing a file of our own would drop the locks of a writer in the same process
    // (https://sqlite.org/howtocorrupt.html, 2.2).
    match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(RecordingError::Missing { path: owned() }),
        Err(source) => return Err(RecordingError::Unreadable { path: owned(), source }),
        Ok(meta) if !meta.is_file() => {
            let source = io::Error::other("this is not a regular file");
            return Err(RecordingError::Unreadable { path: owned(), source });
        }
        Ok(meta) if meta.len() == 0 => return Err(RecordingError::Empty { path: owned() }),
        // SQLite takes a file that is shorter than its smallest page for an empty database. No writer has one so short.
        Ok(meta) if meta.len() < 512 => {
            return Err(match std::fs::read(path) {
                Ok(bytes) if bytes.starts_with(b"SQLite format 3\0") => {
                    RecordingError::Damaged { path: owned(), why: "only its first bytes are there".to_owned() }
                }
                Ok(_) => RecordingError::NotSqlite { path: owned() },
                Err(source) => RecordingError::Unreadable { path: owned(), source },
            });
        }
        Ok(_) if is_before_its_first_commit(path) => return Err(RecordingError::Empty { path: owned() }),
        Ok(_) => {}
    }
    let (opened, mut missing) = with_what_log_there_is(path);
    match opened.or_else(|_| file_alone(path)) {
        Ok((db, steps, None)) => Ok(Opened { db, steps, missing }),
        Ok((db, steps, Some(damage))) => {
            missing.push(("what stood in the damaged parts of the recording".to_owned(), damage));
            Ok(Opened { db, steps, missing })
        }
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
            Err(RecordingError::NotSqlite { path: owned() })
        }
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
            Err(RecordingError::Damaged { path: owned(), why: e.to_string() })
        }
        Err(e) => match std::fs::File::open(path) {
            Err(source) => Err(RecordingError::Unreadable { path: owned(), source }),
            Ok(_) => Err(RecordingError::Other { path: owned(), why: e.to_string() }),
        },
    }
}

/// Killed in the transaction that makes the tables: what is in the file by then is to be rolled back, to nothing. The rollback journal
/// beside it says so, as it begins with how many pages there were before (https://sqlite.org/fileformat2.html, 3).
fn is_before_its_first_commit(path: &Path) -> bool {
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let mut header = [0; 20];
    let journal = std::fs::File::open(beside(path, "-journal"));
    journal.and_then(|mut file| io::Read::read_exact(&mut file, &mut header)).is_ok()
        && header.starts_with(&MAGIC)
        && header[16..] == [0; 4]
}

/// The recording with its log, and what of the log cannot be reached. Without a log there is an error to go on from.
fn with_what_log_there_is(path: &Path) -> (rusqlite::Result<Readable>, Vec<(String, String)>) {
    let log = beside(path, "-wal");
    let mut missing = Vec::new();
    let mut opened = Err(rusqlite::Error::InvalidQuery);
    if log.exists() {
        // A writer that lives has an index beside its log, and there we must respect its locks. Without an index there is no
        // writer, and no need for one of ours.
        if beside(path, "-shm").exists() {
            opened = with_log(path);
        }
        opened = opened.or_else(|_| with_log_alone(path));
        if let Err(e) = &opened
            && e.sqlite_error_code() != Some(ErrorCode::NotADatabase)
            && log.exists()
        {
            missing.push((
                "the last seconds before the recorder was killed".to_owned(),
                format!("{}: cannot be read: {e}", log.display()),
            ));
        }
    }
    if opened.is_err() && !log.exists() && has_lost_its_log(path) {
        missing.push((
            "the last seconds before the recorder was killed; the seconds before them may be incomplete".to_owned(),
            "FILE-wal, which belongs to this recording, is not beside it".to_owned(),
        ));
    }
    (opened, missing)
}

/// A file that says that it has a log, and there is none. One that was sealed, or is just being sealed, needs none: its log goes when all
/// of it, the seal last, is in the file; that the file has no log any more is written after that.
fn has_lost_its_log(path: &Path) -> bool {
    !beside(path, "-journal").exists() && is_in_wal_mode(path) && !is_sealed(path)
}

fn is_sealed(path: &Path) -> bool {
    let sealed = |db: Connection| db.query_row("SELECT value FROM meta WHERE key = 'sealed'", [], |row| row.get(0));
    file_alone(path).and_then(|(db, ..)| sealed(db)).is_ok_and(|sealed: i64| sealed == 1)
}

/// Whether the file says that its youngest rows are in a log (https://sqlite.org/fileformat2.html, offset 18). Only asked where
/// there is no log, so no writer either whose locks we would drop.
fn is_in_wal_mode(path: &Path) -> bool {
    let mut header = [0; 20];
    let read = std::fs::File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut header));
    read.is_ok() && header.starts_with(b"SQLite format 3\0") && header[18..] == [2, 2]
}

/// A database whose tables can be listed; and if that took an effort, why.
type Readable = (Connection, Steps, Option<String>);

/// With the log and its index, as SQLite means it: right also while a writer is at work.
fn with_log(path: &Path) -> rusqlite::Result<Readable> {
    made_readable(Connection::open_with_flags(uri(path, "mode=ro")?, FLAGS)?)
}

/// With the log but without index or locks: the index is built in memory. Needs no right to write anything.
fn with_log_alone(path: &Path) -> rusqlite::Result<Readable> {
    let db = Connection::open_with_flags_and_vfs(uri(path, "mode=ro")?, FLAGS, "unix-none")?;
    db.execute_batch("PRAGMA locking_mode=EXCLUSIVE")?;
    made_readable(db)
}

/// The file as it stands.
fn file_alone(path: &Path) -> rusqlite::Result<Readable> {
    made_readable(Connection::open_with_flags(uri(path, "mode=ro&immutable=1")?, FLAGS)?)
}

const FLAGS: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_ONLY.union(OpenFlags::SQLITE_OPEN_URI).union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

fn uri(path: &Path, parameters: &str) -> rusqlite::Result<String> {
    let absolute = std::path::absolute(path).map_err(|_| rusqlite::Error::InvalidPath(path.to_owned()))?;
    let mut uri = "file://".to_owned();
    for &byte in absolute.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => uri.push(byte.into()),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(uri + "?" + parameters)
}

fn made_readable(db: Connection) -> rusqlite::Result<Readable> {
    db.busy_timeout(Duration::from_secs(2))?;
    // A log that we can read we leave as it is.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let steps = confine::confine(&db)?;
    let list = |db: &Connection| {
        // One snapshot for all that is read, also while a writer is at work.
        db.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema;").inspect_err(|_| {
            let _ = db.execute_batch("ROLLBACK");
        })
    };
    let damage = match list(&db) {
        Ok(()) => None,
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
            // With this setting SQLite also opens a file that is shorter than its header says. We do not write.
            db.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, true)?;
            list(&db)?;
            Some(format!("the file is shorter than it should be: {e}"))
        }
        Err(e) => return Err(e),
    };
    confine::only_tables(&db)?;
    Ok((db, steps, damage))
}
