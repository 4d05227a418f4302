//! Which store: the embedded one, or ClickHouse. Both take the same batches and give the same answers.

use super::clickhouse::{self as ch, Asking, ClickHouseStore, read as of_clickhouse};
use super::dump::{self, Node, TakeEpisode, TakeIncident, TakeMinute};
use super::growth::{self, Point};
use super::hours::{self, Number, Series};
use super::look::{self, History, Moment, NodeThen, Trouble};
use super::read::{self, NodeLives};
use super::stacks::{self, Side, StackCounts};
use super::write::Stored;
use super::{NotStored, SqliteStore, StoreStatus, incidents};
use crate::answers::{FleetStatus, IncidentList, NodeDetail, NodeSummary};
use crate::ingest::Batch;
use anyhow::Context;
use coroner_report::Incident;
use rusqlite::Connection;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use tokio::runtime::Handle;

pub enum Store {
    Sqlite(SqliteStore),
    ClickHouse(Box<ClickHouseStore>),
}

impl Store {
    /// Where this collector has its tokens.
    pub fn directory(&self) -> &Path {
        match self {
            Store::Sqlite(store) => store.directory(),
            Store::ClickHouse(store) => store.directory(),
        }
    }

    /// For people.
    pub fn shown(&self) -> String {
        match self {
            Store::Sqlite(store) => store.directory().display().to_string(),
            Store::ClickHouse(store) => store.shown(),
        }
    }

    /// Requests wait for seconds, in memory that the store bounds itself.
    pub fn gathers(&self) -> bool {
        matches!(self, Store::ClickHouse(_))
    }

    pub async fn store(&self, key: String, batches: Vec<Batch>) -> Result<Stored, NotStored> {
        match self {
            Store::Sqlite(store) => store.store(key, batches).await,
            Store::ClickHouse(store) => store.store(key, batches).await,
        }
    }

    /// Waits for no more requests before it stores what it has.
    pub fn drain(&self) {
        match self {
            Store::Sqlite(_) => {}
            Store::ClickHouse(store) => store.drain(),
        }
    }

    /// What collectors tell each other of recordings that are wanted; the embedded store has one collector.
    pub fn board(&self, us: String) -> Option<ch::wanted::Board> {
        match self {
            Store::Sqlite(_) => None,
            Store::ClickHouse(store) => Some(ch::wanted::Board::new(store.client().clone(), Handle::current(), us)),
        }
    }

    pub fn reader(&self) -> anyhow::Result<Reader> {
        Ok(match self {
            Store::Sqlite(store) => Reader::Sqlite(store.reader()?),
            Store::ClickHouse(store) => {
                Reader::ClickHouse(Box::new(Asking::new(store.client().clone(), Handle::current())))
            }
        })
    }

    pub fn status(&self) -> StoreStatus {
        match self {
            Store::Sqlite(store) => store.status(),
            Store::ClickHouse(store) => store.status(),
        }
    }

    pub fn bytes(&self) -> u64 {
        match self {
            Store::Sqlite(store) => store.bytes(),
            Store::ClickHouse(store) => store.bytes(),
        }
    }
}

/// Answers questions, on a thread that may wait. Row ids are those of one reader's answers.
pub enum Reader {
    Sqlite(Connection),
    ClickHouse(Box<Asking>),
}

impl Reader {
    pub fn status(&self, now: i64) -> anyhow::Result<FleetStatus> {
        match self {
            Reader::Sqlite(db) => Ok(read::status(db, now)?),
            Reader::ClickHouse(ask) => ask.wait(of_clickhouse::status(ask.client(), now)),
        }
    }

    /// All nodes with what they have now.
    pub fn nodes(&self, now: i64) -> anyhow::Result<Vec<NodeSummary>> {
        match self {
            Reader::Sqlite(db) => Ok(read::nodes(db, now)?.into_iter().map(|(_, node)| node).collect()),
            Reader::ClickHouse(ask) => ask.wait(of_clickhouse::nodes(ask.client(), now)),
        }
    }

    pub fn nodes_by_id(&self, now: i64) -> anyhow::Result<Vec<Node>> {
        match self {
            Reader::Sqlite(db) => Ok(read::nodes(db, now)?),
            Reader::ClickHouse(ask) => {
                let nodes = ask.wait(of_clickhouse::nodes(ask.client(), now))?;
                Ok(nodes.into_iter().map(|node| (ask.id(&node.node), node)).collect())
            }
        }
    }

    /// Nodes of this machine id or host name, the last seen first.
    pub fn find(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let found: Vec<String> = match self {
            Reader::Sqlite(db) => read::find(db, name)?.into_iter().map(|(_, node)| node).collect(),
            Reader::ClickHouse(ask) => ask.wait(of_clickhouse::find(ask.client(), name))?,
        };
        Ok(read::named(found, |node| node == name))
    }

