//! Queries of the embedded store.

use crate::answers::{
    ActiveProblem, Boot, Episode, FleetIncident, FleetStatus, IncidentList, NodeCounts, NodeDetail, NodeSummary,
};
use crate::ingest::attributes_of;
use coroner_report::{Incident, NodeIdentity, Wall};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A node that said nothing for this long is silent.
pub const SILENT_AFTER_S: i64 = 600;
pub const DAY_S: i64 = 86_400;
pub const MOST_HISTORY: i64 = 500;

const EPISODE: &str = "key, code, subject, severity, certainty, title, began, seen_until, ended";
/// The last minute's numbers, their names in expressions, and what one unit is.
pub const NUMBERS: [(&str, &str, f64); 19] = [
    ("busy", "busy_mean", 0.001),
    ("busy_max", "busy_max", 0.001),
    ("worst_core_system", "worst_core_system", 0.001),
    ("saturated_ms", "saturated_ms", 1.0),
    ("memcgs", "zombies_tracked", 1.0),
    ("memcgs_live", "zombies_live", 1.0),
    ("zombies", "zombies_dead", 1.0),
    ("restarts", "unit_restarts", 1.0),
    ("nic_resets", "nic_resets", 1.0),
    ("drops", "softnet_drops", 1.0),
    ("oom_kills", "oom_kills", 1.0),
    ("cpu_stall_ms", "cpu_stall_ms", 1.0),
    ("memory_stall_ms", "memory_stall_ms", 1.0),
    ("io_stall_ms", "io_stall_ms", 1.0),
    ("lost_samples", "lost_samples", 1.0),
    ("starved_queues", "starved_queues", 1.0),
    ("throttled_ms", "throttled_ms", 1.0),
    ("direct_reclaim_pages", "direct_reclaim_pages", 1.0),
    ("own_cpu_ms", "own_cpu_ms", 1.0),
];

pub fn number_names() -> impl Iterator<Item = &'static str> {
    NUMBERS.iter().map(|(name, ..)| *name)
}

pub fn wall(seconds: i64) -> Wall {
    Wall(0) + Duration::from_secs(seconds.max(0) as u64)
}

fn episode(row: &Row<'_>) -> rusqlite::Result<Episode> {
    Ok(Episode {
        key: row.get("key")?,
        code: row.get("code")?,
        subject: row.get("subject")?,
        severity: row.get::<_, Option<String>>("severity")?.unwrap_or_default(),
        certainty: row.get("certainty")?,
        title: row.get::<_, Option<String>>("title")?.unwrap_or_default(),
        began: wall(row.get("began")?),
        seen_until: wall(row.get("seen_until")?),
        ended: row.get::<_, Option<i64>>("ended")?.map(wall),
    })
}

pub fn status(db: &Connection, now: i64) -> rusqlite::Result<FleetStatus> {
    let silent_before = now - SILENT_AFTER_S;
    let counts = db.query_row(
        "SELECT count(*), coalesce(sum(last_seen < ?1), 0), coalesce(sum(diagnosed_until IS NULL), 0), coalesce(sum(dropped), 0)
         FROM nodes",
        [silent_before],
        |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get::<_, i64>(3)?)),
    )?;
    let (known, silent, undiagnosed, dropped) = counts;
    let sick: i64 = db.query_row(
        "SELECT count(DISTINCT node_id) FROM episodes WHERE ended IS NULL AND severity IN ('warning', 'critical')",
        [],
        |row| row.get(0),
    )?;
    // A problem is new if no episode of it, ended or not, began before yesterday.
    let mut problems = db.prepare(
        "SELECT e.key, min(e.code), max(CASE e.severity WHEN 'critical' THEN 3 WHEN 'warning' THEN 2 ELSE 1 END),
           count(DISTINCT e.node_id), count(DISTINCT CASE WHEN n.last_seen < ?1 THEN e.node_id END), min(e.began),
           min(CASE WHEN length(n.node) = 32 AND n.node NOT GLOB '*[^0-9a-fA-F]*' THEN coalesce(n.host, n.node) ELSE n.node END
             || char(0) || coalesce(e.title, '')),
           NOT EXISTS (SELECT 1 FROM episodes old WHERE old.key = e.key AND old.began < ?2)
         FROM episodes e JOIN nodes n ON n.id = e.node_id WHERE e.ended IS NULL
         GROUP BY e.key ORDER BY 3 DESC, 4 DESC, 1",
    )?;
    let problems = problems.query_map(params![silent_before, now - DAY_S], |row| {
        // The first node's name, and what it says.
        let example: String = row.get(6)?;
        let (example, title) = example.split_once('\0').unwrap_or((&example, ""));
        Ok(ActiveProblem {
            key: row.get(0)?,
            code: row.get(1)?,
            severity: ["info", "warning", "critical"][(row.get::<_, i64>(2)? - 1).clamp(0, 2) as usize].to_owned(),
            nodes: row.get::<_, i64>(3)? as u64,
            silent: row.get::<_, i64>(4)? as u64,
            since: wall(row.get(5)?),
            example: example.to_owned(),
            title: title.to_owned(),
            is_new: row.get(7)?,
        })
    })?;
    let incidents: i64 =
        db.query_row("SELECT count(*) FROM incidents WHERE triggered >= ?1", [now - DAY_S], |row| row.get(0))?;
    Ok(FleetStatus {
        schema: "coroner.fleet.status/1".to_owned(),
        at: wall(now),
        nodes: NodeCounts {
            known: known as u64,
            reporting: (known - silent) as u64,
            silent: silent as u64,
            undiagnosed: undiagnosed as u64,
            sick: sick as u64,
        },
        problems: problems.collect::<rusqlite::Result<_>>()?,
        incidents_last_day: incidents as u64,
        dropped_rows: dropped as u64,
    })
}

