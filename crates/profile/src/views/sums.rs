//! Samples added up by stack: the basis of flame graphs and exports.

use std::collections::HashMap;

use crate::model::{Dictionary, EventId, Sample, Seeded, StackId, StrId, TaskId};

/// Whom a stack belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    Command(StrId),
    Thread(TaskId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    pub event: EventId,
    pub owner: Owner,
    pub stack: StackId,
    pub samples: u64,
    pub weight: u64,
}

/// Adds up samples. Memory follows the number of distinct stacks per owner.
#[derive(Clone, Debug, Default)]
pub struct StackSums {
    by_thread: bool,
    sums: HashMap<(u16, u32, u32), (u64, u64), Seeded>,
    /// The first and the last time.
    pub span: Option<(u64, u64)>,
}

impl StackSums {
    pub fn by_command() -> StackSums {
        StackSums::default()
    }

    pub fn by_thread() -> StackSums {
        StackSums { by_thread: true, ..StackSums::default() }
    }

    pub fn add(&mut self, names: &Dictionary, sample: &Sample) {
        let owner = if self.by_thread { sample.task.0 } else { names.task(sample.task).comm.0 };
        let (samples, weight) = self.sums.entry((sample.event.0, owner, sample.stack.0)).or_default();
        *samples += 1;
        *weight = weight.saturating_add(sample.period);
        if let Some(time) = sample.time {
            let (first, last) = self.span.get_or_insert((time, time));
            *first = time.min(*first);
            *last = time.max(*last);
        }
    }

    /// The sums in a deterministic order.
    pub fn sorted(&self) -> Vec<Sum> {
        let mut sums: Vec<Sum> = self.iter().collect();
        sums.sort_unstable_by_key(|sum| (sum.event, sum.owner, sum.stack));
        sums
    }

    /// The sums, in any order.
    pub fn iter(&self) -> impl Iterator<Item = Sum> {
        self.sums.iter().map(|((event, owner, stack), (samples, weight))| Sum {
            event: EventId(*event),
            owner: if self.by_thread { Owner::Thread(TaskId(*owner)) } else { Owner::Command(StrId(*owner)) },
            stack: StackId(*stack),
            samples: *samples,
            weight: *weight,
        })
    }

    /// The number of distinct stacks.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// The events with their sample counts, most first.
    pub fn events(&self) -> Vec<(EventId, u64)> {
        let mut events: HashMap<u16, u64> = HashMap::new();
        for ((event, _, _), (samples, _)) in &self.sums {
            *events.entry(*event).or_default() += samples;
        }
        let mut events: Vec<(EventId, u64)> = events.into_iter().map(|(id, samples)| (EventId(id), samples)).collect();
        events.sort_by_key(|(id, samples)| (std::cmp::Reverse(*samples), *id));
        events
    }
}
