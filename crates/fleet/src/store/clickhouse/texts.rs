//! Which texts of stacks are in the store already, and how many new ones nodes brought today: each collector counts what it took itself.

use super::rows::Rows;
use super::within;
use crate::store::stacks::{MOST_NEW_A_DAY, MOST_TEXTS};
use clickhouse::Client;
use std::collections::{HashMap, HashSet};

const DAY_S: i64 = 86_400;

#[derive(Default)]
pub struct Texts {
    day: i64,
    /// Since when `day` is known: `None` until the store was read.
    known: Option<HashSet<i64>>,
    /// Of them, those that need not be written again today.
    today: HashSet<i64>,
    /// New ones of today, by node.
    brought: HashMap<String, i64>,
}

impl Texts {
    /// Reads what the store knows, at the start and on each new day.
    pub async fn read(&mut self, client: &Client, now: i64) -> anyhow::Result<()> {
        let day = now.div_euclid(DAY_S);
        if self.known.is_some() && self.day == day {
            return Ok(());
        }
        let ids = client.query(&format!("SELECT DISTINCT id FROM stack_texts LIMIT {MOST_TEXTS}"));
        let known = within(ids.fetch_all::<i64>()).await?;
        // What nodes brought today counts also after a failure.
        let brought = if self.day == day { std::mem::take(&mut self.brought) } else { HashMap::new() };
        *self = Texts { day, known: Some(known.into_iter().collect()), today: HashSet::new(), brought };
        Ok(())
    }

    /// Removes texts that are stored, and stacks beyond the limits, of which it returns the number. All rows are of one node.
    pub fn admit(&mut self, rows: &mut Rows) -> u64 {
        let Some(node) = rows.stacks.first().map(|row| row.node.clone()) else { return 0 };
        let known = self.known.get_or_insert_default();
        let brought = self.brought.entry(node).or_default();
        let mut refused: HashSet<i64> = HashSet::new();
        rows.texts.retain(|text| {
            if known.contains(&text.id) {
                return self.today.insert(text.id);
            }
            if *brought >= MOST_NEW_A_DAY || known.len() as i64 >= MOST_TEXTS {
                refused.insert(text.id);
                return false;
            }
            *brought += 1;
            known.insert(text.id);
            self.today.insert(text.id)
        });
        let mut count = 0;
        if !refused.is_empty() {
            for row in &mut rows.stacks {
                let all = row.stacks.len();
                let kept = row.stacks.iter().zip(&row.counts).filter(|(id, _)| !refused.contains(id));
                let kept: Vec<(i64, u64)> = kept.map(|(id, count)| (*id, *count)).collect();
                count += (all - kept.len()) as u64;
                (row.stacks, row.counts) = kept.into_iter().unzip();
            }
        }
        count
    }

    /// After a failure nobody knows what was stored.
    pub fn forget(&mut self) {
        self.known = None;
    }
}