/// All nodes with what they have now, by their row ids.
pub fn nodes(db: &Connection, now: i64) -> rusqlite::Result<Vec<(i64, NodeSummary)>> {
    let mut open: HashMap<i64, Vec<Episode>> = HashMap::new();
    let mut episodes =
        db.prepare(&format!("SELECT node_id, {EPISODE} FROM episodes WHERE ended IS NULL ORDER BY began, key"))?;
    let mut rows = episodes.query([])?;
    while let Some(row) = rows.next()? {
        open.entry(row.get("node_id")?).or_default().push(episode(row)?);
    }
    let mut nodes = db.prepare("SELECT * FROM nodes ORDER BY coalesce(host, node), node")?;
    let mut rows = nodes.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let id: i64 = row.get("id")?;
        let summary = NodeSummary {
            problems: open.remove(&id).unwrap_or_default(),
            numbers: last_minute(db, id)?,
            ..summary(row, now)?
        };
        found.push((id, summary));
    }
    Ok(found)
}

fn summary(row: &Row<'_>, now: i64) -> rusqlite::Result<NodeSummary> {
    let identity: Option<String> = row.get("identity_json")?;
    let identity: NodeIdentity = identity.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default();
    let last_seen: i64 = row.get("last_seen")?;
    Ok(NodeSummary {
        node: row.get("node")?,
        host: row.get("host")?,
        attributes: attributes_of(&identity),
        version: row.get("version")?,
        booted: row.get::<_, Option<i64>>("booted")?.map(wall),
        first_seen: wall(row.get("first_seen")?),
        last_seen: wall(last_seen),
        is_silent: last_seen < now - SILENT_AFTER_S,
        conclusion: row.get("conclusion")?,
        diagnosed_until: row.get::<_, Option<i64>>("diagnosed_until")?.map(wall),
        ..NodeSummary::default()
    })
}

fn last_minute(db: &Connection, node_id: i64) -> rusqlite::Result<BTreeMap<String, f64>> {
    let mut last = db.prepare_cached("SELECT * FROM minutes WHERE node_id = ?1 ORDER BY minute DESC LIMIT 1")?;
    let numbers = last.query_row([node_id], |row| {
        let mut numbers = BTreeMap::new();
        for (name, column, unit) in NUMBERS {
            if let Some(value) = row.get::<_, Option<i64>>(column)? {
                numbers.insert(name.to_owned(), value as f64 * unit);
            }
        }
        Ok(numbers)
    });
    Ok(numbers.optional()?.unwrap_or_default())
}

