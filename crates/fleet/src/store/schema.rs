//! The tables of the embedded store. Times are seconds since 1970, shares are thousandths; what was not seen is NULL.

use anyhow::{Context, ensure};
use rusqlite::Connection;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// "CRNF", SQLite's application_id of the file.
const APPLICATION_ID: i32 = 0x4352_4E46;
const FORMAT: i32 = 1;

const CREATE: &str = "
-- A node as it last reported. key: what the node proves itself with.
CREATE TABLE nodes (
  id INTEGER PRIMARY KEY, node TEXT NOT NULL UNIQUE, key TEXT, host TEXT, boot_id TEXT, booted INTEGER, version TEXT,
  first_seen INTEGER NOT NULL, last_seen INTEGER NOT NULL, identity_json TEXT, dropped INTEGER NOT NULL DEFAULT 0,
  diagnosed_from INTEGER, diagnosed_until INTEGER, conclusion TEXT);
-- The last batch that was stored of each stream: those up to it are known.
CREATE TABLE streams (
  node_id INTEGER NOT NULL, stream TEXT NOT NULL, sequence INTEGER NOT NULL, last_seen INTEGER NOT NULL,
  PRIMARY KEY (node_id, stream)) WITHOUT ROWID;
-- Each identity that a node had, from when: for looking back.
CREATE TABLE identities (
  node_id INTEGER NOT NULL, since INTEGER NOT NULL, identity_json TEXT NOT NULL, PRIMARY KEY (node_id, since)) WITHOUT ROWID;
CREATE TABLE boots (
  node_id INTEGER NOT NULL, boot_id TEXT NOT NULL, booted INTEGER, first_seen INTEGER NOT NULL, last_seen INTEGER NOT NULL,
  PRIMARY KEY (node_id, boot_id)) WITHOUT ROWID;
CREATE TABLE minutes (
  node_id INTEGER NOT NULL, minute INTEGER NOT NULL, busy_mean INTEGER, busy_max INTEGER, worst_core INTEGER,
  worst_core_system INTEGER, saturated_ms INTEGER, zombies_tracked INTEGER, zombies_live INTEGER, zombies_dead INTEGER,
  unit_restarts INTEGER, nic_resets INTEGER, softnet_drops INTEGER, oom_kills INTEGER, cpu_stall_ms INTEGER,
  memory_stall_ms INTEGER, io_stall_ms INTEGER, lost_samples INTEGER, PRIMARY KEY (node_id, minute)) WITHOUT ROWID;
-- A problem of a node from when until when; ended is NULL while it goes on.
CREATE TABLE episodes (
  id INTEGER PRIMARY KEY, node_id INTEGER NOT NULL, boot_id TEXT, key TEXT NOT NULL, code TEXT NOT NULL, subject_kind TEXT,
  subject TEXT, severity TEXT, certainty TEXT, title TEXT, began INTEGER NOT NULL, seen_until INTEGER NOT NULL, ended INTEGER);
CREATE INDEX episodes_of_node ON episodes (node_id, key, began);
CREATE INDEX episodes_open ON episodes (key) WHERE ended IS NULL;
CREATE INDEX episodes_by_time ON episodes (seen_until);
CREATE TABLE incidents (
  node_id INTEGER NOT NULL, number INTEGER NOT NULL, triggered INTEGER NOT NULL, code TEXT NOT NULL, key TEXT, state TEXT,
  incident_json TEXT NOT NULL, PRIMARY KEY (node_id, number, triggered)) WITHOUT ROWID;
CREATE INDEX incidents_by_time ON incidents (triggered);
";

/// Opens the store, or begins one.
pub fn open(path: &Path) -> anyhow::Result<Connection> {
    // Created here, so that only its owner may read it. If that fails, SQLite says why.
    let _ = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let opened = || -> rusqlite::Result<(Connection, i32, i32)> {
        let db = Connection::open(path)?;
        db.busy_timeout(Duration::from_secs(10))?;
        let id = db.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        let format = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        db.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-65536;")?;
        Ok((db, id, format))
    };
    let (db, id, format) = opened().with_context(|| format!("cannot open the store {}", path.display()))?;
    match (id, format) {
        (0, 0) => db.execute_batch(&format!(
            "BEGIN; {CREATE} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}; COMMIT;"
        ))?,
        (APPLICATION_ID, FORMAT) => {}
        (APPLICATION_ID, newer) => {
            ensure!(newer < FORMAT, "{}: its format is {newer}; this version reads {FORMAT}", path.display());
        }
        _ => anyhow::bail!("{}: not the store of a fleet", path.display()),
    }
    Ok(db)
}

/// For queries beside the writer.
pub fn open_to_read(path: &Path) -> anyhow::Result<Connection> {
    let db = Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)
        .with_context(|| format!("cannot open the store {}", path.display()))?;
    db.busy_timeout(Duration::from_secs(10))?;
    Ok(db)
}
