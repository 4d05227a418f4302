//! Stacks of nodes: each text once, and per node and ten minutes which of them were sampled how often.
//!
//! A hostile node may send new texts without end: it may bring a number of them a day, and all nodes together a number in all. What is
//! beyond it is counted in the node's samples, but not listed.

use crate::store::write::seconds;
use coroner_profile::model::Seeded;
use coroner_report::HeaviestStacks;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{BTreeMap, HashMap};

/// What is added up.
pub const SLOT_S: i64 = 600;
/// Of one node, if it sends several rows in one slot. The heaviest are kept.
const MOST_OF_SLOT: usize = 200;
/// New texts that a node may bring on one day; and texts of all nodes.
pub const MOST_NEW_A_DAY: i64 = 10_000;
pub const MOST_TEXTS: i64 = 2_000_000;
/// A text's last use is written no more often than this.
const USE_WITHIN_S: i64 = 6 * 3600;
/// Rows read for one answer, about: an hour of 30,000 nodes. Of more, every Nth slot is read.
const MOST_READ: i64 = 200_000;
/// From this part of all nodes on, reading whole slots is cheaper than looking each node up.
const MANY: usize = 20;

/// Adds a row to its slot. Returns how many of its stacks were not taken.
/// New texts are counted on the day on which they arrive: when they were sampled is only said by the node.
pub fn add(db: &Connection, node_id: i64, row: &HeaviestStacks, now: i64) -> rusqlite::Result<u64> {
    let slot = slot_of(row);
    let before: Option<(i64, Vec<u8>)> = db
        .prepare_cached("SELECT samples, stacks FROM stack_samples WHERE slot = ?1 AND node_id = ?2")?
        .query_row([slot, node_id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (sum, packed) = before.unwrap_or_default();
    let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
    unpacked(&packed, |id, samples| {
        counts.insert(id, samples);
    });
    let mut texts = Texts::of(db, node_id, now)?;
    let mut refused = 0;
    for stack in &row.stacks {
        match texts.id(db, &stack.stack, slot)? {
            Some(id) => {
                let count = counts.entry(id).or_default();
                *count = count.saturating_add(stack.samples as i64);
            }
            None => refused += 1,
        }
    }
    texts.keep_account(db)?;
    let mut heaviest: Vec<(i64, i64)> = counts.into_iter().collect();
    if heaviest.len() > MOST_OF_SLOT {
        heaviest.sort_unstable_by_key(|(id, samples)| (std::cmp::Reverse(*samples), *id));
        refused += (heaviest.len() - MOST_OF_SLOT) as u64;
        heaviest.truncate(MOST_OF_SLOT);
        heaviest.sort_unstable();
    }
    db.prepare_cached("INSERT OR REPLACE INTO stack_samples (slot, node_id, samples, stacks) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![slot, node_id, sum.saturating_add(row.samples as i64), packed_of(&heaviest)])?;
    Ok(refused)
}

/// The ten minutes in which it was taken.
pub fn slot_of(row: &HeaviestStacks) -> i64 {
    (seconds(row.until) - 1).div_euclid(SLOT_S) * SLOT_S
}

/// Ids of texts, and how many new ones a node may still bring.
struct Texts {
    node_id: i64,
    day: i64,
    /// Today, of this node.
    brought: i64,
    all: i64,
    new: i64,
}

impl Texts {
    fn of(db: &Connection, node_id: i64, now: i64) -> rusqlite::Result<Texts> {
        let day = now.div_euclid(86_400);
        let brought = db
            .prepare_cached("SELECT texts FROM stack_texts_brought WHERE node_id = ?1 AND day = ?2")?
            .query_row([node_id, day], |row| row.get(0))
            .optional()?;
        let all = db.prepare_cached("SELECT texts FROM stack_texts_all")?.query_row([], |row| row.get(0))?;
        Ok(Texts { node_id, day, brought: brought.unwrap_or(0), all, new: 0 })
    }

    fn id(&mut self, db: &Connection, text: &str, slot: i64) -> rusqlite::Result<Option<i64>> {
        let hash = hash(text);
        let known: Option<(i64, i64)> = db
            .prepare_cached("SELECT id, last_used FROM stacks WHERE hash = ?1 AND stack = ?2")?
            .query_row(params![hash, text], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((id, last_used)) = known {
            if last_used < slot - USE_WITHIN_S {
                db.prepare_cached("UPDATE stacks SET last_used = ?2 WHERE id = ?1")?.execute([id, slot])?;
            }
            return Ok(Some(id));
        }
        if self.brought + self.new >= MOST_NEW_A_DAY || self.all + self.new >= MOST_TEXTS {
            return Ok(None);
        }
        self.new += 1;
        db.prepare_cached("INSERT INTO stacks (hash, stack, last_used) VALUES (?1, ?2, ?3)")?
            .execute(params![hash, text, slot])?;
        Ok(Some(db.last_insert_rowid()))
    }

    fn keep_account(&self, db: &Connection) -> rusqlite::Result<()> {
        if self.new > 0 {
            db.prepare_cached("INSERT OR REPLACE INTO stack_texts_brought (node_id, day, texts) VALUES (?1, ?2, ?3)")?
                .execute([self.node_id, self.day, self.brought + self.new])?;
            db.prepare_cached("UPDATE stack_texts_all SET texts = texts + ?1")?.execute([self.new])?;
        }
        Ok(())
    }
}

/// FNV-1a. Texts with the same hash are told apart by themselves.
fn hash(text: &str) -> i64 {
    let mixed = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    mixed as i64
}

/// Removes samples from before a time, and texts that only they used; at most `at_once` of each. Returns whether there may be more.
pub fn expire(db: &Connection, before: i64, at_once: i64) -> rusqlite::Result<bool> {
    let samples = db
        .prepare_cached(
            "DELETE FROM stack_samples WHERE (slot, node_id) IN (SELECT slot, node_id FROM stack_samples WHERE slot < ?1 LIMIT ?2)",
        )?
        .execute([before - SLOT_S, at_once])? as i64;
    // Until then, a sample that is kept may refer to it.
    let texts = db
        .prepare_cached("DELETE FROM stacks WHERE id IN (SELECT id FROM stacks WHERE last_used < ?1 LIMIT ?2)")?
        .execute([before - SLOT_S - USE_WITHIN_S, at_once])? as i64;
    if texts > 0 {
        db.prepare_cached("UPDATE stack_texts_all SET texts = max(0, texts - ?1)")?.execute([texts])?;
    }
    db.prepare_cached("DELETE FROM stack_texts_brought WHERE day < ?1")?.execute([before.div_euclid(86_400)])?;
    Ok(samples == at_once || texts == at_once)
}

/// Whom the samples of a node count for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    A = 0,
    B = 1,
}

/// Samples of two sides, each in an array of two.
#[derive(Debug, Default)]
pub struct StackCounts {
    pub samples: [u64; 2],
    /// Nodes that sent samples.
    pub nodes: [u64; 2],
    /// By the id of the stack.
    pub stacks: HashMap<i64, [u64; 2], Seeded>,
    /// Every Nth slot was read.
    pub one_slot_in: u64,
}

/// What nodes sent since a time.
pub fn count(db: &Connection, sides: &HashMap<i64, Side>, since: i64, now: i64) -> rusqlite::Result<StackCounts> {
    let (slots, one_slot_in) = slots(db, sides.len(), since, now)?;
    let mut counts = StackCounts { one_slot_in: one_slot_in as u64, ..StackCounts::default() };
    let mut seen = std::collections::HashSet::new();
    each(db, sides, &slots, |node_id, side, samples, packed| {
        let side = side as usize;
        counts.nodes[side] += u64::from(samples > 0 && seen.insert(node_id));
        counts.samples[side] = counts.samples[side].saturating_add(samples);
        unpacked(packed, |id, samples| {
            let sum = &mut counts.stacks.entry(id).or_default()[side];
            *sum = sum.saturating_add(samples.max(0) as u64);
        });
    })?;
    Ok(counts)
}

/// How many nodes of each side had each of these stacks.
pub fn count_nodes(
    db: &Connection,
    sides: &HashMap<i64, Side>,
    stacks: &[i64],
    since: i64,
    now: i64,
) -> rusqlite::Result<Vec<[u64; 2]>> {
    let place: HashMap<i64, usize, Seeded> = stacks.iter().enumerate().map(|(at, id)| (*id, at)).collect();
    let mut nodes: Vec<(i64, Side)> = sides.iter().map(|(id, side)| (*id, *side)).collect();
    nodes.sort_unstable_by_key(|(id, side)| (*side as usize, *id));
    let bit: HashMap<i64, usize> = nodes.iter().enumerate().map(|(at, (id, _))| (*id, at)).collect();
    let words = nodes.len().div_ceil(64);
    let mut had = vec![0u64; words * stacks.len()];
    let (slots, _) = slots(db, sides.len(), since, now)?;
    each(db, sides, &slots, |node_id, _, _, packed| {
        let Some(bit) = bit.get(&node_id) else { return };
        unpacked(packed, |id, samples| {
            if let Some(at) = place.get(&id).filter(|_| samples > 0) {
                had[at * words + bit / 64] |= 1 << (bit % 64);
            }
        });
    })?;
    let of_a = nodes.iter().filter(|(_, side)| *side == Side::A).count();
    let counted = had.chunks(words.max(1)).map(|of_stack| {
        let is_set = |bit: &usize| of_stack[bit / 64] >> (bit % 64) & 1 == 1;
        [(0..of_a).filter(is_set).count() as u64, (of_a..nodes.len()).filter(is_set).count() as u64]
    });
    Ok(counted.collect())
}

pub fn texts(db: &Connection, ids: &[i64]) -> rusqlite::Result<HashMap<i64, String>> {
    let mut of = db.prepare_cached("SELECT stack FROM stacks WHERE id = ?1")?;
    let mut texts = HashMap::with_capacity(ids.len());
    for id in ids {
        if let Some(text) = of.query_row([id], |row| row.get(0)).optional()? {
            texts.insert(*id, text);
        }
    }
    Ok(texts)
}

/// The slots to read, newest first, and that they are every Nth.
fn slots(db: &Connection, nodes: usize, since: i64, now: i64) -> rusqlite::Result<(Vec<i64>, i64)> {
    // Each alone is a look into the index. Clocks of nodes may be ahead.
    let end = |which: &str| {
        db.query_row(&format!("SELECT {which}(slot) FROM stack_samples"), [], |row| row.get::<_, Option<i64>>(0))
    };
    let (Some(oldest), Some(newest)) = (end("min")?, end("max")?) else { return Ok((Vec::new(), 1)) };
    Ok(slots_between(oldest, newest, nodes, since, now))
}

/// Of the slots from the oldest to the newest that are there.
pub fn slots_between(oldest: i64, newest: i64, nodes: usize, since: i64, now: i64) -> (Vec<i64>, i64) {
    let oldest = oldest.max((since - SLOT_S).div_euclid(SLOT_S) * SLOT_S + SLOT_S);
    let count = ((now - oldest).div_euclid(SLOT_S) + 1).max(1);
    let step = (count.saturating_mul(nodes as i64) / MOST_READ + 1).max(1);
    let mut slots = Vec::new();
    let mut slot = newest;
    while slot >= oldest {
        if slot > now || (now.div_euclid(SLOT_S) - slot / SLOT_S) % step == 0 {
            slots.push(slot);
        }
        slot -= SLOT_S;
    }
    (slots, step)
}

fn each(
    db: &Connection,
    sides: &HashMap<i64, Side>,
    slots: &[i64],
    mut take: impl FnMut(i64, Side, u64, &[u8]),
) -> rusqlite::Result<()> {
    let known: i64 = db.query_row("SELECT count(*) FROM nodes", [], |row| row.get(0))?;
    let mut take = |row: &rusqlite::Row<'_>, node_id: i64, side: Side| -> rusqlite::Result<()> {
        let samples = row.get::<_, i64>("samples")?.max(0) as u64;
        take(node_id, side, samples, row.get_ref("stacks")?.as_blob()?);
        Ok(())
    };
    if sides.len() * MANY >= known as usize {
        let mut of_slot = db.prepare("SELECT node_id, samples, stacks FROM stack_samples WHERE slot = ?1")?;
        for slot in slots {
            let mut rows = of_slot.query([slot])?;
            while let Some(row) = rows.next()? {
                let node_id: i64 = row.get("node_id")?;
                if let Some(side) = sides.get(&node_id) {
                    take(row, node_id, *side)?;
                }
            }
        }
        return Ok(());
    }
    let mut of_node = db.prepare("SELECT samples, stacks FROM stack_samples WHERE slot = ?1 AND node_id = ?2")?;
    for slot in slots {
        for (node_id, side) in sides {
            let mut rows = of_node.query([slot, node_id])?;
            while let Some(row) = rows.next()? {
                take(row, *node_id, *side)?;
            }
        }
    }
    Ok(())
}

/// Pairs of id and samples as LEB128, ids as differences: about four bytes a stack.
fn packed_of(ascending: &[(i64, i64)]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(ascending.len() * 4);
    let mut put = |value: i64| {
        let mut rest = value.max(0) as u64;
        while rest >= 0x80 {
            packed.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        packed.push(rest as u8);
    };
    let mut last = 0;
    for (id, samples) in ascending {
        put(id - last);
        put(*samples);
        last = *id;
    }
    packed
}

/// What is damaged ends it.
fn unpacked(packed: &[u8], mut take: impl FnMut(i64, i64)) {
    let mut bytes = packed.iter();
    let mut get = || -> Option<i64> {
        let mut value = 0u64;
        for shift in (0..63).step_by(7) {
            let byte = *bytes.next()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return i64::try_from(value).ok();
            }
        }
        None
    };
    let mut id = 0i64;
    while let (Some(more), Some(samples)) = (get(), get()) {
        id = id.saturating_add(more);
        take(id, samples);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_counts_come_back() {
        let counts = [(1, 5), (2, 0), (300, 1 << 40), (i64::MAX >> 1, 77)];
        let packed = packed_of(&counts);
        let mut again = Vec::new();
        unpacked(&packed, |id, samples| again.push((id, samples)));
        assert_eq!(again, counts);
        // Damaged ones end early and never panic.
        for end in 0..packed.len() {
            unpacked(&packed[..end], |_, _| {});
        }
        unpacked(&[0xff; 40], |_, _| panic!("no number has so many bytes"));
    }
}
