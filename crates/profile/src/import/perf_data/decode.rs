//! From records to a profile.

use std::collections::HashMap;
use std::io;

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use super::attr::Attr;
use super::fields::Fields;
use super::layout::{Layout, Source, layout};
use super::order::Order;
use super::sample;
use super::space::{Mapping, Tasks};
use crate::import::{ImportError, OddityKind, Report};
use crate::model::hash::Seeded;
use crate::model::{EventId, Frame, Place, Profile, Sample, StrId, Strings, Task, label};
use crate::symbols::Symbols;

/// Kinds of records (include/uapi/linux/perf_event.h; from 64 on tools/lib/perf/include/perf/event.h).
mod kind {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
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

const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
const MISC_MODE: u16 = 7;
const MODE_KERNEL: u16 = 1;
/// Addresses from here on are no addresses: they say whose the following ones are (`PERF_CONTEXT_*`).
const CONTEXT: u64 = -4095i64 as u64;
const CONTEXT_KERNEL: u64 = -128i64 as u64;
const CONTEXT_USER: u64 = -512i64 as u64;

const HEADER: usize = 8;
const READ: usize = 256 << 10;

pub(super) fn decode<S: Source + ?Sized>(file: &S, symbols: &mut Symbols) -> Result<(Profile, Report), ImportError> {
    let mut report = Report::default();
    let layout = layout(file, &mut report)?;
    for (path, id) in &layout.build_ids {
        if path.starts_with("[kernel.kallsyms]") {
            symbols.check_kernel(id);
        }
    }
    let mut profile = Profile::default();
    profile.clock = layout.clock;
    let events = layout.attrs.iter().map(|attr| profile.intern_event(&attr.name)).collect();
    let swap = layout.swap;
    let data = layout.data.clone();
    let mut decoder = RecordDecoder {
        ids: ids(&layout.attrs),
        layout,
        events,
        order: Order::default(),
        work: Work {
            swap,
            profile,
            report,
            tasks: Tasks::default(),
            cgroups: HashMap::new(),
            bpf: Vec::new(),
            kernel_frames: HashMap::default(),
            modules: HashMap::new(),
            symbols,
            stack: Vec::new(),
        },
    };
    decoder.read(file, data)?;
    let mut work = decoder.finish();
    work.report.out_of_order = work.profile.samples.sort();
    work.report.samples = work.profile.samples.len() as u64;
    // Events that only carry mappings and names (perf's "dummy") are no events of the profile's samples.
    Ok((work.profile, work.report))
}

fn ids(attrs: &[Attr]) -> HashMap<u64, usize, Seeded> {
    attrs.iter().enumerate().flat_map(|(at, attr)| attr.ids.iter().map(move |id| (*id, at))).collect()
}

struct RecordDecoder<'s> {
    layout: Layout,
    ids: HashMap<u64, usize, Seeded>,
    events: Vec<EventId>,
    order: Order,
    work: Work<'s>,
}

/// Everything that changes while records pass in order.
struct Work<'s> {
    swap: bool,
    profile: Profile,
    report: Report,
    tasks: Tasks,
    cgroups: HashMap<u64, StrId>,
    /// BPF programs that were there while recording: start, end, name.
    bpf: Vec<(u64, u64, StrId)>,
    kernel_frames: HashMap<u64, u32, Seeded>,
    /// Interned paths.
    modules: HashMap<std::rc::Rc<str>, StrId>,
    symbols: &'s mut Symbols,
    stack: Vec<u32>,
}

impl<'s> RecordDecoder<'s> {
    fn read<S: Source + ?Sized>(&mut self, file: &S, data: std::ops::Range<u64>) -> io::Result<()> {
        let mut buffer = vec![0; READ];
        let mut at = data.start;
        let mut filled = 0;
        let mut unpacker = Unpacker::default();
        while at < data.end {
            let room = (buffer.len() - filled).min(usize::try_from(data.end - at).unwrap_or(usize::MAX));
            let n = file.read_at(&mut buffer[filled..filled + room], at)?;
            if n == 0 {
                break;
            }
            filled += n;
            at += n as u64;
            let place = at - filled as u64;
            match self.records(&buffer[..filled], place, &mut unpacker) {
                Step::Used(used) => {
                    buffer.copy_within(used..filled, 0);
                    filled -= used;
                }
                Step::Skip(used, skip) => {
                    at = (place + used as u64).saturating_add(skip);
                    filled = 0;
                }
                Step::Broken(used) => {
                    let place = place + used as u64;
                    self.work.report.odd(OddityKind::BadRecord, place, b"a record shorter than its own header; the rest is not read");
                    self.work.report.truncated = true;
                    return Ok(());
                }
            }
        }
        self.work.report.truncated |= filled > 0 || !unpacker.carry.is_empty();
        Ok(())
    }

