//! What the recorder adds to the evidence: the incident that a file is, its risers, and one row per minute.

use super::confine::{MOST_ROWS, are_tables, fits};
use super::open::{self, Opened};
use super::read;
use super::rows::{self, Columns, Stored, Table, row};
use super::{RecordingError, Writer};
use crate::Wall;
use rusqlite::types::{Null, ToSqlOutput};
use rusqlite::{Connection, Row};
use serde::Serialize;
use std::path::Path;

/// The incident whose minutes a file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncidentRow {
    pub number: u64,
    pub code: String,
    pub subject: String,
    pub core: Option<u32>,
    pub text: String,
    pub triggered: Wall,
    pub from: Wall,
    pub until: Wall,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RiserKind {
    #[default]
    Command,
    /// A kernel function and everything it called.
    KernelSymbol,
}

impl RiserKind {
    pub const ALL: [RiserKind; 2] = [RiserKind::Command, RiserKind::KernelSymbol];

    pub fn as_str(self) -> &'static str {
        match self {
            RiserKind::Command => "command",
            RiserKind::KernelSymbol => "kernel_symbol",
        }
    }
}

/// A command or kernel function whose share of busy time rose compared with the time before; largest rise first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RiserRow {
    pub what: RiserKind,
    pub name: String,
    /// Shares between 0 and 1, and the samples behind them.
    pub baseline: f64,
    pub now: f64,
    pub baseline_samples: u64,
    pub now_samples: u64,
    pub sigmas: f64,
    pub baseline_processes: u64,
    pub now_processes: u64,
    /// For a function: the command that has most of it, and its share.
    pub mostly_in: Option<(String, f64)>,
    /// For a function: those below it on the stack that rose with it.
    pub carries: Vec<String>,
}

pub use coroner_report::{CoreMinute, Minute as RollupRow};

row!(IncidentRow in "incident" {
    number: "number", code: "code", subject: "subject", core: "core", text: "text",
    triggered: "triggered_real_ns", from: "from_real_ns", until: "until_real_ns"
});

row!(RiserRow in "risers" {
    what: "what", name: "name", baseline: "baseline", now: "now", baseline_samples: "baseline_samples",
    now_samples: "now_samples", sigmas: "sigmas", baseline_processes: "baseline_processes",
    now_processes: "now_processes", carries: "carries_json"
} with mostly_in);

/// A command, and its share.
impl Columns for Option<(String, f64)> {
    fn names(names: &mut Vec<&'static str>) {
        names.extend(["mostly_in", "mostly_in_share"]);
    }

    fn put<'a>(&'a self, cells: &mut Vec<ToSqlOutput<'a>>) -> rusqlite::Result<()> {
        let (name, share) =
            self.as_ref().map_or((Null.into(), Null.into()), |(name, share)| (name.as_str().into(), (*share).into()));
        cells.extend([name, share]);
        Ok(())
    }

    fn get(row: &Row<'_>) -> rusqlite::Result<Option<(String, f64)>> {
        Ok(row.get::<_, Option<String>>("mostly_in")?.zip(row.get("mostly_in_share")?))
    }
}

row!(RollupRow in "rollups" {
    minute: "minute_real_ns", cores: "cores", busy_mean: "busy_mean", busy_max: "busy_max",
    worst_core: "worst_core", worst_core_system: "worst_core_system", by_core: "by_core_json",
    zombies_tracked: "zombies_tracked", zombies_live: "zombies_live", zombies_dead: "zombies_dead",
    unit_restarts: "unit_restarts", nic_resets: "nic_resets", softnet_drops: "softnet_drops", oom_kills: "oom_kills",
    cpu_stall_us: "cpu_stall_us", memory_stall_us: "memory_stall_us", io_stall_us: "io_stall_us", samples: "samples",
    lost_samples: "lost_samples"
});

impl Writer {
    /// Sets the incident that this file is; replaces an earlier one.
    pub fn set_incident(&mut self, incident: &IncidentRow) -> Result<(), RecordingError> {
        self.store("cannot store the incident", |tx| rows::replace(tx, incident))
    }

    /// Sets the risers, in this order; replaces earlier ones.
    pub fn set_risers(&mut self, risers: &[RiserRow]) -> Result<(), RecordingError> {
        self.store("cannot store the risers", |tx| {
            tx.execute("DELETE FROM risers", [])?;
            rows::insert(tx, risers)
        })
    }

    pub fn append_rollup(&mut self, rollup: &RollupRow) -> Result<(), RecordingError> {
        self.store("cannot store a roll-up", |tx| rows::insert(tx, std::slice::from_ref(rollup)))
    }
}

/// The incident that a file holds, and its risers; `None` if it holds none.
pub fn incident(path: &Path) -> Result<Option<(IncidentRow, Vec<RiserRow>)>, RecordingError> {
    let Opened { db, .. } = open::open(path)?;
    read::about(&db, path)?;
    incident_in(&db, path)
}

/// The same for an open file.
pub(super) fn incident_in(
    db: &Connection,
    path: &Path,
) -> Result<Option<(IncidentRow, Vec<RiserRow>)>, RecordingError> {
    if !are_tables(db, &["incident", "risers"]) {
        return Ok(None);
    }
    let damaged = |e: rusqlite::Error| RecordingError::Damaged { path: path.to_owned(), why: e.to_string() };
    let Some(incident) = all(db).map_err(damaged)?.pop() else { return Ok(None) };
    Ok(Some((incident, all(db).map_err(damaged)?)))
}

/// The roll-ups of a file, in the order in which they were stored.
pub fn rollups(path: &Path) -> Result<Vec<RollupRow>, RecordingError> {
    let Opened { db, .. } = open::open(path)?;
    read::about(&db, path)?;
    if !are_tables(&db, &["rollups"]) {
        return Ok(Vec::new());
    }
    all(&db).map_err(|e| RecordingError::Damaged { path: path.to_owned(), why: e.to_string() })
}

fn all<T: Stored>(db: &Connection) -> rusqlite::Result<Vec<T>> {
    let Table { name, columns } = Table::of::<T>();
    let sql = format!("SELECT {} FROM {name} ORDER BY id LIMIT {MOST_ROWS}", columns.join(", "));
    let mut select = db.prepare(&sql)?;
    select.query_map([], |row| fits(row).and_then(|_| T::get(row)))?.collect()
}
