//! Interning tables: one small number per distinct value.

use super::hash;

/// Slots of an open-addressing table. 0 is free; otherwise the low half holds the id plus one and the high half a tag of the hash.
/// The tag also gives the preferred slot, so growing the table need not hash its values again.
#[derive(Clone, Debug)]
struct Slots {
    slots: Vec<u64>,
    used: usize,
}

impl Slots {
    fn new() -> Slots {
        Slots { slots: vec![0; 64], used: 0 }
    }

    /// The id whose tag matches `hash` and for which `same` holds.
    #[inline(always)]
    fn find(&self, hash: u64, mut same: impl FnMut(u32) -> bool) -> Option<u32> {
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

    fn add(&mut self, hash: u64, id: u32) {
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
    seed: u64,
    slots: Slots,
    text: String,
    ends: Vec<usize>,
}

impl Default for Strings {
    fn default() -> Strings {
        let mut strings =
            Strings { seed: hash::random_seed(), slots: Slots::new(), text: String::new(), ends: Vec::new() };
        strings.intern("");
        strings
    }
}

impl Strings {
    pub const EMPTY: StrId = StrId(0);

    pub fn intern(&mut self, text: &str) -> StrId {
        let h = hash::bytes(self.seed, text.as_bytes());
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
        self.slots.find(hash::bytes(self.seed, text.as_bytes()), |id| self.get(StrId(id)) == text).map(StrId)
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

/// Interned byte strings.
#[derive(Clone, Debug)]
pub struct ByteTable {
    seed: u64,
    slots: Slots,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Default for ByteTable {
    fn default() -> ByteTable {
        ByteTable { seed: hash::random_seed(), slots: Slots::new(), bytes: Vec::new(), ends: Vec::new() }
    }
}

impl ByteTable {
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        let (bytes, ends) = (&self.bytes, &self.ends);
        self.slots.find(hash::bytes(self.seed, key), |id| piece(bytes, ends, id) == key)
    }

    /// Adds a key that [`ByteTable::find`] did not find. Ids count from 0.
    pub fn add(&mut self, key: &[u8]) -> u32 {
        let id = self.ends.len() as u32;
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
        self.slots.add(hash::bytes(self.seed, key), id);
        id
    }
}

#[inline(always)]
fn piece<'a>(bytes: &'a [u8], ends: &[usize], id: u32) -> &'a [u8] {
    let start = if id == 0 { 0 } else { ends[id as usize - 1] };
    &bytes[start..ends[id as usize]]
}

/// A lookup whose candidate has not been compared yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looked {
    hash: u64,
    slot: u64,
}

/// Interned runs of words (ids, numbers).
#[derive(Clone, Debug)]
pub struct WordTable {
    seed: u64,
    slots: Slots,
    words: Vec<u32>,
    ends: Vec<usize>,
}

impl Default for WordTable {
    fn default() -> WordTable {
        WordTable { seed: hash::random_seed(), slots: Slots::new(), words: Vec::new(), ends: Vec::new() }
    }
}

impl WordTable {
    /// The id of `key`, and whether it was added.
    #[inline]
    pub fn intern(&mut self, key: &[u32]) -> (u32, bool) {
        let h = hash::ids(self.seed, key);
        let (words, ends) = (&self.words, &self.ends);
        if let Some(id) = self.slots.find(h, |id| run(words, ends, id) == key) {
            return (id, false);
        }
        let id = self.ends.len() as u32;
        self.words.extend_from_slice(key);
        self.ends.push(self.words.len());
        self.slots.add(h, id);
        (id, true)
    }

    /// Hashes `key` and reads its slot, without comparing.
    #[inline(always)]
    pub fn look(&self, key: &[u32]) -> Looked {
        let hash = hash::ids(self.seed, key);
        Looked { hash, slot: self.slots.slots[self.slots.place(tag(hash))] }
    }

    /// Completes a [`WordTable::look`]. Keys may have been added since.
    #[inline(always)]
    pub fn intern_looked(&mut self, key: &[u32], looked: Looked) -> (u32, bool) {
        let Looked { hash, slot } = looked;
        if slot != 0 && tag(slot) == tag(hash) {
            let id = slot as u32 - 1;
            if run(&self.words, &self.ends, id) == key {
                return (id, false);
            }
        }
        self.intern(key)
    }

    pub fn get(&self, id: u32) -> &[u32] {
        run(&self.words, &self.ends, id)
    }

    /// What it takes of memory.
    pub fn held_bytes(&self) -> usize {
        self.slots.held_bytes() + self.words.capacity() * 4 + self.ends.capacity() * size_of::<usize>()
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[inline(always)]
fn run<'a>(words: &'a [u32], ends: &[usize], id: u32) -> &'a [u32] {
    let start = if id == 0 { 0 } else { ends[id as usize - 1] };
    &words[start..ends[id as usize]]
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
