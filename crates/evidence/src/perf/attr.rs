//! The settings of one event (`struct perf_event_attr`), as far as they shape the records.

use super::fields::Fields;
use super::kind;

/// Bits of `sample_type` (include/uapi/linux/perf_event.h, `PERF_SAMPLE_*`).
pub mod sample_bit {
    pub const IP: u64 = 1 << 0;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const READ: u64 = 1 << 4;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const RAW: u64 = 1 << 10;
    pub const BRANCH_STACK: u64 = 1 << 11;
    pub const REGS_USER: u64 = 1 << 12;
    pub const STACK_USER: u64 = 1 << 13;
    pub const WEIGHT: u64 = 1 << 14;
    pub const DATA_SRC: u64 = 1 << 15;
    pub const IDENTIFIER: u64 = 1 << 16;
    pub const TRANSACTION: u64 = 1 << 17;
    pub const REGS_INTR: u64 = 1 << 18;
    pub const PHYS_ADDR: u64 = 1 << 19;
    pub const CGROUP: u64 = 1 << 21;
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
}
use sample_bit as bit;

/// `PERF_SAMPLE_BRANCH_HW_INDEX`: branch stacks have one more word.
const BRANCH_HW_INDEX: u64 = 1 << 17;
const SAMPLE_ID_ALL: u64 = 1 << 18;

#[derive(Clone, Debug, Default)]
pub struct Attr {
    pub name: String,
    pub sample_type: u64,
    pub read_format: u64,
    pub sample_period: u64,
    pub has_hw_index: bool,
    pub regs_user: u64,
    pub regs_intr: u64,
    pub sample_id_all: bool,
    pub ids: Vec<u64>,
}

impl Attr {
    /// Parses the structure, which grew over time: fields that an old file lacks are zero.
    pub fn parse(mut fields: Fields<'_>) -> Option<Attr> {
        let kind = fields.u32()?;
        let _size = fields.u32()?;
        let config = fields.u64()?;
        let sample_period = fields.u64()?;
        let sample_type = fields.u64()?;
        let read_format = fields.u64()?;
        let flags = fields.u64()?;
        let frequency = flags & 1 << 10 != 0;
        let mut attr = Attr {
            name: name(kind, config),
            sample_type,
            read_format,
            // With a frequency, this word is the rate, and each sample has its own period.
            sample_period: if frequency { 1 } else { sample_period.max(1) },
            sample_id_all: flags & SAMPLE_ID_ALL != 0,
            ..Attr::default()
        };
        let mut rest = || -> Option<()> {
            fields.skip_words(3)?; // wake-up and breakpoint fields
            attr.has_hw_index = fields.u64()? & BRANCH_HW_INDEX != 0;
            attr.regs_user = fields.u64()?;
            fields.skip_words(1)?; // sample_stack_user, clockid
            attr.regs_intr = fields.u64()?;
            Some(())
        };
        rest();
        Some(attr)
    }

    /// Whether samples of both have the same fields in the same places.
    pub fn is_like(&self, other: &Attr) -> bool {
        self.sample_type == other.sample_type
    }

    /// Offset of the id from the start of a sample, in words.
    pub fn id_word(&self) -> Option<usize> {
        if self.sample_type & bit::IDENTIFIER != 0 {
            return Some(0);
        }
        let before = bit::IP | bit::TID | bit::TIME | bit::ADDR;
        (self.sample_type & bit::ID != 0).then(|| (self.sample_type & before).count_ones() as usize)
    }

    /// Offset of the time from the start of a sample, in words.
    fn time_word(&self) -> Option<usize> {
        let before = bit::IDENTIFIER | bit::IP | bit::TID;
        (self.sample_type & bit::TIME != 0).then(|| (self.sample_type & before).count_ones() as usize)
    }

    pub fn has_thread(&self) -> bool {
        self.sample_type & bit::TID != 0
    }

    pub fn has_address(&self) -> bool {
        self.sample_type & bit::IP != 0
    }

    /// Samples carry the counts of a whole group (`-e '{a,b}:S'`).
    pub fn reads_group(&self) -> bool {
        self.sample_type & bit::READ != 0 && self.read_format & 8 != 0
    }

    /// User stacks were recorded as copies of memory, not as addresses.
    pub fn copies_stacks(&self) -> bool {
        self.sample_type & bit::STACK_USER != 0
    }

    /// When a record was written, if it says so.
    #[inline]
    pub fn time_of(&self, kind: u32, body: &[u8], swap: bool) -> Option<u64> {
        let at = match kind {
            kind::SAMPLE => self.time_word()? * 8,
            _ => body.len().checked_sub(self.time_word_from_end()? * 8)?,
        };
        Fields::new(body.get(at..)?, swap).u64()
    }

    /// The core on which a record other than a sample was written.
    pub fn core_of(&self, body: &[u8], swap: bool) -> Option<u32> {
        let at = body.len().checked_sub(self.core_word_from_end()? * 8)?;
        Fields::new(&body[at..], swap).u32()
    }

    /// Offset of the core from the end of any other record, in words.
    fn core_word_from_end(&self) -> Option<usize> {
        let from_core_on = bit::CPU | bit::IDENTIFIER;
        let has_core = self.sample_id_all && self.sample_type & bit::CPU != 0;
        has_core.then(|| (self.sample_type & from_core_on).count_ones() as usize)
    }

    /// Offset of the time from the end of any other record, in words.
    fn time_word_from_end(&self) -> Option<usize> {
        let from_time_on = bit::TIME | bit::ID | bit::STREAM_ID | bit::CPU | bit::IDENTIFIER;
        let has_time = self.sample_id_all && self.sample_type & bit::TIME != 0;
        has_time.then(|| (self.sample_type & from_time_on).count_ones() as usize)
    }

    /// A record's body without what sample_id_all appends, which must not be taken for part of a path.
    pub fn own_part<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        let all = bit::TID | bit::TIME | bit::ID | bit::STREAM_ID | bit::CPU | bit::IDENTIFIER;
        let added = if self.sample_id_all { (self.sample_type & all).count_ones() as usize * 8 } else { 0 };
        &body[..body.len().saturating_sub(added)]
    }
}

/// Whether samples of all events have the same fields in the same places.
pub fn are_alike(attrs: &[Attr]) -> bool {
    attrs.iter().all(|attr| attr.is_like(&attrs[0]))
}

/// perf's name for an event, if the file has none.
fn name(kind: u32, config: u64) -> String {
    let hardware = ["cycles", "instructions", "cache-references", "cache-misses", "branches", "branch-misses"];
    let software = [
        "cpu-clock",
        "task-clock",
        "page-faults",
        "context-switches",
        "cpu-migrations",
        "minor-faults",
        "major-faults",
    ];
    let known = match kind {
        0 => hardware.get(config as usize),
        1 => software.get(config as usize),
        _ => None,
    };
    known.map_or_else(|| format!("event {kind}:{config:#x}"), |name| (*name).to_owned())
}
