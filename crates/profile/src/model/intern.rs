//! Interning tables: one small number per distinct value.

use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;

/// Slots of an open-addressing table. 0 is free; otherwise the low half holds the id plus one and the high half a tag of the hash.
/// The tag also gives the preferred slot, so growing the table need not hash its values again.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    slots: Vec<u64>,
    used: usize,
}

impl Slots {
    pub fn new() -> Slots {
        Slots { slots: vec![0; 64], used: 0 }
    }

    /// The id whose tag matches `hash` and for which `same` holds.
    #[inline(always)]
    pub fn find(&self, hash: u64, mut same: impl FnMut(u32) -> bool) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut at = self.place(tag(hash));
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if tag(slot) == tag(hash) && same(slot as u32 - 1) {
                return Some(slot as u32 - 1);
            }
            at = (at + 1) & mask;
        }
    }

    pub fn add(&mut self, hash: u64, id: u32) {
        if (self.used + 1) * 2 > self.slots.len() {
            let old = std::mem::take(&mut self.slots);
            // Written, not taken as zero pages from the kernel: they are read first, so each page would be mapped twice,
            // with a TLB flush on all cores that run us.
            self.slots.resize(old.len() * 2, 0);
            for slot in old.into_iter().filter(|slot| *slot != 0) {
                self.put(slot);
            }
        }
        self.put(u64::from(tag(hash)) << 32 | u64::from(id + 1));
        self.used += 1;
    }

    fn held_bytes(&self) -> usize {
        self.slots.len() * 8
    }

    /// The preferred slot of this tag.
    #[inline(always)]
    fn place(&self, tag: u32) -> usize {
        tag as usize & (self.slots.len() - 1)
    }

    fn put(&mut self, slot: u64) {
        let mask = self.slots.len() - 1;
        let mut at = self.place(tag(slot));
        while self.slots[at] != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = slot;
    }
}

/// The high half of a hash, or of a slot.
#[inline(always)]
fn tag(of: u64) -> u32 {
    (of >> 32) as u32
}

/// An interned string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StrId(pub u32);

/// Interned strings. Id 0 is the empty string.
#[derive(Clone, Debug)]
pub struct Strings {
    seed: RandomState,
    slots: Slots,
    text: String,
    ends: Vec<usize>,
}

impl Default for Strings {
    fn default() -> Strings {
        let mut strings =
            Strings { seed: RandomState::default(), slots: Slots::new(), text: String::new(), ends: Vec::new() };
        strings.intern("");
        strings
    }
}

impl Strings {
    pub const EMPTY: StrId = StrId(0);

    pub fn intern(&mut self, text: &str) -> StrId {
        let h = self.seed.hash_one(text);
        if let Some(id) = self.slots.find(h, |id| self.get(StrId(id)) == text) {
            return StrId(id);
        }
        let id = self.ends.len() as u32;
        self.text.push_str(text);
        self.ends.push(self.text.len());
        self.slots.add(h, id);
        StrId(id)
    }

    /// Interns bytes from a file; invalid UTF-8 becomes U+FFFD.
    pub fn intern_bytes(&mut self, text: &[u8]) -> StrId {
        self.intern(&String::from_utf8_lossy(text))
    }

    pub fn find(&self, text: &str) -> Option<StrId> {
        self.slots.find(self.seed.hash_one(text), |id| self.get(StrId(id)) == text).map(StrId)
    }

    pub fn get(&self, id: StrId) -> &str {
        span(&self.text, &self.ends, id.0)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    /// What it takes of memory.
    pub fn held_bytes(&self) -> usize {
        self.slots.held_bytes() + self.text.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    pub fn iter(&self) -> impl Iterator<Item = (StrId, &str)> {
        (0..self.ends.len() as u32).map(|id| (StrId(id), span(&self.text, &self.ends, id)))
    }
}

fn span<'a>(text: &'a str, ends: &[usize], id: u32) -> &'a str {
    let start = if id == 0 { 0 } else { ends[id as usize - 1] };
    &text[start..ends[id as usize]]
}

/// A lookup whose candidate has not been compared yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looked {
    hash: u64,
    slot: u64,
}

/// Interned runs of bytes or words (ids, numbers). Ids count from 0.
#[derive(Clone, Debug)]
pub struct Runs<T> {
    seed: RandomState,
    slots: Slots,
    items: Vec<T>,
    ends: Vec<usize>,
}

pub type ByteTable = Runs<u8>;
pub type WordTable = Runs<u32>;

impl<T> Default for Runs<T> {
    fn default() -> Runs<T> {
        Runs { seed: RandomState::default(), slots: Slots::new(), items: Vec::new(), ends: Vec::new() }
    }
}

impl<T: Copy + Eq + Hash> Runs<T> {
    #[inline]
    pub fn find(&self, key: &[T]) -> Option<u32> {
        self.slots.find(self.seed.hash_one(key), |id| self.get(id) == key)
    }

    /// Adds a key that [`Runs::find`] did not find.
    pub fn add(&mut self, key: &[T]) -> u32 {
        let id = self.ends.len() as u32;
        self.items.extend_from_slice(key);
        self.ends.push(self.items.len());
        self.slots.add(self.seed.hash_one(key), id);
        id
    }

    /// The id of `key`, and whether it was added.
    #[inline]
    pub fn intern(&mut self, key: &[T]) -> (u32, bool) {
        self.find(key).map_or_else(|| (self.add(key), true), |id| (id, false))
    }

    /// Hashes `key` and reads its slot, without comparing.
    #[inline(always)]
    pub fn look(&self, key: &[T]) -> Looked {
        let hash = self.seed.hash_one(key);
        Looked { hash, slot: self.slots.slots[self.slots.place(tag(hash))] }
    }

    /// Completes a [`Runs::look`]. Keys may have been added since.
    #[inline(always)]
    pub fn intern_looked(&mut self, key: &[T], looked: Looked) -> (u32, bool) {
        let Looked { hash, slot } = looked;
        if slot != 0 && tag(slot) == tag(hash) {
            let id = slot as u32 - 1;
            if self.get(id) == key {
                return (id, false);
            }
        }
        self.intern(key)
    }

    #[inline(always)]
    pub fn get(&self, id: u32) -> &[T] {
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] };
        &self.items[start..self.ends[id as usize]]
    }

    /// What it takes of memory.
    pub fn held_bytes(&self) -> usize {
        self.slots.held_bytes() + self.items.capacity() * size_of::<T>() + self.ends.capacity() * size_of::<usize>()
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_the_same_when_the_table_grows() {
        let mut strings = Strings::default();
        let ids: Vec<StrId> = (0..10_000).map(|n| strings.intern(&format!("symbol_{n}"))).collect();
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(strings.intern(&format!("symbol_{n}")), *id);
            assert_eq!(strings.get(*id), format!("symbol_{n}"));
        }
        assert_eq!(strings.len(), 10_001);
        assert_eq!(strings.intern(""), Strings::EMPTY);
    }

    #[test]
    fn runs_of_words_differ_by_length_and_content() {
        let mut table = WordTable::default();
        let (a, new_a) = table.intern(&[1, 2, 3]);
        let (b, new_b) = table.intern(&[1, 2]);
        let (c, _) = table.intern(&[]);
        assert!(new_a && new_b && a != b && b != c);
        assert_eq!(table.intern(&[1, 2, 3]), (a, false));
        assert_eq!(table.get(b), &[1, 2]);
    }
}
