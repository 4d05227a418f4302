//! Stores batches, each once.

use super::hours;
use crate::ingest::Batch;
use crate::store::episodes::{Observed, SAME_WITHIN_S};
use coroner_report::{Concluded, Incident, Minute, NodeIdentity, Problem, Wall};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

/// After this long without a report, another key may take a node over: its disk was replaced.
pub const TAKEN_OVER_AFTER_S: i64 = 3600;

/// More nodes than one store serves; a token that got into wrong hands must not fill the disk.
pub const MOST_NODES: i64 = 200_000;
/// Of one node, the newest are kept.
const MOST_STREAMS: i64 = 50;
const MOST_IDENTITIES: i64 = 200;
const MOST_BOOTS: i64 = 200;
const MOST_EPISODES: i64 = 2000;
const MOST_INCIDENTS: i64 = 2000;

/// What a request brought.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    pub batches: u64,
    /// Known already.
    pub repeated: u64,
    pub rows: u64,
    /// Stacks beyond the limits of a node or of the store.
    pub refused_stacks: u64,
}

#[derive(Debug)]
pub enum StoreError {
    /// The node is known with another key.
    NotItself(String),
    Db(rusqlite::Error),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        StoreError::Db(error)
    }
}

pub fn seconds(wall: Wall) -> i64 {
    (wall.0 / 1_000_000_000) as i64
}

/// No true count of a minute is larger, and the sums of a million such still fit.
const MOST_COUNTED: u64 = 1 << 40;

fn number(value: Option<u64>) -> Option<i64> {
    value.map(|value| value.min(MOST_COUNTED) as i64)
}

pub fn thousandths(share: Option<f64>) -> Option<i64> {
    share.filter(|share| share.is_finite()).map(|share| (share.clamp(0.0, 1.0) * 1000.0).round() as i64)
}

/// Stores the batches of one request, all or none.
pub fn store(tx: &mut Transaction<'_>, key: &str, batches: &[Batch], now: i64) -> Result<Stored, StoreError> {
    let mut stored = Stored::default();
    let inner = tx.savepoint()?;
    for batch in batches {
        let node_id = node(&inner, key, batch, now)?;
        if !is_new(&inner, node_id, batch, now)? {
            stored.repeated += 1;
            continue;
        }
        stored.batches += 1;
        stored.rows += rows(&inner, node_id, batch)?;
        for stacks in &batch.stacks {
            stored.rows += 1;
            stored.refused_stacks += super::stacks::add(&inner, node_id, stacks, now)?;
        }
        hours::roll(&inner, node_id, &batch.minutes, now)?;
    }
    inner.commit()?;
    Ok(stored)
}

pub fn known_with_another_key(node: &str) -> String {
    format!(
        "node {} is known with another key. If its disk was replaced, this ends an hour after its last report; if another machine has \
         the same machine id, name this one with --report-as",
        crate::ingest::printable(node)
    )
}

pub fn too_many_nodes() -> String {
    format!("{MOST_NODES} nodes are known; no new one is taken in")
}

/// The node's row, made or touched.
fn node(db: &Connection, key: &str, batch: &Batch, now: i64) -> Result<i64, StoreError> {
    let head = &batch.head;
    let known = db
        .prepare_cached("SELECT id, key, last_seen FROM nodes WHERE node = ?1")?
        .query_row([&head.node], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, i64>(2)?))
        })
        .optional()?;
    let Some((id, known_key, last_seen)) = known else {
        let count: i64 = db.prepare_cached("SELECT count(*) FROM nodes")?.query_row([], |row| row.get(0))?;
        if count >= MOST_NODES {
            return Err(StoreError::NotItself(too_many_nodes()));
        }
        db.prepare_cached("INSERT INTO nodes (node, key, version, first_seen, last_seen) VALUES (?1, ?2, ?3, ?4, ?4)")?
            .execute(params![head.node, key, head.version, now])?;
        return Ok(db.last_insert_rowid());
    };
    if known_key.is_some_and(|known| known != key) && now - last_seen < TAKEN_OVER_AFTER_S {
        return Err(StoreError::NotItself(known_with_another_key(&head.node)));
    }
    db.prepare_cached("UPDATE nodes SET key = ?2, version = ?3, last_seen = max(last_seen, ?4) WHERE id = ?1")?
        .execute(params![id, key, head.version, now])?;
    Ok(id)
}

