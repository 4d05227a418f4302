//! `coroner heatmap`.

use super::{ReadProfile, span};
use crate::args::profile::{By, HeatmapArgs};
use crate::exit::Exit;
use crate::output::profile::{heatmap_json, heatmap_text};
use crate::output::{print, terminal};
use anyhow::bail;
use coroner_profile::import::Stacks;
use coroner_profile::views::cores::CoreCounter;
use coroner_profile::views::heatmap::OffsetCounter;
use coroner_profile::views::{Kind, Kinds, Selector};
use std::collections::HashMap;

pub fn run(mut args: HeatmapArgs) -> anyhow::Result<Exit> {
    args.selection = args.selection.resolved(&args.source)?;
    let words = args.selection.words();
    let width = terminal::width();
    let text = match args.by {
        By::Core => {
            let step = match args.step {
                Some(step) => step.as_nanos() as u64,
                None => {
                    let (length, cores) = span::of(&args.source, &args.selection)?;
                    heatmap_text::step(length, cores, width)
                }
            };
            let mut counter = CoreCounter::new(step);
            // Who had a core is told by everybody's samples; those that are asked for are counted beside.
            let mut somebody = args.selection.asks_for_somebody().then(|| args.selection.somebody());
            let mut asked = Asked::default();
            let where_and_when = args.selection.of_anybody();
            let mut read = super::read(&args.source, &where_and_when, &mut |names, sample| {
                counter.add(names, sample);
                if let (Some(somebody), Some(core), Some(time)) = (&mut somebody, sample.core, sample.time)
                    && somebody.has(names, sample)
                {
                    *asked.cells.entry((core, time / step)).or_default() += 1;
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
                    bail!("{}", super::select::nothing(&read, &args.selection));
                }
            }
            let map = counter.finish();
            if map.columns == 0 {
                bail!(
                    "{}: no event that is selected ticks like a clock (it has {}): what the cores did cannot be told; record cpu-clock \
                     or cycles, or try --by offset",
                    read.file.display(),
                    read.names.events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>().join(", ")
                );
            }
            if args.json {
                heatmap_json::by_core(&read, &map, asked.as_ref())
            } else {
                heatmap_text::by_core(&read, &map, asked, &words, width)
            }
        }
        By::Offset => {
            let mut counter = OffsetCounter::new(usize::from(args.rows));
            let mut kinds = Kinds::default();
            let mut idle = 0;
            let stacks = Stacks::OfIdleTasks;
            let read = super::read_with(&args.source, &args.selection, stacks, &mut |names, sample| match kinds
                .kind(names, sample)
            {
                Kind::Idle => idle += 1,
                _ => counter.add(sample),
            })?;
            must_have_times(&read)?;
            let map = counter.finish();
            if args.json {
                heatmap_json::by_offset(&read, &map, idle)
            } else {
                heatmap_text::by_offset(&read, &map, idle, &words, width)
            }
        }
    };
    print(&text)?;
    Ok(Exit::NothingWrong)
}

/// The samples of somebody in particular.
#[derive(Default)]
pub struct Asked {
    pub somebody: Option<Selector>,
    /// By core and column from the start of time on.
    pub cells: HashMap<(u32, u64), u32>,
    pub samples: u64,
}

pub fn must_have_times(read: &ReadProfile) -> anyhow::Result<()> {
    if read.span.is_none() {
        bail!(
            "{}: its samples have no times ({}); only a flame graph can be made of it",
            read.file.display(),
            read.format.name()
        );
    }
    Ok(())
}
