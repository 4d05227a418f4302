//! What records do in their turn: they map, rename, and become samples.

use std::collections::HashMap;

use coroner_evidence::perf::{Attr, Fields, HEADER, RawSample, Said, kind, record_header, sample};

use super::frames::{Around, Mode, Namer};
use super::space::{Mapping, Tasks};
use super::{Beyond, Limits};
use crate::import::{OddityKind, Report, Take};
use crate::model::hash::Seeded;
use crate::model::{Dictionary, EventId, Sample, StackId, Strings, Task};
use crate::symbols::Symbols;

const GROUP: &[u8] = b"samples of a group of events (:S): only the leader's are kept, not the others' counts";
const DWARF: &[u8] =
    b"user stacks are copies of memory (--call-graph dwarf), which are not unwound: only the kernel's frames and the place in user code";
/// What the kernel allows (PATH_MAX, KSYM_NAME_LEN). A longer name in a deep stack would be longer than the file, many times.
const MAX_PATH: usize = 4096;
const MAX_KSYMBOL: usize = 512;
/// Cores are numbered below this; a larger number says that none is known.
const MAX_CORES: u32 = u16::MAX as u32;
/// More cgroups than a node has; beyond it the oldest lose their names.
const MAX_CGROUPS: usize = 1 << 20;

/// The events that records are of.
pub(crate) struct Events<'a> {
    pub attrs: &'a [Attr],
    pub ids: &'a HashMap<u64, usize, Seeded>,
    /// As the dictionary has them.
    pub names: &'a [EventId],
    /// Samples of all of them have the same fields at the same places.
    pub alike: bool,
}

impl Events<'_> {
    /// When a record was written, if it says so.
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

/// Everything that changes while records pass in order.
pub(crate) struct Work {
    pub swap: bool,
    pub names: Dictionary,
    pub report: Report,
    pub tasks: Tasks,
    cgroups: HashMap<u64, Box<str>, Seeded>,
    pub namer: Namer,
    /// Lost records as the kernel said when it lost them, and as perf asked at the end: mostly the same ones.
    lost: (u64, u64),
    /// The sink wants no more.
    pub stopped: bool,
}

impl Work {
    pub fn new(swap: bool, names: Dictionary, report: Report, limits: Limits) -> Work {
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

    /// An empty dictionary from now on.
    pub fn begin_anew(&mut self) {
        self.names = Dictionary::default();
        self.tasks.forget_strings();
        self.namer.forget_kernel();
        self.namer.forget_programs();
    }

    /// Takes a record in its turn.
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
            let said = Said::parse(kind, misc, attr.map_or(body, |attr| attr.own_part(body)), self.swap);
            said.map(|said| self.side_record(said, Mode::of_record(misc), core, beyond))
        };
        if done.is_none() {
            self.report.odd(OddityKind::BadRecord, place, format!("record of kind {kind}").as_bytes());
        }
    }

    fn side_record(&mut self, said: Said<'_>, mode: Mode, core: Option<u32>, beyond: &mut impl Beyond) {
        match said {
            Said::Mapped { pid, start, length, file_offset, build_id, inode, path } => {
                let path = String::from_utf8_lossy(&path[..path.len().min(MAX_PATH)]);
                if pid == u32::MAX || mode == Mode::Kernel {
                    return beyond.kernel_mapped(&path, start, length, file_offset, build_id);
                }
                let build_id = build_id.map(Into::into).or_else(|| beyond.build_id(pid, &path, inode));
                let dso = self.tasks.dso_id(&path, build_id, inode, pid);
                let mapping = Mapping { end: start.saturating_add(length), file_offset, dso };
                self.tasks.map(pid, start, mapping);
            }
            Said::Named { pid, tid, name, by_exec } => {
                self.tasks.rename(tid, name);
                if by_exec {
                    self.tasks.exec(pid);
                }
            }
            Said::Began { pid, tid, parent_pid, parent_tid } => {
                beyond.meet(parent_pid, parent_tid, &mut self.tasks);
                self.tasks.fork((pid, tid), (parent_pid, parent_tid));
                beyond.born(tid, parent_pid, &mut self.tasks);
            }
            Said::Ended { pid, tid } => self.tasks.exit(pid, tid),
            Said::Lost(lost) => {
                self.lost.0 = self.lost.0.saturating_add(lost);
                if let Some(core) = core {
                    let of_core = self.report.lost_by_core.entry(core).or_default();
                    *of_core = of_core.saturating_add(lost);
                }
            }
            Said::LostSamples(lost) => self.lost.1 = self.lost.1.saturating_add(lost),
            Said::Throttled(_) => {
                self.report.throttled += 1;
                if let Some(core) = core {
                    *self.report.throttled_by_core.entry(core).or_default() += 1;
                }
            }
            Said::Cgroup { id, path } => {
                if self.cgroups.len() >= MAX_CGROUPS {
                    self.cgroups.clear();
                }
                self.cgroups.insert(id, String::from_utf8_lossy(path).into());
            }
            Said::KernelCode { start, length, name, is_gone } => {
                let name = String::from_utf8_lossy(&name[..name.len().min(MAX_KSYMBOL)]);
                self.namer.generated(start, length, (!is_gone).then_some(&name));
            }
            Said::Unthrottled(_) | Said::Other => {}
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
            Some(tid) => match self.tasks.interned_name(tid, &mut self.names.strings) {
                Some(name) => name,
                None => self.names.strings.intern(&format!(":{tid}")),
            },
            // A thread that is being torn down has no number any more; perf calls it so.
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
        sample
    }
}