fn is_new(db: &Connection, node_id: i64, batch: &Batch, now: i64) -> rusqlite::Result<bool> {
    let row = params![node_id, batch.head.stream, batch.head.sequence as i64, now];
    let update =
        "UPDATE streams SET sequence = ?3, last_seen = ?4 WHERE node_id = ?1 AND stream = ?2 AND sequence < ?3";
    if db.prepare_cached(update)?.execute(row)? > 0 {
        return Ok(true);
    }
    let insert = "INSERT OR IGNORE INTO streams (node_id, stream, sequence, last_seen) VALUES (?1, ?2, ?3, ?4)";
    let is_new = db.prepare_cached(insert)?.execute(row)? > 0;
    if is_new {
        prune(db, "streams", "stream", "last_seen", node_id, MOST_STREAMS)?;
    }
    Ok(is_new)
}

fn rows(db: &Connection, node_id: i64, batch: &Batch) -> rusqlite::Result<u64> {
    let head = &batch.head;
    let sealed = seconds(head.sealed);
    let dropped = number(Some(head.dropped.total()));
    db.prepare_cached("UPDATE nodes SET dropped = ?2 WHERE id = ?1")?.execute(params![node_id, dropped])?;
    if let Some(identity) = &batch.node {
        set_identity(db, node_id, identity, sealed)?;
    }
    if !head.boot_id.is_empty() {
        let booted = batch.node.as_ref().and_then(|node| node.booted).map(seconds);
        // Batches may be hours long: what they tell begins before they were sealed.
        let began =
            batch.minutes.iter().map(|minute| seconds(minute.minute)).min().map_or(sealed, |first| first.min(sealed));
        let row = params![node_id, head.boot_id, booted, began, sealed];
        let update = "UPDATE boots SET booted = coalesce(?3, booted), last_seen = max(last_seen, ?5), first_seen = min(first_seen, ?4)
             WHERE node_id = ?1 AND boot_id = ?2";
        if db.prepare_cached(update)?.execute(row)? == 0 {
            let insert =
                "INSERT INTO boots (node_id, boot_id, booted, first_seen, last_seen) VALUES (?1, ?2, ?3, ?4, ?5)";
            db.prepare_cached(insert)?.execute(row)?;
            prune(db, "boots", "boot_id", "last_seen", node_id, MOST_BOOTS)?;
        }
    }
    for minute in &batch.minutes {
        add_minute(db, node_id, minute)?;
    }
    for concluded in &batch.diagnoses {
        conclude(db, node_id, concluded)?;
    }
    if batch.diagnoses.iter().any(|concluded| !concluded.problems.is_empty()) {
        prune(db, "episodes", "id", "seen_until", node_id, MOST_EPISODES)?;
    }
    for incident in &batch.incidents {
        set_incident(db, node_id, incident)?;
    }
    if !batch.incidents.is_empty() {
        prune(db, "incidents", "triggered", "triggered", node_id, MOST_INCIDENTS)?;
    }
    Ok(batch.rows())
}

/// Keeps the newest rows of a node.
fn prune(db: &Connection, table: &str, id: &str, order: &str, node_id: i64, most: i64) -> rusqlite::Result<()> {
    let sql = format!(
        "DELETE FROM {table} WHERE node_id = ?1 AND {id} IN
           (SELECT {id} FROM {table} WHERE node_id = ?1 ORDER BY {order} DESC LIMIT -1 OFFSET ?2)"
    );
    db.prepare_cached(&sql)?.execute(params![node_id, most])?;
    Ok(())
}

fn set_identity(db: &Connection, node_id: i64, identity: &NodeIdentity, sealed: i64) -> rusqlite::Result<()> {
    // Plain strings and maps; it was read from JSON.
    let json = serde_json::to_string(identity).unwrap_or_default();
    let known: Option<String> =
        db.prepare_cached("SELECT identity_json FROM nodes WHERE id = ?1")?.query_row([node_id], |row| row.get(0))?;
    if known.as_ref() == Some(&json) {
        return Ok(());
    }
    db.prepare_cached("UPDATE nodes SET host = ?2, boot_id = ?3, booted = ?4, identity_json = ?5 WHERE id = ?1")?
        .execute(params![node_id, identity.host, identity.boot_id, identity.booted.map(seconds), json])?;
    db.prepare_cached("INSERT OR REPLACE INTO identities (node_id, since, identity_json) VALUES (?1, ?2, ?3)")?
        .execute(params![node_id, sealed, json])?;
    prune(db, "identities", "since", "since", node_id, MOST_IDENTITIES)
}

