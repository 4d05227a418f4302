//! The samples of a heatmap, counted.

use super::select::{Selection, nothing};
use super::{ProfileSource, ReadProfile};
use anyhow::bail;
use coroner_profile::import::Stacks;
use coroner_profile::views::cores::{CoreCounter, CoreHeatmap};
use coroner_profile::views::heatmap::{OffsetCounter, OffsetHeatmap};
use coroner_profile::views::{Kinds, SampleKind, Selector};
use std::collections::HashMap;

/// What each core did, in columns of `step` nanoseconds, and the samples of the selected threads or functions.
pub fn by_core(
    source: &ProfileSource,
    selection: &Selection,
    step: u64,
) -> anyhow::Result<(ReadProfile, CoreHeatmap, Option<Asked>)> {
    let mut counter = CoreCounter::new(step);
    // To tell who had a core, everybody's samples are needed; the selected ones are counted separately.
    let mut somebody = selection.asks_for_somebody().then(|| selection.somebody());
    let mut asked = Asked::default();
    let where_and_when = selection.of_anybody();
    let mut read = super::read(source, &where_and_when, &mut |names, sample| {
        let weight = counter.add(names, sample);
        if let (Some(somebody), Some(core), Some(time)) = (&mut somebody, sample.core, sample.time)
            && somebody.has(names, sample)
        {
            let cell = asked.cells.entry((core, time / step)).or_default();
            cell.samples += 1;
            cell.weight = cell.weight.saturating_add(weight.unwrap_or(0));
            asked.samples += 1;
        }
    })?;
    must_have_times(&read)?;
    read.must_have_tasks()?;
    read.must_have_cores()?;
    let asked = somebody.map(|somebody| Asked { somebody: Some(somebody), ..asked });
    if let Some(asked) = &asked {
        read.selected = asked.samples;
        if asked.samples == 0 {
            bail!("{}", nothing(&read, selection));
        }
    }
    let map = counter.finish();
    if map.columns == 0 {
        bail!(
            "{}: no selected event is clock-like (it has {}), so what the cores did is unknown; record cpu-clock or cycles, or \
             try --by offset",
            read.file.display(),
            read.names.events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>().join(", ")
        );
    }
    Ok((read, map, asked))
}

/// When it was busy, second by second, and how many samples were idle.
pub fn by_offset(
    source: &ProfileSource,
    selection: &Selection,
    rows: usize,
) -> anyhow::Result<(ReadProfile, OffsetHeatmap, u64)> {
    let mut counter = OffsetCounter::new(rows);
    let mut kinds = Kinds::default();
    let mut idle = 0;
    let stacks = Stacks::OfIdleTasks;
    let read = super::read_with(source, selection, stacks, &mut |names, sample| match kinds.kind(names, sample) {
        SampleKind::Idle => idle += 1,
        _ => counter.add(names, sample),
    })?;
    must_have_times(&read)?;
    let map = counter.finish();
    Ok((read, map, idle))
}

/// The samples of the selected threads or functions.
#[derive(Default)]
pub struct Asked {
    pub somebody: Option<Selector>,
    /// By core and column, counted from time 0.
    pub cells: HashMap<(u32, u64), AskedCell>,
    pub samples: u64,
}

#[derive(Clone, Copy, Default)]
pub struct AskedCell {
    pub samples: u32,
    /// Their weight, in the unit of the heatmap's cells.
    pub weight: u32,
}

pub fn must_have_times(read: &ReadProfile) -> anyhow::Result<()> {
    if read.span.is_none() {
        bail!(
            "{}: its samples have no times ({}); only a flame graph is possible",
            read.file.display(),
            read.format.name()
        );
    }
    Ok(())
}
