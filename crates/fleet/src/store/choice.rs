//! Which store: the embedded one, or ClickHouse. Both take the same batches and give the same answers.

use super::clickhouse::{ClickHouseStore, read as of_clickhouse};
use super::read::{self, NodeLives};
use super::write::Stored;
use super::{NotStored, SqliteStore, StoreStatus};
use crate::answers::{FleetStatus, IncidentList, NodeDetail, NodeSummary};
use crate::ingest::Batch;
use anyhow::{Context, bail};
use clickhouse::Client;
use rusqlite::Connection;
use std::collections::HashMap;
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

    pub fn reader(&self) -> anyhow::Result<Reader> {
        Ok(match self {
            Store::Sqlite(store) => Reader::Sqlite(store.reader()?),
            Store::ClickHouse(store) => Reader::ClickHouse(store.client().clone(), Handle::current()),
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

/// Answers questions, on a thread that may wait.
pub enum Reader {
    Sqlite(Connection),
    ClickHouse(Client, Handle),
}

impl Reader {
    /// For what only the embedded store has.
    pub fn sqlite(&self) -> anyhow::Result<&Connection> {
        match self {
            Reader::Sqlite(db) => Ok(db),
            Reader::ClickHouse(..) => {
                bail!("ClickHouse does not answer this yet; a collector with its own store (without --store) does")
            }
        }
    }

    pub fn status(&self, now: i64) -> anyhow::Result<FleetStatus> {
        match self {
            Reader::Sqlite(db) => Ok(read::status(db, now)?),
            Reader::ClickHouse(client, runtime) => runtime.block_on(of_clickhouse::status(client, now)),
        }
    }

    /// All nodes with what they have now.
    pub fn nodes(&self, now: i64) -> anyhow::Result<Vec<NodeSummary>> {
        match self {
            Reader::Sqlite(db) => Ok(read::nodes(db, now)?.into_iter().map(|(_, node)| node).collect()),
            Reader::ClickHouse(client, runtime) => runtime.block_on(of_clickhouse::nodes(client, now)),
        }
    }

    /// Nodes of this machine id or host name, the last seen first.
    pub fn find(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let found: Vec<String> = match self {
            Reader::Sqlite(db) => read::find(db, name)?.into_iter().map(|(_, node)| node).collect(),
            Reader::ClickHouse(client, runtime) => runtime.block_on(of_clickhouse::find(client, name))?,
        };
        Ok(read::named(found, |node| node == name))
    }

    pub fn detail(&self, node: &str, now: i64) -> anyhow::Result<NodeDetail> {
        match self {
            Reader::Sqlite(db) => {
                let found = read::find(db, node)?.into_iter().find(|(_, name)| name == node);
                let (id, _) = found.context("the node was removed meanwhile")?;
                Ok(read::detail(db, id, now)?)
            }
            Reader::ClickHouse(client, runtime) => runtime.block_on(of_clickhouse::detail(client, node, now)),
        }
    }

    pub fn incidents(&self, since: i64, now: i64, most: i64) -> anyhow::Result<IncidentList> {
        match self {
            Reader::Sqlite(db) => Ok(read::incidents(db, since, now, most)?),
            Reader::ClickHouse(client, runtime) => runtime.block_on(of_clickhouse::incidents(client, since, now, most)),
        }
    }

    /// Boots and onsets of a problem, by node.
    pub fn lives(&self, code_or_key: &str, since: i64) -> anyhow::Result<HashMap<String, NodeLives>> {
        match self {
            Reader::Sqlite(db) => Ok(read::lives(db, code_or_key, since)?),
            Reader::ClickHouse(client, runtime) => runtime.block_on(of_clickhouse::lives(client, code_or_key, since)),
        }
    }

    /// Whether any node has or had it.
    pub fn is_problem(&self, code_or_key: &str) -> anyhow::Result<bool> {
        match self {
            Reader::Sqlite(db) => Ok(read::is_problem(db, code_or_key)?),
            Reader::ClickHouse(client, runtime) => runtime.block_on(of_clickhouse::is_problem(client, code_or_key)),
        }
    }

    /// Codes of problems that nodes have now or had since, those of most nodes first.
    pub fn codes(&self, since: i64) -> anyhow::Result<Vec<String>> {
        match self {
            Reader::Sqlite(db) => Ok(read::codes(db, since)?),
            Reader::ClickHouse(client, runtime) => runtime.block_on(of_clickhouse::codes(client, since)),
        }
    }
}
