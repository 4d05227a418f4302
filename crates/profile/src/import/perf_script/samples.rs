//! From text to samples.

use std::io::Read;

use super::frame::FrameText;
use super::header::Header;
use super::read::feed;
use super::scan::{Scanner, Sink};
use crate::import::gz::Unpacked;
use crate::import::{ReadResult, Stacks, Take};
use crate::model::{Dictionary, EventId, Frame, Sample, StackId, Task, TaskId, label};

/// Reads a stream, compressed or not.
pub fn read(from: impl Read, take: &mut Take<'_>) -> ReadResult {
    read_with(from, Stacks::All, take)
}

/// Reads a stream with only the wanted stacks. Oddities in the lines of other stacks are not reported.
pub fn read_with(from: impl Read, stacks: Stacks, take: &mut Take<'_>) -> ReadResult {
    let mut from = Unpacked::new(from)?;
    let nothing =
        Sample { time: None, core: None, task: TaskId(0), event: EventId(0), period: 1, stack: StackId::EMPTY };
    let mut scanner = Scanner::new(Passer {
        names: Dictionary::default(),
        sample: nothing,
        take,
        stopped: false,
        stacks,
        idle: Vec::new(),
    });
    feed(&mut from, &mut scanner)?;
    let mut report = scanner.report;
    report.truncated |= from.cut();
    Ok((scanner.sink.names, report))
}

/// Passes samples on.
struct Passer<'s, 't> {
    names: Dictionary,
    sample: Sample,
    take: &'s mut Take<'t>,
    stopped: bool,
    stacks: Stacks,
    /// For each task, whether it is an idle task.
    idle: Vec<bool>,
}

impl Sink for Passer<'_, '_> {
    fn frame(&mut self, frame: FrameText<'_>) -> u32 {
        let symbol = self.names.strings.intern_bytes(frame.symbol);
        let module = self.names.strings.intern_bytes(frame.module);
        let place = label::place_of(self.names.strings.get(module), frame.high);
        self.names.frames.intern(Frame { symbol, module, place, inlined: frame.inlined }).0
    }

    fn task(&mut self, header: &Header<'_>) -> u32 {
        let comm = self.names.strings.intern_bytes(header.comm);
        let task = Task { pid: header.pid, tid: header.tid, comm, cgroup: None };
        let id = self.names.intern_task(task).0;
        if self.idle.len() <= id as usize {
            self.idle.resize(id as usize + 1, false);
        }
        self.idle[id as usize] = task.is_idle_task(&self.names.strings);
        id
    }

    fn event(&mut self, name: &[u8]) -> u32 {
        u32::from(self.names.intern_event(&String::from_utf8_lossy(name)).0)
    }

    fn begin(&mut self, task: u32, event: u32, header: &Header<'_>) -> bool {
        self.sample = Sample {
            time: header.time,
            core: header.core,
            task: TaskId(task),
            event: EventId(event as u16),
            period: header.period.unwrap_or(1),
            stack: StackId::EMPTY,
        };
        self.stacks == Stacks::All || self.idle[task as usize]
    }

    fn end(&mut self, leaf_first: &[u32]) {
        let stack = self.names.stacks.intern(leaf_first);
        if !self.stopped {
            self.names.count(self.sample.event, self.sample.period);
            self.stopped = (self.take)(&self.names, Sample { stack, ..self.sample }).is_break();
        }
    }

    fn stopped(&self) -> bool {
        self.stopped
    }
}
