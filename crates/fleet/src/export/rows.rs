//! What each table contains, read page by page.

use super::{Cell, Column, Export, Kind, Table, What};
use crate::answers::NodeSummary;
use crate::store::read::{self, NUMBERS};
use crate::store::write::seconds;
use coroner_report::Incident;
use rusqlite::{Connection, Row, params};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// Rows read at once: between pages no query is open, so that the store can tidy up while a client is slow.
const PAGE: i64 = 4096;
/// Attributes with a column of their own: those that most nodes have.
const MOST_ATTRIBUTES: usize = 200;

/// With its row id.
pub type Node = (i64, NodeSummary);

/// Nodes that match; of the table of nodes those that reported since.
pub fn picked(db: &Connection, export: &Export, now: i64) -> rusqlite::Result<Vec<Node>> {
    let mut nodes = read::nodes(db, now)?;
    nodes.retain(|(_, node)| {
        let reported = export.what != What::Nodes || seconds(node.last_seen) >= export.since;
        reported && export.picked.as_ref().is_none_or(|expr| expr.matches(node, now) == Some(true))
    });
    Ok(nodes)
}

const NODE: [(&str, Kind); 11] = [
    ("node", Kind::Text),
    ("host", Kind::Text),
    ("version", Kind::Text),
    ("booted", Kind::Time),
    ("first_seen", Kind::Time),
    ("last_seen", Kind::Time),
    ("silent", Kind::Flag),
    ("conclusion", Kind::Text),
    ("diagnosed_until", Kind::Time),
    ("problems", Kind::Count),
    ("worst_problem", Kind::Text),
];
const MINUTE: [(&str, Kind); 3] = [("node", Kind::Text), ("host", Kind::Text), ("minute", Kind::Time)];
const EPISODE: [(&str, Kind); 13] = [
    ("node", Kind::Text),
    ("host", Kind::Text),
    ("boot_id", Kind::Text),
    ("key", Kind::Text),
    ("code", Kind::Text),
    ("subject_kind", Kind::Text),
    ("subject", Kind::Text),
    ("severity", Kind::Text),
    ("certainty", Kind::Text),
    ("title", Kind::Text),
    ("began", Kind::Time),
    ("seen_until", Kind::Time),
    ("ended", Kind::Time),
];
const INCIDENT: [(&str, Kind); 14] = [
    ("node", Kind::Text),
    ("host", Kind::Text),
    ("number", Kind::Count),
    ("triggered", Kind::Time),
    ("from", Kind::Time),
    ("until", Kind::Time),
    ("state", Kind::Text),
    ("code", Kind::Text),
    ("key", Kind::Text),
    ("subject", Kind::Text),
    ("by", Kind::Text),
    ("core", Kind::Count),
    ("repeats", Kind::Count),
    ("text", Kind::Text),
];

/// A share is a number between 0 and 1, all else is counted.
fn number_kind(unit: f64) -> Kind {
    if unit < 1.0 { Kind::Number } else { Kind::Count }
}

fn number(value: Option<i64>, unit: f64) -> Cell<'static> {
    match value {
        None => Cell::Missing,
        Some(value) if number_kind(unit) == Kind::Number => Cell::Number(value as f64 * unit),
        Some(value) => Cell::Count(value),
    }
}

pub fn columns(what: What, nodes: &[Node]) -> Vec<Column> {
    let fixed: &[(&str, Kind)] = match what {
        What::Nodes => &NODE,
        What::Minutes => &MINUTE,
        What::Episodes => &EPISODE,
        What::Incidents => &INCIDENT,
    };
    let mut columns: Vec<Column> = fixed.iter().map(|(name, kind)| Column::new(*name, *kind)).collect();
    if matches!(what, What::Nodes | What::Minutes) {
        columns.extend(NUMBERS.iter().map(|(name, _, unit)| Column::new(*name, number_kind(*unit))));
    }
    if what == What::Nodes {
        let taken: BTreeSet<String> = columns.iter().map(|column| column.name.clone()).collect();
        let free = |name: &str| if taken.contains(name) { format!("attribute:{name}") } else { name.to_owned() };
        columns.extend(attributes(nodes).into_iter().map(|name| Column::new(free(name), Kind::Text)));
    }
    columns
}

fn attributes(nodes: &[Node]) -> BTreeSet<&str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in nodes.iter().flat_map(|(_, node)| node.attributes.keys()) {
        *counts.entry(name).or_default() += 1;
    }
    let mut names: Vec<(&str, usize)> = counts.into_iter().collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    names.into_iter().take(MOST_ATTRIBUTES).map(|(name, _)| name).collect()
}

pub fn write<W: Write + Send>(
    db: &Connection,
    export: &Export,
    nodes: &[Node],
    columns: &[Column],
    to: &mut Table<W>,
) -> anyhow::Result<()> {
    let attributes: BTreeSet<&str> = if export.what == What::Nodes { attributes(nodes) } else { BTreeSet::new() };
    for (id, node) in nodes {
        match export.what {
            What::Nodes => to.row(&node_cells(node, &attributes, columns.len()))?,
            What::Minutes => minutes(db, *id, node, export.since, to)?,
            What::Episodes => episodes(db, *id, node, export.since, to)?,
            What::Incidents => incidents(db, *id, node, export.since, to)?,
        }
    }
    Ok(())
}

