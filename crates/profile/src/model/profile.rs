//! The samples of one recording.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Frames, StackId, Stacks, StrId, Strings, WordTable};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(pub u16);

/// Who ran: one thread under one name in one cgroup. A thread that renamed itself is two tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    pub comm: StrId,
    pub cgroup: Option<StrId>,
}

impl Task {
    /// The idle task of a core. Its tid is 0 on every core.
    pub fn is_idle_task(&self, strings: &Strings) -> bool {
        self.tid == Some(0) || (self.tid.is_none() && strings.get(self.comm) == "swapper")
    }
}

/// What made the samples, as the file names it (`cycles:u`, `sched:sched_switch`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub name: String,
    pub samples: u64,
    /// Sum of the periods: what the samples stand for, in the event's unit (nanoseconds for a cpu clock).
    pub weight: u64,
}

/// One row. Times are nanoseconds of the recording's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub time: Option<u64>,
    pub core: Option<u32>,
    pub task: TaskId,
    pub event: EventId,
    /// What this sample stands for; 1 where the file does not say.
    pub period: u64,
    pub stack: StackId,
}

/// How the recording's clock relates to the wall clock, where the file says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// A reading of the recording's clock, in nanoseconds …
    pub clock_ns: u64,
    /// … and of the wall clock (Unix time) at the same moment.
    pub wall_ns: u64,
}

/// Columns: about 20 bytes a sample as long as the period does not change.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    time: Vec<u64>,
    core: Vec<u16>,
    task: Vec<u32>,
    event: Vec<u16>,
    stack: Vec<u32>,
    period: Periods,
}

const NO_TIME: u64 = u64::MAX;
const NO_CORE: u16 = u16::MAX;

/// Most recordings have one period throughout.
#[derive(Clone, Debug)]
enum Periods {
    Constant(u64),
    Each(Vec<u64>),
}

impl Default for Periods {
    fn default() -> Periods {
        Periods::Constant(1)
    }
}

impl Samples {
    pub fn push(&mut self, sample: Sample) {
        match &mut self.period {
            Periods::Constant(period) if self.task.is_empty() => *period = sample.period,
            Periods::Constant(period) if *period == sample.period => {}
            Periods::Constant(period) => {
                let mut each = vec![*period; self.task.len()];
                each.push(sample.period);
                self.period = Periods::Each(each);
            }
            Periods::Each(each) => each.push(sample.period),
        }
        self.time.push(sample.time.unwrap_or(NO_TIME));
        self.core.push(sample.core.and_then(|core| u16::try_from(core).ok()).unwrap_or(NO_CORE));
        self.task.push(sample.task.0);
        self.event.push(sample.event.0);
        self.stack.push(sample.stack.0);
    }

    pub fn len(&self) -> usize {
        self.task.len()
    }

    pub fn is_empty(&self) -> bool {
        self.task.is_empty()
    }

