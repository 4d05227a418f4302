//! From records to a profile.

use std::collections::HashMap;
use std::io;

use coroner_evidence::perf::{Attr, Fields, HEADER, attr, kind, record_header};

use super::layout::{Layout, Source, layout};
use super::unpack::Unpacker;
use crate::import::{ImportError, ImportReport, OddityKind, Take};
use crate::model::{Dictionary, EventId, Seeded};
use crate::records::Limits;
use crate::records::order::Order;
use crate::records::work::{Events, Work};
use crate::symbols::Symbols;

const READ: usize = 256 << 10;

pub(super) fn decode<S: Source + ?Sized>(
    file: &S,
    symbols: &mut Symbols,
    take: &mut Take<'_>,
) -> Result<(Dictionary, ImportReport), ImportError> {
    let mut report = ImportReport::default();
    let layout = layout(file, &mut report)?;
    let mut names = Dictionary::default();
    names.clock = layout.clock;
    let events = layout.attrs.iter().map(|attr| names.intern_event(&attr.name)).collect();
    let swap = layout.swap;
    let data = layout.data.clone();
    let mut decoder = RecordDecoder {
        ids: ids(&layout.attrs),
        alike: attr::are_alike(&layout.attrs),
        layout,
        events,
        order: Order::new(Limits::FILE.held_bytes),
        work: Work::new(swap, names, report, Limits::FILE),
        symbols,
        take,
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
    /// Samples of all events have the same layout.
    alike: bool,
    events: Vec<EventId>,
    order: Order,
    work: Work,
    symbols: &'s mut Symbols,
    take: &'s mut Take<'t>,
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

    /// Takes complete records off the front of `bytes`. No unpacker means that they came out of a compressed record.
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
                // Both are followed by data that the record's size does not include.
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
        // perf never nests them; a small file could do so forever.
        let Some(unpacker) = unpacker else {
            self.work.report.odd(OddityKind::BadRecord, place, b"compressed record inside a compressed record");
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
                self.pass(Order::finish_round);
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
            _ => match self.events().time_of(kind, body, self.layout.swap) {
                Some(time) => {
                    if self.order.hold(time, record, place) {
                        self.pass(Order::relieve);
                    }
                }
                None => self.work_off(record, place),
            },
        }
    }

    fn header_attr(&mut self, fields: Fields<'_>, place: u64) {
        if self.layout.attribute_record(fields).is_none() {
            self.work.report.odd(OddityKind::BadRecord, place, b"event description");
        }
        self.name_events();
    }

    /// Interns the names of new and renamed events only: a file may repeat them endlessly.
    fn name_events(&mut self) {
        for number in self.events.len()..self.layout.attrs.len() {
            let attr = &self.layout.attrs[number];
            self.events.push(self.work.names.intern_event(&attr.name));
            self.ids.extend(attr.ids.iter().map(|id| (*id, number)));
            self.alike &= attr.is_like(&self.layout.attrs[0]);
        }
        for number in self.layout.renamed.drain(..) {
            self.events[number] = self.work.names.intern_event(&self.layout.attrs[number].name);
        }
    }

    fn finish(mut self) -> Work {
        self.pass(Order::finish);
        self.work
    }

    fn events(&self) -> Events<'_> {
        Events { attrs: &self.layout.attrs, ids: &self.ids, names: &self.events, alike: self.alike }
    }

    /// Processes the records whose turn it is.
    fn pass(&mut self, turn: impl FnOnce(&mut Order, &mut dyn FnMut(&[u8], u64))) {
        let mut order = std::mem::replace(&mut self.order, Order::new(0));
        turn(&mut order, &mut |record, place| self.work_off(record, place));
        self.order = order;
    }

    fn work_off(&mut self, record: &[u8], place: u64) {
        let Layout { attrs, more, .. } = &mut self.layout;
        let events = Events { attrs, ids: &self.ids, names: &self.events, alike: self.alike };
        self.work.take(record, place, &events, more, self.symbols, self.take);
    }
}

/// The result of reading records.
enum Step {
    /// This many bytes were used; the rest is an incomplete record.
    Used(usize),
    /// This many bytes were used, and this many after them must be skipped.
    Skip(usize, u64),
    /// There is no valid record at this offset.
    Broken(usize),
}
