//! What the recorder adds to the evidence: the incident that a file is, its risers, and one row per minute.

use super::confine::{MOST_ROWS, are_tables, fits};
use super::open::{self, Opened};
use super::read;
use super::rows::{Table, U64, from_json, json, maybe_u64_of, u64_of};
use super::{RecordingError, Writer};
use crate::Wall;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
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

/// A command or kernel function whose share of busy time rose compared with the time before; largest rise first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RiserRow {
    /// `command`, `kernel_symbol`
    pub what: String,
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

const RISERS: Table = Table {
    name: "risers",
    columns: &[
        "what",
        "name",
        "baseline",
        "now",
        "baseline_samples",
        "now_samples",
        "sigmas",
        "baseline_processes",
        "now_processes",
        "mostly_in",
        "mostly_in_share",
        "carries_json",
    ],
};

const ROLLUPS: Table = Table {
    name: "rollups",
    columns: &[
        "minute_real_ns",
        "cores",
        "busy_mean",
        "busy_max",
        "worst_core",
        "worst_core_system",
        "by_core_json",
        "zombies_tracked",
        "zombies_live",
        "zombies_dead",
        "unit_restarts",
        "nic_resets",
        "softnet_drops",
        "oom_kills",
        "cpu_stall_us",
        "memory_stall_us",
        "io_stall_us",
        "samples",
        "lost_samples",
    ],
};

impl Writer {
    /// Sets the incident that this file is; replaces an earlier one.
    pub fn set_incident(&mut self, incident: &IncidentRow) -> Result<(), RecordingError> {
        self.store("cannot store the incident", |tx| {
            let IncidentRow { number, code, subject, core, text, triggered, from, until } = incident;
            let sql = "REPLACE INTO incident (id, number, code, subject, core, text, triggered_real_ns, from_real_ns,
                       until_real_ns) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)";
            let [triggered, from, until] = [triggered, from, until].map(|wall| U64(wall.0));
            tx.execute(sql, params![U64(*number), code, subject, core, text, triggered, from, until])?;
            Ok(())
        })
    }

    /// Sets the risers, in this order; replaces earlier ones.
    pub fn set_risers(&mut self, risers: &[RiserRow]) -> Result<(), RecordingError> {
        self.store("cannot store the risers", |tx| {
            tx.execute("DELETE FROM risers", [])?;
            let mut insert = tx.prepare_cached(&RISERS.insert())?;
            for riser in risers {
                let mostly_in = riser.mostly_in.as_ref();
                insert.execute(params![
                    riser.what,
                    riser.name,
                    riser.baseline,
                    riser.now,
                    U64(riser.baseline_samples),
                    U64(riser.now_samples),
                    riser.sigmas,
                    U64(riser.baseline_processes),
                    U64(riser.now_processes),
                    mostly_in.map(|(name, _)| name),
                    mostly_in.map(|(_, share)| share),
                    json(&riser.carries)?,
                ])?;
            }
            Ok(())
        })
    }

    pub fn append_rollup(&mut self, rollup: &RollupRow) -> Result<(), RecordingError> {
        self.store("cannot store a roll-up", |tx| insert_rollup(tx, rollup))
    }
}

fn insert_rollup(tx: &Transaction<'_>, rollup: &RollupRow) -> rusqlite::Result<()> {
    // Field by field, so that a new one cannot be forgotten.
    let RollupRow {
        minute,
        cores,
        busy_mean,
        busy_max,
        worst_core,
        worst_core_system,
        by_core,
        zombies_tracked,
        zombies_live,
        zombies_dead,
        unit_restarts,
        nic_resets,
        softnet_drops,
        oom_kills,
        cpu_stall_us,
        memory_stall_us,
        io_stall_us,
        samples,
        lost_samples,
    } = rollup;
    tx.prepare_cached(&ROLLUPS.insert())?.execute(params![
        U64(minute.0),
        cores,
        busy_mean,
        busy_max,
        worst_core,
        worst_core_system,
        json(by_core)?,
        zombies_tracked.map(U64),
        zombies_live.map(U64),
        zombies_dead.map(U64),
        unit_restarts.map(U64),
        nic_resets.map(U64),
        softnet_drops.map(U64),
        oom_kills.map(U64),
        cpu_stall_us.map(U64),
        memory_stall_us.map(U64),
        io_stall_us.map(U64),
        samples.map(U64),
        lost_samples.map(U64),
    ])?;
    Ok(())
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
    let sql = "SELECT number, code, subject, core, text, triggered_real_ns, from_real_ns, until_real_ns FROM incident
               WHERE id = 1";
    let Some(incident) =
        db.query_row(sql, [], |row| fits(row).and_then(|_| incident_row(row))).optional().map_err(damaged)?
    else {
        return Ok(None);
    };
    Ok(Some((incident, all(db, RISERS, riser).map_err(damaged)?)))
}

