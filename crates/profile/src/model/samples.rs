//! Samples in columns.

use super::{EventId, StackId, TaskId};

/// One row. Times are nanoseconds of the recording's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub time: Option<u64>,
    pub core: Option<u32>,
    pub task: TaskId,
    pub event: EventId,
    /// The sample's weight; 1 if the file does not give one.
    pub period: u64,
    pub stack: StackId,
}

/// Columns: about 20 bytes per sample as long as the period does not change.
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

    /// Samples with `from <= time < until`. Needs samples in time order.
    pub fn between(&self, from: u64, until: u64) -> impl Iterator<Item = Sample> + '_ {
        let start = self.time.partition_point(|time| *time < from);
        let end = self.time.partition_point(|time| *time < until);
        (start..end.max(start)).map(|index| self.get(index))
    }

    /// Sorts the samples by time (those without a time last). Returns how many were out of order.
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

    /// Times of the first and last sample that have one. Needs samples in time order.
    pub fn span(&self) -> Option<(u64, u64)> {
        let timed = self.time.partition_point(|time| *time != NO_TIME);
        (timed > 0).then(|| (self.time[0], self.time[timed - 1]))
    }
}

fn pick<T: Copy>(column: &[T], order: &[u32]) -> Vec<T> {
    order.iter().map(|index| column[*index as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time: u64, period: u64) -> Sample {
        Sample { time: Some(time), core: Some(1), task: TaskId(0), event: EventId(0), period, stack: StackId::EMPTY }
    }

    #[test]
    fn late_samples_are_counted_and_sorted_in() {
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
