//! Rows for exports, read page by page: between pages no query is open. The nodes come in the order in which they are given.

use super::asking::Asking;
use super::look::{diagnosed_until, integers};
use super::read::{HISTORY, HistoryRow, newest_of_each, told_of};
use crate::store::dump::{Node, Numbers, TakeEpisode, TakeIncident, TakeMinute};
use crate::store::read::NUMBERS;
use crate::store::unix_now;
use clickhouse::Row;
use serde::Deserialize;
use std::collections::HashMap;

/// Minutes read at once.
const PAGE: i64 = 50_000;
/// Nodes asked about at once: what they have is bounded only by time.
const MOST_NODES: usize = 1000;
const NODES_WITH_EPISODES: usize = 20;
const NODES_WITH_INCIDENTS: usize = 20;
/// The newest, of one node.
const MOST_INCIDENTS: u64 = 2000;

fn names(nodes: &[Node]) -> Vec<&str> {
    nodes.iter().map(|(_, node)| node.node.as_str()).collect()
}

pub fn minutes(ask: &Asking, nodes: &[Node], since: i64, take: &mut TakeMinute<'_>) -> anyhow::Result<()> {
    #[derive(Row, Deserialize)]
    struct Minute {
        /// Among the nodes that are asked about, from 1.
        place: u32,
        at: u32,
        numbers: Vec<Option<i64>>,
    }
    // So many that a page is about what they have.
    let each = (unix_now() - since).max(60) / 60;
    let together = usize::try_from(PAGE / each).unwrap_or(1).clamp(1, MOST_NODES);
    let columns = integers(NUMBERS.iter().map(|(_, column, _)| *column));
    let query = format!(
        "SELECT toUInt32(indexOf(?, node)) AS place, toUnixTimestamp(minute) AS at, {columns} AS numbers FROM minutes FINAL
         WHERE node IN ? AND minute >= toDateTime(?) AND (place, at) > (?, ?) ORDER BY place, at LIMIT {PAGE}"
    );
    for some in nodes.chunks(together) {
        let names = names(some);
        let (mut last, mut rows) = ((0, 0), PAGE);
        while rows == PAGE {
            let page = ask.query(&query).bind(&names).bind(&names).bind(since.max(0)).bind(last.0).bind(last.1);
            let page: Vec<Minute> = ask.all(page)?;
            rows = page.len() as i64;
            for minute in page {
                let Some((_, node)) = (minute.place as usize).checked_sub(1).and_then(|place| some.get(place)) else {
                    continue;
                };
                let mut numbers: Numbers = [None; NUMBERS.len()];
                numbers.iter_mut().zip(minute.numbers).for_each(|(to, from)| *to = from);
                take(node, minute.at.into(), &numbers)?;
                last = (minute.place, minute.at);
            }
        }
    }
    Ok(())
}

pub fn episodes(ask: &Asking, nodes: &[Node], since: i64, take: &mut TakeEpisode<'_>) -> anyhow::Result<()> {
    // Whatever was seen later belongs to problems that were.
    let query = format!(
        "{HISTORY} WHERE node IN ? AND (node, boot_id, key) IN (SELECT node, boot_id, key FROM problems WHERE node IN ?
           GROUP BY node, boot_id, key HAVING tupleElement(max(last), 1) >= toDateTime(?)) {}",
        newest_of_each()
    );
    for some in nodes.chunks(NODES_WITH_EPISODES) {
        let names = names(some);
        let until = diagnosed_until(ask, &names)?;
        let rows: Vec<HistoryRow> = ask.all(ask.query(&query).bind(&names).bind(&names).bind(since.max(0)))?;
        for (_, node) in some {
            let of_node = rows.iter().filter(|row| row.node == node.node);
            let mut told = told_of(of_node, until.get(&node.node).copied().unwrap_or_default());
            told.retain(|told| told.span.seen_until >= since);
            told.sort_by(|a, b| {
                let order =
                    |told: &super::read::Told<'_>| (told.span.began, told.key().to_owned(), told.span.seen_until);
                order(a).cmp(&order(b))
            });
            told.iter().try_for_each(|told| take(node, told.told()))?;
        }
    }
    Ok(())
}

pub fn incidents(ask: &Asking, nodes: &[Node], since: i64, take: &mut TakeIncident<'_>) -> anyhow::Result<()> {
    #[derive(Row, Deserialize)]
    struct Found {
        node: String,
        incident_json: String,
    }
    let query = format!(
        "SELECT node, incident_json FROM incidents FINAL WHERE node IN ? AND triggered >= toDateTime(?)
         ORDER BY triggered DESC, number DESC LIMIT {MOST_INCIDENTS} BY node"
    );
    for some in nodes.chunks(NODES_WITH_INCIDENTS) {
        let found: Vec<Found> = ask.all(ask.query(&query).bind(names(some)).bind(since.max(0)))?;
        let mut by_node: HashMap<&str, Vec<&str>> = HashMap::new();
        for row in &found {
            by_node.entry(&row.node).or_default().push(&row.incident_json);
        }
        for (_, node) in some {
            let of_node: &[&str] = by_node.get(node.node.as_str()).map_or(&[], Vec::as_slice);
            of_node.iter().rev().try_for_each(|json| take(node, json))?;
        }
    }
    Ok(())
}
