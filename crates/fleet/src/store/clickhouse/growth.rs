//! The queries of [`crate::store::growth`], and slopes, answered by ClickHouse.

use super::asking::Asking;
use super::read::{BOOTS, BootOf, past};
use crate::store::growth::{AT_ONSET_WITHIN_S, Onset, Point, few_of, first_hour};
use crate::store::hours::{HOUR_S, Lines};
use clickhouse::Row;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Onsets in one query.
const MOST_ASKED: usize = 1000;
/// A node whose count was unknown at so many onsets has no level.
const MOST_TRIED: usize = 8;

#[derive(Row, Deserialize)]
struct HoursOf {
    node: String,
    hours: Vec<(u32, i64)>,
}

fn hours_of(ask: &Asking, column: &str, from: i64, until: &str, bound: i64) -> anyhow::Result<Vec<HoursOf>> {
    let query = ask.query(&format!(
        "SELECT node, groupArray((toUnixTimestamp(hour), toInt64(assumeNotNull({column})))) AS hours FROM hours FINAL
         WHERE hour >= toDateTime(?) AND hour {until} toDateTime(?) AND {column} IS NOT NULL GROUP BY node"
    ));
    let mut found: Vec<HoursOf> = ask.all(query.bind(from.max(0)).bind(bound.max(0)))?;
    found.iter_mut().for_each(|node| node.hours.sort_unstable());
    Ok(found)
}

pub fn slopes(
    ask: &Asking,
    column: &str,
    from: i64,
    until: i64,
    booted: impl Fn(i64) -> Option<i64>,
) -> anyhow::Result<BTreeMap<i64, f64>> {
    let mut lines = Lines::new(from, booted);
    for of_node in hours_of(ask, column, from, "<=", until)? {
        let id = ask.id(&of_node.node);
        of_node.hours.iter().for_each(|(hour, value)| lines.add(id, (*hour).into(), *value));
    }
    Ok(lines.slopes())
}

#[derive(Row, Deserialize)]
struct Booted {
    node: String,
    booted: Option<u32>,
}

pub fn points(ask: &Asking, since: i64, now: i64) -> anyhow::Result<HashMap<i64, Vec<Point>>> {
    // Without a boot time, since the boot was first seen.
    let booted: Vec<Booted> = ask.all(ask.query(
        "SELECT n.node AS node, if(n.booted IS NULL AND b.first > 0, toNullable(b.first), n.booted) AS booted
         FROM (SELECT node, booted, JSONExtractString(identity_json, 'boot_id') AS boot_id FROM nodes FINAL) AS n
         LEFT JOIN (SELECT node, boot_id, min(first_seen) AS first FROM boots GROUP BY node, boot_id) AS b
           ON b.node = n.node AND b.boot_id = n.boot_id",
    ))?;
    let booted: HashMap<String, Option<u32>> = booted.into_iter().map(|row| (row.node, row.booted)).collect();
    let mut found = HashMap::new();
    for of_node in hours_of(ask, "zombies_dead", since, "<", now)? {
        let booted = booted.get(&of_node.node).copied().flatten();
        let first = first_hour(booted.map(i64::from), since);
        let hours = of_node.hours.iter().map(|(hour, dead)| (i64::from(*hour), *dead));
        let hours: Vec<(i64, i64)> = hours.filter(|(hour, _)| *hour >= first).collect();
        if !hours.is_empty() {
            found.insert(ask.id(&of_node.node), few_of(&hours, now));
        }
    }
    Ok(found)
}

pub fn levels_at_onset(ask: &Asking, codes: &[&str], since: i64) -> anyhow::Result<HashMap<i64, f64>> {
    let boots: Vec<BootOf> = ask.all(ask.query(&format!("{BOOTS} GROUP BY node, boot_id")))?;
    let boots: HashMap<(String, String), (Option<u32>, u32)> =
        boots.into_iter().map(|boot| ((boot.node, boot.boot_id), (boot.booted, boot.first))).collect();
    let mut onsets: HashMap<String, BTreeSet<i64>> = HashMap::new();
    for code in codes {
        for problem in ask.wait(past(ask.client(), Some(code), since, false))? {
            let boot = boots.get(&(problem.node.clone(), problem.boot_id.clone()));
            let (booted, first_seen) = (boot.and_then(|boot| boot.0), boot.map(|boot| boot.1));
            for (span, is_serious) in problem.spans() {
                let onset =
                    Onset { began: span.began, first_seen: first_seen.map(i64::from), booted: booted.map(i64::from) };
                if is_serious && span.began >= since && problem.code == *code && onset.was_seen() {
                    onsets.entry(problem.node.clone()).or_default().insert(span.began);
                }
            }
        }
    }
    // Of each node the first whose count is known.
    let mut levels = HashMap::new();
    let mut left: Vec<(String, Vec<i64>)> =
        onsets.into_iter().map(|(node, began)| (node, began.into_iter().rev().collect())).collect();
    for _ in 0..MOST_TRIED {
        let tried: Vec<(&str, i64)> =
            left.iter().filter_map(|(node, began)| Some((node.as_str(), *began.last()?))).collect();
        for some in tried.chunks(MOST_ASKED) {
            for (node, dead) in last_before(ask, some)? {
                levels.insert(ask.id(&node), dead as f64);
            }
        }
        left.retain_mut(|(node, began)| {
            began.pop();
            !began.is_empty() && !levels.contains_key(&ask.id(node))
        });
        if left.is_empty() {
            break;
        }
    }
    Ok(levels)
}

/// The count of each node's last minute before its onset, if it is known.
fn last_before(ask: &Asking, onsets: &[(&str, i64)]) -> anyhow::Result<Vec<(String, i64)>> {
    #[derive(Row, Deserialize)]
    struct Found {
        node: String,
        dead: Vec<Option<i64>>,
    }
    // Which hours are looked at, so that little is read; and until when.
    let hours: Vec<(&str, i64)> = onsets
        .iter()
        .flat_map(|(node, began)| {
            let first = (began - AT_ONSET_WITHIN_S).div_euclid(HOUR_S);
            (first..=began.div_euclid(HOUR_S)).map(move |hour| (*node, hour))
        })
        .collect();
    let (nodes, began): (Vec<&str>, Vec<i64>) = onsets.iter().copied().unzip();
    let (Some(first), Some(last)) = (began.iter().min(), began.iter().max()) else { return Ok(Vec::new()) };
    let query = ask.query(
        "SELECT node, argMax([toInt64(zombies_dead)], (minute, sealed)) AS dead FROM minutes
         WHERE node IN ? AND minute > toDateTime(?) AND minute <= toDateTime(?)
           AND (node, toInt64(intDiv(toUnixTimestamp(minute), 3600))) IN ?
           AND toInt64(toUnixTimestamp(minute)) <= transform(node, ?, ?, toInt64(0))
           AND toInt64(toUnixTimestamp(minute)) > transform(node, ?, ?, toInt64(0)) - ?
         GROUP BY node",
    );
    let query = query.bind(&nodes).bind((first - AT_ONSET_WITHIN_S).max(0)).bind((*last).max(0)).bind(hours);
    let query = query.bind(&nodes).bind(&began).bind(&nodes).bind(&began).bind(AT_ONSET_WITHIN_S);
    let found: Vec<Found> = ask.all(query)?;
    Ok(found.into_iter().filter_map(|row| Some((row.node, row.dead.first().copied().flatten()?))).collect())
}
