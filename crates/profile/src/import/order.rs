//! Puts samples in order of time that are nearly so.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::Take;
use crate::model::{Dictionary, Sample};

/// How many samples are held back: those of a second on a thousand cores at 99 Hz and a half.
const HELD: usize = 1 << 16;

pub(super) struct Window<'s, 't> {
    take: &'s mut Take<'t>,
    held: VecDeque<(u64, Sample)>,
    passed: u64,
    /// Samples that came after a younger one had been passed on.
    pub late: u64,
    stopped: bool,
}

impl<'s, 't> Window<'s, 't> {
    pub fn new(take: &'s mut Take<'t>) -> Window<'s, 't> {
        Window { take, held: VecDeque::new(), passed: 0, late: 0, stopped: false }
    }

    pub fn take(&mut self, names: &Dictionary, sample: Sample) -> ControlFlow<()> {
        let Some(time) = sample.time else { return self.pass(names, sample) };
        // Most files are in order, and then this is a push at the end.
        let at = match self.held.back() {
            Some((newest, _)) if *newest > time => {
                self.late += 1;
                self.held.partition_point(|(other, _)| *other <= time)
            }
            _ => self.held.len(),
        };
        if at == 0 && time < self.passed {
            // Too late to be put in its place.
            return self.pass(names, sample);
        }
        self.held.insert(at, (time, sample));
        if self.held.len() > HELD
            && let Some((time, sample)) = self.held.pop_front()
        {
            self.passed = time;
            return self.pass(names, sample);
        }
        if self.stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn pass(&mut self, names: &Dictionary, sample: Sample) -> ControlFlow<()> {
        if !self.stopped {
            self.stopped = (self.take)(names, sample).is_break();
        }
        if self.stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    pub fn finish(&mut self, names: &Dictionary) {
        while let Some((_, sample)) = self.held.pop_front() {
            if self.pass(names, sample).is_break() {
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
    fn a_late_sample_is_put_in_its_place_and_one_that_is_far_too_late_is_passed_on() {
        let mut seen = Vec::new();
        let mut take = |_: &Dictionary, sample: Sample| {
            seen.push(sample.time.unwrap_or(0));
            ControlFlow::Continue(())
        };
        let mut window = Window::new(&mut take);
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