    pub fn get(&self, index: usize) -> Sample {
        Sample {
            time: Some(self.time[index]).filter(|time| *time != NO_TIME),
            core: Some(u32::from(self.core[index])).filter(|core| *core != u32::from(NO_CORE)),
            task: TaskId(self.task[index]),
            event: EventId(self.event[index]),
            period: match &self.period {
                Periods::Constant(period) => *period,
                Periods::Each(each) => each[index],
            },
            stack: StackId(self.stack[index]),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Sample> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Samples with `from <= time < until`. Needs samples in order of time.
    pub fn between(&self, from: u64, until: u64) -> impl Iterator<Item = Sample> + '_ {
        let start = self.time.partition_point(|time| *time < from);
        let end = self.time.partition_point(|time| *time < until);
        (start..end.max(start)).map(|index| self.get(index))
    }

    /// Puts the samples in order of time (those without a time last). Returns how many came later in the file than a younger one.
    pub fn sort(&mut self) -> u64 {
        let mut newest = 0;
        let mut late = 0;
        let mut ordered = true;
        let mut before = 0;
        for time in &self.time {
            ordered &= before <= *time;
            before = *time;
            if *time == NO_TIME {
                continue;
            }
            late += u64::from(*time < newest);
            newest = newest.max(*time);
        }
        if !ordered {
            let mut order: Vec<u32> = (0..self.time.len() as u32).collect();
            order.sort_by_key(|index| self.time[*index as usize]);
            self.time = pick(&self.time, &order);
            self.core = pick(&self.core, &order);
            self.task = pick(&self.task, &order);
            self.event = pick(&self.event, &order);
            self.stack = pick(&self.stack, &order);
            if let Periods::Each(each) = &mut self.period {
                *each = pick(each, &order);
            }
        }
        late
    }

    /// Time of the first and the last sample that have one. Needs samples in order of time.
    pub fn span(&self) -> Option<(u64, u64)> {
        let timed = self.time.partition_point(|time| *time != NO_TIME);
        (timed > 0).then(|| (self.time[0], self.time[timed - 1]))
    }
}

fn pick<T: Copy>(column: &[T], order: &[u32]) -> Vec<T> {
    order.iter().map(|index| column[*index as usize]).collect()
}

/// One recording, in order of time.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub strings: Strings,
    pub frames: Frames,
    pub stacks: Stacks,
    tasks: WordTable,
    pub events: Vec<Event>,
    event_ids: HashMap<String, EventId>,
    pub samples: Samples,
    pub clock: Option<Clock>,
}

const NOBODY: u32 = u32::MAX;

impl Profile {
    pub fn intern_task(&mut self, task: Task) -> TaskId {
        let cgroup = task.cgroup.map_or(NOBODY, |cgroup| cgroup.0);
        let key = [task.pid.unwrap_or(NOBODY), task.tid.unwrap_or(NOBODY), task.comm.0, cgroup];
        TaskId(self.tasks.intern(&key).0)
    }

    pub fn task(&self, id: TaskId) -> Task {
        let words = self.tasks.get(id.0);
        let some = |word: u32| Some(word).filter(|word| *word != NOBODY);
        Task { pid: some(words[0]), tid: some(words[1]), comm: StrId(words[2]), cgroup: some(words[3]).map(StrId) }
    }

    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, Task)> + '_ {
        (0..self.tasks.len() as u32).map(|id| (TaskId(id), self.task(TaskId(id))))
    }

    /// The id of the event `name`. A file with more than 65,535 events shares the last id among the rest.
    pub fn intern_event(&mut self, name: &str) -> EventId {
        if let Some(id) = self.event_ids.get(name) {
            return *id;
        }
        if self.events.len() >= usize::from(u16::MAX) {
            return EventId(u16::MAX - 1);
        }
        self.events.push(Event { name: name.to_owned(), samples: 0, weight: 0 });
        let id = EventId((self.events.len() - 1) as u16);
        self.event_ids.insert(name.to_owned(), id);
        id
    }

    /// Adds a sample and counts it for its event.
    pub fn add(&mut self, sample: Sample) {
        if let Some(event) = self.events.get_mut(usize::from(sample.event.0)) {
            event.samples += 1;
            event.weight = event.weight.saturating_add(sample.period);
        }
        self.samples.push(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time: u64, period: u64) -> Sample {
        Sample { time: Some(time), core: Some(1), task: TaskId(0), event: EventId(0), period, stack: StackId::EMPTY }
    }

    #[test]
    fn late_samples_are_counted_and_put_in_their_place() {
        let mut samples = Samples::default();
        for (time, period) in [(10, 1), (30, 3), (20, 2), (40, 4)] {
            samples.push(sample(time, period));
        }
        samples.push(Sample { time: None, core: None, ..sample(0, 9) });
        assert_eq!(samples.sort(), 1);
        let periods: Vec<u64> = samples.iter().map(|sample| sample.period).collect();
        assert_eq!(periods, [1, 2, 3, 4, 9]);
        assert_eq!(samples.span(), Some((10, 40)));
        assert_eq!(samples.between(20, 40).count(), 2);
        assert_eq!(samples.get(4).time, None);
        assert_eq!(samples.get(4).core, None);
    }
}
