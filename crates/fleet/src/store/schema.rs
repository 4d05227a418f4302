//! The tables of the embedded store. Times are seconds since 1970, shares are thousandths; what was not seen is NULL.

use anyhow::{Context, bail, ensure};
use rusqlite::Connection;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// "CRNF", SQLite's application_id of the file.
const APPLICATION_ID: i32 = 0x4352_4E46;
/// A store of format N is one on which the first N steps were run. Steps are never changed, only added.
const STEPS: &[&str] = &[CREATE, STACKS, HOURS];

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

const STACKS: &str = "
-- Each stack's text once, as folded text; last_used: a slot, up to some hours late.
CREATE TABLE stacks (id INTEGER PRIMARY KEY, hash INTEGER NOT NULL, stack TEXT NOT NULL, last_used INTEGER NOT NULL);
CREATE INDEX stacks_by_hash ON stacks (hash);
CREATE INDEX stacks_by_use ON stacks (last_used);
-- Ten minutes of a node: all its samples, and pairs of a stack's id and its samples. Packed, they are a fifth of what rows would be.
CREATE TABLE stack_samples (
  slot INTEGER NOT NULL, node_id INTEGER NOT NULL, samples INTEGER NOT NULL, stacks BLOB NOT NULL,
  PRIMARY KEY (slot, node_id)) WITHOUT ROWID;
-- How many new texts a node brought on a day, and how many there are.
CREATE TABLE stack_texts_brought (
  node_id INTEGER NOT NULL, day INTEGER NOT NULL, texts INTEGER NOT NULL, PRIMARY KEY (node_id, day)) WITHOUT ROWID;
CREATE TABLE stack_texts_all (texts INTEGER NOT NULL);
INSERT INTO stack_texts_all VALUES (0);
";

/// Minutes rolled up, kept for longer (hours.rs): counts are sums; zombies, starved queues and the worst core maxima.
const HOURS: &str = "
ALTER TABLE minutes ADD COLUMN starved_queues INTEGER;
ALTER TABLE minutes ADD COLUMN throttled_ms INTEGER;
ALTER TABLE minutes ADD COLUMN direct_reclaim_pages INTEGER;
ALTER TABLE minutes ADD COLUMN own_cpu_ms INTEGER;
CREATE TABLE hours (
  node_id INTEGER NOT NULL, hour INTEGER NOT NULL, minutes INTEGER NOT NULL, busy_mean INTEGER, busy_max INTEGER,
  worst_core_system INTEGER, saturated_ms INTEGER, zombies_tracked INTEGER, zombies_live INTEGER, zombies_dead INTEGER,
  unit_restarts INTEGER, nic_resets INTEGER, softnet_drops INTEGER, oom_kills INTEGER, cpu_stall_ms INTEGER,
  memory_stall_ms INTEGER, io_stall_ms INTEGER, lost_samples INTEGER, starved_queues INTEGER, throttled_ms INTEGER,
  direct_reclaim_pages INTEGER, own_cpu_ms INTEGER, PRIMARY KEY (node_id, hour)) WITHOUT ROWID;
INSERT INTO hours SELECT node_id, minute / 3600 * 3600, count(*), CAST(round(avg(busy_mean)) AS INTEGER), max(busy_max),
  max(worst_core_system), sum(saturated_ms), max(zombies_tracked), max(zombies_live), max(zombies_dead), sum(unit_restarts),
  sum(nic_resets), sum(softnet_drops), sum(oom_kills), sum(cpu_stall_ms), sum(memory_stall_ms), sum(io_stall_ms), sum(lost_samples),
  NULL, NULL, NULL, NULL
FROM minutes GROUP BY 1, 2;
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
    ensure!(id == APPLICATION_ID || (id, format) == (0, 0), "{}: not the store of a fleet", path.display());
    let done = usize::try_from(format).ok().filter(|done| *done <= STEPS.len());
    let Some(done) = done else {
        bail!("{}: its format is {format}; this version reads up to {}", path.display(), STEPS.len());
    };
    for (step, sql) in STEPS.iter().enumerate().skip(done) {
        let format = step + 1;
        let run = format!("BEGIN; {sql} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={format}; COMMIT;");
        db.execute_batch(&run).with_context(|| format!("{}: cannot migrate to format {format}", path.display()))?;
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
