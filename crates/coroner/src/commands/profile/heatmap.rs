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
use coroner_profile::views::{Kind, Kinds};

pub fn run(args: HeatmapArgs) -> anyhow::Result<Exit> {
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
            let read = super::read(&args.source, &args.selection, &mut |names, sample| counter.add(names, sample))?;
            must_have_times(&read)?;
            if read.cores.is_empty() {
                bail!(
                    "{}: its samples do not say on which core they were taken; try --by offset, \
                     or print the text with perf script -F +cpu",
                    read.file.display()
                );
            }
            let map = counter.finish();
            if args.json {
                heatmap_json::by_core(&read, &map)
            } else {
                heatmap_text::by_core(&read, &map, &words, width)
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
