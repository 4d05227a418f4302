//! What becomes of the cgroups that were created while watching, followed by their ids.
//!
//! Who creates a cgroup is known when it is created; whether it stays is known only when it was removed and the kernel did not free it. So
//! each is followed until it is freed, or until it was reported as dead and the memory is needed for others.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use coroner_evidence::{CgroupFate, Maker, Time};

/// Cgroups followed at a time: about 2 MB.
const MAX_FOLLOWED: usize = 32_768;
/// Rows per interval.
const MAX_ROWS: usize = 200;
/// Ids per row; the others follow in the next one.
const MAX_IDS: usize = 2_000;
/// A removed cgroup is normally freed within milliseconds: after an RCU grace period and two rounds of a work queue
/// (kernel/cgroup/cgroup.c: css_killed_work_fn, css_release_work_fn). On a busy node it takes longer.
const FREED_BY_THEN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Fates<K> {
    lives: HashMap<u64, Life>,
    slots: HashMap<u32, Slot>,
    by_key: HashMap<K, u32>,
    next_slot: u32,
}

#[derive(Debug)]
struct Slot {
    parent: String,
    pattern: String,
    maker: Maker,
}

#[derive(Debug, Default)]
struct Life {
    /// Who created it; `None` until that is settled.
    slot: Option<u32>,
    removed: Option<Time>,
    freed: bool,
    /// What was counted in a row.
    born_told: bool,
    removed_told: bool,
    left_told: bool,
}

impl Life {
    /// Reported in full: nothing is lost but that it may be freed later.
    fn is_done(&self) -> bool {
        self.left_told && !self.freed
    }

    fn is_left(&self, by: Time) -> bool {
        !self.freed && !self.left_told && self.removed.is_some_and(|removed| by.since(removed) >= FREED_BY_THEN)
    }

    fn has_news(&self, by: Time) -> bool {
        self.freed || !self.born_told || self.removed.is_some() != self.removed_told || self.is_left(by)
    }
}

impl<K: Clone + Eq + Hash> Fates<K> {
    pub fn new() -> Fates<K> {
        Fates { lives: HashMap::new(), slots: HashMap::new(), by_key: HashMap::new(), next_slot: 0 }
    }

    /// Follows a new cgroup; false if there are too many.
    pub fn made(&mut self, id: u64) -> bool {
        if self.lives.len() >= MAX_FOLLOWED {
            self.lives.retain(|_, life| !life.is_done());
        }
        if self.lives.len() >= MAX_FOLLOWED {
            return false;
        }
        // Its id may have been that of an earlier one.
        self.lives.insert(id, Life::default());
        true
    }

    pub fn removed(&mut self, id: u64, at: Time) {
        if let Some(life) = self.lives.get_mut(&id) {
            life.removed.get_or_insert(at);
        }
    }

    pub fn freed(&mut self, id: u64) {
        if let Some(life) = self.lives.get_mut(&id) {
            life.freed = true;
        }
    }

    /// Says who created these.
    pub fn settle(&mut self, ids: &[u64], key: &K, parent: &str, pattern: &str, maker: impl FnOnce() -> Maker) {
        if ids.is_empty() {
            return;
        }
        let slot = *self.by_key.entry(key.clone()).or_insert_with(|| {
            let slot = self.next_slot;
            self.next_slot = self.next_slot.wrapping_add(1);
            let (parent, pattern) = (parent.to_owned(), pattern.to_owned());
            self.slots.insert(slot, Slot { parent, pattern, maker: maker() });
            slot
        });
        for id in ids {
            if let Some(life) = self.lives.get_mut(id) {
                life.slot = Some(slot);
            }
        }
    }

    /// A better description of who created them.
    pub fn describe(&mut self, key: &K, maker: &Maker) {
        if let Some(slot) = self.by_key.get(key).and_then(|slot| self.slots.get_mut(slot)) {
            slot.maker.clone_from(maker);
        }
    }

    /// The rows of the interval that ends now. The last one also reports those that were removed a moment ago.
    pub fn tell(&mut self, from: Time, to: Time, last: bool) -> Vec<CgroupFate> {
        let by = if last { to + FREED_BY_THEN } else { to };
        let mut news: HashMap<u32, Vec<u64>> = HashMap::new();
        for (id, life) in &self.lives {
            if let Some(slot) = life.slot.filter(|_| life.has_news(by)) {
                news.entry(slot).or_default().push(*id);
            }
        }
        let mut news: Vec<(u32, Vec<u64>)> = news.into_iter().collect();
        let left =
            |ids: &[u64]| ids.iter().filter(|id| self.lives.get(id).is_some_and(|life| life.is_left(by))).count();
        news.sort_by_cached_key(|(slot, ids)| (Reverse(left(ids)), Reverse(ids.len()), *slot));
        news.truncate(MAX_ROWS);
        let mut rows = Vec::with_capacity(news.len());
        for (slot, mut ids) in news {
            let Some(Slot { parent, pattern, maker, .. }) = self.slots.get(&slot) else { continue };
            let (parent, pattern, maker) = (parent.clone(), pattern.clone(), maker.clone());
            let mut row = CgroupFate { from, to, parent, pattern, maker, ..CgroupFate::default() };
            ids.sort_unstable();
            for id in ids {
                let Some(life) = self.lives.get_mut(&id) else { continue };
                if !std::mem::replace(&mut life.born_told, true) {
                    row.born += 1;
                }
                if life.removed.is_some() && !std::mem::replace(&mut life.removed_told, true) {
                    row.removed += 1;
                }
                if life.freed {
                    row.freed += 1;
                    if life.left_told {
                        row.left_freed.push(id);
                    }
                    self.lives.remove(&id);
                } else if life.is_left(by) && row.left.len() < MAX_IDS {
                    life.left_told = true;
                    row.left.push(id);
                }
            }
            rows.push(row);
        }
        self.forget_unused();
        rows
    }

    fn forget_unused(&mut self) {
        let used: std::collections::HashSet<u32> = self.lives.values().filter_map(|life| life.slot).collect();
        self.slots.retain(|slot, _| used.contains(slot));
        self.by_key.retain(|_, slot| used.contains(slot));
    }
}