    pub fn detail(&self, node: &str, now: i64) -> anyhow::Result<NodeDetail> {
        match self {
            Reader::Sqlite(db) => Ok(read::detail(db, id_of(db, node)?, now)?),
            Reader::ClickHouse(ask) => ask.wait(of_clickhouse::detail(ask.client(), node, now)),
        }
    }

    pub fn incidents(&self, since: i64, now: i64, most: i64) -> anyhow::Result<IncidentList> {
        match self {
            Reader::Sqlite(db) => Ok(read::incidents(db, since, now, most)?),
            Reader::ClickHouse(ask) => ask.wait(of_clickhouse::incidents(ask.client(), since, now, most)),
        }
    }

    /// Boots and onsets of a problem, by node.
    pub fn lives(&self, code_or_key: &str, since: i64) -> anyhow::Result<HashMap<String, NodeLives>> {
        match self {
            Reader::Sqlite(db) => Ok(read::lives(db, code_or_key, since)?),
            Reader::ClickHouse(ask) => ask.wait(of_clickhouse::lives(ask.client(), code_or_key, since)),
        }
    }

    /// Whether any node has or had it.
    pub fn is_problem(&self, code_or_key: &str) -> anyhow::Result<bool> {
        match self {
            Reader::Sqlite(db) => Ok(read::is_problem(db, code_or_key)?),
            Reader::ClickHouse(ask) => ask.wait(of_clickhouse::is_problem(ask.client(), code_or_key)),
        }
    }

    /// Codes of problems that nodes have now or had since, those of most nodes first.
    pub fn codes(&self, since: i64) -> anyhow::Result<Vec<String>> {
        match self {
            Reader::Sqlite(db) => Ok(read::codes(db, since)?),
            Reader::ClickHouse(ask) => ask.wait(of_clickhouse::codes(ask.client(), since)),
        }
    }

    /// The nodes that were known then, in the order of their names.
    pub fn nodes_then(&self, moment: Moment) -> anyhow::Result<Vec<NodeThen>> {
        match self {
            Reader::Sqlite(db) => Ok(look::nodes(db, moment)?),
            Reader::ClickHouse(ask) => ch::look::nodes(ask, moment),
        }
    }

    /// Episodes that went on then.
    pub fn troubles(&self, moment: Moment) -> anyhow::Result<Vec<Trouble>> {
        match self {
            Reader::Sqlite(db) => Ok(look::troubles(db, moment)?),
            Reader::ClickHouse(ask) => ch::look::troubles(ask, moment),
        }
    }

    /// Keys that some node had more than a day before that moment.
    pub fn old_keys(&self, at: i64) -> anyhow::Result<HashSet<String>> {
        match self {
            Reader::Sqlite(db) => Ok(look::old_keys(db, at)?),
            Reader::ClickHouse(ask) => ch::look::old_keys(ask, at),
        }
    }