/// Of all cores together; `None` if they were not seen.
pub fn saturated_ms(m: &Minute) -> Option<i64> {
    let saturated: f64 = m.by_core.iter().map(|core| core.saturated_s).filter(|s| s.is_finite()).sum();
    m.cores.map(|_| (saturated * 1000.0).clamp(0.0, MOST_COUNTED as f64) as i64)
}

fn add_minute(db: &Connection, node_id: i64, m: &Minute) -> rusqlite::Result<()> {
    let ms = |us: Option<u64>| number(us.map(|us| us / 1000));
    // A recorder that was restarted within a minute tells of both parts; the later one is the longer-lasting truth.
    db.prepare_cached(
        "INSERT OR REPLACE INTO minutes VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
           ?19, ?20, ?21, ?22)",
    )?
    .execute(params![
        node_id,
        // A minute has one row, wherever within it a node begins.
        seconds(m.minute) / 60 * 60,
        thousandths(m.busy_mean),
        thousandths(m.busy_max),
        m.worst_core,
        thousandths(m.worst_core_system),
        saturated_ms(m),
        number(m.zombies_tracked),
        number(m.zombies_live),
        number(m.zombies_dead),
        number(m.unit_restarts),
        number(m.nic_resets),
        number(m.softnet_drops),
        number(m.oom_kills),
        ms(m.cpu_stall_us),
        ms(m.memory_stall_us),
        ms(m.io_stall_us),
        number(m.lost_samples),
        number(m.starved_queues),
        ms(m.throttled_us),
        number(m.direct_reclaim_pages),
        ms(m.own_cpu_us),
    ])?;
    Ok(())
}

/// Extends, begins and ends episodes by what one diagnosis found.
fn conclude(db: &Connection, node_id: i64, concluded: &Concluded) -> rusqlite::Result<()> {
    let (from, until) = (seconds(concluded.from), seconds(concluded.until));
    db.prepare_cached(
        "UPDATE nodes SET diagnosed_from = coalesce(diagnosed_from, ?2), diagnosed_until = ?3, conclusion = ?4
         WHERE id = ?1 AND (diagnosed_until IS NULL OR diagnosed_until <= ?3)",
    )?
    .execute(params![node_id, from, until, concluded.conclusion])?;
    for problem in &concluded.problems {
        observe(db, node_id, &concluded.boot_id, problem, Observed::of(problem, concluded))?;
    }
    // Not found any more: it ended when it was last seen. A late diagnosis ends nothing that a newer one saw.
    db.prepare_cached(
        "UPDATE episodes SET ended = seen_until WHERE node_id = ?1 AND ended IS NULL
         AND seen_until < (SELECT diagnosed_until FROM nodes WHERE id = ?1)",
    )?
    .execute([node_id])?;
    Ok(())
}

/// Begins an episode, or extends the one that this is part of, by the rule of [`crate::store::episodes`]. Late ones may join two.
fn observe(
    db: &Connection,
    node_id: i64,
    boot_id: &str,
    problem: &Problem,
    observed: Observed,
) -> rusqlite::Result<()> {
    let Observed { began, seen_until, has_ended } = observed;
    let ended = has_ended.then_some(seen_until);
    let mut near = db.prepare_cached(
        "SELECT id, began, seen_until FROM episodes WHERE node_id = ?1 AND key = ?2 AND coalesce(boot_id, '') = ?3
         AND seen_until >= ?4 - ?6 AND began <= ?5 + ?6 ORDER BY seen_until DESC",
    )?;
    let near = near.query_map(params![node_id, problem.key, boot_id, began, seen_until, SAME_WITHIN_S], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
    })?;
    let near: Vec<(i64, i64, i64)> = near.collect::<rusqlite::Result<_>>()?;
    let Some(&(id, _, known_until)) = near.first() else {
        db.prepare_cached(
            "INSERT INTO episodes (node_id, boot_id, key, code, subject_kind, subject, severity, certainty, title, began,
               seen_until, ended) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?
        .execute(params![
            node_id,
            boot_id,
            problem.key,
            problem.code,
            problem.subject_kind,
            problem.subject,
            problem.severity,
            problem.certainty,
            problem.title,
            began,
            seen_until,
            ended
        ])?;
        return Ok(());
    };
    for (joined, ..) in &near[1..] {
        db.prepare_cached("DELETE FROM episodes WHERE id = ?1")?.execute([joined])?;
    }
    let began = near.iter().map(|(_, began, _)| *began).fold(began, i64::min);
    db.prepare_cached("UPDATE episodes SET began = ?2 WHERE id = ?1")?.execute([id, began])?;
    if seen_until >= known_until {
        db.prepare_cached(
            "UPDATE episodes SET ended = CASE WHEN seen_until = ?2 THEN coalesce(?3, ended) ELSE ?3 END, seen_until = ?2, severity = ?4, certainty = ?5, title = ?6 WHERE id = ?1",
        )?
        .execute(params![id, seen_until, ended, problem.severity, problem.certainty, problem.title])?;
    }
    Ok(())
}

