//! From records to a profile.

use std::collections::HashMap;
use std::io;

use super::attr::Attr;
use super::fields::Fields;
use super::layout::{Layout, Source, layout};
use super::order::Order;
use super::unpack::Unpacker;
use super::work::Work;
use crate::import::{ImportError, OddityKind, Report, Take};
use crate::model::hash::Seeded;
use crate::model::{Dictionary, EventId};
use crate::symbols::Symbols;

/// Kinds of records (include/uapi/linux/perf_event.h; from 64 on tools/lib/perf/include/perf/event.h).
pub(super) mod kind {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const UNTHROTTLE: u32 = 6;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const LOST_SAMPLES: u32 = 13;
    pub const KSYMBOL: u32 = 17;
    pub const CGROUP: u32 = 19;
    pub const FIRST_OF_PERF: u32 = 64;
    pub const HEADER_ATTR: u32 = 64;
    pub const TRACING_DATA: u32 = 66;
    pub const FINISHED_ROUND: u32 = 68;
    pub const AUXTRACE: u32 = 71;
    pub const HEADER_FEATURE: u32 = 80;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
    pub const LAST_OF_PERF: u32 = 100;
}

pub(super) const HEADER: usize = 8;
const READ: usize = 256 << 10;

pub(super) fn decode<S: Source + ?Sized>(
    file: &S,
    symbols: &mut Symbols,
    take: &mut Take<'_>,
) -> Result<(Dictionary, Report), ImportError> {
    let mut report = Report::default();
    let layout = layout(file, &mut report)?;
    let mut names = Dictionary::default();
    names.clock = layout.clock;
    let events = layout.attrs.iter().map(|attr| names.intern_event(&attr.name)).collect();
    let swap = layout.swap;
    let data = layout.data.clone();
    let mut decoder = RecordDecoder {
        ids: ids(&layout.attrs),
        layout,
        events,
        order: Order::default(),
        work: Work::new(swap, names, report, symbols, take),
    };
    decoder.read(file, data)?;
    let work = decoder.finish();
    Ok((work.names, work.report))
}

fn ids(attrs: &[Attr]) -> HashMap<u64, usize, Seeded> {
    attrs.iter().enumerate().flat_map(|(at, attr)| attr.ids.iter().map(move |id| (*id, at))).collect()
}

struct RecordDecoder<'s, 't> {
    layout: Layout,
    ids: HashMap<u64, usize, Seeded>,
    events: Vec<EventId>,
    order: Order,
    work: Work<'s, 't>,
}

impl<'s, 't> RecordDecoder<'s, 't> {
    fn read<S: Source + ?Sized>(&mut self, file: &S, data: std::ops::Range<u64>) -> io::Result<()> {
        let mut buffer = vec![0; READ];
        let mut at = data.start;
        let mut filled = 0;
        let mut unpacker = Unpacker::default();
        while at < data.end && !self.work.stopped {
            let room = (buffer.len() - filled).min(usize::try_from(data.end - at).unwrap_or(usize::MAX));
            let n = file.read_at(&mut buffer[filled..filled + room], at)?;
            if n == 0 {
                break;
            }
            filled += n;
            at += n as u64;
            let place = at - filled as u64;
            match self.records(&buffer[..filled], place, Some(&mut unpacker)) {
                Step::Used(used) => {
                    buffer.copy_within(used..filled, 0);
                    filled -= used;
                }
                Step::Skip(used, skip) => {
                    at = (place + used as u64).saturating_add(skip);
                    filled = 0;
                    self.work.report.truncated |= at > data.end;
                }
                Step::Broken(used) => {
                    let place = place + used as u64;
                    self.work.report.odd(
                        OddityKind::BadRecord,
                        place,
                        b"a record shorter than its own header; the rest is not read",
                    );
                    self.work.report.truncated = true;
                    return Ok(());
                }
            }
        }
        self.work.report.truncated |= filled > 0 || !unpacker.carry.is_empty();
        Ok(())
    }

    /// Takes whole records off the front of `bytes`. Without an unpacker they came out of a compressed one.
    fn records(&mut self, bytes: &[u8], place: u64, mut unpacker: Option<&mut Unpacker>) -> Step {
        let mut at = 0;
        while let Some(header) = bytes.get(at..at + HEADER).filter(|_| !self.work.stopped) {
            let (kind, _, size) = record_header(header, self.layout.swap);
            if size < HEADER {
                return Step::Broken(at);
            }
            let Some(record) = bytes.get(at..at + size) else { break };
            let body = &record[HEADER..];
            let start = if unpacker.is_some() { place + at as u64 } else { place };
            at += size;
            match kind {
                kind::COMPRESSED => self.compressed(body, start, unpacker.as_deref_mut()),
                kind::COMPRESSED2 => {
                    let mut fields = Fields::new(body, self.layout.swap);
                    let packed = fields.u64().and_then(|size| fields.bytes(usize::try_from(size).ok()?));
                    self.compressed(packed.unwrap_or_default(), start, unpacker.as_deref_mut());
                }
                // Both are followed by data that is not in the record's size.
                kind::AUXTRACE => {
                    let skip = Fields::new(body, self.layout.swap).u64().unwrap_or(0);
                    self.work.report.odd(OddityKind::Unsupported, start, b"hardware trace (AUXTRACE) is not read");
                    return Step::Skip(at, skip);
                }
                kind::TRACING_DATA => {
                    let skip = Fields::new(body, self.layout.swap).u32().unwrap_or(0);
                    return Step::Skip(at, u64::from(skip).next_multiple_of(8));
                }
                _ => self.record(record, start),
            }
        }
        Step::Used(at)
    }

