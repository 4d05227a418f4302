//! The queries of [`crate::store::read`], answered by ClickHouse with the same documents.
//!
//! ClickHouse finds the rows and gathers those of each problem; which of them are one episode is decided by [`spans`], as in tests of
//! both stores.

use super::within;
use crate::answers::{
    ActiveProblem, Boot, Episode, FleetIncident, FleetStatus, IncidentList, NodeCounts, NodeDetail, NodeSummary, called,
};
use crate::ingest::attributes_of;
use crate::store::dump::ToldEpisode;
use crate::store::episodes::{Observed, Span, spans};
use crate::store::read::{DAY_S, MOST_HISTORY, NUMBERS, NodeLives, SILENT_AFTER_S, wall};
use clickhouse::query::Query;
use clickhouse::{Client, Row, RowOwned, RowRead};
use coroner_report::{Incident, NodeIdentity};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Of one node's history, so many rows are looked at: a year of a problem that never ended.
const MOST_OBSERVED: u64 = 50_000;

/// When began, seen until, whether it ended.
pub(super) type Piece = (u32, u32, u8);
/// Seen until, until, whether it ended, severity, certainty, title.
pub(super) type LastSeen = (u32, u32, u8, String, String, String);

#[derive(Row, Deserialize)]
pub(super) struct Report {
    pub node: String,
    pub first: u32,
    pub seen: u32,
    version: String,
    dropped: u64,
}

#[derive(Row, Deserialize)]
pub(super) struct Identity {
    pub node: String,
    pub host: Option<String>,
    pub booted: Option<u32>,
    pub identity_json: String,
}

#[derive(Row, Deserialize)]
struct Host {
    node: String,
    host: Option<String>,
}

#[derive(Row, Deserialize)]
struct Diagnosed {
    node: String,
    until: u32,
    conclusion: String,
}

#[derive(Row, Deserialize)]
struct OpenProblem {
    node: String,
    key: String,
    code: String,
    subject: String,
    last: LastSeen,
    diagnosed_until: u32,
    pieces: Vec<Piece>,
}

#[derive(Row, Deserialize)]
pub(super) struct PastProblem {
    pub node: String,
    pub boot_id: String,
    pub code: String,
    pub diagnosed_until: u32,
    pub pieces: Vec<Piece>,
    /// Of each piece.
    pub serious: Vec<u8>,
}

impl PastProblem {
    /// Its episodes, with whether they were of warning or worse.
    pub fn spans(&self) -> impl Iterator<Item = (Span, bool)> {
        let is_serious = |span: &Span| self.serious.get(span.latest).is_some_and(|serious| *serious != 0);
        spans(&observed(&self.pieces), self.diagnosed_until.into()).into_iter().map(move |span| {
            let serious = is_serious(&span);
            (span, serious)
        })
    }
}

#[derive(Row, Deserialize)]
pub(super) struct HistoryRow {
    pub node: String,
    boot_id: String,
    key: String,
    code: String,
    subject_kind: String,
    subject: String,
    began: u32,
    last: LastSeen,
}

#[derive(Row, Deserialize)]
pub(super) struct BootOf {
    pub node: String,
    pub boot_id: String,
    pub booted: Option<u32>,
    pub first: u32,
    pub seen: u32,
}

pub(super) const REPORTS: &str = "SELECT node, min(first_seen) AS first, max(last_seen) AS seen,
   tupleElement(max(last) AS newest, 3) AS version, tupleElement(newest, 4) AS dropped FROM reports";
pub(super) const BOOTS: &str =
    "SELECT node, boot_id, max(booted) AS booted, min(first_seen) AS first, max(last_seen) AS seen FROM boots";
/// Problems that the node's latest diagnosis saw.
pub(super) const OPEN: &str = "SELECT p.node AS node, p.boot_id AS boot_id, p.key AS key, p.code AS code, p.subject AS subject, p.newest AS newest,
   d.until AS diagnosed_until
 FROM (SELECT node, boot_id, key, max(code) AS code, max(subject) AS subject, max(last) AS newest FROM problems
       GROUP BY node, boot_id, key) AS p
 INNER JOIN (SELECT node, max(until) AS until FROM diagnosed GROUP BY node) AS d ON d.node = p.node
 WHERE tupleElement(p.newest, 3) = 0 AND tupleElement(p.newest, 1) >= d.until";

