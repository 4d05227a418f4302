//! Frame lines seen before.
//!
//! A line is remembered without its address and without the digits of its offset: `SYMBOL+0x` … ` (MODULE)\n`. Everything
//! that is said of a frame follows from these, so two lines with the same parts are the same frame.

use super::frame::{Split, is_hex};
use crate::model::hash;

/// A remembered line.
struct Known {
    start: usize,
    head: u32,
    tail: u32,
    /// What the sink called it.
    value: u32,
    /// The line that came after this one last time.
    next: u32,
    has_offset: bool,
    high: bool,
}

pub(super) struct Memo {
    seed: u64,
    slots: Vec<u64>,
    known: Vec<Known>,
    keys: Vec<u8>,
}

/// Before the first frame of a stack. A known line that equals no line.
pub(super) const START: u32 = 0;

impl Memo {
    pub fn new() -> Memo {
        let start = Known { start: 0, head: 1, tail: 0, value: 0, next: START, has_offset: false, high: false };
        Memo { seed: hash::random_seed(), slots: vec![0; 1 << 12], known: vec![start], keys: vec![b'\n'] }
    }

    #[inline(always)]
    pub fn value(&self, id: u32) -> u32 {
        self.known[id as usize].value
    }

    #[inline(always)]
    pub fn follows(&mut self, before: u32, id: u32) {
        self.known[before as usize].next = id;
    }

    /// If `rest` begins with the line that came after `before` last time: that line, and its length with the newline.
    #[inline(always)]
    pub fn guess(&self, before: u32, rest: &[u8], high: bool) -> Option<(u32, usize)> {
        let id = self.known[before as usize].next;
        let known = &self.known[id as usize];
        let (head, tail) = (known.head as usize, known.tail as usize);
        let key = &self.keys[known.start..known.start + head + tail];
        if known.high != high || !same(rest.get(..head)?, &key[..head]) {
            return None;
        }
        let mut at = head;
        if known.has_offset {
            while is_hex(*rest.get(at)?) {
                at += 1;
            }
            if at == head {
                return None;
            }
        }
        same(rest.get(at..at + tail)?, &key[head..]).then_some((id, at + tail))
    }

    #[inline(always)]
    fn hash(&self, head: &[u8], tail: &[u8], high: bool) -> u64 {
        hash::bytes(hash::bytes(self.seed ^ u64::from(high), head), tail)
    }

    /// Looks for the line `rest[..]`, which ends with its newline.
    #[inline(always)]
    pub fn find(&self, line: &[u8], split: Split, high: bool) -> Result<u32, u64> {
        let (head, tail) = (&line[..split.head], &line[split.tail..]);
        let hash = self.hash(head, tail, high);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Err(hash);
            }
            if (slot >> 32) as u32 == (hash >> 32) as u32 {
                let known = &self.known[slot as u32 as usize];
                let key = &self.keys[known.start..][..(known.head + known.tail) as usize];
                let same_shape = known.head as usize == head.len()
                    && known.tail as usize == tail.len()
                    && known.high == high
                    && known.has_offset == (split.head < split.tail);
                if same_shape && same(&key[..head.len()], head) && same(&key[head.len()..], tail) {
                    return Ok(slot as u32);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Remembers a line that [`Memo::find`] did not know. `None` if there are more lines than ids.
    pub fn add(&mut self, line: &[u8], split: Split, high: bool, hash: u64, value: u32) -> Option<u32> {
        let id = u32::try_from(self.known.len()).ok()?;
        let start = self.keys.len();
        self.keys.extend_from_slice(&line[..split.head]);
        self.keys.extend_from_slice(&line[split.tail..]);
        let tail = line.len() - split.tail;
        let has_offset = split.head < split.tail;
        self.known.push(Known {
            start,
            head: split.head as u32,
            tail: tail as u32,
            value,
            next: START,
            has_offset,
            high,
        });
        if self.known.len() * 2 > self.slots.len() {
            self.grow();
        } else {
            put(&mut self.slots, hash, id);
        }
        Some(id)
    }

    fn grow(&mut self) {
        let mut slots = vec![0; self.slots.len() * 2];
        for (id, known) in self.known.iter().enumerate().skip(1) {
            let key = &self.keys[known.start..][..(known.head + known.tail) as usize];
            let (head, tail) = key.split_at(known.head as usize);
            put(&mut slots, self.hash(head, tail, known.high), id as u32);
        }
        self.slots = slots;
    }
}

/// Whether two strings of the same length are equal. The names at hand are short; a call to memcmp costs more than it does.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    let n = a.len();
    if n != b.len() {
        return false;
    }
    if !(8..=64).contains(&n) {
        return a == b;
    }
    let word = |text: &[u8], at: usize| u64::from_le_bytes(text[at..at + 8].try_into().expect("eight bytes"));
    let mut at = 0;
    while at + 8 < n {
        if word(a, at) != word(b, at) {
            return false;
        }
        at += 8;
    }
    word(a, n - 8) == word(b, n - 8)
}

fn put(slots: &mut [u64], hash: u64, id: u32) {
    let mask = slots.len() - 1;
    let mut at = hash as usize & mask;
    while slots[at] != 0 {
        at = (at + 1) & mask;
    }
    slots[at] = u64::from((hash >> 32) as u32) << 32 | u64::from(id);
}
