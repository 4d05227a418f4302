//! Samples made for tests.

use crate::model::{Dictionary, EventId, Frame, FramePlace, Sample, StackId, Strings, Task, TaskId};

pub const MS: u64 = 1_000_000;

#[derive(Default)]
pub struct Made {
    pub names: Dictionary,
    pub samples: Vec<Sample>,
}

impl Made {
    /// A single-threaded process with this tid; 0 is the idle task.
    pub fn task(&mut self, comm: &str, tid: u32) -> TaskId {
        self.task_of(comm, Some(tid), Some(tid))
    }

    pub fn task_of(&mut self, comm: &str, pid: Option<u32>, tid: Option<u32>) -> TaskId {
        let comm = self.names.strings.intern(comm);
        self.names.intern_task(Task { pid, tid, comm, cgroup: None })
    }

    pub fn comm(&self, task: TaskId) -> &str {
        self.names.strings.get(self.names.task(task).comm)
    }

    /// Root first; kernel functions end in `_[k]`.
    pub fn stack(&mut self, root_first: &[&str]) -> StackId {
        let mut stack = StackId::EMPTY;
        for label in root_first {
            let (symbol, place) = match label.strip_suffix("_[k]") {
                Some(symbol) => (symbol, FramePlace::Kernel),
                None => (*label, FramePlace::User),
            };
            let symbol = self.names.strings.intern(symbol);
            let frame = self.names.frames.intern(Frame { symbol, module: Strings::EMPTY, place, inlined: false });
            stack = self.names.stacks.push(stack, frame);
        }
        stack
    }

    pub fn sample(&mut self, event: &str, core: u32, time: u64, task: TaskId, stack: StackId) {
        let event: EventId = self.names.intern_event(event);
        let core = Some(core);
        self.samples.push(Sample { time: Some(time), core, task, event, period: 1, stack });
        self.names.count(event, 1);
    }

    /// A cpu-clock sample that stands for so many nanoseconds.
    pub fn sample_for(&mut self, period: u64, core: u32, time: u64, task: TaskId, stack: StackId) {
        self.sample("cpu-clock", core, time, task, stack);
        self.samples.last_mut().expect("just added").period = period;
    }

    /// A cpu-clock sample on core 1, in user code.
    pub fn tick(&mut self, time: u64, task: TaskId) {
        let stack = self.stack(&["main", "work"]);
        self.sample("cpu-clock", 1, time, task, stack);
    }
}