fn node_cells<'a>(node: &'a NodeSummary, attributes: &BTreeSet<&str>, width: usize) -> Vec<Cell<'a>> {
    let mut cells = Vec::with_capacity(width);
    cells.extend([
        Cell::Text(&node.node),
        Cell::text(node.host.as_deref()),
        Cell::text(node.version.as_deref()),
        Cell::time(node.booted.map(seconds)),
        Cell::Time(seconds(node.first_seen)),
        Cell::Time(seconds(node.last_seen)),
        Cell::Flag(node.is_silent),
        Cell::text(node.conclusion.as_deref()),
        Cell::time(node.diagnosed_until.map(seconds)),
        // A row has room for one of them; all are episodes.
        Cell::Count(node.problems.len() as i64),
        Cell::text(node.problems.iter().max_by_key(|problem| rank(&problem.severity)).map(|worst| worst.code.as_str())),
    ]);
    cells.extend(NUMBERS.iter().map(|(name, _, unit)| match node.numbers.get(*name) {
        None => Cell::Missing,
        Some(value) if number_kind(*unit) == Kind::Number => Cell::Number(*value),
        Some(value) => Cell::Count(*value as i64),
    }));
    cells.extend(attributes.iter().map(|name| Cell::text(node.attributes.get(*name).map(String::as_str))));
    cells
}

fn rank(severity: &str) -> u8 {
    match severity {
        "critical" => 2,
        "warning" => 1,
        _ => 0,
    }
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

fn minutes<W: Write + Send>(
    db: &Connection,
    id: i64,
    node: &NodeSummary,
    since: i64,
    to: &mut Table<W>,
) -> anyhow::Result<()> {
    let numbers: Vec<&str> = NUMBERS.iter().map(|(_, column, _)| *column).collect();
    let query = format!(
        "SELECT minute, {} FROM minutes WHERE node_id = ?1 AND minute >= ?2 ORDER BY minute LIMIT ?3",
        numbers.join(", ")
    );
    let mut from = since;
    loop {
        let read = |row: &Row<'_>| {
            let mut values = [None; NUMBERS.len()];
            for (at, value) in values.iter_mut().enumerate() {
                *value = row.get::<_, Option<i64>>(at + 1)?;
            }
            Ok((row.get::<_, i64>(0)?, values))
        };
        let rows = page(db, &query, params![id, from, PAGE], read)?;
        let mut cells = Vec::with_capacity(MINUTE.len() + NUMBERS.len());
        for (minute, values) in &rows {
            cells.clear();
            cells.extend([Cell::Text(&node.node), Cell::text(node.host.as_deref()), Cell::Time(*minute)]);
            cells.extend(values.iter().zip(NUMBERS).map(|(value, (_, _, unit))| number(*value, unit)));
            to.row(&cells)?;
        }
        match rows.last() {
            Some((last, _)) if rows.len() as i64 == PAGE => from = last + 1,
            _ => return Ok(()),
        }
    }
}

fn episodes<W: Write + Send>(
    db: &Connection,
    id: i64,
    node: &NodeSummary,
    since: i64,
    to: &mut Table<W>,
) -> anyhow::Result<()> {
    // Of one node at most some thousands are kept.
    let query = "SELECT boot_id, key, code, subject_kind, subject, severity, certainty, title, began, seen_until, ended
                 FROM episodes WHERE node_id = ?1 AND seen_until >= ?2 ORDER BY began, id";
    let read = |row: &Row<'_>| {
        let mut texts: [Option<String>; 8] = Default::default();
        for (at, text) in texts.iter_mut().enumerate() {
            *text = row.get(at)?;
        }
        Ok((texts, [row.get::<_, Option<i64>>(8)?, row.get(9)?, row.get(10)?]))
    };
    for (texts, times) in page(db, query, params![id, since], read)? {
        let mut cells = vec![Cell::Text(&node.node), Cell::text(node.host.as_deref())];
        cells.extend(texts.iter().map(|text| Cell::text(text.as_deref())));
        cells.extend(times.iter().map(|time| Cell::time(*time)));
        to.row(&cells)?;
    }
    Ok(())
}

fn incidents<W: Write + Send>(
    db: &Connection,
    id: i64,
    node: &NodeSummary,
    since: i64,
    to: &mut Table<W>,
) -> anyhow::Result<()> {
    let query = "SELECT incident_json FROM incidents WHERE node_id = ?1 AND triggered >= ?2 ORDER BY triggered, number";
    for json in page(db, query, params![id, since], |row| row.get::<_, String>(0))? {
        let incident: Incident = serde_json::from_str(&json)?;
        let count = |count: u64| Cell::Count(i64::try_from(count).unwrap_or(i64::MAX));
        let time = |wall| Cell::Time(seconds(wall));
        to.row(&[
            Cell::Text(&node.node),
            Cell::text(node.host.as_deref()),
            count(incident.number),
            time(incident.triggered),
            time(incident.from),
            time(incident.until),
            Cell::Text(incident.state.as_str()),
            Cell::Text(&incident.code),
            Cell::text(incident.key.as_deref()),
            Cell::Text(&incident.subject),
            Cell::text(incident.by.as_deref()),
            incident.core.map_or(Cell::Missing, |core| Cell::Count(core.into())),
            count(incident.repeats),
            Cell::Text(&incident.text),
        ])?;
    }
    Ok(())
}
