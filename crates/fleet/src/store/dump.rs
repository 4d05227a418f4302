//! Rows of the embedded store for exports, read page by page: between pages no query is open, so that the store can tidy up while a client
//! is slow.

use super::read::NUMBERS;
use crate::answers::NodeSummary;
use rusqlite::{Connection, Row, params};

/// Rows read at once.
const PAGE: i64 = 4096;

/// With its row id.
pub type Node = (i64, NodeSummary);
pub type Numbers = [Option<i64>; NUMBERS.len()];
/// Takes a minute of a node.
pub type TakeMinute<'a> = dyn FnMut(&NodeSummary, i64, &Numbers) -> anyhow::Result<()> + 'a;
pub type TakeEpisode<'a> = dyn FnMut(&NodeSummary, ToldEpisode) -> anyhow::Result<()> + 'a;
/// Takes an incident as JSON.
pub type TakeIncident<'a> = dyn FnMut(&NodeSummary, &str) -> anyhow::Result<()> + 'a;

/// All that is told of an episode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldEpisode {
    /// Boot, key, code, kind of its subject, subject, severity, certainty, title.
    pub texts: [Option<String>; 8],
    /// Began, seen until, ended.
    pub times: [Option<i64>; 3],
}

/// All rows of a query; then it is closed.
fn page<T>(
    db: &Connection,
    query: &str,
    bounds: impl rusqlite::Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    db.prepare_cached(query)?.query_map(bounds, read)?.collect()
}

pub fn minutes(db: &Connection, nodes: &[Node], since: i64, take: &mut TakeMinute<'_>) -> anyhow::Result<()> {
    let numbers: Vec<&str> = NUMBERS.iter().map(|(_, column, _)| *column).collect();
    let query = format!(
        "SELECT minute, {} FROM minutes WHERE node_id = ?1 AND minute >= ?2 ORDER BY minute LIMIT ?3",
        numbers.join(", ")
    );
    let read = |row: &Row<'_>| {
        let mut values: Numbers = [None; NUMBERS.len()];
        for (at, value) in values.iter_mut().enumerate() {
            *value = row.get::<_, Option<i64>>(at + 1)?;
        }
        Ok((row.get::<_, i64>(0)?, values))
    };
    for (id, node) in nodes {
        let mut from = since;
        loop {
            let rows = page(db, &query, params![id, from, PAGE], read)?;
            for (minute, values) in &rows {
                take(node, *minute, values)?;
            }
            match rows.last() {
                Some((last, _)) if rows.len() as i64 == PAGE => from = last + 1,
                _ => break,
            }
        }
    }
    Ok(())
}

pub fn episodes(db: &Connection, nodes: &[Node], since: i64, take: &mut TakeEpisode<'_>) -> anyhow::Result<()> {
    // Of one node at most some thousands are kept.
    let query = "SELECT boot_id, key, code, subject_kind, subject, severity, certainty, title, began, seen_until, ended
                 FROM episodes WHERE node_id = ?1 AND seen_until >= ?2 ORDER BY began, key, seen_until";
    let read = |row: &Row<'_>| {
        let mut texts: [Option<String>; 8] = Default::default();
        for (at, text) in texts.iter_mut().enumerate() {
            *text = row.get(at)?;
        }
        Ok(ToldEpisode { texts, times: [row.get(8)?, row.get(9)?, row.get(10)?] })
    };
    for (id, node) in nodes {
        for episode in page(db, query, params![id, since], read)? {
            take(node, episode)?;
        }
    }
    Ok(())
}

pub fn incidents(db: &Connection, nodes: &[Node], since: i64, take: &mut TakeIncident<'_>) -> anyhow::Result<()> {
    let query = "SELECT incident_json FROM incidents WHERE node_id = ?1 AND triggered >= ?2 ORDER BY triggered, number";
    for (id, node) in nodes {
        for json in page(db, query, params![id, since], |row| row.get::<_, String>(0))? {
            take(node, &json)?;
        }
    }
    Ok(())
}
