//! The queries of [`crate::store::look`] and [`crate::store::hours`], answered by ClickHouse.

use super::asking::Asking;
use super::read::{BOOTS, BootOf, Identity, LastSeen, OPEN, Piece, REPORTS, Report, observed, open, past};
use crate::store::episodes::{Span, spans};
use crate::store::hours::{MOST_ROWS, Number, Series};
use crate::store::look::{Counting, FRESH_S, History, Moment, NodeThen, Trouble, known_numbers};
use crate::store::read::{DAY_S, NUMBERS, SILENT_AFTER_S};
use crate::store::write::seconds;
use clickhouse::Row;
use serde::Deserialize;
use std::collections::{HashMap, HashSet};

/// Problems in one query.
const MOST_ASKED: usize = 2000;

#[derive(Row, Deserialize)]
struct Since {
    node: String,
    first: u32,
}

#[derive(Row, Deserialize)]
struct IdentityThen {
    node: String,
    identity: String,
}

/// The nodes that were known then.
pub fn nodes(ask: &Asking, moment: Moment) -> anyhow::Result<Vec<NodeThen>> {
    let mut reports: Vec<Report> = ask.all(ask.query(&format!("{REPORTS} GROUP BY node")))?;
    let identities: Vec<Identity> = ask.all(ask.query("SELECT node, host, booted, identity_json FROM nodes FINAL"))?;
    let mut identities: HashMap<String, Identity> = identities.into_iter().map(|one| (one.node.clone(), one)).collect();
    let diagnosed: Vec<Since> = ask.all(ask.query("SELECT node, min(first) AS first FROM diagnosed GROUP BY node"))?;
    let diagnosed: HashMap<String, u32> = diagnosed.into_iter().map(|row| (row.node, row.first)).collect();
    let (lives, mut then) = if moment.is_live {
        (HashMap::new(), HashMap::new())
    } else {
        (lives(ask, moment.at)?, identities_then(ask, moment.at)?)
    };
    reports.sort_by(|a, b| a.node.cmp(&b.node));
    let mut found = Vec::new();
    for report in reports {
        // A spool may bring what happened before the node was first heard of: then its boots know more.
        let life = lives.get(&report.node);
        if life.is_none() && i64::from(report.first) > moment.at {
            continue;
        }
        let identity = identities.remove(&report.node);
        let (booted, last_seen) = match life {
            Some((booted, last_seen)) => (*booted, *last_seen),
            None if moment.is_live => (identity.as_ref().and_then(|one| one.booted).map(i64::from), report.seen.into()),
            None => (None, report.seen.into()),
        };
        let (host, latest) = identity.map_or((None, None), |one| (one.host, Some(one.identity_json)));
        found.push(NodeThen {
            id: ask.id(&report.node),
            host,
            booted,
            is_silent: last_seen < moment.at - SILENT_AFTER_S,
            is_diagnosed: diagnosed.get(&report.node).is_some_and(|first| i64::from(*first) <= moment.at),
            identity: then.remove(&report.node).or(latest),
            node: report.node,
        });
    }
    Ok(found)
}

/// By node: when the boot of then began, and when it was last heard of.
fn lives(ask: &Asking, at: i64) -> anyhow::Result<HashMap<String, (Option<i64>, i64)>> {
    let boots = ask.query(&format!("{BOOTS} GROUP BY node, boot_id HAVING first <= toDateTime(?) ORDER BY first"));
    let boots: Vec<BootOf> = ask.all(boots.bind(at.max(0)))?;
    // The last one of a node stays.
    Ok(boots.into_iter().map(|boot| (boot.node, (boot.booted.map(i64::from), boot.seen.into()))).collect())
}

/// Before a node's first identity arrived it was what that says.
fn identities_then(ask: &Asking, at: i64) -> anyhow::Result<HashMap<String, String>> {
    let query = ask.query(
        "SELECT node, if(countIf(since <= toDateTime(?)) > 0, argMaxIf(identity_json, since, since <= toDateTime(?)),
           argMin(identity_json, since)) AS identity FROM identities FINAL GROUP BY node",
    );
    let rows: Vec<IdentityThen> = ask.all(query.bind(at.max(0)).bind(at.max(0)))?;
    Ok(rows.into_iter().map(|row| (row.node, row.identity)).collect())
}

pub fn troubles(ask: &Asking, moment: Moment) -> anyhow::Result<Vec<Trouble>> {
    if !moment.is_live {
        return troubles_then(ask, moment.at);
    }
    let mut found = Vec::new();
    for (node, episodes) in ask.wait(open(ask.client()))? {
        let node_id = ask.id(&node);
        found.extend(episodes.into_iter().map(|episode| Trouble {
            node_id,
            key: episode.key,
            code: episode.code,
            severity: episode.severity,
            title: episode.title,
            began: seconds(episode.began),
        }));
    }
    Ok(found)
}