async fn all<T: RowOwned + RowRead>(query: Query) -> anyhow::Result<Vec<T>> {
    within(query.fetch_all()).await
}

fn at(seconds: u32) -> coroner_report::Wall {
    wall(seconds.into())
}

pub(super) fn observed(pieces: &[Piece]) -> Vec<Observed> {
    let one = |(began, seen_until, has_ended): &Piece| Observed {
        began: (*began).into(),
        seen_until: (*seen_until).into(),
        has_ended: *has_ended != 0,
    };
    pieces.iter().map(one).collect()
}

fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// What goes on now, by node.
pub(super) async fn open(client: &Client) -> anyhow::Result<HashMap<String, Vec<Episode>>> {
    let query = format!(
        "SELECT o.node AS node, o.key AS key, any(o.code) AS code, any(o.subject) AS subject, any(o.newest) AS last,
           any(o.diagnosed_until) AS diagnosed_until,
           groupArray((s.began, tupleElement(s.last, 1), tupleElement(s.last, 3))) AS pieces
         FROM (SELECT node, boot_id, key, began, last FROM observed
               WHERE (node, boot_id, key) IN (SELECT node, boot_id, key FROM ({OPEN}))) AS s
         INNER JOIN ({OPEN}) AS o ON o.node = s.node AND o.boot_id = s.boot_id AND o.key = s.key
         GROUP BY o.node, o.boot_id, o.key"
    );
    let rows: Vec<OpenProblem> = all(client.query(&query)).await?;
    let mut open: HashMap<String, Vec<Episode>> = HashMap::new();
    for row in rows {
        let spans = spans(&observed(&row.pieces), row.diagnosed_until.into());
        let Some(span) = spans.last().filter(|span| span.ended.is_none()) else { continue };
        let (_, _, _, severity, certainty, title) = row.last;
        open.entry(row.node).or_default().push(Episode {
            key: row.key,
            code: row.code,
            subject: Some(row.subject),
            severity,
            certainty: text(certainty),
            title,
            began: wall(span.began),
            seen_until: wall(span.seen_until),
            ended: None,
        });
    }
    for episodes in open.values_mut() {
        episodes.sort_by(|a, b| (a.began, &a.key).cmp(&(b.began, &b.key)));
    }
    Ok(open)
}

