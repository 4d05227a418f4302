//! Which samples a view includes.

use std::ops::Range;

use crate::model::{Dictionary, EventId, Sample, StackId, Task, TaskId};

const SECOND: u64 = 1_000_000_000;

/// The same part of every second: what always happens at .3 s is driven by a timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Offsets into a second, in nanoseconds. One that ends before it starts wraps around the second.
    pub offsets: Range<u64>,
    /// The time range it applies to, in nanoseconds.
    pub within: Range<u64>,
}

impl Band {
    fn has(&self, offset: u64) -> bool {
        let Range { start, end } = self.offsets;
        if start <= end { (start..end).contains(&offset) } else { offset >= start || offset < end }
    }
}

/// What to keep; empty keeps everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any of these time ranges, in nanoseconds; empty for all.
    pub ranges: Vec<Range<u64>>,
    pub band: Option<Band>,
    /// Any of these; empty for all.
    pub cores: Vec<u32>,
    pub pids: Vec<u32>,
    pub tids: Vec<u32>,
    /// Any of these command names, exactly.
    pub comms: Vec<String>,
    /// This cgroup or any below it.
    pub cgroup: Option<String>,
    /// A substring of the name of any function in the stack.
    pub symbol: Option<String>,
    /// The exact event name.
    pub event: Option<String>,
}

impl Filter {
    /// Samples with `from <= time < until`.
    pub fn between(from: u64, until: u64) -> Filter {
        let range = from..until;
        Filter { ranges: vec![range], ..Filter::default() }
    }
}

/// Applies a filter; name checks are cached per task, stack and event.
#[derive(Clone, Debug)]
pub struct Selector {
    filter: Filter,
    tasks: Vec<bool>,
    frames: Vec<bool>,
    stacks: Vec<bool>,
    events: Vec<bool>,
}

impl Selector {
    pub fn new(filter: Filter) -> Selector {
        Selector { filter, tasks: Vec::new(), frames: Vec::new(), stacks: Vec::new(), events: Vec::new() }
    }

    /// Whether the filter keeps a sample. `names` must be the same at each call; it may grow.
    pub fn has(&mut self, names: &Dictionary, sample: &Sample) -> bool {
        self.in_time(sample)
            && (self.filter.cores.is_empty() || sample.core.is_some_and(|core| self.filter.cores.contains(&core)))
            && self.has_task(names, sample.task)
            && self.has_event(names, sample.event)
            && self.has_stack(names, sample.stack)
    }

    fn in_time(&self, sample: &Sample) -> bool {
        let Some(time) = sample.time else { return self.filter.ranges.is_empty() && self.filter.band.is_none() };
        let in_range = self.filter.ranges.is_empty() || self.filter.ranges.iter().any(|range| range.contains(&time));
        let in_band = |band: &Band| band.within.contains(&time) && band.has(time % SECOND);
        in_range && self.filter.band.as_ref().is_none_or(in_band)
    }

    /// Whether the filter keeps a task, regardless of stack and time.
    pub fn has_task(&mut self, names: &Dictionary, id: TaskId) -> bool {
        while self.tasks.len() <= id.0 as usize {
            let task = names.task(TaskId(self.tasks.len() as u32));
            self.tasks.push(keeps_task(&self.filter, names, &task));
        }
        self.tasks[id.0 as usize]
    }

    fn has_event(&mut self, names: &Dictionary, id: EventId) -> bool {
        let Some(wanted) = &self.filter.event else { return true };
        while self.events.len() <= usize::from(id.0) {
            let event = names.events.get(self.events.len());
            self.events.push(event.is_some_and(|event| event.name == *wanted));
        }
        self.events[usize::from(id.0)]
    }

    /// Whether the filter keeps a stack, regardless of its task.
    pub fn has_stack(&mut self, names: &Dictionary, id: StackId) -> bool {
        let Some(wanted) = &self.filter.symbol else { return true };
        // A stack's parent has a smaller id, so its answer is known.
        while self.stacks.len() <= id.0 as usize {
            let kept = names.stacks.split(StackId(self.stacks.len() as u32)).is_some_and(|(below, leaf)| {
                while self.frames.len() <= leaf.0 as usize {
                    let frame = names.frames.get(crate::model::FrameId(self.frames.len() as u32));
                    self.frames.push(frame.symbol(&names.strings).contains(wanted.as_str()));
                }
                self.stacks[below.0 as usize] || self.frames[leaf.0 as usize]
            });
            self.stacks.push(kept);
        }
        self.stacks[id.0 as usize]
    }
}

fn keeps_task(filter: &Filter, names: &Dictionary, task: &Task) -> bool {
    let any_of = |wanted: &[u32], id: Option<u32>| wanted.is_empty() || id.is_some_and(|id| wanted.contains(&id));
    let below = |above: &String| {
        task.cgroup.is_some_and(|cgroup| {
            let path = names.strings.get(cgroup);
            path.strip_prefix(above.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || above.ends_with('/'))
        })
    };
    any_of(&filter.pids, task.pid)
        && any_of(&filter.tids, task.tid)
        && (filter.comms.is_empty() || filter.comms.iter().any(|comm| names.strings.get(task.comm) == comm))
        && filter.cgroup.as_ref().is_none_or(below)
}
