//! The recording: one SQLite file that holds what was seen of a node.
//!
//! A [`Writer`] stores fragments of [`Evidence`], [`read`] returns them as one. docs/recording-format.md describes the file for
//! people who only have sqlite3, and says what survives a kill, a full disk and a power cut.
//!
//! [`schema`] has the tables; [`rows`], [`node_rows`] and [`zombie_rows`] convert evidence to rows and back; [`chunk`] packs the
//! dense streams into columns, [`zombie_chunk`] the zombies; [`profile`] has the CPU samples; [`open`] opens a file without ever
//! changing it; [`confine`] protects the reader from its content; [`sync`] brings it to the disk in the background.
//!
//! The recorder keeps a directory of such files ([`segments`]). [`span`] reads a part of it, and [`cut`] decides what belongs to
//! that; [`incident_rows`] has what the recorder adds. [`outline`] tells what there is without reading it.

mod chunk;
mod confine;
mod cut;
mod incident_rows;
mod kernel_work_rows;
mod node_rows;
mod open;
mod outline;
pub mod profile;
mod read;
pub(crate) mod rows;
mod schema;
pub mod segments;
mod span;
mod sync;
mod unit_rows;
mod wait_rows;
mod write;
mod zombie_chunk;
mod zombie_rows;

use crate::Evidence;
use std::io;
use std::path::PathBuf;

pub use incident_rows::{CoreMinute, IncidentRow, Riser, RiserKind, RollupRow, incident, rollups};
pub use outline::{Beside, CoreLooks, Logs, Outline, SamplesOutline, TOGETHER, core_looks, logs, nics, outline};
pub use read::read;
pub use schema::FORMAT;
pub use span::{Span, newest_wall, read_span};
pub use write::{Writer, fold_log};

pub(crate) use confine::fits;

/// Opens another SQLite file of a recorder's directory, as carefully as a recording.
pub(crate) fn open_beside(path: &std::path::Path) -> Result<rusqlite::Connection, RecordingError> {
    open::open(path).map(|opened| opened.db)
}

/// [`crate::Unseen::probe`] for damaged parts of a recording.
pub const PROBE: &str = "recording";

/// [`crate::Unseen::probe`] for times without a look: nothing is damaged, and what was recorded can be diagnosed.
pub const NOT_RECORDED: &str = "not-recorded";

#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("{path}: there is no such file")]
    Missing { path: PathBuf },
    #[error("{path}: cannot be opened")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "{path}: nothing is recorded in it: its writer was stopped at once, the copy failed, or {path}-wal was not copied"
    )]
    Empty { path: PathBuf },
    #[error("{path}: not a coroner recording (not a SQLite file)")]
    NotSqlite { path: PathBuf },
    #[error("{path}: a SQLite file, but not a coroner recording")]
    NotRecording { path: PathBuf },
    #[error("{path}: made by coroner {made_by}, format {format}; only format {reads} is supported: update coroner")]
    Newer { path: PathBuf, made_by: String, format: u32, reads: u32 },
    #[error(
        "{path}: made by coroner {made_by}, format {format}; only format {reads} is supported: \
         read it with the coroner that made it, or record again"
    )]
    Older { path: PathBuf, made_by: String, format: u32, reads: u32 },
    #[error("{path}: damaged or truncated, nothing in it can be read: {why}; copy it again if this is a copy")]
    Damaged { path: PathBuf, why: String },
    #[error("{path}: already exists; recordings are never overwritten: remove it or choose another name")]
    Exists { path: PathBuf },
    #[error(
        "{path}: left over from a recording that is gone; SQLite would take it for part of the new one: \
         remove it or choose another name"
    )]
    LeftOver { path: PathBuf },
    #[error("{path}: the disk is full; what was recorded so far is safe; free disk space to continue")]
    DiskFull { path: PathBuf },
    #[error("{path}: locked by another program; close it")]
    Locked { path: PathBuf },
    #[error(
        "{path}: complete, but another program has it open, so {path}-wal had to stay: keep the two together, \
         or close that program and run: sqlite3 {path} 'PRAGMA journal_mode=DELETE'"
    )]
    NotAlone { path: PathBuf },
    #[error("{path}: holds only a CPU profile, no evidence of a node; try: coroner flame {path}")]
    OnlyProfile { path: PathBuf },
    #[error("{path}: {why}")]
    Other { path: PathBuf, why: String },
}

/// A finding as stored beside the evidence, for readers who only have sqlite3. Coroner never reads it back: findings are always
/// derived from the evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingRow {
    pub code: String,
    pub severity: String,
    pub subject_kind: String,
    pub subject: String,
    pub title: String,
    pub detail: String,
    pub remedy: String,
}

/// A recording, read whole.
#[derive(Debug)]
pub struct Recording {
    /// If parts of the file are damaged, an [`crate::Unseen`] of the probe [`PROBE`] says what is missing here.
    pub evidence: Evidence,
    pub about: About,
}

/// A recording's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    pub format: u32,
    pub uuid: String,
    pub coroner_version: String,
    /// False if the writer was killed before it sealed the file, or is still writing.
    pub sealed: bool,
}