pub async fn status(client: &Client, now: i64) -> anyhow::Result<FleetStatus> {
    #[derive(Row, Deserialize)]
    struct KeyBegan {
        key: String,
        began: u32,
    }
    let reports: Vec<Report> = all(client.query(&format!("{REPORTS} GROUP BY node"))).await?;
    let seen: HashMap<&str, i64> = reports.iter().map(|report| (report.node.as_str(), report.seen.into())).collect();
    let is_silent = |node: &str| seen.get(node).is_some_and(|seen| *seen < now - SILENT_AFTER_S);
    let diagnosed: Vec<String> = all(client.query("SELECT DISTINCT node FROM diagnosed")).await?;
    let diagnosed = diagnosed.iter().filter(|node| seen.contains_key(node.as_str())).count();
    let hosts: Vec<Host> = all(client.query("SELECT node, host FROM nodes FINAL")).await?;
    let hosts: HashMap<String, Option<String>> = hosts.into_iter().map(|host| (host.node, host.host)).collect();
    let began: Vec<KeyBegan> = all(client.query("SELECT key, min(began) AS began FROM problems GROUP BY key")).await?;
    let began: HashMap<String, u32> = began.into_iter().map(|row| (row.key, row.began)).collect();

    let rank = |severity: &str| match severity {
        "critical" => 3,
        "warning" => 2,
        _ => 1,
    };
    let mut problems: BTreeMap<String, (ActiveProblem, i32)> = BTreeMap::new();
    let mut sick = 0;
    for (node, episodes) in open(client).await?.into_iter().filter(|(node, _)| seen.contains_key(node.as_str())) {
        sick += u64::from(episodes.iter().any(|episode| rank(&episode.severity) > 1));
        let name = called(&node, hosts.get(&node).and_then(|host| host.as_deref())).to_owned();
        let mut counted: BTreeSet<&str> = BTreeSet::new();
        for episode in &episodes {
            let severity = rank(&episode.severity);
            let (problem, worst) = problems.entry(episode.key.clone()).or_insert_with(|| {
                let problem = ActiveProblem {
                    key: episode.key.clone(),
                    code: episode.code.clone(),
                    since: episode.began,
                    title: episode.title.clone(),
                    example: name.clone(),
                    is_new: began.get(&episode.key).is_none_or(|began| i64::from(*began) >= now - DAY_S),
                    ..ActiveProblem::default()
                };
                (problem, severity)
            });
            *worst = severity.max(*worst);
            // One node, though it may have it in two boots.
            if counted.insert(&episode.key) {
                problem.nodes += 1;
                problem.silent += u64::from(is_silent(&node));
            }
            problem.since = problem.since.min(episode.began);
            let least = |ours: &mut String, theirs: &String| {
                if *theirs < *ours {
                    ours.clone_from(theirs);
                }
            };
            least(&mut problem.code, &episode.code);
            if (&name, &episode.title) < (&problem.example, &problem.title) {
                problem.example.clone_from(&name);
                problem.title.clone_from(&episode.title);
            }
        }
    }
    let mut problems: Vec<(ActiveProblem, i32)> = problems.into_values().collect();
    problems.sort_by(|(a, worse_a), (b, worse_b)| (worse_b, b.nodes, &a.key).cmp(&(worse_a, a.nodes, &b.key)));
    let named = |(problem, worst): (ActiveProblem, i32)| {
        let severity = ["info", "warning", "critical"][(worst - 1).clamp(0, 2) as usize];
        ActiveProblem { severity: severity.to_owned(), ..problem }
    };
    let incidents =
        client.query("SELECT count() FROM incidents FINAL WHERE triggered >= toDateTime(?)").bind(now - DAY_S);
    let silent = reports.iter().filter(|report| is_silent(&report.node)).count();
    Ok(FleetStatus {
        schema: "coroner.fleet.status/1".to_owned(),
        at: wall(now),
        nodes: NodeCounts {
            known: reports.len() as u64,
            reporting: (reports.len() - silent) as u64,
            silent: silent as u64,
            undiagnosed: reports.len().saturating_sub(diagnosed) as u64,
            sick,
        },
        problems: problems.into_iter().map(named).collect(),
        incidents_last_day: within(incidents.fetch_one::<u64>()).await?,
        dropped_rows: reports.iter().map(|report| report.dropped).fold(0, u64::saturating_add),
    })
}

/// Of all nodes, or of one.
async fn summaries(client: &Client, only: Option<&str>, now: i64) -> anyhow::Result<Vec<NodeSummary>> {
    let of = |select: &str, more: &str| match only {
        Some(node) => client.query(&format!("{select} WHERE node = ? {more}")).bind(node),
        None => client.query(&format!("{select} {more}")),
    };
    let reports: Vec<Report> = all(of(REPORTS, "GROUP BY node")).await?;
    let identities: Vec<Identity> = all(of("SELECT node, host, booted, identity_json FROM nodes FINAL", "")).await?;
    let mut identities: HashMap<String, Identity> = identities.into_iter().map(|one| (one.node.clone(), one)).collect();
    let diagnosed: Vec<Diagnosed> =
        all(of("SELECT node, until, tupleElement(last, 2) AS conclusion FROM diagnosed FINAL", "")).await?;
    let mut diagnosed: HashMap<String, Diagnosed> = diagnosed.into_iter().map(|one| (one.node.clone(), one)).collect();
    let columns: Vec<String> = NUMBERS.iter().map(|(_, column, _)| format!("toInt64({column})")).collect();
    let minutes = format!("SELECT node, [{}] AS numbers FROM latest_minutes FINAL", columns.join(", "));
    let mut minutes: HashMap<String, Vec<Option<i64>>> =
        all::<NumbersOf>(of(&minutes, "")).await?.into_iter().map(|row| (row.node, row.numbers)).collect();
    let summary = |report: Report| {
        let identity = identities.remove(&report.node);
        let parsed: NodeIdentity =
            identity.as_ref().and_then(|one| serde_json::from_str(&one.identity_json).ok()).unwrap_or_default();
        let diagnosed = diagnosed.remove(&report.node);
        let numbers = minutes.remove(&report.node).unwrap_or_default();
        let numbers = NUMBERS.iter().zip(numbers);
        NodeSummary {
            host: identity.as_ref().and_then(|one| one.host.clone()),
            attributes: attributes_of(&parsed),
            version: Some(report.version),
            booted: identity.and_then(|one| one.booted).map(at),
            first_seen: at(report.first),
            last_seen: at(report.seen),
            is_silent: i64::from(report.seen) < now - SILENT_AFTER_S,
            diagnosed_until: diagnosed.as_ref().map(|one| at(one.until)),
            conclusion: diagnosed.map(|one| one.conclusion),
            numbers: numbers.filter_map(|((name, _, unit), n)| Some(((*name).to_owned(), n? as f64 * unit))).collect(),
            problems: Vec::new(),
            node: report.node,
        }
    };
    Ok(reports.into_iter().map(summary).collect())
}