/// The roll-ups of a file, in the order in which they were stored.
pub fn rollups(path: &Path) -> Result<Vec<RollupRow>, RecordingError> {
    let Opened { db, .. } = open::open(path)?;
    read::about(&db, path)?;
    if !are_tables(&db, &["rollups"]) {
        return Ok(Vec::new());
    }
    all(&db, ROLLUPS, rollup).map_err(|e| RecordingError::Damaged { path: path.to_owned(), why: e.to_string() })
}

fn all<T>(db: &Connection, table: Table, value: fn(&Row<'_>) -> rusqlite::Result<T>) -> rusqlite::Result<Vec<T>> {
    let sql = format!("SELECT {} FROM {} ORDER BY id LIMIT {MOST_ROWS}", table.columns.join(", "), table.name);
    let mut select = db.prepare(&sql)?;
    select.query_map([], |row| fits(row).and_then(|_| value(row)))?.collect()
}

fn incident_row(row: &Row<'_>) -> rusqlite::Result<IncidentRow> {
    Ok(IncidentRow {
        number: u64_of(row, "number")?,
        code: row.get("code")?,
        subject: row.get("subject")?,
        core: row.get("core")?,
        text: row.get("text")?,
        triggered: Wall(u64_of(row, "triggered_real_ns")?),
        from: Wall(u64_of(row, "from_real_ns")?),
        until: Wall(u64_of(row, "until_real_ns")?),
    })
}

fn riser(row: &Row<'_>) -> rusqlite::Result<RiserRow> {
    let (name, share): (Option<String>, Option<f64>) = (row.get("mostly_in")?, row.get("mostly_in_share")?);
    Ok(RiserRow {
        what: row.get("what")?,
        name: row.get("name")?,
        baseline: row.get("baseline")?,
        now: row.get("now")?,
        baseline_samples: u64_of(row, "baseline_samples")?,
        now_samples: u64_of(row, "now_samples")?,
        sigmas: row.get("sigmas")?,
        baseline_processes: u64_of(row, "baseline_processes")?,
        now_processes: u64_of(row, "now_processes")?,
        mostly_in: name.zip(share),
        carries: from_json(&row.get::<_, String>("carries_json")?)?,
    })
}

fn rollup(row: &Row<'_>) -> rusqlite::Result<RollupRow> {
    let count = |column| maybe_u64_of(row, column);
    Ok(RollupRow {
        minute: Wall(u64_of(row, "minute_real_ns")?),
        cores: row.get("cores")?,
        busy_mean: row.get("busy_mean")?,
        busy_max: row.get("busy_max")?,
        worst_core: row.get("worst_core")?,
        worst_core_system: row.get("worst_core_system")?,
        by_core: from_json(&row.get::<_, String>("by_core_json")?)?,
        zombies_tracked: count("zombies_tracked")?,
        zombies_live: count("zombies_live")?,
        zombies_dead: count("zombies_dead")?,
        unit_restarts: count("unit_restarts")?,
        nic_resets: count("nic_resets")?,
        softnet_drops: count("softnet_drops")?,
        oom_kills: count("oom_kills")?,
        cpu_stall_us: count("cpu_stall_us")?,
        memory_stall_us: count("memory_stall_us")?,
        io_stall_us: count("io_stall_us")?,
        samples: count("samples")?,
        lost_samples: count("lost_samples")?,
    })
}