    /// Takes whole records off the front of `bytes`.
    fn records(&mut self, bytes: &[u8], place: u64, unpacker: &mut Unpacker) -> Step {
        let mut at = 0;
        while let Some(header) = bytes.get(at..at + HEADER) {
            let (kind, _, size) = record_header(header, self.layout.swap);
            if size < HEADER {
                return Step::Broken(at);
            }
            let Some(record) = bytes.get(at..at + size) else { break };
            let body = &record[HEADER..];
            let start = place + at as u64;
            at += size;
            match kind {
                kind::COMPRESSED => self.compressed(body, start, unpacker),
                kind::COMPRESSED2 => {
                    let mut fields = Fields::new(body, self.layout.swap);
                    let packed = fields.u64().and_then(|size| fields.bytes(usize::try_from(size).ok()?));
                    self.compressed(packed.unwrap_or_default(), start, unpacker);
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

    fn compressed(&mut self, packed: &[u8], place: u64, unpacker: &mut Unpacker) {
        let mut carry = std::mem::take(&mut unpacker.carry);
        let result = unpacker.unpack(packed, |bytes| {
            carry.extend_from_slice(bytes);
            let mut nested = Unpacker::default();
            // Records in compressed records do not nest; what looks like it is skipped as empty.
            let used = match self.records(&carry, place, &mut nested) {
                Step::Used(used) | Step::Skip(used, _) => used,
                Step::Broken(_) => carry.len(),
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
                let (layout, ids, events, work) = (&self.layout, &self.ids, &self.events, &mut self.work);
                self.order.finish_round(|record, place| work.take(record, place, layout, ids, events));
            }
            kind::HEADER_ATTR => self.header_attr(fields),
            kind::HEADER_FEATURE => {
                if let Some(number) = fields.u64() {
                    let names = self.layout.attrs.len();
                    self.layout.feature(u32::try_from(number).unwrap_or(u32::MAX), &body[8..]);
                    self.work.profile.clock = self.layout.clock;
                    if names > 0 {
                        let attrs = &self.layout.attrs;
                        self.events = attrs.iter().map(|attr| self.work.profile.intern_event(&attr.name)).collect();
                    }
                }
            }
            kind::FIRST_OF_PERF..kind::LAST_OF_PERF => {} // perf's notes to itself
            _ => match self.time_of(kind, body) {
                Some(time) => {
                    if self.order.hold(time, record, place) {
                        let (layout, ids, events, work) = (&self.layout, &self.ids, &self.events, &mut self.work);
                        self.order.relieve(|record, place| work.take(record, place, layout, ids, events));
                    }
                }
                None => self.work.take(record, place, &self.layout, &self.ids, &self.events),
            },
        }
    }

    /// In a file written through a pipe events are described by records: the structure, then its ids.
    fn header_attr(&mut self, mut fields: Fields<'_>) {
        let mut peek = fields;
        let size = peek.u32().and_then(|_| peek.u32()).unwrap_or(0) as usize;
        let Some(attr) = fields.bytes(size).and_then(|attr| Attr::parse(Fields::new(attr, self.layout.swap))) else { return };
        let mut attr = attr;
        while let Some(id) = fields.u64() {
            attr.ids.push(id);
        }
        self.events.push(self.work.profile.intern_event(&attr.name));
        self.layout.attrs.push(attr);
        self.ids = ids(&self.layout.attrs);
    }

    fn time_of(&self, kind: u32, body: &[u8]) -> Option<u64> {
        if kind == kind::SAMPLE {
            let attr = &self.layout.attrs[attr_of(&self.layout.attrs, &self.ids, body, self.layout.swap)?];
            return sample::parse(Fields::new(body, self.layout.swap), attr)?.time;
        }
        let words = self.layout.attrs.first()?.time_word_from_end()?;
        let at = body.len().checked_sub(words * 8)?;
        Fields::new(&body[at..], self.layout.swap).u64()
    }

    fn finish(mut self) -> Work<'s> {
        let (layout, ids, events, work) = (&self.layout, &self.ids, &self.events, &mut self.work);
        self.order.finish(|record, place| work.take(record, place, layout, ids, events));
        self.work
    }
}

/// Which event a sample belongs to.
fn attr_of(attrs: &[Attr], ids: &HashMap<u64, usize, Seeded>, body: &[u8], swap: bool) -> Option<usize> {
    if attrs.len() == 1 {
        return Some(0);
    }
    let mut fields = Fields::new(body, swap);
    fields.skip_words(attrs.first()?.id_word()? as u64)?;
    ids.get(&fields.u64()?).copied()
}

fn record_header(record: &[u8], swap: bool) -> (u32, u16, usize) {
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

/// perf compresses records as one zstd stream that is cut into records.
#[derive(Default)]
struct Unpacker {
    decoder: Option<Decoder<'static>>,
    out: Vec<u8>,
    /// The beginning of a record whose end is in the next compressed one.
    carry: Vec<u8>,
}

impl Unpacker {
    fn unpack(&mut self, packed: &[u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            None => self.decoder.insert(Decoder::new()?),
        };
        self.out.resize(128 << 10, 0);
        let mut input = InBuffer::around(packed);
        loop {
            let mut output = OutBuffer::around(&mut self.out[..]);
            let before = input.pos();
            decoder.run(&mut input, &mut output)?;
            let n = output.pos();
            take(&self.out[..n]);
            if n == 0 && (input.pos() == packed.len() || input.pos() == before) {
                return Ok(());
            }
        }
    }
}

impl Work<'_> {
    /// Takes a record in its turn.
    fn take(&mut self, record: &[u8], place: u64, layout: &Layout, ids: &HashMap<u64, usize, Seeded>, events: &[EventId]) {
        let (kind, misc, _) = record_header(record, self.swap);
        let body = &record[HEADER..];
        let done = if kind == kind::SAMPLE {
            attr_of(&layout.attrs, ids, body, self.swap).and_then(|at| {
                self.sample(body, misc, &layout.attrs[at], events.get(at).copied().unwrap_or(EventId(0)))
            })
        } else {
            // What every record ends with must not be taken for a part of a path.
            let trailer = layout.attrs.first().map_or(0, Attr::trailer);
            self.side_record(kind, misc, &body[..body.len().saturating_sub(trailer)], layout)
        };
        if done.is_none() {
            self.report.odd(OddityKind::BadRecord, place, format!("record of kind {kind}").as_bytes());
        }
    }

    fn side_record(&mut self, kind: u32, misc: u16, body: &[u8], layout: &Layout) -> Option<()> {
        let mut fields = Fields::new(body, self.swap);
        match kind {
            kind::MMAP | kind::MMAP2 => {
                let (pid, _tid) = (fields.u32()?, fields.u32()?);
                let (start, length, file_offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
                let mut build_id = None;
                if kind == kind::MMAP2 {
                    let node = fields.bytes(24)?;
                    if misc & MISC_MMAP_BUILD_ID != 0 {
                        build_id = Some(&node[4..4 + usize::from(node[0]).min(20)]);
                    }
                    fields.u64()?; // protection and flags
                }
                let path = String::from_utf8_lossy(fields.string());
                if pid == u32::MAX || misc & MISC_MODE == MODE_KERNEL {
                    return Some(()); // The kernel's own mappings: kallsyms knows.
                }
                let build_id = build_id.or_else(|| layout.build_ids.get(&*path).map(Vec::as_slice)).map(Into::into);
                let mapping = Mapping { end: start.saturating_add(length), file_offset, path: path.into(), build_id };
                self.tasks.space(pid).map(start, mapping);
            }
            kind::COMM => {
                let (_pid, tid) = (fields.u32()?, fields.u32()?);
                self.tasks.rename(tid, fields.string());
            }
            kind::FORK => {
                let (pid, parent_pid, tid, parent_tid) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
                self.tasks.fork((pid, tid), (parent_pid, parent_tid));
            }
            kind::LOST => {
                fields.u64()?;
                self.report.lost = self.report.lost.saturating_add(fields.u64()?);
            }
            kind::LOST_SAMPLES => self.report.lost = self.report.lost.saturating_add(fields.u64()?),
            kind::CGROUP => {
                let id = fields.u64()?;
                let path = self.profile.strings.intern_bytes(fields.string());
                self.cgroups.insert(id, path);
            }
            kind::KSYMBOL => {
                let (start, length) = (fields.u64()?, fields.u32()?);
                fields.u32()?;
                let name = self.profile.strings.intern_bytes(fields.string());
                self.bpf.push((start, start.saturating_add(u64::from(length)), name));
            }
            _ => {} // exits, throttling and the like
        }
        Some(())
    }

    fn sample(&mut self, body: &[u8], misc: u16, attr: &Attr, event: EventId) -> Option<()> {
        let raw = sample::parse(Fields::new(body, self.swap), attr)?;
        let pid = raw.pid.unwrap_or(0);
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        let mut kernel = misc & MISC_MODE == MODE_KERNEL;
        if raw.chain.is_empty() {
            stack.push(self.frame(raw.ip, kernel, pid));
        }
        for address in raw.addresses(self.swap) {
            match address {
                CONTEXT_KERNEL => kernel = true,
                CONTEXT_USER => kernel = false,
                CONTEXT.. => {} // hypervisor and guests keep the mode
                _ => stack.push(self.frame(address, kernel, pid)),
            }
        }
        let comm = match raw.tid {
            Some(0) => self.profile.strings.intern("swapper"),
            Some(tid) => match self.tasks.name(tid) {
                Some(name) => self.profile.strings.intern_bytes(name),
                None => self.profile.strings.intern(&format!(":{tid}")),
            },
            None => Strings::EMPTY,
        };
        let cgroup = raw.cgroup.and_then(|id| self.cgroups.get(&id).copied());
        let task = self.profile.intern_task(Task { pid: raw.pid, tid: raw.tid, comm, cgroup });
        let sample = Sample {
            time: raw.time,
            core: raw.core,
            task,
            event,
            period: raw.period.unwrap_or(attr.sample_period),
            stack: self.profile.stacks.intern(&stack),
        };
        self.stack = stack;
        self.profile.add(sample);
        Some(())
    }

    /// The frame of an address.
    fn frame(&mut self, address: u64, kernel: bool, pid: u32) -> u32 {
        if kernel {
            if let Some(frame) = self.kernel_frames.get(&address) {
                return *frame;
            }
            let frame = self.kernel_frame(address);
            self.kernel_frames.insert(address, frame);
            return frame;
        }
        if let Some(frame) = self.tasks.space(pid).frames.get(&address) {
            return *frame;
        }
        let frame = self.user_frame(address, pid);
        self.tasks.space(pid).frames.insert(address, frame);
        frame
    }

    fn kernel_frame(&mut self, address: u64) -> u32 {
        let strings = &mut self.profile.strings;
        let bpf = self.bpf.iter().rev().find(|(start, end, _)| (*start..*end).contains(&address));
        let (symbol, module) = match (bpf, self.symbols.kernel(address)) {
            (Some((_, _, name)), _) => (*name, strings.intern("[bpf]")),
            (None, Some((name, module))) => {
                let module = module.map_or("[kernel.kallsyms]".to_owned(), |module| format!("[{module}]"));
                (strings.intern(name), strings.intern(&module))
            }
            (None, None) => (Strings::EMPTY, strings.intern("[kernel.kallsyms]")),
        };
        self.profile.frames.intern(Frame { symbol, module, place: Place::Kernel, inlined: false }).0
    }

    fn user_frame(&mut self, address: u64, pid: u32) -> u32 {
        let found = self.tasks.space(pid).find(address);
        let Some((mapping, offset)) = found.map(|(mapping, offset)| (mapping.clone(), offset)) else {
            let frame = Frame { symbol: Strings::EMPTY, module: Strings::EMPTY, place: Place::User, inlined: false };
            return self.profile.frames.intern(frame).0;
        };
        let path = &*mapping.path;
        let anonymous = path.is_empty() || ["//anon", "/dev/zero", "/anon_hugepage"].iter().any(|name| path.starts_with(name));
        let (name, module) = if anonymous {
            (self.symbols.jit(pid, address).map(str::to_owned), format!("/tmp/perf-{pid}.map").into())
        } else if path.starts_with('[') {
            (None, mapping.path.clone())
        } else {
            (self.symbols.user(path, mapping.build_id.as_deref(), offset), mapping.path.clone())
        };
        let strings = &mut self.profile.strings;
        let module_id = *self.modules.entry(module.clone()).or_insert_with(|| strings.intern(&module));
        let symbol = name.map_or(Strings::EMPTY, |name| strings.intern(&name));
        let place = label::place_of(&module, false);
        self.profile.frames.intern(Frame { symbol, module: module_id, place, inlined: false }).0
    }
}