#[derive(Row, Deserialize)]
struct NumbersOf {
    node: String,
    numbers: Vec<Option<i64>>,
}

pub async fn nodes(client: &Client, now: i64) -> anyhow::Result<Vec<NodeSummary>> {
    let mut open = open(client).await?;
    let mut nodes = summaries(client, None, now).await?;
    for node in &mut nodes {
        node.problems = open.remove(&node.node).unwrap_or_default();
    }
    nodes.sort_by(|a, b| {
        let name = |node: &'_ NodeSummary| (node.host.clone().unwrap_or_else(|| node.node.clone()), node.node.clone());
        name(a).cmp(&name(b))
    });
    Ok(nodes)
}

pub async fn find(client: &Client, name: &str) -> anyhow::Result<Vec<String>> {
    let found = client
        .query(
            "SELECT node FROM reports WHERE node = ? OR node IN (SELECT node FROM nodes FINAL WHERE host = ?)
             GROUP BY node ORDER BY max(last_seen) DESC LIMIT 20",
        )
        .bind(name)
        .bind(name);
    all(found).await
}

/// What was observed of some nodes, newest first.
pub(super) const HISTORY: &str = "SELECT node, boot_id, key, code, subject_kind, subject, began, last FROM observed";
pub(super) fn newest_of_each() -> String {
    format!("ORDER BY quarter DESC LIMIT {MOST_OBSERVED} BY node")
}

/// An episode of one node, and the latest row of it.
pub(super) struct Told<'a> {
    pub span: Span,
    row: &'a HistoryRow,
}

impl Told<'_> {
    pub fn key(&self) -> &str {
        &self.row.key
    }

    fn episode(&self) -> Episode {
        let (_, _, _, severity, certainty, title) = self.row.last.clone();
        Episode {
            key: self.row.key.clone(),
            code: self.row.code.clone(),
            subject: Some(self.row.subject.clone()),
            severity,
            certainty: text(certainty),
            title,
            began: wall(self.span.began),
            seen_until: wall(self.span.seen_until),
            ended: self.span.ended.map(wall),
        }
    }

    /// As exports have it.
    pub fn told(&self) -> ToldEpisode {
        let row = self.row;
        let (_, _, _, severity, certainty, title) = row.last.clone();
        let [boot, key, code, kind, subject] =
            [&row.boot_id, &row.key, &row.code, &row.subject_kind, &row.subject].map(|text| Some(text.clone()));
        ToldEpisode {
            texts: [boot, key, code, kind, subject, Some(severity), text(certainty), Some(title)],
            times: [Some(self.span.began), Some(self.span.seen_until), self.span.ended],
        }
    }
}

/// The episodes of one node, in no order.
pub(super) fn told_of<'a>(rows: impl Iterator<Item = &'a HistoryRow>, diagnosed_until: i64) -> Vec<Told<'a>> {
    let mut by_problem: HashMap<(&str, &str), Vec<&HistoryRow>> = HashMap::new();
    for row in rows {
        by_problem.entry((&row.boot_id, &row.key)).or_default().push(row);
    }
    let mut told = Vec::new();
    for rows in by_problem.into_values() {
        let pieces: Vec<Piece> = rows.iter().map(|row| (row.began, row.last.0, row.last.2)).collect();
        let spans = spans(&observed(&pieces), diagnosed_until);
        told.extend(spans.into_iter().map(|span| Told { span, row: rows[span.latest] }));
    }
    told
}

