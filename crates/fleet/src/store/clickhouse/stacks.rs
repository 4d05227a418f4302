//! The queries of [`crate::store::stacks`], answered by ClickHouse.

use super::asking::Asking;
use crate::store::stacks::{SLOT_S, Side, StackCounts, slots_between};
use clickhouse::Row;
use clickhouse::query::Query;
use serde::Deserialize;
use std::collections::HashMap;

/// Texts, and stacks, in one query.
const MOST_ASKED: usize = 5000;

/// Which nodes are of one side.
struct Of {
    condition: &'static str,
    names: Vec<String>,
}

impl Of {
    /// Names the fewer: those of the side, or the others.
    fn side(ask: &Asking, sides: &HashMap<i64, Side>, side: Side) -> Of {
        let (ours, others): (Vec<_>, Vec<_>) =
            ask.names().into_iter().partition(|(_, id)| sides.get(id) == Some(&side));
        let (condition, named) =
            if others.len() < ours.len() { ("node NOT IN ?", others) } else { ("node IN ?", ours) };
        Of { condition, names: named.into_iter().map(|(name, _)| name).collect() }
    }

    /// The rows of the side in these slots.
    fn rows(&self, ask: &Asking, slots: &Slots, select: &str, end: &str) -> Query {
        let condition = if self.names.is_empty() { "1" } else { self.condition };
        let query = ask.query(&format!(
            "SELECT {select} FROM stack_samples FINAL {end_of_from}
             WHERE slot >= toDateTime(?) AND slot <= toDateTime(?) AND {every} AND {condition} {end}",
            end_of_from = if select.contains("id") { "ARRAY JOIN stacks AS id, counts AS count" } else { "" },
            every = if slots.step > 1 { "toUnixTimestamp(slot) IN ?" } else { "1" },
        ));
        let mut query = query.bind(slots.first()).bind(slots.last());
        if slots.step > 1 {
            query = query.bind(&slots.slots);
        }
        if self.names.is_empty() { query } else { query.bind(&self.names) }
    }
}

/// Slots to read, newest first.
struct Slots {
    slots: Vec<i64>,
    step: i64,
}

impl Slots {
    fn find(ask: &Asking, nodes: usize, since: i64, now: i64) -> anyhow::Result<Slots> {
        #[derive(Row, Deserialize)]
        struct Ends {
            rows: u64,
            oldest: u32,
            newest: u32,
        }
        let ends = ask.query(
            "SELECT count() AS rows, toUnixTimestamp(min(slot)) AS oldest, toUnixTimestamp(max(slot)) AS newest FROM stack_samples",
        );
        let Ends { rows, oldest, newest } = ask.one(ends)?;
        if rows == 0 {
            return Ok(Slots { slots: Vec::new(), step: 1 });
        }
        let (slots, step) = slots_between(oldest.into(), newest.into(), nodes, since, now);
        Ok(Slots { slots, step })
    }

    fn first(&self) -> i64 {
        self.slots.last().copied().unwrap_or_default().max(0)
    }

    /// Without slots, before the first.
    fn last(&self) -> i64 {
        self.slots.first().map_or(-SLOT_S, |slot| *slot).max(0)
    }
}

fn sides_of(sides: &HashMap<i64, Side>) -> impl Iterator<Item = Side> {
    [Side::A, Side::B].into_iter().filter(|side| sides.values().any(|other| other == side))
}

#[derive(Row, Deserialize)]
struct OfStack {
    id: i64,
    n: u64,
}

/// What nodes sent since a time.
pub fn count(ask: &Asking, sides: &HashMap<i64, Side>, since: i64, now: i64) -> anyhow::Result<StackCounts> {
    #[derive(Row, Deserialize)]
    struct All {
        nodes: u64,
        all: u64,
    }
    let slots = Slots::find(ask, sides.len(), since, now)?;
    let mut counts = StackCounts { one_slot_in: slots.step as u64, ..StackCounts::default() };
    if slots.slots.is_empty() {
        return Ok(counts);
    }
    for side in sides_of(sides) {
        let (of, side) = (Of::side(ask, sides, side), side as usize);
        let all = "uniqExactIf(node, samples > 0) AS nodes, sum(samples) AS all";
        let All { nodes, all } = ask.one(of.rows(ask, &slots, all, ""))?;
        (counts.nodes[side], counts.samples[side]) = (nodes, all);
        for OfStack { id, n } in ask.all(of.rows(ask, &slots, "id, sum(count) AS n", "GROUP BY id"))? {
            counts.stacks.entry(id).or_default()[side] = n;
        }
    }
    Ok(counts)
}

/// How many nodes of each side had each of these stacks.
pub fn count_nodes(
    ask: &Asking,
    sides: &HashMap<i64, Side>,
    stacks: &[i64],
    since: i64,
    now: i64,
) -> anyhow::Result<Vec<[u64; 2]>> {
    let slots = Slots::find(ask, sides.len(), since, now)?;
    let mut nodes: HashMap<i64, [u64; 2]> = HashMap::new();
    if slots.slots.is_empty() {
        return Ok(vec![[0; 2]; stacks.len()]);
    }
    for side in sides_of(sides) {
        let of = Of::side(ask, sides, side);
        for some in stacks.chunks(MOST_ASKED) {
            let query = of.rows(ask, &slots, "id, uniqExact(node) AS n", "AND id IN ? AND count > 0 GROUP BY id");
            for OfStack { id, n } in ask.all(query.bind(some))? {
                nodes.entry(id).or_default()[side as usize] = n;
            }
        }
    }
    Ok(stacks.iter().map(|id| nodes.get(id).copied().unwrap_or_default()).collect())
}

pub fn texts(ask: &Asking, ids: &[i64]) -> anyhow::Result<HashMap<i64, String>> {
    #[derive(Row, Deserialize)]
    struct Text {
        id: i64,
        stack: String,
    }
    let mut texts = HashMap::with_capacity(ids.len());
    for some in ids.chunks(MOST_ASKED) {
        let query = ask.query("SELECT id, any(stack) AS stack FROM stack_texts WHERE id IN ? GROUP BY id").bind(some);
        texts.extend(ask.all::<Text>(query)?.into_iter().map(|text| (text.id, text.stack)));
    }
    Ok(texts)
}