/// By its id, machine id or host name; several nodes may have the same host name.
pub fn find(db: &Connection, name: &str) -> rusqlite::Result<Vec<(i64, String)>> {
    let mut found =
        db.prepare("SELECT id, node FROM nodes WHERE node = ?1 OR host = ?1 ORDER BY last_seen DESC LIMIT 20")?;
    found.query_map([name], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// A node's own name goes before the host names of others, which they choose.
pub fn named<T>(found: Vec<T>, is_it: impl Fn(&T) -> bool) -> Vec<T> {
    if found.iter().any(&is_it) { found.into_iter().filter(is_it).collect() } else { found }
}

pub fn detail(db: &Connection, id: i64, now: i64) -> rusqlite::Result<NodeDetail> {
    let mut node = db.query_row("SELECT * FROM nodes WHERE id = ?1", [id], |row| summary(row, now))?;
    node.numbers = last_minute(db, id)?;
    let mut history =
        db.prepare(&format!("SELECT {EPISODE} FROM episodes WHERE node_id = ?1 ORDER BY began DESC, key LIMIT ?2"))?;
    let history: Vec<Episode> = history.query_map([id, MOST_HISTORY], episode)?.collect::<rusqlite::Result<_>>()?;
    node.problems = history.iter().filter(|episode| episode.ended.is_none()).cloned().collect();
    let mut incidents =
        db.prepare("SELECT incident_json FROM incidents WHERE node_id = ?1 ORDER BY triggered DESC, number LIMIT ?2")?;
    let incidents: Vec<String> =
        incidents.query_map([id, MOST_HISTORY], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(NodeDetail {
        schema: "coroner.fleet.node/1".to_owned(),
        at: wall(now),
        node,
        history,
        incidents: incidents.iter().filter_map(|json| serde_json::from_str::<Incident>(json).ok()).collect(),
        boots: boots(db, id)?,
    })
}

fn boots(db: &Connection, id: i64) -> rusqlite::Result<Vec<Boot>> {
    let mut boots = db.prepare_cached("SELECT * FROM boots WHERE node_id = ?1 ORDER BY first_seen DESC")?;
    let boots = boots.query_map([id], |row| {
        Ok(Boot {
            boot_id: row.get("boot_id")?,
            booted: row.get::<_, Option<i64>>("booted")?.map(wall),
            first_seen: wall(row.get("first_seen")?),
            last_seen: wall(row.get("last_seen")?),
        })
    })?;
    boots.collect()
}

pub fn incidents(db: &Connection, since: i64, now: i64, most: i64) -> rusqlite::Result<IncidentList> {
    let matched: i64 =
        db.query_row("SELECT count(*) FROM incidents WHERE triggered >= ?1", [since], |row| row.get(0))?;
    let mut rows = db.prepare(
        "SELECT n.node, n.host, i.incident_json FROM incidents i JOIN nodes n ON n.id = i.node_id
         WHERE i.triggered >= ?1 ORDER BY i.triggered DESC, n.node, i.number LIMIT ?2",
    )?;
    let rows = rows.query_map([since, most], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, String>(2)?)))?;
    let mut incidents = Vec::new();
    for row in rows {
        let (node, host, json) = row?;
        if let Ok(incident) = serde_json::from_str::<Incident>(&json) {
            let node: String = node;
            incidents.push(FleetIncident { id: format!("{node}/{}", incident.number), node, host, incident });
        }
    }
    Ok(IncidentList {
        schema: "coroner.fleet.incidents/1".to_owned(),
        at: wall(now),
        matched: matched as u64,
        incidents,
    })
}

/// Boots and onsets of a problem, by node: for survival from boot to the first onset.
#[derive(Debug, Clone, Default)]
pub struct NodeLives {
    pub boots: Vec<Boot>,
    /// When an episode that matches began, whenever that was.
    pub onsets: Vec<i64>,
    /// An episode that matches was seen in the time that is asked about.
    pub had_it: bool,
}

/// By node. `code_or_key`: an episode's code or its key.
pub fn lives(db: &Connection, code_or_key: &str, since: i64) -> rusqlite::Result<HashMap<String, NodeLives>> {
    let mut lives: HashMap<String, NodeLives> = HashMap::new();
    let mut boots = db.prepare(
        "SELECT n.node, b.boot_id, b.booted, b.first_seen, b.last_seen FROM boots b JOIN nodes n ON n.id = b.node_id
         WHERE b.last_seen >= ?1 ORDER BY b.first_seen",
    )?;
    let mut rows = boots.query([since])?;
    while let Some(row) = rows.next()? {
        lives.entry(row.get("node")?).or_default().boots.push(Boot {
            boot_id: row.get("boot_id")?,
            booted: row.get::<_, Option<i64>>("booted")?.map(wall),
            first_seen: wall(row.get("first_seen")?),
            last_seen: wall(row.get("last_seen")?),
        });
    }
    let mut episodes = db.prepare(
        "SELECT n.node, e.began, e.seen_until >= ?2 AS of_late FROM episodes e JOIN nodes n ON n.id = e.node_id
         WHERE e.key = ?1 OR e.code = ?1 ORDER BY e.began",
    )?;
    let mut rows = episodes.query(params![code_or_key, since])?;
    while let Some(row) = rows.next()? {
        let of_node = lives.entry(row.get("node")?).or_default();
        of_node.had_it |= row.get::<_, bool>("of_late")?;
        of_node.onsets.push(row.get("began")?);
    }
    Ok(lives)
}

/// Whether some node has or had a problem with this code or key.
pub fn is_problem(db: &Connection, code_or_key: &str) -> rusqlite::Result<bool> {
    let mut known = db.prepare_cached("SELECT EXISTS (SELECT 1 FROM episodes WHERE key = ?1 OR code = ?1)")?;
    known.query_row([code_or_key], |row| row.get(0))
}

/// Codes of problems that nodes have now or had since, those of most nodes first.
pub fn codes(db: &Connection, since: i64) -> rusqlite::Result<Vec<String>> {
    let mut codes = db.prepare(
        "SELECT code FROM episodes WHERE seen_until >= ?1 AND severity IN ('warning', 'critical')
         GROUP BY code ORDER BY count(DISTINCT node_id) DESC, code",
    )?;
    codes.query_map([since], |row| row.get(0))?.collect()
}