#[derive(Row, Deserialize)]
struct Lived {
    node: String,
    boot_id: String,
    key: String,
    code: String,
    last: LastSeen,
    diagnosed_until: u32,
    pieces: Vec<Piece>,
}

fn troubles_then(ask: &Asking, at: i64) -> anyhow::Result<Vec<Trouble>> {
    // Problems that had begun and were seen later, or that go on.
    let lived = format!(
        "SELECT node, boot_id, key, max(code) AS code, max(last) AS newest FROM problems GROUP BY node, boot_id, key
         HAVING min(began) <= toDateTime(?) AND (tupleElement(max(last), 1) >= toDateTime(?)
           OR (node, boot_id, key) IN (SELECT node, boot_id, key FROM ({OPEN})))"
    );
    let query = ask.query(&format!(
        "SELECT o.node AS node, o.boot_id AS boot_id, o.key AS key, any(o.code) AS code, any(o.newest) AS last,
           any(d.until) AS diagnosed_until,
           groupArray((s.began, tupleElement(s.last, 1), tupleElement(s.last, 3))) AS pieces
         FROM (SELECT node, boot_id, key, began, last FROM observed
               WHERE (node, boot_id, key) IN (SELECT node, boot_id, key FROM ({lived}))) AS s
         INNER JOIN ({lived}) AS o ON o.node = s.node AND o.boot_id = s.boot_id AND o.key = s.key
         LEFT JOIN (SELECT node, max(until) AS until FROM diagnosed GROUP BY node) AS d ON d.node = s.node
         GROUP BY o.node, o.boot_id, o.key"
    ));
    let at = at.max(0);
    let rows: Vec<Lived> = ask.all(query.bind(at).bind(at).bind(at).bind(at))?;
    let mut found = Vec::new();
    // Of an episode that was not the problem's last, the texts are not at hand yet.
    let mut earlier: Vec<(Lived, Span)> = Vec::new();
    for row in rows {
        let spans = spans(&observed(&row.pieces), row.diagnosed_until.into());
        let newest = spans.len().saturating_sub(1);
        let went_on = |span: &Span| span.began <= at && span.ended.is_none_or(|ended| ended >= at);
        let Some(place) = spans.iter().position(went_on) else { continue };
        if place == newest {
            let (_, _, _, severity, _, title) = row.last;
            let (node_id, began) = (ask.id(&row.node), spans[place].began);
            found.push(Trouble { node_id, key: row.key, code: row.code, severity, title, began });
        } else {
            earlier.push((row, spans[place]));
        }
    }
    for some in earlier.chunks(MOST_ASKED) {
        let mut texts = texts(ask, some)?;
        for (row, span) in some {
            let Some((severity, title)) = texts.remove(&(row.node.clone(), row.boot_id.clone(), row.key.clone()))
            else {
                continue;
            };
            let (node_id, key, code) = (ask.id(&row.node), row.key.clone(), row.code.clone());
            found.push(Trouble { node_id, key, code, severity, title, began: span.began });
        }
    }
    Ok(found)
}

type ProblemOf = (String, String, String);

/// Severity and title of each of these episodes, as they were seen last.
fn texts(ask: &Asking, episodes: &[(Lived, Span)]) -> anyhow::Result<HashMap<ProblemOf, (String, String)>> {
    #[derive(Row, Deserialize)]
    struct Found {
        node: String,
        boot_id: String,
        key: String,
        last: LastSeen,
    }
    let seen = |span: &Span| span.seen_until.clamp(0, u32::MAX.into()) as u32;
    let asked: Vec<(&str, &str, &str, u32)> = episodes
        .iter()
        .map(|(row, span)| (row.node.as_str(), row.boot_id.as_str(), row.key.as_str(), seen(span)))
        .collect();
    let nodes: HashSet<&str> = episodes.iter().map(|(row, _)| row.node.as_str()).collect();
    let query = ask.query(
        "SELECT node, boot_id, key, max(last) AS last FROM (SELECT node, boot_id, key, last FROM observed WHERE node IN ?
           AND (node, boot_id, key, toUnixTimestamp(tupleElement(last, 1))) IN ?) GROUP BY node, boot_id, key",
    );
    let rows: Vec<Found> = ask.all(query.bind(nodes.into_iter().collect::<Vec<_>>()).bind(asked))?;
    Ok(rows.into_iter().map(|row| ((row.node, row.boot_id, row.key), (row.last.3, row.last.5))).collect())
}

pub fn old_keys(ask: &Asking, at: i64) -> anyhow::Result<HashSet<String>> {
    let query = ask.query("SELECT toString(key) FROM problems GROUP BY key HAVING min(began) < toDateTime(?)");
    Ok(ask.all::<String>(query.bind((at - DAY_S).max(0)))?.into_iter().collect())
}

