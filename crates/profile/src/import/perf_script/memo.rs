//! A cache of frame lines.
//!
//! A line is remembered without its address and the digits of its offset: `SYMBOL+0x` … ` (MODULE)\n`. These determine the frame,
//! so two lines with the same parts are the same frame.

use std::collections::HashMap;
use std::hash::BuildHasher;

use super::bytes::{equal, hex_and_spaces};
use super::frame::Split;
use crate::model::{Seeded, Slots};

/// A frame line after its address.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    /// The line and what follows it.
    pub text: &'a [u8],
    /// With the newline.
    pub length: usize,
}

impl<'a> Line<'a> {
    /// The line with its newline, if it has one.
    pub fn whole(&self) -> &'a [u8] {
        &self.text[..self.length.min(self.text.len())]
    }
}

/// Parts of lines are compared in blocks of this many bytes.
const BLOCK: usize = 32;

/// A remembered line, in one cache line.
#[repr(align(64))]
struct KnownLine {
    /// The first bytes of its head, padded; enough for most.
    head_block: [u8; BLOCK],
    head: u32,
    /// Index of its tail.
    tail: u32,
    /// The minimal length of such a line, with its newline.
    least: u32,
    /// How many digits beyond one its offset may have. 0 without an offset.
    spread: u32,
    /// The sink's id for it.
    value: u32,
    /// The line that followed this one last time.
    next: u32,
    high: bool,
}

impl KnownLine {
    fn has_offset(&self) -> bool {
        self.spread > 0
    }
}

/// ` (MODULE)\n`; there are few.
struct Tail {
    /// The first bytes, padded.
    blocks: [[u8; BLOCK]; 2],
    length: usize,
}

pub(super) struct Memo {
    seed: foldhash::quality::RandomState,
    slots: Slots,
    known: Vec<KnownLine>,
    /// The heads of all known lines, concatenated, and where each ends.
    heads: Vec<u8>,
    head_ends: Vec<usize>,
    tails: Vec<Tail>,
    tail_ids: HashMap<Vec<u8>, u32, Seeded>,
    /// The line last seen at an address of each region.
    near: Vec<u32>,
}

/// Number of address regions; a power of two. 64 KiB fit the second-level cache.
const REGIONS: usize = 1 << 14;

/// Before the first frame of a stack: a known line that matches nothing.
pub(super) const START: u32 = 0;

impl Memo {
    pub fn new() -> Memo {
        let start = KnownLine {
            head_block: [0; BLOCK],
            head: 0,
            tail: 0,
            // Longer than any line.
            least: u32::MAX,
            spread: 0,
            value: 0,
            next: START,
            high: false,
        };
        let mut memo = Memo {
            seed: Default::default(),
            slots: Slots::new(),
            known: vec![start],
            heads: Vec::new(),
            head_ends: vec![0],
            tails: Vec::new(),
            tail_ids: HashMap::default(),
            near: vec![START; REGIONS],
        };
        memo.tail(b"");
        memo
    }

    #[inline(always)]
    pub fn value(&self, id: u32) -> u32 {
        self.known[id as usize].value
    }

    #[inline(always)]
    pub fn follows(&mut self, before: u32, id: u32) {
        self.known[before as usize].next = id;
    }

    /// The line that followed `before` last time, if `line` is the same.
    #[inline(always)]
    pub fn guess(&self, before: u32, line: Line<'_>, high: bool) -> Option<u32> {
        self.matches(self.known[before as usize].next, line, high)
    }

    /// The line last seen near the address, if `line` is the same.
    #[inline(always)]
    pub fn guess_at(&self, region: u64, line: Line<'_>, high: bool) -> Option<u32> {
        self.matches(self.near[slot_of(region)], line, high)
    }

    #[inline(always)]
    pub fn lies_at(&mut self, region: u64, id: u32) {
        self.near[slot_of(region)] = id;
    }

