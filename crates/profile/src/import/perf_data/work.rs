//! What records do in their turn: they map, rename, and become samples.

use std::collections::HashMap;

use super::attr::Attr;
use super::decode::{HEADER, attr_of, kind, record_header};
use super::fields::Fields;
use super::frames::{Around, Mode, Namer};
use super::layout::Layout;
use super::sample;
use super::space::{Dso, Mapping, Tasks};
use crate::import::{OddityKind, Report, Take};
use crate::model::hash::Seeded;
use crate::model::{Dictionary, EventId, Sample, StackId, StrId, Strings, Task};
use crate::symbols::Symbols;

const GROUP: &[u8] = b"samples of a group of events (:S): only the leader's are kept, not the others' counts";
const DWARF: &[u8] =
    b"user stacks are copies of memory (--call-graph dwarf), which are not unwound: only the kernel's frames and the place in user code";
/// What the kernel allows (PATH_MAX, KSYM_NAME_LEN). A longer name in a deep stack would be longer than the file, many times.
const MAX_PATH: usize = 4096;
const MAX_KSYMBOL: usize = 512;
/// Cores are numbered below this; a larger number says that none is known.
const MAX_CORES: u32 = u16::MAX as u32;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
/// `PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER`.
const KSYMBOL_GONE: u16 = 1;
/// More cgroups than a node has; beyond it the oldest lose their names.
const MAX_CGROUPS: usize = 1 << 20;

/// Everything that changes while records pass in order.
pub(super) struct Work<'s, 't> {
    pub swap: bool,
    pub names: Dictionary,
    pub report: Report,
    tasks: Tasks,
    cgroups: HashMap<u64, StrId>,
    namer: Namer,
    /// The symbols were told all that was said of the kernel.
    kernel_known: bool,
    /// Lost records as the kernel said when it lost them, and as perf asked at the end: mostly the same ones.
    lost: (u64, u64),
    symbols: &'s mut Symbols,
    sink: &'s mut Take<'t>,
    /// The sink wants no more.
    pub stopped: bool,
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
            namer: Namer::default(),
            kernel_known: false,
            lost: (0, 0),
            symbols,
            sink,
            stopped: false,
        }
    }
}

impl Work<'_, '_> {
    /// Takes a record in its turn.
    pub fn take(
        &mut self,
        record: &[u8],
        place: u64,
        layout: &mut Layout,
        ids: &HashMap<u64, usize, Seeded>,
        events: &[EventId],
    ) {
        if self.stopped {
            return;
        }
        let (kind, misc, _) = record_header(record, self.swap);
        let body = &record[HEADER..];
        let done = if kind == kind::SAMPLE {
            if !self.kernel_known {
                self.kernel_known = true;
                self.symbols.set_kernel(layout.kernel.clone());
                self.namer.forget_kernel();
            }
            attr_of(&layout.attrs, ids, body, self.swap).and_then(|at| {
                self.sample(body, misc, place, &layout.attrs[at], events.get(at).copied().unwrap_or(EventId(0)))
            })
        } else {
            // What every record ends with must not be taken for a part of a path.
            let trailer = layout.attrs.first().map_or(0, Attr::trailer);
            let core = self.core_of(body, layout).filter(|core| *core < MAX_CORES);
            self.side_record(kind, misc, &body[..body.len().saturating_sub(trailer)], core, layout)
        };
        if done.is_none() {
            self.report.odd(OddityKind::BadRecord, place, format!("record of kind {kind}").as_bytes());
        }
    }

