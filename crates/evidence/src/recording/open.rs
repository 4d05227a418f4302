//! Opens a recording for reading, and never changes it or anything beside it that matters.
//!
//! A sealed recording is one plain file. While it is being written, or if its writer was killed, its newest rows are in a
//! write-ahead log beside it (FILE-wal). By default SQLite writes in order to read that: an index of the log (FILE-shm), and on
//! closing, the log's content into the file. But a reader may not be allowed to write, or have a copy of only some of the files,
//! and what it reads may be the only trace of an incident.

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
    /// Parts of the recording that cannot be reached, and why.
    pub missing: Vec<(String, String)>,
}

pub fn open(path: &Path) -> Result<Opened, RecordingError> {
    let owned = || path.to_owned();
    // Not opened: closing our descriptor would drop the locks of a writer in the same process
    // (https://sqlite.org/howtocorrupt.html, 2.2).
    match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(RecordingError::Missing { path: owned() }),
        Err(source) => return Err(RecordingError::Unreadable { path: owned(), source }),
        Ok(meta) if !meta.is_file() => {
            let source = io::Error::other("not a regular file");
            return Err(RecordingError::Unreadable { path: owned(), source });
        }
        Ok(meta) if meta.len() == 0 => return Err(RecordingError::Empty { path: owned() }),
        // SQLite takes a file shorter than its smallest page for an empty database. No writer leaves one that short.
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
    let lost_log = opened.is_err() && !missing.is_empty();
    match opened.or_else(|_| file_alone(path)) {
        // Killed after the tables were made and before the first rows: the log that the file speaks of never was.
        Ok((db, ..)) if lost_log && has_no_rows(&db) => Err(RecordingError::Empty { path: owned() }),
        Ok((db, steps, None)) => Ok(Opened { db, steps, missing }),
        Ok((db, steps, Some(damage))) => {
            missing.push(("the damaged parts of the recording".to_owned(), damage));
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

/// Killed in the transaction that creates the tables: the file must be rolled back to nothing. The rollback journal beside it says
/// so, as it begins with the number of pages before (https://sqlite.org/fileformat2.html, 3).
fn is_before_its_first_commit(path: &Path) -> bool {
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let mut header = [0; 20];
    let journal = std::fs::File::open(beside(path, "-journal"));
    journal.and_then(|mut file| io::Read::read_exact(&mut file, &mut header)).is_ok()
        && header.starts_with(&MAGIC)
        && header[16..] == [0; 4]
}

/// The recording with its log, and what of the log cannot be reached. An error if there is no log.
fn with_what_log_there_is(path: &Path) -> (rusqlite::Result<Readable>, Vec<(String, String)>) {
    let log = beside(path, "-wal");
    let mut missing = Vec::new();
    let mut opened = Err(rusqlite::Error::InvalidQuery);
    if log.exists() {
        // A running writer has an index beside its log, and we must respect its locks. Without an index there is no writer, and
        // we need no index either.
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
            "FILE-wal, which belongs to this recording, is missing".to_owned(),
        ));
    }
    (opened, missing)
}

/// Whether the file says that it has a log, but there is none. A sealed file, or one just being sealed, needs none: the log is
/// removed when all of it, the seal last, is in the file; only then does the file say that it has no log.
fn has_lost_its_log(path: &Path) -> bool {
    !beside(path, "-journal").exists() && is_in_wal_mode(path) && !is_sealed(path)
}

fn has_no_rows(db: &Connection) -> bool {
    let sql = "SELECT NOT EXISTS (SELECT 1 FROM node) AND NOT EXISTS (SELECT 1 FROM clocks)
               AND NOT EXISTS (SELECT 1 FROM core_time_chunks) AND NOT EXISTS (SELECT 1 FROM profile_source)";
    db.query_row(sql, [], |row| row.get(0)).unwrap_or(false)
}

fn is_sealed(path: &Path) -> bool {
    let sealed = |db: Connection| db.query_row("SELECT value FROM meta WHERE key = 'sealed'", [], |row| row.get(0));
    file_alone(path).and_then(|(db, ..)| sealed(db)).is_ok_and(|sealed: i64| sealed == 1)
}

/// Whether the file says that its newest rows are in a log (https://sqlite.org/fileformat2.html, offset 18). Only called if there
/// is no log, so there is no writer whose locks we would drop.
fn is_in_wal_mode(path: &Path) -> bool {
    let mut header = [0; 20];
    let read = std::fs::File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut header));
    read.is_ok() && header.starts_with(b"SQLite format 3\0") && header[18..] == [2, 2]
}

/// A database whose tables can be listed, and the damage that had to be worked around, if any.
type Readable = (Connection, Steps, Option<String>);

/// With the log and its index, as SQLite intends: safe while a writer is running.
fn with_log(path: &Path) -> rusqlite::Result<Readable> {
    made_readable(Connection::open_with_flags(uri(path, "mode=ro")?, FLAGS)?)
}

/// With the log but without index and locks: the index is built in memory. Needs no write access.
fn with_log_alone(path: &Path) -> rusqlite::Result<Readable> {
    let db = Connection::open_with_flags_and_vfs(uri(path, "mode=ro")?, FLAGS, "unix-none")?;
    db.execute_batch("PRAGMA locking_mode=EXCLUSIVE")?;
    made_readable(db)
}

/// The file alone, as it is.
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
    // Leave the log as it is.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let steps = confine::confine(&db)?;
    let list = |db: &Connection| {
        // One snapshot for everything that is read, even while a writer is running.
        db.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema;").inspect_err(|_| {
            let _ = db.execute_batch("ROLLBACK");
        })
    };
    let damage = match list(&db) {
        Ok(()) => None,
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
            // With this setting SQLite also opens a file shorter than its header says. We do not write.
            db.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, true)?;
            list(&db)?;
            Some(format!("the file is shorter than it should be: {e}"))
        }
        Err(e) => return Err(e),
    };
    confine::only_tables(&db)?;
    Ok((db, steps, damage))
}
