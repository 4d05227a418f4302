//! Packs samples and stacks.
//!
//! Samples are sorted by core: the time between two samples of one core hardly varies, and often the same task has the same stack.
//! Tasks and stacks are numbered within the chunk, so that early and frequent ones have short numbers.

use super::super::chunk::{Column, MAX_UNPACKED, Streamed, all_used, join, put, put_difference, split};
use super::{ChunkError, SampleRow, StackRow};
use crate::time::Time;
use std::collections::HashMap;

/// Most items a chunk may unpack to.
const MAX_SAMPLES: usize = MAX_UNPACKED / size_of::<SampleRow>();
const MAX_STACKS: usize = MAX_UNPACKED / size_of::<StackRow>();

/// Numbers things in the order of their first use.
#[derive(Default)]
struct Numbering {
    numbers: HashMap<u32, u64>,
    last: u32,
    list: Vec<u8>,
}

impl Numbering {
    fn number(&mut self, id: u32) -> u64 {
        let next = self.numbers.len() as u64;
        *self.numbers.entry(id).or_insert_with(|| {
            put_difference(&mut self.list, id.into(), self.last.into());
            self.last = id;
            next
        })
    }
}

/// The things numbered by a [`Numbering`].
fn list(mut column: Column<'_>) -> Result<Vec<u32>, ChunkError> {
    let mut list: Vec<u32> = Vec::new();
    while !column.is_empty() {
        list.push(column.after_u32(list.last().copied().unwrap_or(0))?);
    }
    Ok(list)
}

impl Streamed for SampleRow {
    const TABLE: &'static str = "profile_sample_chunks";

    fn at(&self) -> Option<Time> {
        self.at.map(Time)
    }

    fn rows(&self) -> usize {
        1
    }

    fn pack(samples: &[SampleRow]) -> Vec<u8> {
        let [mut core, mut timed, mut count] = [const { Vec::new() }; 3];
        let [mut time, mut event, mut period, mut task, mut stack] = [const { Vec::new() }; 5];
        let (mut tasks, mut stacks) = (Numbering::default(), Numbering::default());
        let group_of = |sample: &SampleRow| (sample.at.is_none(), sample.core.map_or(0, |core| u64::from(core) + 1));
        let mut sorted = samples.to_vec();
        // Stable: samples of one core stay in order.
        sorted.sort_by_key(group_of);
        let (mut last_core, mut last_first) = (0, 0);
        for group in sorted.chunk_by(|a, b| group_of(a) == group_of(b)) {
            let (untimed, this_core) = group_of(&group[0]);
            put_difference(&mut core, this_core, last_core);
            put(&mut timed, u64::from(!untimed));
            put(&mut count, group.len() as u64);
            let (mut last_time, mut step) = (last_first, 0u64);
            let (mut last_event, mut last_period) = (0, 0);
            let (mut last_task, mut last_stack) = (None, None);
            for (i, sample) in group.iter().enumerate() {
                if let Some(at) = sample.at {
                    let this_step = at.wrapping_sub(last_time);
                    put_difference(&mut time, this_step, step);
                    (last_time, step) = (at, if i == 0 { 0 } else { this_step });
                }
                put_difference(&mut event, sample.event.into(), last_event);
                put_difference(&mut period, sample.period, last_period);
                (last_event, last_period) = (sample.event.into(), sample.period);
                put_again(&mut task, &mut last_task, tasks.number(sample.task));
                put_again(&mut stack, &mut last_stack, stacks.number(sample.stack));
            }
            last_core = this_core;
            last_first = group[0].at.unwrap_or(last_first);
        }
        join([core, timed, count, time, event, period, task, tasks.list, stack, stacks.list])
    }

