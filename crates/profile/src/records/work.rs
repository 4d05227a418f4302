//! Applies records in order: mappings, names, samples.

use std::collections::HashMap;

use coroner_evidence::perf::{Attr, Fields, HEADER, RawSample, SideRecord, kind, record_header, sample};

use super::frames::{Around, Mode, Namer};
use super::space::{Mapping, Tasks};
use super::{Beyond, Limits};
use crate::import::{ImportReport, OddityKind, Take};
use crate::model::{Dictionary, EventId, Sample, Seeded, StackId, Strings, Task};
use crate::symbols::Symbols;

const GROUP: &[u8] = b"event group (:S): only the leader's samples are kept, not the other members' counts";
const DWARF: &[u8] =
    b"user stacks are raw memory (--call-graph dwarf) and are not unwound: only kernel frames and the user address are kept";
/// The kernel's limits (PATH_MAX, KSYM_NAME_LEN). A longer name, repeated in a deep stack, would be many times the file's size.
const MAX_PATH: usize = 4096;
const MAX_KSYMBOL: usize = 512;
/// Core numbers are below this; a larger one means unknown.
const MAX_CORES: u32 = u16::MAX as u32;
/// More cgroups than a node has; beyond it the oldest names are dropped.
const MAX_CGROUPS: usize = 1 << 20;

/// The recorded events.
pub(crate) struct Events<'a> {
    pub attrs: &'a [Attr],
    pub ids: &'a HashMap<u64, usize, Seeded>,
    /// Their ids in the dictionary.
    pub names: &'a [EventId],
    /// Samples of all events have the same layout.
    pub alike: bool,
}