    fn side_record(&mut self, kind: u32, misc: u16, body: &[u8], core: Option<u32>, layout: &mut Layout) -> Option<()> {
        let mut fields = Fields::new(body, self.swap);
        match kind {
            kind::MMAP | kind::MMAP2 => {
                let (pid, _tid) = (fields.u32()?, fields.u32()?);
                let (start, length, file_offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
                let (mut build_id, mut inode) = (None, None);
                if kind == kind::MMAP2 {
                    let mut node = Fields::new(fields.bytes(24)?, self.swap);
                    if misc & MISC_MMAP_BUILD_ID != 0 {
                        let id = node.bytes(24)?;
                        build_id = Some(&id[4..4 + usize::from(id[0]).min(20)]);
                    } else {
                        node.u64()?; // the device
                        inode = node.u64().filter(|inode| *inode != 0);
                    }
                    fields.u64()?; // protection and flags
                }
                let path = fields.string();
                let path = String::from_utf8_lossy(&path[..path.len().min(MAX_PATH)]);
                if pid == u32::MAX || Mode::of_record(misc) == Mode::Kernel {
                    if let (Some(id), true) = (build_id, path.starts_with("[kernel.kallsyms]")) {
                        layout.kernel.build_id = Some(id.to_vec());
                    }
                    layout.kernel.mapped(&path, start, length, file_offset);
                    self.kernel_known = false;
                    return Some(());
                }
                let build_id = build_id.or_else(|| layout.build_ids.get(&*path).map(Vec::as_slice)).map(Into::into);
                let dso = self.tasks.dso_id(Dso { path: path.into(), build_id, inode }, pid);
                let mapping = Mapping { end: start.saturating_add(length), file_offset, dso };
                self.tasks.map(pid, start, mapping);
            }
            kind::COMM => {
                let (_pid, tid) = (fields.u32()?, fields.u32()?);
                self.tasks.rename(tid, fields.string());
            }
            kind::FORK => {
                let (pid, parent_pid, tid, parent_tid) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
                self.tasks.fork((pid, tid), (parent_pid, parent_tid));
            }
            kind::EXIT => {
                let (pid, _parent, tid) = (fields.u32()?, fields.u32()?, fields.u32()?);
                self.tasks.exit(pid, tid);
            }
            kind::LOST => {
                fields.u64()?;
                let lost = fields.u64()?;
                self.lost.0 = self.lost.0.saturating_add(lost);
                if let Some(core) = core {
                    let of_core = self.report.lost_by_core.entry(core).or_default();
                    *of_core = of_core.saturating_add(lost);
                }
            }
            kind::THROTTLE => {
                self.report.throttled += 1;
                if let Some(core) = core {
                    *self.report.throttled_by_core.entry(core).or_default() += 1;
                }
            }
            kind::UNTHROTTLE => {}
            kind::LOST_SAMPLES => self.lost.1 = self.lost.1.saturating_add(fields.u64()?),
            kind::CGROUP => {
                let id = fields.u64()?;
                let path = self.names.strings.intern_bytes(fields.string());
                if self.cgroups.len() >= MAX_CGROUPS {
                    self.cgroups.clear();
                }
                self.cgroups.insert(id, path);
            }
            kind::KSYMBOL => {
                let (start, length) = (fields.u64()?, fields.u32()?);
                let (_kind, flags) = (fields.u16()?, fields.u16()?);
                let name = fields.string();
                let name = self.names.strings.intern_bytes(&name[..name.len().min(MAX_KSYMBOL)]);
                self.namer.generated(start, u64::from(length), (flags & KSYMBOL_GONE == 0).then_some(name));
            }
            _ => {} // context switches and the like
        }
        self.report.lost = self.lost.0.max(self.lost.1);
        Some(())
    }

    fn sample(&mut self, body: &[u8], misc: u16, place: u64, attr: &Attr, event: EventId) -> Option<()> {
        let raw = sample::parse(Fields::new(body, self.swap), attr)?;
        let mode = Mode::of_record(misc);
        let Work { names, tasks, symbols, .. } = self;
        let mut around = Around { names, tasks, symbols, pid: raw.pid.unwrap_or(0) };
        let stack = if raw.chain.is_empty() {
            match attr.has_address() {
                true => self.namer.single(raw.ip, mode, &mut around),
                false => StackId::EMPTY,
            }
        } else {
            let (stack, whole) = self.namer.stack(raw.chain, self.swap, mode, &mut around);
            if !whole {
                self.report.odd(OddityKind::StrayStack, place, b"a stack is cut where its addresses make no sense");
            }
            stack
        };
        if attr.reads_group() {
            self.report.odd(OddityKind::Unsupported, place, GROUP);
        }
        if attr.copies_stacks() {
            self.report.odd(OddityKind::Unsupported, place, DWARF);
        }
        let comm = match raw.tid {
            Some(0) => self.names.strings.intern("swapper"),
            Some(tid) => match self.tasks.name(tid) {
                Some(name) => self.names.strings.intern_bytes(name),
                None => self.names.strings.intern(&format!(":{tid}")),
            },
            // A thread that is being torn down has no number any more; perf calls it so.
            None if attr.has_thread() => self.names.strings.intern(":-1"),
            None => Strings::EMPTY,
        };
        let cgroup = raw.cgroup.and_then(|id| self.cgroups.get(&id).copied());
        let task = self.names.intern_task(Task { pid: raw.pid, tid: raw.tid, comm, cgroup });
        let sample = Sample {
            // The kernel has -1 for what it does not know.
            time: raw.time.filter(|time| *time != u64::MAX),
            core: raw.core.filter(|core| *core < MAX_CORES),
            task,
            event,
            period: raw.period.unwrap_or(attr.sample_period),
            stack,
        };
        self.report.samples += 1;
        self.names.count(event, sample.period);
        if (self.sink)(&self.names, sample).is_break() {
            self.stopped = true;
        }
        Some(())
    }

    /// The core a record other than a sample was written on.
    fn core_of(&self, body: &[u8], layout: &Layout) -> Option<u32> {
        let words = layout.attrs.first()?.core_word_from_end()?;
        Fields::new(&body[body.len().checked_sub(words * 8)?..], self.swap).u32()
    }
}
