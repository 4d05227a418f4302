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
    /// The line last seen at an address of each region.
    near: Vec<u32>,
}

/// Regions of addresses told apart; a power of two. 64 KiB stay in the second-level cache.
const REGIONS: usize = 1 << 14;

/// Before the first frame of a stack. A known line that equals no line.
pub(super) const START: u32 = 0;

impl Memo {
    pub fn new() -> Memo {
        let start = Known { start: 0, head: 1, tail: 0, value: 0, next: START, has_offset: false, high: false };
        Memo {
            seed: hash::random_seed(),
            slots: vec![0; 1 << 12],
            known: vec![start],
            keys: vec![b'\n'],
            near: vec![START; REGIONS],
        }
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
        self.matches(self.known[before as usize].next, rest, high)
    }

    /// If `rest` begins with the line that was last seen near the address: that line, and its length with the newline.
    #[inline(always)]
    pub fn guess_at(&self, region: u64, rest: &[u8], high: bool) -> Option<(u32, usize)> {
        self.matches(self.near[slot_of(region)], rest, high)
    }

    #[inline(always)]
    pub fn lies_at(&mut self, region: u64, id: u32) {
        self.near[slot_of(region)] = id;
    }

    #[inline(always)]
    fn matches(&self, id: u32, rest: &[u8], high: bool) -> Option<(u32, usize)> {
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

#[inline(always)]
fn slot_of(region: u64) -> usize {
    (region >> (64 - REGIONS.trailing_zeros())) as usize
}

/// Whether two strings of the same length are equal. The names at hand are short; a call to memcmp costs more than it does.
#[inline(always)]
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    if a.len() > 64 {
        return a == b;
    }
    let (Some(a_last), Some(b_last)) = (a.last_chunk::<8>(), b.last_chunk::<8>()) else {
        let (Some(a_last), Some(b_last)) = (a.last_chunk::<4>(), b.last_chunk::<4>()) else {
            return a == b;
        };
        return a_last == b_last && a.first_chunk::<4>() == b.first_chunk::<4>();
    };
    // The last eight bytes overlap what the loop compared: no loop over a remainder.
    let (mut a, mut b) = (a, b);
    while let (Some((a_next, a_rest)), Some((b_next, b_rest))) =
        (a.split_first_chunk::<8>(), b.split_first_chunk::<8>())
    {
        if a_next != b_next {
            return false;
        }
        (a, b) = (a_rest, b_rest);
    }
    a_last == b_last
}

fn put(slots: &mut [u64], hash: u64, id: u32) {
    let mask = slots.len() - 1;
    let mut at = hash as usize & mask;
    while slots[at] != 0 {
        at = (at + 1) & mask;
    }
    slots[at] = u64::from((hash >> 32) as u32) << 32 | u64::from(id);
}
