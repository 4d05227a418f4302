//! Asks ClickHouse from a thread that may wait.

use super::within;
use clickhouse::query::Query;
use clickhouse::{Client, Row, RowOwned, RowRead};
use std::cell::RefCell;
use std::collections::HashMap;
use tokio::runtime::Handle;

/// Names of thousands of nodes in a statement are more than ClickHouse reads otherwise.
const LONGEST_STATEMENT: &str = "67108864";

pub struct Asking {
    client: Client,
    runtime: Handle,
    /// Nodes have numbers in the answers of one reader.
    ids: RefCell<HashMap<String, i64>>,
}

impl Asking {
    pub fn new(client: Client, runtime: Handle) -> Asking {
        let client = for_questions(client);
        Asking { client, runtime, ids: RefCell::default() }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn wait<T>(&self, answer: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        self.runtime.block_on(answer)
    }

    pub fn query(&self, query: &str) -> Query {
        self.client.query(query)
    }

    pub fn all<T: RowOwned + RowRead>(&self, query: Query) -> anyhow::Result<Vec<T>> {
        self.wait(within(query.fetch_all()))
    }

    pub fn one<T: RowOwned + RowRead + Row>(&self, query: Query) -> anyhow::Result<T> {
        self.wait(within(query.fetch_one()))
    }

    pub fn id(&self, node: &str) -> i64 {
        let mut ids = self.ids.borrow_mut();
        if let Some(id) = ids.get(node) {
            return *id;
        }
        let id = ids.len() as i64;
        ids.insert(node.to_owned(), id);
        id
    }

    /// All that have an id.
    pub fn names(&self) -> Vec<(String, i64)> {
        self.ids.borrow().iter().map(|(name, id)| (name.clone(), *id)).collect()
    }
}

/// Rows of one key are in one partition of each of our tables.
pub fn for_questions(client: Client) -> Client {
    client
        .with_setting("max_query_size", LONGEST_STATEMENT)
        .with_setting("do_not_merge_across_partitions_select_final", "1")
}
