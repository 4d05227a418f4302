//! What records do in their turn: they map, rename, and become samples.

use std::collections::{BTreeMap, HashMap};

use super::attr::Attr;
use super::decode::{HEADER, attr_of, kind, record_header};
use super::fields::Fields;
use super::layout::Layout;
use super::sample;
use super::space::{Dso, Mapping, Tasks};
use crate::import::{OddityKind, Report, Take};
use crate::model::hash::Seeded;
use crate::model::{Dictionary, EventId, Frame, Place, Sample, StrId, Strings, Task, label};
use crate::symbols::{Function, Symbols};

const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
const MISC_MODE: u16 = 7;
const MODE_KERNEL: u16 = 1;
/// Addresses from here on are no addresses: they say whose the following ones are (`PERF_CONTEXT_*`).
const CONTEXT: u64 = -4095i64 as u64;
const CONTEXT_KERNEL: u64 = -128i64 as u64;
const CONTEXT_USER: u64 = -512i64 as u64;
const CONTEXT_HYPERVISOR: u64 = -32i64 as u64;
const CONTEXT_DEFERRED: u64 = -640i64 as u64;
const CONTEXT_GUEST: u64 = -2048i64 as u64;
const CONTEXT_GUEST_KERNEL: u64 = -2176i64 as u64;
const CONTEXT_GUEST_USER: u64 = -2560i64 as u64;

/// Everything that changes while records pass in order.
pub(super) struct Work<'s, 't> {
    pub swap: bool,
    pub names: Dictionary,
    pub report: Report,
    tasks: Tasks,
    cgroups: HashMap<u64, StrId>,
    /// BPF programs that were there while recording: start, end, name.
    bpf: Vec<(u64, u64, StrId)>,
    kernel_frames: HashMap<u64, u32, Seeded>,
    /// Frames by file and offset, for all processes.
    user_frames: HashMap<(u32, u64), u32, Seeded>,
    /// Functions named before, by file and start: their end and frame. Naming an address again costs more than looking here.
    functions: HashMap<u32, BTreeMap<u64, (u64, u32)>>,
    /// Lost records as the kernel said when it lost them, and as perf asked at the end: mostly the same ones.
    lost: (u64, u64),
    symbols: &'s mut Symbols,
    sink: &'s mut Take<'t>,
    /// The sink wants no more.
    pub stopped: bool,
    stack: Vec<u32>,
}

impl<'s, 't> Work<'s, 't> {
    pub fn new(
        swap: bool,
        names: Dictionary,
        report: Report,
        symbols: &'s mut Symbols,
        sink: &'s mut Take<'t>,
    ) -> Work<'s, 't> {
        Work {
            swap,
            names,
            report,
            tasks: Tasks::default(),
            cgroups: HashMap::new(),
            bpf: Vec::new(),
            kernel_frames: HashMap::default(),
            user_frames: HashMap::default(),
            functions: HashMap::new(),
            lost: (0, 0),
            symbols,
            sink,
            stopped: false,
            stack: Vec::new(),
        }
    }
}