    /// `id` if that line equals this one. Near the end of the text always `None`: more bytes than the line are read.
    #[inline(always)]
    fn matches(&self, id: u32, line: Line<'_>, high: bool) -> Option<u32> {
        let known = &self.known[id as usize];
        // What remains besides the known parts are the digits of the offset.
        let more = line.length.wrapping_sub(known.least as usize);
        if known.high != high || more > known.spread as usize {
            return None;
        }
        let digits = more + usize::from(known.has_offset());
        let head = known.head as usize;
        let behind = line.text.get(head..)?;
        let tail_text = behind.get(digits..)?;
        let not_hex = !hex_and_spaces(behind.first_chunk()?).0 & ((1 << digits) - 1);
        let tail = &self.tails[known.tail as usize];
        let same = not_hex == 0
            && starts_alike(line.text, &known.head_block, head)
            && starts_alike(tail_text, &tail.blocks[0], tail.length)
            && (tail.length <= BLOCK
                || tail_text.get(BLOCK..).is_some_and(|text| starts_alike(text, &tail.blocks[1], tail.length - BLOCK)))
            && (head <= BLOCK && tail.length <= 2 * BLOCK
                || self.is(id, line.text.get(..head)?, tail_text.get(..tail.length)?));
        same.then_some(id)
    }

    /// Whether these are exactly the head and tail of a known line.
    fn is(&self, id: u32, head: &[u8], tail: &[u8]) -> bool {
        self.head(id) == head && self.tail_ids.get(tail) == Some(&self.known[id as usize].tail)
    }

    fn head(&self, id: u32) -> &[u8] {
        let end = self.head_ends[id as usize];
        &self.heads[end - self.known[id as usize].head as usize..end]
    }

    fn tail(&mut self, text: &[u8]) -> u32 {
        if let Some(id) = self.tail_ids.get(text) {
            return *id;
        }
        let id = self.tails.len() as u32;
        self.tails
            .push(Tail { blocks: [block(text), block(text.get(BLOCK..).unwrap_or_default())], length: text.len() });
        self.tail_ids.insert(text.to_vec(), id);
        id
    }

    fn hash(&self, head: &[u8], tail: u32, high: bool) -> u64 {
        self.seed.hash_one((head, tail, high))
    }

    /// Looks up `line`, which ends with its newline.
    pub fn find(&self, line: &[u8], split: Split, high: bool) -> Option<u32> {
        let (head, tail) = (&line[..split.head], *self.tail_ids.get(&line[split.tail..])?);
        self.slots.find(self.hash(head, tail, high), |id| {
            let known = &self.known[id as usize];
            let same_shape = known.high == high && known.has_offset() == (split.head < split.tail);
            same_shape && known.tail == tail && self.head(id) == head
        })
    }

    /// Adds a line that [`Memo::find`] did not find. `None` if the ids are used up.
    pub fn add(&mut self, line: &[u8], split: Split, high: bool, value: u32) -> Option<u32> {
        let id = u32::try_from(self.known.len()).ok()?;
        let (head, tail_text) = (&line[..split.head], &line[split.tail..]);
        self.heads.extend_from_slice(head);
        self.head_ends.push(self.heads.len());
        let tail = self.tail(tail_text);
        let has_offset = split.head < split.tail;
        self.known.push(KnownLine {
            head_block: block(head),
            head: head.len() as u32,
            tail,
            least: (head.len() + tail_text.len()) as u32 + u32::from(has_offset),
            spread: if has_offset { 15 } else { 0 },
            value,
            next: START,
            high,
        });
        self.slots.add(self.hash(head, tail, high), id);
        Some(id)
    }
}

#[inline(always)]
fn slot_of(region: u64) -> usize {
    (region >> (64 - REGIONS.trailing_zeros())) as usize
}

pub(super) fn block(text: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let length = text.len().min(BLOCK);
    block[..length].copy_from_slice(&text[..length]);
    block
}

/// Whether `text` begins with the first `length` bytes of the block. Compares the whole block whatever the length, which costs less
/// than a mispredicted branch.
#[inline(always)]
pub(super) fn starts_alike(text: &[u8], block: &[u8; BLOCK], length: usize) -> bool {
    let wanted = ((1u64 << length.min(BLOCK)) - 1) as u32;
    text.first_chunk().is_some_and(|text| !equal(text, block) & wanted == 0)
}
