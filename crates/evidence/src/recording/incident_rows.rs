//! What the recorder adds to the evidence: the incident that a file is, its risers, and one row per minute.

use super::confine::{MOST_ROWS, are_tables, fits};
use super::open::{self, Opened};
use super::rows::{self, Columns, Stored, Table, row};
use super::{RecordingError, Writer, read};
use crate::Wall;
use coroner_report::named;
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

named! {
    #[derive(Default)]
    pub enum RiserKind {
        #[default]
        Command = "command",
        /// A kernel function and everything it called.
        KernelSymbol = "kernel_symbol",
    }
}

/// A command or kernel function whose share of busy time rose compared with the time before; largest rise first.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Riser {
    pub what: RiserKind,
    pub name: String,
    /// Shares of the non-idle weight, between 0 and 1; of all time if known.
    pub baseline: f64,
    pub now: f64,
    /// The samples behind these shares.
    pub baseline_samples: u64,
    pub now_samples: u64,
    /// The rise in standard deviations of sampling noise.
    pub sigmas: f64,
    /// For a command, how many processes had samples; 0 if the file has no PIDs.
    pub baseline_processes: u64,
    pub now_processes: u64,
    /// For a function, the command with most of it, and its share.
    pub mostly_in: Option<(String, f64)>,
    /// For a function, its callers that rose with it and are left out, nearest first.
    pub carries: Vec<String>,
}

impl Riser {
    pub fn rise(&self) -> f64 {
        self.now - self.baseline
    }
}

pub use coroner_report::{CoreMinute, Minute as RollupRow};

row!(IncidentRow in "incident" {
    number: "number", code: "code", subject: "subject", core: "core", text: "text",
    triggered: "triggered_real_ns", from: "from_real_ns", until: "until_real_ns"
});

row!(Riser in "risers" {
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
} without starved_queues, throttled_us, direct_reclaim_pages, own_cpu_us);

impl Writer {
    /// Sets the incident that this file is; replaces an earlier one.
    pub fn set_incident(&mut self, incident: &IncidentRow) -> Result<(), RecordingError> {
        self.store("cannot store the incident", |tx| rows::replace(tx, incident))
    }

    /// Sets the risers, in this order; replaces earlier ones.
    pub fn set_risers(&mut self, risers: &[Riser]) -> Result<(), RecordingError> {
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
pub fn incident(path: &Path) -> Result<Option<(IncidentRow, Vec<Riser>)>, RecordingError> {
    let Opened { db, .. } = open::open(path)?;
    read::about(&db, path)?;
    incident_in(&db, path)
}

/// The same for an open file.
pub(super) fn incident_in(db: &Connection, path: &Path) -> Result<Option<(IncidentRow, Vec<Riser>)>, RecordingError> {
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
