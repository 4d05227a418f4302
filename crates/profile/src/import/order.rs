//! Sorts nearly sorted samples by time.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::ops::ControlFlow;

use super::Take;
use crate::model::{Dictionary, Sample};

/// How many samples are held back: a second and a half of a thousand cores at 99 Hz.
pub(super) const HELD: usize = 1 << 16;
/// perf.data is already sorted by record; what is still late came more than two of perf's rounds late.
pub(super) const HELD_OF_ORDERED: usize = 1 << 12;

pub(super) struct Window<'s, 't> {
    take: &'s mut Take<'t>,
    most: usize,
    /// Those that came in order …
    held: VecDeque<Held>,
    /// … and those that came after a younger one, the oldest on top.
    late_ones: BinaryHeap<Reverse<Held>>,
    came: u64,
    passed: u64,
    /// Samples that came after a younger one.
    pub late: u64,
    stopped: bool,
}

/// Ordered by time, then by arrival.
struct Held {
    time: u64,
    turn: u64,
    sample: Sample,
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> Ordering {
        (self.time, self.turn).cmp(&(other.time, other.turn))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Held {}

impl<'s, 't> Window<'s, 't> {
    /// Holds back `most` samples at most.
    pub fn new(take: &'s mut Take<'t>, most: usize) -> Window<'s, 't> {
        let (held, late_ones) = (VecDeque::new(), BinaryHeap::new());
        Window { take, most, held, late_ones, came: 0, passed: 0, late: 0, stopped: false }
    }

    pub fn take(&mut self, names: &Dictionary, sample: Sample) -> ControlFlow<()> {
        let Some(time) = sample.time else { return self.pass(names, sample) };
        self.came += 1;
        let held = Held { time, turn: self.came, sample };
        if time < self.passed {
            // Too late to be sorted in.
            self.late += 1;
            return self.pass(names, sample);
        }
        // Most files are sorted, and then this is a push at the end.
        if self.held.back().is_some_and(|newest| newest.time > time) {
            self.late += 1;
            self.late_ones.push(Reverse(held));
        } else {
            self.held.push_back(held);
        }
        if self.held.len() + self.late_ones.len() > self.most
            && let Some(oldest) = self.oldest()
        {
            self.passed = oldest.time;
            return self.pass(names, oldest.sample);
        }
        if self.stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn oldest(&mut self) -> Option<Held> {
        match (self.held.front(), self.late_ones.peek()) {
            (Some(next), Some(Reverse(late))) if late < next => self.late_ones.pop().map(|Reverse(late)| late),
            (None, Some(_)) => self.late_ones.pop().map(|Reverse(late)| late),
            _ => self.held.pop_front(),
        }
    }

    fn pass(&mut self, names: &Dictionary, sample: Sample) -> ControlFlow<()> {
        if !self.stopped {
            self.stopped = (self.take)(names, sample).is_break();
        }
        if self.stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    pub fn finish(&mut self, names: &Dictionary) {
        while let Some(oldest) = self.oldest() {
            if self.pass(names, oldest.sample).is_break() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EventId, StackId, TaskId};

    #[test]
    fn a_late_sample_is_sorted_in_and_a_far_too_late_one_passed_on() {
        let mut seen = Vec::new();
        let mut take = |_: &Dictionary, sample: Sample| {
            seen.push(sample.time.unwrap_or(0));
            ControlFlow::Continue(())
        };
        let mut window = Window::new(&mut take, HELD);
        let names = Dictionary::default();
        let at = |time| Sample {
            time: Some(time),
            core: None,
            task: TaskId(0),
            event: EventId(0),
            period: 1,
            stack: StackId::EMPTY,
        };
        for time in [10, 30, 20].into_iter().chain(40..40 + HELD as u64).chain([5]) {
            assert!(window.take(&names, at(time)).is_continue());
        }
        window.finish(&names);
        assert_eq!(window.late, 2);
        assert_eq!(seen[..4], [10, 20, 30, 5]);
        assert_eq!(seen.len(), HELD + 4);
        assert!(seen[4..].is_sorted());
    }
}
