//! Which recordings people want, and how far they are, for all collectors: the one that a person asks is not the one that the node reports
//! to. All times are ClickHouse's.

use super::within;
use clickhouse::{Client, Row};
use serde::Deserialize;
use tokio::runtime::Handle;

/// Written and read by all collectors. Used from threads that may wait.
pub struct Board {
    client: Client,
    runtime: Handle,
    /// This collector, from its start on.
    us: String,
}

/// A recording that somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq, Row, Deserialize)]
pub struct Wish {
    pub node: String,
    pub number: u64,
    pub triggered: u32,
    /// Milliseconds ago.
    pub asked_ago: u64,
    /// What a collector told last: `receiving`, `stored`, `refused`, `gone`, `too large`; empty if none did since it was asked
    /// for, or takes it.
    pub state: String,
    pub bytes: u64,
    pub of: u64,
    pub told_ago: u64,
    /// Another collector did.
    pub is_of_another: bool,
}

const INSERT: &str = "INSERT INTO wanted (node, number, triggered, asked, told, at) SELECT ?, ?, toDateTime(?), ";
const NOW_MS: &str = "toUInt64(toUnixTimestamp64Milli(now64(3)))";

impl Board {
    /// `us`: no other collector has this name.
    pub fn new(client: Client, runtime: Handle, us: String) -> Board {
        Board { client, runtime, us }
    }

    /// Somebody asks for it, or asks again.
    pub fn ask(&self, node: &str, number: u64, triggered: i64) -> anyhow::Result<()> {
        let query = format!("{INSERT} {NOW_MS}, (toUInt64(0), '', toUInt64(0), toUInt64(0), ''), now()");
        let asked = self.client.query(&query).bind(node).bind(number).bind(triggered.max(0));
        self.runtime.block_on(within(asked.execute()))
    }

    /// How far it is, at this collector.
    pub fn tell(&self, node: &str, number: u64, state: &str, bytes: u64, of: u64) -> anyhow::Result<()> {
        let query = format!("{INSERT} toUInt64(0), ({NOW_MS}, ?, toUInt64(?), toUInt64(?), ?), now()");
        let told = self.client.query(&query).bind(node).bind(number).bind(0).bind(state).bind(bytes).bind(of);
        self.runtime.block_on(within(told.bind(&self.us).execute()))
    }

    /// What was asked for within so many seconds; all, or one.
    pub fn read(&self, within_s: u64, only: Option<(&str, u64)>) -> anyhow::Result<Vec<Wish>> {
        let of = if only.is_some() { "WHERE node = ? AND number = ?" } else { "" };
        let mut query = self.client.query(&format!(
            "SELECT node, number, triggered, toUInt64({NOW_MS} - least({NOW_MS}, asked)) AS asked_ago,
               if(told.1 >= asked OR told.2 = 'receiving', told.2, '') AS state, told.3 AS bytes, told.4 AS of,
               toUInt64({NOW_MS} - least({NOW_MS}, told.1)) AS told_ago, toBool(told.5 != ?) AS is_of_another
             FROM (SELECT node, number, max(triggered) AS triggered, max(asked) AS asked, max(told) AS told FROM wanted {of}
                   GROUP BY node, number)
             WHERE asked_ago < ?"
        ));
        query = query.bind(&self.us);
        if let Some((node, number)) = only {
            query = query.bind(node).bind(number);
        }
        self.runtime.block_on(within(query.bind(within_s * 1000).fetch_all()))
    }
}
