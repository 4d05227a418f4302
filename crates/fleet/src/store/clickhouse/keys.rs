//! Which key speaks for which node, as the store has it, remembered in each collector.
//!
//! The first key is the node's; after an hour without a report another may take it over. Two collectors that take different keys for a
//! new node in the same second agree a minute later, when they have read each other's rows: on the key that came first.

use super::within;
use crate::store::write::{MOST_NODES, TAKEN_OVER_AFTER_S, known_with_another_key, too_many_nodes};
use clickhouse::{Client, Row};
use serde::Deserialize;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Names in one query.
const MOST_ASKED: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    key: String,
    last_seen: i64,
}

#[derive(Default)]
pub struct Keys {
    owners: HashMap<String, Owner>,
    read_at: Option<Instant>,
}

#[derive(Row, Deserialize, Debug, Clone)]
struct Known {
    node: String,
    key: String,
    first: u32,
    seen: u32,
}

impl Keys {
    /// Reads what the store knows: of these nodes, and now and then of all.
    pub async fn read<'a>(
        &mut self,
        client: &Client,
        reporting: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> anyhow::Result<()> {
        let query = "SELECT node, key, min(first_seen) AS first, max(last_seen) AS seen FROM reports";
        if self.read_at.is_none_or(|at| at.elapsed() >= READ_AGAIN_AFTER) {
            let known = within(client.query(&format!("{query} GROUP BY node, key")).fetch_all()).await?;
            self.owners = owners(known);
            self.read_at = Some(Instant::now());
        }
        let is_other = |(node, key): &(&str, &str)| self.owners.get(*node).is_none_or(|owner| owner.key != *key);
        let mut asked: Vec<&str> = reporting.filter(is_other).map(|(node, _)| node).collect();
        asked.sort_unstable();
        asked.dedup();
        for asked in asked.chunks(MOST_ASKED) {
            let of_these = client.query(&format!("{query} WHERE node IN ? GROUP BY node, key")).bind(asked);
            self.owners.extend(owners(within(of_these.fetch_all()).await?));
        }
        Ok(())
    }

    /// Whether this key may speak for the node.
    pub fn may(&self, node: &str, key: &str, now: i64) -> Result<(), String> {
        match self.owners.get(node) {
            Some(owner) if owner.key == key || now - owner.last_seen >= TAKEN_OVER_AFTER_S => Ok(()),
            Some(_) => Err(known_with_another_key(node)),
            None if self.owners.len() as i64 >= MOST_NODES => Err(too_many_nodes()),
            None => Ok(()),
        }
    }

    /// It reports with this key, which is the node's from now on.
    pub fn set(&mut self, node: &str, key: &str, now: i64) {
        self.owners.insert(node.to_owned(), Owner { key: key.to_owned(), last_seen: now });
    }

    /// After a failure nobody knows what was stored.
    pub fn forget(&mut self) {
        *self = Keys::default();
    }
}

/// Of several keys of a node that were seen within an hour of the latest, the first. Others were taken over.
fn owners(mut known: Vec<Known>) -> HashMap<String, Owner> {
    let mut last_seen: HashMap<String, i64> = HashMap::new();
    for row in &known {
        let last = last_seen.entry(row.node.clone()).or_default();
        *last = (*last).max(row.seen.into());
    }
    known.sort_by(|a, b| (a.first, &a.key).cmp(&(b.first, &b.key)));
    let mut owners = HashMap::new();
    for row in known {
        let last = last_seen.get(&row.node).copied().unwrap_or_default();
        if i64::from(row.seen) > last - TAKEN_OVER_AFTER_S {
            owners.entry(row.node).or_insert(Owner { key: row.key, last_seen: row.seen.into() });
        }
    }
    owners
}

/// Whether the node reports with this key, as far as any collector knows.
pub async fn is_itself(client: &Client, node: &str, key: &str) -> anyhow::Result<bool> {
    let query = "SELECT node, key, min(first_seen) AS first, max(last_seen) AS seen FROM reports WHERE node = ? GROUP BY node, key";
    let owners = owners(within(client.query(query).bind(node).fetch_all()).await?);
    Ok(owners.get(node).is_some_and(|owner| !owner.key.is_empty() && owner.key == key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(key: &str, first: u32, seen: u32) -> Known {
        Known { node: "n".to_owned(), key: key.to_owned(), first, seen }
    }

    #[test]
    fn the_first_key_wins_until_the_node_was_silent_for_an_hour() {
        let key = |rows: Vec<Known>| owners(rows)["n"].key.clone();
        assert_eq!(key(vec![known("b", 100, 5000), known("a", 99, 5000)]), "a", "two at first contact");
        assert_eq!(key(vec![known("a", 99, 5000), known("b", 8600, 9000)]), "b", "taken over after an hour");
        assert_eq!(key(vec![known("a", 99, 5500), known("b", 8600, 9000)]), "a");

        let mut keys = Keys::default();
        keys.set("n", "a", 1000);
        assert!(keys.may("n", "b", 4599).unwrap_err().contains("another key"));
        keys.may("n", "b", 4600).unwrap();
        keys.set("n", "b", 4600);
        assert!(keys.may("n", "a", 4700).is_err());
    }
}
