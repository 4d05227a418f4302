//! From text to a [`Profile`] with every sample.

use std::io::Read;

use super::frame::FrameText;
use super::header::Header;
use super::read::feed;
use super::scan::{Scanner, Sink};
use crate::import::gz::Unpacked;
use crate::import::{ImportError, Report};
use crate::model::{EventId, Frame, Profile, Sample, StackId, Task, TaskId, label};

/// Reads a stream, compressed or not.
pub fn read(from: impl Read) -> Result<(Profile, Report), ImportError> {
    let mut from = Unpacked::new(from)?;
    let nothing =
        Sample { time: None, core: None, task: TaskId(0), event: EventId(0), period: 1, stack: StackId::EMPTY };
    let collector = Collector { profile: Profile::default(), sample: nothing };
    let mut scanner = Scanner::new(collector);
    feed(&mut from, &mut scanner)?;
    let (mut profile, mut report) = (scanner.sink.profile, scanner.report);
    report.truncated |= from.cut();
    report.out_of_order = profile.samples.sort();
    Ok((profile, report))
}

struct Collector {
    profile: Profile,
    sample: Sample,
}

impl Sink for Collector {
    fn frame(&mut self, frame: FrameText<'_>) -> u32 {
        let symbol = self.profile.strings.intern_bytes(frame.symbol);
        let module = self.profile.strings.intern_bytes(frame.module);
        let place = label::place_of(self.profile.strings.get(module), frame.high);
        self.profile.frames.intern(Frame { symbol, module, place, inlined: frame.inlined }).0
    }

    fn task(&mut self, header: &Header<'_>) -> u32 {
        let comm = self.profile.strings.intern_bytes(header.comm);
        self.profile.intern_task(Task { pid: header.pid, tid: header.tid, comm, cgroup: None }).0
    }

    fn event(&mut self, name: &[u8]) -> u32 {
        u32::from(self.profile.intern_event(&String::from_utf8_lossy(name)).0)
    }

    fn begin(&mut self, task: u32, event: u32, header: &Header<'_>) {
        self.sample = Sample {
            time: header.time,
            core: header.core,
            task: TaskId(task),
            event: EventId(event as u16),
            period: header.period.unwrap_or(1),
            stack: StackId::EMPTY,
        };
    }

    fn end(&mut self, leaf_first: &[u32]) {
        let stack = self.profile.stacks.intern(leaf_first);
        self.profile.add(Sample { stack, ..self.sample });
    }
}
