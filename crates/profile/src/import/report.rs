//! What an importer could not use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How many positions are kept per kind of oddity.
const PLACES: usize = 5;
/// How much of the first odd line is kept.
const EXAMPLE_BYTES: usize = 160;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OddityKind {
    /// A line that is neither an event, a frame nor a comment.
    UnparsedLine,
    /// A line in a stack that is not a frame.
    UnparsedFrame,
    /// An overlong line; skipped.
    OverlongLine,
    /// Frames without a header before them; kept as a sample of an unknown task.
    HeadlessStack,
    /// An event without a stack; kept with its task alone.
    EmptyStack,
    /// One of perf's own records (mmap, comm, fork); not a sample.
    PerfRecord,
    /// The source line of a frame (`-F srcline`); not kept.
    SourceLine,
    /// A stack that is broken from some frame on; kept up to there.
    StrayStack,
    /// A record of a binary file that could not be decoded; skipped.
    BadRecord,
    /// Something in the file that is not supported.
    Unsupported,
}

/// One kind of thing that could not be used, how often, and where first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oddity {
    pub kind: OddityKind,
    pub count: u64,
    /// The first positions: line numbers of a text (from 1), byte offsets of a binary file.
    pub first: Vec<u64>,
    /// The first such line, truncated.
    pub example: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportReport {
    pub samples: u64,
    pub lines: u64,
    pub bytes: u64,
    /// The file ends in the middle of something.
    pub truncated: bool,
    /// Samples that come after a newer one in the file. They were sorted in.
    pub out_of_order: u64,
    /// Samples that the kernel or perf reported as lost.
    pub lost: u64,
    /// Of these, by the core whose buffer was full, if the file tells.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost_by_core: BTreeMap<u32, u64>,
    /// How often the kernel throttled sampling on a core because it took too much time.
    #[serde(default)]
    pub throttled: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub throttled_by_core: BTreeMap<u32, u64>,
    pub oddities: Vec<Oddity>,
}

impl ImportReport {
    /// Counts an oddity. Cheap: a file may consist of nothing else.
    pub fn odd(&mut self, kind: OddityKind, place: u64, text: &[u8]) {
        match self.oddities.iter_mut().find(|oddity| oddity.kind == kind) {
            Some(oddity) => {
                oddity.count += 1;
                if oddity.first.len() < PLACES {
                    oddity.first.push(place);
                }
            }
            None => {
                let cut = &text[..text.len().min(EXAMPLE_BYTES)];
                let example = String::from_utf8_lossy(cut).into_owned();
                self.oddities.push(Oddity { kind, count: 1, first: vec![place], example });
            }
        }
    }

    pub fn count(&self, kind: OddityKind) -> u64 {
        self.oddities.iter().find(|oddity| oddity.kind == kind).map_or(0, |oddity| oddity.count)
    }

    /// Appends the report of the part of the file that follows this one.
    pub fn append(&mut self, next: ImportReport) {
        for theirs in next.oddities {
            let moved = theirs.first.iter().map(|place| place + self.lines);
            match self.oddities.iter_mut().find(|oddity| oddity.kind == theirs.kind) {
                Some(oddity) => {
                    oddity.count += theirs.count;
                    let room = PLACES.saturating_sub(oddity.first.len());
                    oddity.first.extend(moved.take(room));
                }
                None => {
                    let first = moved.collect();
                    self.oddities.push(Oddity { first, ..theirs });
                }
            }
        }
        self.samples += next.samples;
        self.lines += next.lines;
        self.bytes += next.bytes;
        self.truncated |= next.truncated;
        self.out_of_order += next.out_of_order;
        self.lost += next.lost;
        self.throttled += next.throttled;
        for (ours, theirs) in
            [(&mut self.lost_by_core, next.lost_by_core), (&mut self.throttled_by_core, next.throttled_by_core)]
        {
            for (core, count) in theirs {
                *ours.entry(core).or_default() += count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_numbers_of_the_second_part_count_on() {
        let mut first = ImportReport { lines: 100, ..ImportReport::default() };
        first.odd(OddityKind::UnparsedLine, 7, b"what?");
        let mut second = ImportReport { lines: 50, truncated: true, ..ImportReport::default() };
        second.odd(OddityKind::UnparsedLine, 3, b"eh?");
        second.odd(OddityKind::EmptyStack, 9, b"e");
        first.append(second);
        assert_eq!(first.oddities[0].first, [7, 103]);
        assert_eq!(first.oddities[1].first, [109]);
        assert_eq!((first.lines, first.truncated, first.count(OddityKind::UnparsedLine)), (150, true, 2));
    }

    #[test]
    fn a_million_oddities_take_no_more_room_than_five() {
        let mut report = ImportReport::default();
        for line in 0..1_000_000 {
            report.odd(OddityKind::UnparsedLine, line, &[0xff; 4096]);
        }
        assert_eq!(report.count(OddityKind::UnparsedLine), 1_000_000);
        assert_eq!(report.oddities[0].first, [0, 1, 2, 3, 4]);
        assert!(report.oddities[0].example.len() <= 3 * EXAMPLE_BYTES);
    }
}