    fn compressed(&mut self, packed: &[u8], place: u64, unpacker: Option<&mut Unpacker>) {
        // perf does not do this. A small file could nest them for ever.
        let Some(unpacker) = unpacker else {
            self.work.report.odd(OddityKind::BadRecord, place, b"a compressed record in a compressed record");
            return;
        };
        let mut carry = std::mem::take(&mut unpacker.carry);
        let result = unpacker.unpack(packed, |bytes| {
            carry.extend_from_slice(bytes);
            let used = match self.records(&carry, place, None) {
                Step::Used(used) | Step::Skip(used, _) => used,
                Step::Broken(_) => {
                    let what = b"in a compressed record: a record shorter than its own header";
                    self.work.report.odd(OddityKind::BadRecord, place, what);
                    carry.len()
                }
            };
            carry.drain(..used);
        });
        if let Err(error) = result {
            self.work.report.odd(OddityKind::BadRecord, place, format!("compressed record: {error}").as_bytes());
            carry.clear();
        }
        unpacker.carry = carry;
    }

    fn record(&mut self, record: &[u8], place: u64) {
        let (kind, _, _) = record_header(record, self.layout.swap);
        let body = &record[HEADER..];
        let mut fields = Fields::new(body, self.layout.swap);
        match kind {
            kind::FINISHED_ROUND => {
                let (layout, ids, events, work) = (&mut self.layout, &self.ids, &self.events, &mut self.work);
                self.order.finish_round(|record, place| work.take(record, place, layout, ids, events));
            }
            kind::HEADER_ATTR => self.header_attr(fields, place),
            kind::HEADER_FEATURE => {
                if let Some(number) = fields.u64() {
                    self.layout.feature(u32::try_from(number).unwrap_or(u32::MAX), &body[8..]);
                    self.work.names.clock = self.layout.clock;
                    self.name_events();
                }
            }
            _ if (kind::FIRST_OF_PERF..kind::LAST_OF_PERF).contains(&kind) => {} // perf's notes to itself
            _ => match self.time_of(kind, body) {
                Some(time) => {
                    if self.order.hold(time, record, place) {
                        let (layout, ids, events, work) = (&mut self.layout, &self.ids, &self.events, &mut self.work);
                        self.order.relieve(|record, place| work.take(record, place, layout, ids, events));
                    }
                }
                None => self.work.take(record, place, &mut self.layout, &self.ids, &self.events),
            },
        }
    }

    fn header_attr(&mut self, fields: Fields<'_>, place: u64) {
        if self.layout.attribute_record(fields).is_none() {
            self.work.report.odd(OddityKind::BadRecord, place, b"event description");
        }
        self.name_events();
    }

    /// Takes the names of events that are new or were renamed. Only of these: a file may say so again and again.
    fn name_events(&mut self) {
        for number in self.events.len()..self.layout.attrs.len() {
            let attr = &self.layout.attrs[number];
            self.events.push(self.work.names.intern_event(&attr.name));
            self.ids.extend(attr.ids.iter().map(|id| (*id, number)));
        }
        for number in self.layout.renamed.drain(..) {
            self.events[number] = self.work.names.intern_event(&self.layout.attrs[number].name);
        }
    }

    fn time_of(&self, kind: u32, body: &[u8]) -> Option<u64> {
        if kind == kind::SAMPLE {
            let attr = &self.layout.attrs[attr_of(&self.layout.attrs, &self.ids, body, self.layout.swap)?];
            let mut fields = Fields::new(body, self.layout.swap);
            fields.skip_words(attr.time_word()? as u64)?;
            return fields.u64();
        }
        let words = self.layout.attrs.first()?.time_word_from_end()?;
        let at = body.len().checked_sub(words * 8)?;
        Fields::new(&body[at..], self.layout.swap).u64()
    }

    fn finish(mut self) -> Work<'s, 't> {
        let (layout, ids, events, work) = (&mut self.layout, &self.ids, &self.events, &mut self.work);
        self.order.finish(|record, place| work.take(record, place, layout, ids, events));
        self.work
    }
}

/// Which event a sample belongs to.
pub(super) fn attr_of(attrs: &[Attr], ids: &HashMap<u64, usize, Seeded>, body: &[u8], swap: bool) -> Option<usize> {
    if attrs.len() == 1 {
        return Some(0);
    }
    let mut fields = Fields::new(body, swap);
    fields.skip_words(attrs.first()?.id_word()? as u64)?;
    ids.get(&fields.u64()?).copied()
}

pub(super) fn record_header(record: &[u8], swap: bool) -> (u32, u16, usize) {
    let mut fields = Fields::new(record, swap);
    (fields.u32().unwrap_or(0), fields.u16().unwrap_or(0), usize::from(fields.u16().unwrap_or(0)))
}

/// What reading records came to.
enum Step {
    /// So many bytes were used; the rest is an incomplete record.
    Used(usize),
    /// So many bytes were used, and so many after them are to be skipped.
    Skip(usize, u64),
    /// At this place there is no record.
    Broken(usize),
}