pub async fn detail(client: &Client, node: &str, now: i64) -> anyhow::Result<NodeDetail> {
    let mut summary = summaries(client, Some(node), now).await?;
    let mut summary = summary.pop().unwrap_or_else(|| NodeSummary { node: node.to_owned(), ..NodeSummary::default() });
    let rows = client.query(&format!("{HISTORY} WHERE node = ? {}", newest_of_each()));
    let rows: Vec<HistoryRow> = all(rows.bind(node)).await?;
    let until = summary.diagnosed_until.map_or(0, crate::store::write::seconds);
    let mut history: Vec<Episode> = told_of(rows.iter(), until).iter().map(Told::episode).collect();
    history.sort_by(|a, b| (b.began, &a.key).cmp(&(a.began, &b.key)));
    history.truncate(MOST_HISTORY as usize);
    summary.problems = history.iter().filter(|episode| episode.ended.is_none()).cloned().collect();
    let incidents = client.query(&format!(
        "SELECT incident_json FROM incidents FINAL WHERE node = ? ORDER BY triggered DESC, number LIMIT {MOST_HISTORY}"
    ));
    let incidents: Vec<String> = all(incidents.bind(node)).await?;
    let boots = client.query(&format!("{BOOTS} WHERE node = ? GROUP BY node, boot_id ORDER BY first DESC")).bind(node);
    Ok(NodeDetail {
        schema: "coroner.fleet.node/1".to_owned(),
        at: wall(now),
        node: summary,
        history,
        incidents: incidents.iter().filter_map(|json| serde_json::from_str::<Incident>(json).ok()).collect(),
        boots: all::<BootOf>(boots).await?.into_iter().map(boot).collect(),
    })
}

fn boot(row: BootOf) -> Boot {
    Boot { boot_id: row.boot_id, booted: row.booted.map(at), first_seen: at(row.first), last_seen: at(row.seen) }
}

pub async fn incidents(client: &Client, since: i64, now: i64, most: i64) -> anyhow::Result<IncidentList> {
    #[derive(Row, Deserialize)]
    struct Found {
        node: String,
        host: Option<String>,
        incident_json: String,
    }
    let query = client.query(
        "SELECT i.node AS node, n.host AS host, i.incident_json AS incident_json
         FROM (SELECT node, triggered, number, incident_json FROM incidents FINAL WHERE triggered >= toDateTime(?)
               ORDER BY triggered DESC, node, number LIMIT ?) AS i
         LEFT JOIN (SELECT node, host FROM nodes FINAL) AS n ON n.node = i.node ORDER BY i.triggered DESC, i.node, i.number",
    );
    let found: Vec<Found> = all(query.bind(since.max(0)).bind(most)).await?;
    let count = client.query("SELECT toUInt64(count()) FROM incidents FINAL WHERE triggered >= toDateTime(?)");
    let matched = within(count.bind(since.max(0)).fetch_one::<u64>()).await?;
    let read = |row: Found| {
        let incident: Incident = serde_json::from_str(&row.incident_json).ok()?;
        Some(FleetIncident {
            id: format!("{}/{}", row.node, incident.number),
            node: row.node,
            host: row.host,
            incident,
        })
    };
    let incidents = found.into_iter().filter_map(read).collect();
    Ok(IncidentList { schema: "coroner.fleet.incidents/1".to_owned(), at: wall(now), matched, incidents })
}

