//! What samples refer to by small numbers: interned strings, frames, stacks, tasks and events.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Frames, Stacks, StrId, Strings, WordTable};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
        let name = strings.get(self.comm);
        self.tid == Some(0) || (self.tid.is_none() && (name == "swapper" || name.starts_with("swapper/")))
    }
}

/// What made the samples, as the file names it (`cycles:u`, `sched:sched_switch`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub name: String,
    pub samples: u64,
    /// Sum of the periods, in the event's unit (nanoseconds for a cpu clock).
    pub weight: u64,
}

impl Event {
    /// Whether the weights are nanoseconds. In text without periods every sample weighs 1, whatever the event.
    pub fn is_clock(&self) -> bool {
        let clock = self.name.starts_with("cpu-clock") || self.name.starts_with("task-clock");
        clock && self.weight > self.samples
    }
}

/// Grows while a file is read. Entries never change, so an id keeps its meaning.
#[derive(Clone, Debug, Default)]
pub struct Dictionary {
    pub strings: Strings,
    pub frames: Frames,
    pub stacks: Stacks,
    tasks: WordTable,
    pub events: Vec<Event>,
    event_ids: HashMap<String, EventId>,
    pub clock: Option<super::Clock>,
}

const NOBODY: u32 = u32::MAX;

/// The last event slot; it stands for all further events of the file.
const LAST_EVENT: usize = u16::MAX as usize - 1;

/// The slot and name of a new event when `events` are known.
pub(super) fn event_place(events: usize, name: &str) -> (usize, &str) {
    if events < LAST_EVENT { (events, name) } else { (LAST_EVENT, "[other events]") }
}

impl Dictionary {
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

    /// The id of the event `name`; adds it if it is new.
    pub fn intern_event(&mut self, name: &str) -> EventId {
        if let Some(id) = self.event_ids.get(name) {
            return *id;
        }
        let (at, name) = event_place(self.events.len(), name);
        let id = EventId(at as u16);
        if at == self.events.len() {
            self.events.push(Event { name: name.to_owned(), samples: 0, weight: 0 });
            self.event_ids.insert(name.to_owned(), id);
        }
        id
    }

    /// Memory used, approximately.
    pub fn held_bytes(&self) -> usize {
        self.strings.held_bytes() + self.frames.held_bytes() + self.stacks.held_bytes() + self.tasks.held_bytes()
    }

    /// Adds a sample to its event's totals.
    pub fn count(&mut self, event: EventId, period: u64) {
        if let Some(event) = self.events.get_mut(usize::from(event.0)) {
            event.samples += 1;
            event.weight = event.weight.saturating_add(period);
        }
    }
}