    /// The named numbers of each node's last minute (or hour, where minutes are gone).
    pub fn numbers(&self, moment: Moment, names: &[&'static str]) -> anyhow::Result<HashMap<i64, Vec<Option<Number>>>> {
        match self {
            Reader::Sqlite(db) => Ok(look::numbers(db, moment, names)?),
            Reader::ClickHouse(ask) => ch::look::numbers(ask, moment, names),
        }
    }

    /// When the first node was first heard of.
    pub fn begins(&self) -> anyhow::Result<Option<i64>> {
        match self {
            Reader::Sqlite(db) => Ok(look::begins(db)?),
            Reader::ClickHouse(ask) => ch::look::begins(ask),
        }
    }

    pub fn history(&self, from: i64, until: i64) -> anyhow::Result<History> {
        match self {
            Reader::Sqlite(db) => Ok(look::history(db, from, until)?),
            Reader::ClickHouse(ask) => ch::look::history(ask, from, until),
        }
    }

    /// One node's numbers over time.
    pub fn series(&self, node: &str, from: i64, until: i64, by_hour: bool) -> anyhow::Result<Series> {
        match self {
            Reader::Sqlite(db) => Ok(hours::series(db, id_of(db, node)?, from, until, by_hour)?),
            Reader::ClickHouse(ask) => ch::look::series(ask, node, from, until, by_hour),
        }
    }

    /// Growth per hour of a number.
    pub fn slopes(
        &self,
        column: &str,
        from: i64,
        until: i64,
        booted: impl Fn(i64) -> Option<i64>,
    ) -> anyhow::Result<BTreeMap<i64, f64>> {
        match self {
            Reader::Sqlite(db) => Ok(hours::slopes(db, column, from, until, booted)?),
            Reader::ClickHouse(ask) => ch::growth::slopes(ask, column, from, until, booted),
        }
    }

    /// Dead memory cgroups of each node since its boot.
    pub fn points(&self, since: i64, now: i64) -> anyhow::Result<HashMap<i64, Vec<Point>>> {
        match self {
            Reader::Sqlite(db) => Ok(growth::points(db, since, now)?),
            Reader::ClickHouse(ask) => ch::growth::points(ask, since, now),
        }
    }

    /// How many dead memory cgroups nodes had when one of these problems began.
    pub fn levels_at_onset(&self, codes: &[&str], since: i64) -> anyhow::Result<HashMap<i64, f64>> {
        match self {
            Reader::Sqlite(db) => Ok(growth::levels_at_onset(db, codes, since)?),
            Reader::ClickHouse(ask) => ch::growth::levels_at_onset(ask, codes, since),
        }
    }

    pub fn stack_counts(&self, sides: &HashMap<i64, Side>, since: i64, now: i64) -> anyhow::Result<StackCounts> {
        match self {
            Reader::Sqlite(db) => Ok(stacks::count(db, sides, since, now)?),
            Reader::ClickHouse(ask) => ch::stacks::count(ask, sides, since, now),
        }
    }

    /// How many nodes of each side had each of these stacks.
    pub fn stack_nodes(
        &self,
        sides: &HashMap<i64, Side>,
        stacks: &[i64],
        since: i64,
        now: i64,
    ) -> anyhow::Result<Vec<[u64; 2]>> {
        match self {
            Reader::Sqlite(db) => Ok(stacks::count_nodes(db, sides, stacks, since, now)?),
            Reader::ClickHouse(ask) => ch::stacks::count_nodes(ask, sides, stacks, since, now),
        }
    }

    pub fn stack_texts(&self, ids: &[i64]) -> anyhow::Result<HashMap<i64, String>> {
        match self {
            Reader::Sqlite(db) => Ok(stacks::texts(db, ids)?),
            Reader::ClickHouse(ask) => ch::stacks::texts(ask, ids),
        }
    }

    /// The minutes of these nodes since then, in their order.
    pub fn dump_minutes(&self, nodes: &[Node], since: i64, take: &mut TakeMinute<'_>) -> anyhow::Result<()> {
        match self {
            Reader::Sqlite(db) => dump::minutes(db, nodes, since, take),
            Reader::ClickHouse(ask) => ch::dump::minutes(ask, nodes, since, take),
        }
    }

    pub fn dump_episodes(&self, nodes: &[Node], since: i64, take: &mut TakeEpisode<'_>) -> anyhow::Result<()> {
        match self {
            Reader::Sqlite(db) => dump::episodes(db, nodes, since, take),
            Reader::ClickHouse(ask) => ch::dump::episodes(ask, nodes, since, take),
        }
    }

    pub fn dump_incidents(&self, nodes: &[Node], since: i64, take: &mut TakeIncident<'_>) -> anyhow::Result<()> {
        match self {
            Reader::Sqlite(db) => dump::incidents(db, nodes, since, take),
            Reader::ClickHouse(ask) => ch::dump::incidents(ask, nodes, since, take),
        }
    }

    /// The newest incident of a node with this number, and the node's host.
    pub fn incident(&self, node: &str, number: u64) -> anyhow::Result<Option<(Option<String>, Incident)>> {
        match self {
            Reader::Sqlite(db) => Ok(incidents::newest(db, id_of(db, node)?, number)?),
            Reader::ClickHouse(ask) => ask.wait(of_clickhouse::incident(ask.client(), node, number)),
        }
    }

    pub fn last_seen(&self, node: &str) -> anyhow::Result<i64> {
        match self {
            Reader::Sqlite(db) => Ok(incidents::last_seen(db, node)?),
            Reader::ClickHouse(ask) => ask.wait(of_clickhouse::last_seen(ask.client(), node)),
        }
    }

    /// Whether the node reports with this key.
    pub fn is_itself(&self, node: &str, key: &str) -> anyhow::Result<bool> {
        match self {
            Reader::Sqlite(db) => Ok(incidents::is_itself(db, node, key)?),
            Reader::ClickHouse(ask) => ask.wait(ch::is_itself(ask.client(), node, key)),
        }
    }
}

fn id_of(db: &Connection, node: &str) -> anyhow::Result<i64> {
    let found = read::find(db, node)?.into_iter().find(|(_, name)| name == node);
    Ok(found.context("the node was removed meanwhile")?.0)
}