fn set_incident(db: &Connection, node_id: i64, incident: &Incident) -> rusqlite::Result<()> {
    let json = serde_json::to_string(incident).unwrap_or_default();
    db.prepare_cached("INSERT OR REPLACE INTO incidents VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?.execute(params![
        node_id,
        number(Some(incident.number)),
        seconds(incident.triggered),
        incident.code,
        incident.key,
        incident.state.as_str(),
        json
    ])?;
    Ok(())
}

/// How long rows are kept.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    pub minutes_s: i64,
    pub hours_s: i64,
    pub episodes_s: i64,
}

/// Removes some nodes that were not heard of since, with all of their rows: their numbers may be given to others.
fn forget(db: &Connection, before: i64) -> rusqlite::Result<bool> {
    const AT_ONCE: usize = 20;
    const TABLES: [&str; 10] = [
        "minutes",
        "hours",
        "episodes",
        "incidents",
        "boots",
        "identities",
        "streams",
        "stack_samples",
        "stack_texts_brought",
        "nodes",
    ];
    let mut old = db.prepare_cached("SELECT id FROM nodes WHERE last_seen < ?1 LIMIT ?2")?;
    let old: Vec<i64> =
        old.query_map(params![before, AT_ONCE as i64], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for id in &old {
        let tx = db.unchecked_transaction()?;
        for table in TABLES {
            let of_node = if table == "nodes" { "id" } else { "node_id" };
            tx.execute(&format!("DELETE FROM {table} WHERE {of_node} = ?1"), [id])?;
        }
        tx.commit()?;
    }
    Ok(old.len() == AT_ONCE)
}

/// Removes what is older; at most some rows at a time, so that reports do not wait. Returns whether there may be more.
pub fn expire(db: &Connection, retention: Retention, now: i64) -> rusqlite::Result<bool> {
    const AT_ONCE: i64 = 5000;
    let minutes = now - retention.minutes_s;
    let nodes = db
        .prepare_cached(
            "DELETE FROM minutes WHERE (node_id, minute) IN
               (SELECT m.node_id, m.minute FROM nodes JOIN minutes m ON m.node_id = nodes.id AND m.minute < ?1 LIMIT ?2)",
        )?
        .execute(params![minutes, AT_ONCE])?;
    let more_stacks = super::stacks::expire(db, minutes, AT_ONCE)?;
    let hours = hours::expire(db, now - retention.hours_s, AT_ONCE)?;
    let before = now - retention.episodes_s;
    let episodes = db
        .prepare_cached(
            "DELETE FROM episodes WHERE id IN (SELECT id FROM episodes WHERE seen_until < ?1 AND ended IS NOT NULL LIMIT ?2)",
        )?
        .execute(params![before, AT_ONCE])?;
    let incidents = db
        .prepare_cached(
            "DELETE FROM incidents WHERE (node_id, number, triggered) IN
               (SELECT node_id, number, triggered FROM incidents WHERE triggered < ?1 LIMIT ?2)",
        )?
        .execute(params![before, AT_ONCE])?;
    let forgotten = forget(db, before)?;
    db.execute("DELETE FROM streams WHERE last_seen < ?1", [now - retention.episodes_s])?;
    db.execute("DELETE FROM boots WHERE last_seen < ?1", [before])?;
    Ok(more_stacks || forgotten || [nodes, hours, episodes, incidents].iter().any(|gone| *gone as i64 == AT_ONCE))
}