impl Work<'_, '_> {
    /// Takes a record in its turn.
    pub fn take(
        &mut self,
        record: &[u8],
        place: u64,
        layout: &Layout,
        ids: &HashMap<u64, usize, Seeded>,
        events: &[EventId],
    ) {
        let (kind, misc, _) = record_header(record, self.swap);
        let body = &record[HEADER..];
        let done = if kind == kind::SAMPLE {
            attr_of(&layout.attrs, ids, body, self.swap).and_then(|at| {
                self.sample(body, misc, place, &layout.attrs[at], events.get(at).copied().unwrap_or(EventId(0)))
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
                let dso = self.tasks.dso_id(Dso { path: path.into(), build_id });
                let mapping = Mapping { end: start.saturating_add(length), file_offset, dso };
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
                self.lost.0 = self.lost.0.saturating_add(fields.u64()?);
            }
            kind::LOST_SAMPLES => self.lost.1 = self.lost.1.saturating_add(fields.u64()?),
            kind::CGROUP => {
                let id = fields.u64()?;
                let path = self.names.strings.intern_bytes(fields.string());
                self.cgroups.insert(id, path);
            }
            kind::KSYMBOL => {
                let (start, length) = (fields.u64()?, fields.u32()?);
                fields.u32()?;
                let name = self.names.strings.intern_bytes(fields.string());
                self.bpf.push((start, start.saturating_add(u64::from(length)), name));
            }
            _ => {} // exits, throttling and the like
        }
        self.report.lost = self.lost.0.max(self.lost.1);
        Some(())
    }

    fn sample(&mut self, body: &[u8], misc: u16, place: u64, attr: &Attr, event: EventId) -> Option<()> {
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
                CONTEXT_HYPERVISOR | CONTEXT_GUEST | CONTEXT_GUEST_KERNEL | CONTEXT_GUEST_USER | CONTEXT_DEFERRED => {}
                CONTEXT.. => {
                    // No such context: a program without frame pointers led the kernel astray. perf drops the whole stack.
                    self.report.odd(OddityKind::StrayStack, place, b"a stack is cut where its addresses make no sense");
                    break;
                }
                _ => stack.push(self.frame(address, kernel, pid)),
            }
        }
        let comm = match raw.tid {
            Some(0) => self.names.strings.intern("swapper"),
            Some(tid) => match self.tasks.name(tid) {
                Some(name) => self.names.strings.intern_bytes(name),
                None => self.names.strings.intern(&format!(":{tid}")),
            },
            None => Strings::EMPTY,
        };
        let cgroup = raw.cgroup.and_then(|id| self.cgroups.get(&id).copied());
        let task = self.names.intern_task(Task { pid: raw.pid, tid: raw.tid, comm, cgroup });
        let sample = Sample {
            time: raw.time,
            core: raw.core,
            task,
            event,
            period: raw.period.unwrap_or(attr.sample_period),
            stack: self.names.stacks.intern(&stack),
        };
        self.stack = stack;
        self.report.samples += 1;
        self.names.count(event, sample.period);
        if (self.sink)(&self.names, sample).is_break() {
            self.stopped = true;
        }
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
        let strings = &mut self.names.strings;
        let bpf = self.bpf.iter().rev().find(|(start, end, _)| (*start..*end).contains(&address));
        let (symbol, module) = match (bpf, self.symbols.kernel(address)) {
            (Some((_, _, name)), _) => (*name, strings.intern("[bpf]")),
            (None, Some((name, module))) => {
                let module = module.map_or("[kernel.kallsyms]".to_owned(), |module| format!("[{module}]"));
                (strings.intern(name), strings.intern(&module))
            }
            (None, None) => (Strings::EMPTY, strings.intern("[kernel.kallsyms]")),
        };
        self.names.frames.intern(Frame { symbol, module, place: Place::Kernel, inlined: false }).0
    }

    fn user_frame(&mut self, address: u64, pid: u32) -> u32 {
        let Some((dso_id, offset)) = self.tasks.space(pid).find(address).map(|(mapping, offset)| (mapping.dso, offset))
        else {
            let frame = Frame { symbol: Strings::EMPTY, module: Strings::EMPTY, place: Place::User, inlined: false };
            return self.names.frames.intern(frame).0;
        };
        if let Some(frame) = self.user_frames.get(&(dso_id, offset)) {
            return *frame;
        }
        let Dso { path, build_id } = self.tasks.dso(dso_id).clone();
        let anonymous = ["//anon", "/dev/zero", "/anon_hugepage"].iter().any(|name| path.starts_with(name));
        if anonymous || path.is_empty() {
            // Generated code: the same address is another function in another process.
            let module = format!("/tmp/perf-{pid}.map");
            let name = self.symbols.jit(pid, address).map(str::to_owned);
            return self.intern_user_frame(name.as_deref(), &module);
        }
        let range = self.functions.get(&dso_id).and_then(|functions| functions.range(..=offset).next_back());
        let frame = match range {
            Some((_, (end, frame))) if offset < *end => *frame,
            _ if path.starts_with('[') => self.intern_user_frame(None, &path),
            _ => match self.symbols.user(&path, build_id.as_deref(), offset) {
                Some(Function { name, offsets }) => {
                    let frame = self.intern_user_frame(Some(&name), &path);
                    self.functions.entry(dso_id).or_default().insert(offsets.start, (offsets.end, frame));
                    frame
                }
                None => self.intern_user_frame(None, &path),
            },
        };
        self.user_frames.insert((dso_id, offset), frame);
        frame
    }

    fn intern_user_frame(&mut self, name: Option<&str>, module: &str) -> u32 {
        let place = label::place_of(module, false);
        let symbol = name.map_or(Strings::EMPTY, |name| self.names.strings.intern(name));
        let module = self.names.strings.intern(module);
        self.names.frames.intern(Frame { symbol, module, place, inlined: false }).0
    }
}
