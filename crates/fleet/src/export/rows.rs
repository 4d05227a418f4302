//! What each table contains, read page by page.

use super::{Cell, Column, Export, Kind, Table, What};
use crate::answers::NodeSummary;
use crate::store::Reader;
use crate::store::dump::{Node, ToldEpisode};
use crate::store::read::NUMBERS;
use crate::store::write::seconds;
use coroner_report::Incident;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// Attributes with a column of their own: those that most nodes have.
const MOST_ATTRIBUTES: usize = 200;

/// Nodes that match; of the table of nodes those that reported since.
pub fn picked(reader: &Reader, export: &Export, now: i64) -> anyhow::Result<Vec<Node>> {
    let mut nodes = reader.nodes_by_id(now)?;
    if let Some(expr) = &export.picked {
        expr.check(nodes.iter().map(|(_, node)| node))?;
    }
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
    reader: &Reader,
    export: &Export,
    nodes: &[Node],
    columns: &[Column],
    to: &mut Table<W>,
) -> anyhow::Result<()> {
    let since = export.since;
    match export.what {
        What::Nodes => {
            let attributes = attributes(nodes);
            nodes.iter().try_for_each(|(_, node)| to.row(&node_cells(node, &attributes, columns.len())))
        }
        What::Minutes => {
            let mut cells = Vec::with_capacity(MINUTE.len() + NUMBERS.len());
            reader.dump_minutes(nodes, since, &mut |node, minute, values| {
                cells.clear();
                cells.extend(values.iter().zip(NUMBERS).map(|(value, (_, _, unit))| number(*value, unit)));
                let first = [Cell::Text(&node.node), Cell::text(node.host.as_deref()), Cell::Time(minute)];
                to.row(&[&first[..], &cells].concat())
            })
        }
        What::Episodes => {
            reader.dump_episodes(nodes, since, &mut |node, episode| to.row(&episode_cells(node, &episode)))
        }
        What::Incidents => reader.dump_incidents(nodes, since, &mut |node, json| {
            let incident: Incident = serde_json::from_str(json)?;
            to.row(&incident_cells(node, &incident))
        }),
    }
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

fn episode_cells<'a>(node: &'a NodeSummary, episode: &'a ToldEpisode) -> Vec<Cell<'a>> {
    let mut cells = vec![Cell::Text(&node.node), Cell::text(node.host.as_deref())];
    cells.extend(episode.texts.iter().map(|text| Cell::text(text.as_deref())));
    cells.extend(episode.times.iter().map(|time| Cell::time(*time)));
    cells
}

fn incident_cells<'a>(node: &'a NodeSummary, incident: &'a Incident) -> [Cell<'a>; 14] {
    let count = |count: u64| Cell::Count(i64::try_from(count).unwrap_or(i64::MAX));
    let time = |wall| Cell::Time(seconds(wall));
    [
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
    ]
}