impl Events<'_> {
    /// The time of a record, if it has one.
    pub fn time_of(&self, kind: u32, body: &[u8], swap: bool) -> Option<u64> {
        let attr = match kind {
            kind::SAMPLE if !self.alike => &self.attrs[attr_of(self.attrs, self.ids, body, swap)?],
            _ => self.attrs.first()?,
        };
        attr.time_of(kind, body, swap)
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

/// The state that records change.
pub(crate) struct Work {
    pub swap: bool,
    pub names: Dictionary,
    pub report: ImportReport,
    pub tasks: Tasks,
    cgroups: HashMap<u64, Box<str>, Seeded>,
    pub namer: Namer,
    /// Lost records as reported by the kernel, and as read by perf at the end: mostly the same ones.
    lost: (u64, u64),
    /// The sink wants no more samples.
    pub stopped: bool,
}

impl Work {
    pub fn new(swap: bool, names: Dictionary, report: ImportReport, limits: Limits) -> Work {
        Work {
            swap,
            names,
            report,
            tasks: Tasks::new(limits),
            cgroups: HashMap::default(),
            namer: Namer::new(limits),
            lost: (0, 0),
            stopped: false,
        }
    }

    /// Starts an empty dictionary.
    pub fn begin_anew(&mut self) {
        self.names = Dictionary::default();
        self.tasks.forget_strings();
        self.namer.forget_kernel();
        self.namer.forget_programs();
    }

    /// Applies the next record.
    pub fn take(
        &mut self,
        record: &[u8],
        place: u64,
        events: &Events<'_>,
        beyond: &mut impl Beyond,
        symbols: &mut Symbols,
        sink: &mut Take<'_>,
    ) {
        if self.stopped {
            return;
        }
        let (kind, misc, _) = record_header(record, self.swap);
        let body = &record[HEADER..];
        let done = if kind == kind::SAMPLE {
            if let Some(kernel) = beyond.changed_kernel() {
                symbols.set_kernel(kernel);
                self.namer.forget_kernel();
            }
            attr_of(events.attrs, events.ids, body, self.swap).and_then(|at| {
                let attr = &events.attrs[at];
                let raw = sample::parse(Fields::new(body, self.swap), attr)?;
                if let (Some(pid), Some(tid)) = (raw.pid, raw.tid) {
                    beyond.meet(pid, tid, &mut self.tasks);
                }
                let event = events.names.get(at).copied().unwrap_or(EventId(0));
                let sample = self.sample(&raw, Mode::of_record(misc), place, attr, event, symbols);
                self.stopped = sink(&self.names, sample).is_break();
                Some(())
            })
        } else {
            let attr = events.attrs.first();
            let core = attr.and_then(|attr| attr.core_of(body, self.swap)).filter(|core| *core < MAX_CORES);
            let said = SideRecord::parse(kind, misc, attr.map_or(body, |attr| attr.own_part(body)), self.swap);
            said.map(|said| self.side_record(said, Mode::of_record(misc), core, beyond))
        };
        if done.is_none() {
            self.report.odd(OddityKind::BadRecord, place, format!("record of kind {kind}").as_bytes());
        }
    }

    fn side_record(&mut self, said: SideRecord<'_>, mode: Mode, core: Option<u32>, beyond: &mut impl Beyond) {
        match said {
            SideRecord::Mapped { pid, start, length, file_offset, build_id, inode, path } => {
                let path = String::from_utf8_lossy(&path[..path.len().min(MAX_PATH)]);
                if pid == u32::MAX || mode == Mode::Kernel {
                    return beyond.kernel_mapped(&path, start, length, file_offset, build_id);
                }
                let build_id = build_id.map(Into::into).or_else(|| beyond.build_id(pid, &path, inode));
                let dso = self.tasks.dso_id(&path, build_id, inode, pid);
                let mapping = Mapping { end: start.saturating_add(length), file_offset, dso };
                self.tasks.map(pid, start, mapping);
            }
            SideRecord::Named { pid, tid, name, by_exec } => {
                self.tasks.rename(tid, name);
                if by_exec {
                    self.tasks.exec(pid);
                }
            }
            SideRecord::Began { pid, tid, parent_pid, parent_tid } => {
                beyond.meet(parent_pid, parent_tid, &mut self.tasks);
                self.tasks.fork((pid, tid), (parent_pid, parent_tid));
                beyond.born(tid, parent_pid, &mut self.tasks);
            }
            SideRecord::Ended { pid, tid } => self.tasks.exit(pid, tid),
            SideRecord::Lost(lost) => {
                self.lost.0 = self.lost.0.saturating_add(lost);
                if let Some(core) = core {
                    let of_core = self.report.lost_by_core.entry(core).or_default();
                    *of_core = of_core.saturating_add(lost);
                }
            }
            SideRecord::LostSamples(lost) => self.lost.1 = self.lost.1.saturating_add(lost),
            SideRecord::Throttled(_) => {
                self.report.throttled += 1;
                if let Some(core) = core {
                    *self.report.throttled_by_core.entry(core).or_default() += 1;
                }
            }
            SideRecord::Cgroup { id, path } => {
                if self.cgroups.len() >= MAX_CGROUPS {
                    self.cgroups.clear();
                }
                self.cgroups.insert(id, String::from_utf8_lossy(path).into());
            }
            SideRecord::KernelCode { start, length, name, is_gone } => {
                let name = String::from_utf8_lossy(&name[..name.len().min(MAX_KSYMBOL)]);
                self.namer.generated(start, length, (!is_gone).then_some(&name));
            }
            SideRecord::Unthrottled(_) | SideRecord::Other => {}
        }
        self.report.lost = self.lost.0.max(self.lost.1);
    }

    fn sample(
        &mut self,
        raw: &RawSample<'_>,
        mode: Mode,
        place: u64,
        attr: &Attr,
        event: EventId,
        symbols: &mut Symbols,
    ) -> Sample {
        let Work { names, tasks, .. } = self;
        let mut around = Around { names, tasks, symbols, pid: raw.pid.unwrap_or(0) };
        let stack = if raw.chain.is_empty() {
            match attr.has_address() {
                true => self.namer.single(raw.ip, mode, &mut around),
                false => StackId::EMPTY,
            }
        } else {
            let (stack, whole) = self.namer.stack(raw.chain, self.swap, mode, &mut around);
            if !whole {
                self.report.odd(OddityKind::StrayStack, place, b"stack cut at an invalid address");
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
            Some(tid) => match self.tasks.interned_name(tid, &mut self.names.strings) {
                Some(name) => name,
                None => self.names.strings.intern(&format!(":{tid}")),
            },
            // An exiting thread no longer has a tid; perf calls it this.
            None if attr.has_thread() => self.names.strings.intern(":-1"),
            None => Strings::EMPTY,
        };
        let cgroup = match raw.cgroup {
            Some(id) => self.cgroups.get(&id).map(|path| &**path),
            None => raw.pid.and_then(|pid| self.tasks.cgroup(pid)),
        };
        let cgroup = cgroup.map(|path| self.names.strings.intern(path));
        let task = self.names.intern_task(Task { pid: raw.pid, tid: raw.tid, comm, cgroup });
        let sample = Sample {
            // The kernel writes -1 for unknown.
            time: raw.time.filter(|time| *time != u64::MAX),
            core: raw.core.filter(|core| *core < MAX_CORES),
            task,
            event,
            period: raw.period.unwrap_or(attr.sample_period),
            stack,
        };
        self.report.samples += 1;
        self.names.count(event, sample.period);
        sample
    }
}