    fn unpack(payload: &[u8]) -> Result<Vec<SampleRow>, ChunkError> {
        let names = ["core", "timed", "count", "time", "event", "period", "task", "tasks", "stack", "stacks"];
        let [mut core, mut timed, mut count, mut time, mut event, mut period, mut task, tasks, mut stack, stacks] =
            split(payload, names)?;
        let (tasks, stacks) = (list(tasks)?, list(stacks)?);
        // Allocated at once: growing in steps would move megabytes.
        let mut samples: Vec<SampleRow> = Vec::with_capacity(total(&count)?);
        let (mut last_core, mut last_first) = (0u64, 0u64);
        while !core.is_empty() {
            last_core = core.after(last_core)?;
            let this_core = match last_core.checked_sub(1) {
                None => None,
                Some(core) => Some(u32::try_from(core).map_err(|_| ChunkError::Range("core", core))?),
            };
            let is_timed = timed.next()? != 0;
            let rows = count.next()?;
            if rows > (MAX_SAMPLES - samples.len()) as u64 {
                return Err(ChunkError::TooMuchMemory);
            }
            let (mut last_time, mut step) = (last_first, 0u64);
            let (mut last_event, mut last_period) = (0, 0);
            let (mut last_task, mut last_stack) = (None, None);
            for i in 0..rows {
                let at = if is_timed {
                    let this_step = time.after(step)?;
                    last_time = last_time.wrapping_add(this_step);
                    step = if i == 0 { 0 } else { this_step };
                    if i == 0 {
                        last_first = last_time;
                    }
                    Some(last_time)
                } else {
                    None
                };
                last_event = event.after_u32(last_event)?;
                last_period = period.after(last_period)?;
                samples.push(SampleRow {
                    at,
                    core: this_core,
                    task: again(&mut task, &mut last_task, &tasks, "task")?,
                    event: last_event,
                    period: last_period,
                    stack: again(&mut stack, &mut last_stack, &stacks, "stack")?,
                });
            }
        }
        all_used([core, timed, count, time, event, period, task, stack])?;
        Ok(samples)
    }
}

/// Number of samples of all groups together.
fn total(count: &Column<'_>) -> Result<usize, ChunkError> {
    let (mut count, mut total) = (count.clone(), 0usize);
    while !count.is_empty() {
        let rows = usize::try_from(count.next()?).map_err(|_| ChunkError::TooMuchMemory)?;
        total = total.checked_add(rows).filter(|total| *total <= MAX_SAMPLES).ok_or(ChunkError::TooMuchMemory)?;
    }
    Ok(total)
}

/// 0 if it is the number before, otherwise the number plus one.
fn put_again(column: &mut Vec<u8>, last: &mut Option<u64>, number: u64) {
    put(column, if *last == Some(number) { 0 } else { number + 1 });
    *last = Some(number);
}

fn again(column: &mut Column<'_>, last: &mut Option<u32>, list: &[u32], name: &'static str) -> Result<u32, ChunkError> {
    let number = column.next()?;
    let id = match number.checked_sub(1) {
        None => *last,
        Some(place) => usize::try_from(place).ok().and_then(|place| list.get(place)).copied(),
    };
    *last = id;
    id.ok_or(ChunkError::Range(name, number))
}

/// Numbers are consecutive within a chunk.
impl Streamed for StackRow {
    const TABLE: &'static str = "profile_stack_chunks";

    fn at(&self) -> Option<Time> {
        None
    }

    fn rows(&self) -> usize {
        1
    }

    fn pack(stacks: &[StackRow]) -> Vec<u8> {
        let [mut first, mut below, mut frame] = [const { Vec::new() }; 3];
        put(&mut first, stacks.first().map_or(0, |stack| stack.number.into()));
        let mut last_frame = 0;
        for stack in stacks {
            // Mostly the one before.
            put(&mut below, u64::from(stack.number.wrapping_sub(stack.below)));
            put_difference(&mut frame, stack.frame.into(), last_frame);
            last_frame = stack.frame.into();
        }
        join([first, below, frame])
    }

    fn unpack(payload: &[u8]) -> Result<Vec<StackRow>, ChunkError> {
        let [mut first, mut below, mut frame] = split(payload, ["first", "below", "frame"])?;
        let number = first.next()?;
        let mut number = u32::try_from(number).map_err(|_| ChunkError::Range("first", number))?;
        let mut stacks: Vec<StackRow> = Vec::new();
        let mut last_frame = 0;
        while !below.is_empty() {
            if stacks.len() == MAX_STACKS {
                return Err(ChunkError::TooMuchMemory);
            }
            let back = below.next()?;
            let this_below = u64::from(number).checked_sub(back).ok_or(ChunkError::Range("below", back))?;
            last_frame = frame.after_u32(last_frame)?;
            stacks.push(StackRow { number, below: this_below as u32, frame: last_frame });
            number = number.checked_add(1).ok_or(ChunkError::Range("first", number.into()))?;
        }
        all_used([first, below, frame])?;
        Ok(stacks)
    }
}

/// The samples of a chunk's unpacked bytes. Takes any bytes.
pub fn unpack_samples(payload: &[u8]) -> Result<Vec<SampleRow>, ChunkError> {
    SampleRow::unpack(payload)
}

/// The stacks of a chunk's unpacked bytes. Takes any bytes.
pub fn unpack_stacks(payload: &[u8]) -> Result<Vec<StackRow>, ChunkError> {
    StackRow::unpack(payload)
}