#[derive(Row, Deserialize)]
struct NumbersOf {
    node: String,
    numbers: Vec<Option<i64>>,
}

pub fn numbers(
    ask: &Asking,
    moment: Moment,
    names: &[&'static str],
) -> anyhow::Result<HashMap<i64, Vec<Option<Number>>>> {
    let wanted = known_numbers(names);
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    let columns = integers(wanted.iter().map(|(_, column, _)| *column));
    let (from, at) = ((moment.at - FRESH_S).max(0), moment.at.max(0));
    let query = if moment.is_live {
        ask.query(&format!("SELECT node, {columns} AS numbers FROM latest_minutes FINAL"))
    } else {
        let (table, time, version) = match moment.is_by_hour() {
            true => ("hours", "hour", "version"),
            false => ("minutes", "minute", "sealed"),
        };
        let query = format!(
            "SELECT node, argMax({columns}, ({time}, {version})) AS numbers FROM {table}
             WHERE {time} > toDateTime(?) AND {time} <= toDateTime(?) GROUP BY node"
        );
        ask.query(&query).bind(from).bind(at)
    };
    let number = |(value, (_, _, unit)): (Option<i64>, &(&str, &str, f64))| Some(Number::of(value?, *unit));
    let found = ask.all::<NumbersOf>(query)?.into_iter();
    Ok(found.map(|row| (ask.id(&row.node), row.numbers.into_iter().zip(&wanted).map(number).collect())).collect())
}

/// An array, as the client knows no tuples of so many kinds.
pub fn integers<'a>(columns: impl Iterator<Item = &'a str>) -> String {
    let columns: Vec<String> = columns.map(|column| format!("toInt64({column})")).collect();
    format!("[{}]", columns.join(", "))
}

pub fn begins(ask: &Asking) -> anyhow::Result<Option<i64>> {
    let first = |table: &str| -> anyhow::Result<Option<i64>> {
        let query = format!("SELECT toUnixTimestamp(min(first_seen)) FROM {table} HAVING count() > 0");
        Ok(ask.all::<u32>(ask.query(&query))?.first().map(|first| i64::from(*first)))
    };
    Ok(first("boots")?.into_iter().chain(first("reports")?).min())
}

pub fn history(ask: &Asking, from: i64, until: i64) -> anyhow::Result<History> {
    let mut counting = Counting::new(from, until);
    let mut episodes: Vec<(String, i64, i64, Option<i64>)> = Vec::new();
    for problem in ask.wait(past(ask.client(), None, counting.from(), true))? {
        let is_asked = |span: &Span| span.began <= until && span.ended.is_none_or(|ended| ended >= counting.from());
        let id = ask.id(&problem.node);
        let serious = problem.spans().filter(|(span, is_serious)| *is_serious && is_asked(span));
        episodes.extend(serious.map(|(span, _)| (problem.code.clone(), id, span.began, span.ended)));
    }
    episodes.sort_unstable();
    episodes.into_iter().for_each(|(code, id, began, ended)| counting.add(code, id, began, ended));
    Ok(counting.counted())
}

#[derive(Row, Deserialize)]
struct NumbersAt {
    at: u32,
    numbers: Vec<Option<i64>>,
}

/// One node's numbers over time.
pub fn series(ask: &Asking, node: &str, from: i64, until: i64, by_hour: bool) -> anyhow::Result<Series> {
    let (table, time) = if by_hour { ("hours", "hour") } else { ("minutes", "minute") };
    let columns = integers(NUMBERS.iter().map(|(_, column, _)| *column));
    let query = ask.query(&format!(
        "SELECT toUnixTimestamp({time}) AS at, {columns} AS numbers FROM {table} FINAL
         WHERE node = ? AND {time} >= toDateTime(?) AND {time} <= toDateTime(?) ORDER BY {time} LIMIT {MOST_ROWS}"
    ));
    let mut series = Series::new(by_hour);
    for row in ask.all::<NumbersAt>(query.bind(node).bind(from.max(0)).bind(until.max(0)))? {
        let units = NUMBERS.iter().map(|(_, _, unit)| *unit);
        series
            .add(row.at.into(), row.numbers.into_iter().zip(units).map(|(value, unit)| Some(Number::of(value?, unit))));
    }
    Ok(series.seen())
}

/// Diagnosed until when, of these nodes.
pub fn diagnosed_until(ask: &Asking, nodes: &[&str]) -> anyhow::Result<HashMap<String, i64>> {
    let query = ask.query("SELECT node, max(until) AS first FROM diagnosed WHERE node IN ? GROUP BY node");
    let rows: Vec<Since> = ask.all(query.bind(nodes))?;
    Ok(rows.into_iter().map(|row| (row.node, row.first.into())).collect())
}
