//! Single incidents, and who may send their files.

use coroner_report::Incident;
use rusqlite::{Connection, OptionalExtension, params};

/// The newest incident with this number, and the node's host.
pub fn newest(db: &Connection, node_id: i64, number: u64) -> rusqlite::Result<Option<(Option<String>, Incident)>> {
    let Ok(number) = i64::try_from(number) else { return Ok(None) };
    let found = db
        .query_row(
            "SELECT n.host, i.incident_json FROM incidents i JOIN nodes n ON n.id = i.node_id
             WHERE i.node_id = ?1 AND i.number = ?2 ORDER BY i.triggered DESC LIMIT 1",
            params![node_id, number],
            |row| Ok((row.get(0)?, row.get::<_, String>(1)?)),
        )
        .optional()?;
    Ok(found.and_then(|(host, json)| Some((host, serde_json::from_str(&json).ok()?))))
}

pub fn last_seen(db: &Connection, node: &str) -> rusqlite::Result<i64> {
    db.query_row("SELECT last_seen FROM nodes WHERE node = ?1", [node], |row| row.get(0))
}

/// Whether the node reports with this key.
pub fn is_itself(db: &Connection, node: &str, key: &str) -> rusqlite::Result<bool> {
    let known = db.query_row("SELECT key FROM nodes WHERE node = ?1", [node], |row| row.get::<_, Option<String>>(0));
    Ok(known.optional()?.flatten().is_some_and(|known| !known.is_empty() && known == key))
}