/// Problems that were seen since then: of one code or key, or all. If it is asked for, also those that went on when their node fell silent
/// before.
pub(super) async fn past(
    client: &Client,
    code_or_key: Option<&str>,
    since: i64,
    or_open: bool,
) -> anyhow::Result<Vec<PastProblem>> {
    let (of, which) = match code_or_key {
        Some(_) => ("(key = ? OR code = ?)", 2),
        None => ("1", 0),
    };
    let or_open = match or_open {
        true => format!(" OR (node, boot_id, key) IN (SELECT node, boot_id, key FROM ({OPEN}))"),
        false => String::new(),
    };
    // The alias keeps the aggregate apart from its column.
    let mut query = client.query(&format!(
        "SELECT s.node AS node, s.boot_id AS boot_id, max(s.code) AS code, any(d.until) AS diagnosed_until,
           groupArray((s.began, tupleElement(s.last, 1), tupleElement(s.last, 3))) AS pieces,
           groupArray(toUInt8(tupleElement(s.last, 4) IN ('warning', 'critical'))) AS serious
         FROM (SELECT node, boot_id, key, code, began, last FROM observed WHERE {of} AND (node, boot_id, key) IN
                (SELECT node, boot_id, key FROM problems WHERE {of} GROUP BY node, boot_id, key
                 HAVING tupleElement(max(last), 1) >= toDateTime(?){or_open})) AS s
         LEFT JOIN (SELECT node, max(until) AS until FROM diagnosed GROUP BY node) AS d ON d.node = s.node
         GROUP BY s.node, s.boot_id, s.key"
    ));
    for _ in 0..which * 2 {
        query = query.bind(code_or_key.unwrap_or_default());
    }
    all(query.bind(since.max(0))).await
}

pub async fn lives(client: &Client, code_or_key: &str, since: i64) -> anyhow::Result<HashMap<String, NodeLives>> {
    let mut lives: HashMap<String, NodeLives> = HashMap::new();
    let boots = client.query(&format!("{BOOTS} GROUP BY node, boot_id HAVING seen >= toDateTime(?) ORDER BY first"));
    for row in all::<BootOf>(boots.bind(since.max(0))).await? {
        lives.entry(row.node.clone()).or_default().boots.push(boot(row));
    }
    let boots = lives.values().flat_map(|of_node| &of_node.boots);
    let oldest = boots.map(|boot| crate::store::write::seconds(boot.first_seen)).fold(since, i64::min);
    for problem in past(client, Some(code_or_key), oldest, false).await? {
        for (span, _) in problem.spans() {
            let of_node = lives.entry(problem.node.clone()).or_default();
            of_node.had_it |= span.seen_until >= since;
            of_node.onsets.push(span.began);
        }
    }
    lives.values_mut().for_each(|of_node| of_node.onsets.sort_unstable());
    Ok(lives)
}

pub async fn is_problem(client: &Client, code_or_key: &str) -> anyhow::Result<bool> {
    let query = client.query("SELECT toUInt64(count()) FROM problems WHERE key = ? OR code = ?");
    Ok(within(query.bind(code_or_key).bind(code_or_key).fetch_one::<u64>()).await? > 0)
}

pub async fn codes(client: &Client, since: i64) -> anyhow::Result<Vec<String>> {
    let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for problem in past(client, None, since, false).await? {
        if problem.spans().any(|(span, is_serious)| is_serious && span.seen_until >= since) {
            nodes.entry(problem.code).or_default().insert(problem.node);
        }
    }
    let mut codes: Vec<(String, usize)> = nodes.into_iter().map(|(code, nodes)| (code, nodes.len())).collect();
    codes.sort_by_key(|(_, nodes)| std::cmp::Reverse(*nodes));
    Ok(codes.into_iter().map(|(code, _)| code).collect())
}

/// The newest incident of a node with this number, and the node's host.
pub async fn incident(client: &Client, node: &str, number: u64) -> anyhow::Result<Option<(Option<String>, Incident)>> {
    let query = client.query(
        "SELECT incident_json FROM incidents FINAL WHERE node = ? AND number = ? ORDER BY triggered DESC LIMIT 1",
    );
    let Some(json) = within(query.bind(node).bind(number).fetch_optional::<String>()).await? else { return Ok(None) };
    let host = client.query("SELECT host FROM nodes FINAL WHERE node = ?").bind(node);
    let host = within(host.fetch_optional::<Option<String>>()).await?.flatten();
    Ok(serde_json::from_str(&json).ok().map(|incident| (host, incident)))
}

pub async fn last_seen(client: &Client, node: &str) -> anyhow::Result<i64> {
    let query = client.query("SELECT toUnixTimestamp(max(last_seen)) FROM reports WHERE node = ?");
    Ok(within(query.bind(node).fetch_one::<u32>()).await?.into())
}
