//! Which threads had a core to themselves, by the samples.

use super::heatmap::must_have_times;
use super::select::{Selection, nothing};
use super::{ProfileSource, ReadProfile};
use anyhow::bail;
use coroner_profile::views::monopolies::{Coverage, Finder, Monopoly, MonopolyOptions};
use std::time::Duration;

/// The runs of the selected threads, and the options they were found with.
pub fn find(
    source: &ProfileSource,
    selection: &Selection,
    threshold: Duration,
) -> anyhow::Result<(ReadProfile, Vec<Monopoly>, Coverage)> {
    let options = MonopolyOptions { threshold: threshold.as_nanos() as u64, ..MonopolyOptions::default() };
    let mut finder = Finder::new(options);
    // To tell who had a core, everybody's samples are needed; the runs are filtered afterwards.
    let where_and_when = selection.of_anybody();
    let read = super::read(source, &where_and_when, &mut |names, sample| finder.add(names, sample))?;
    must_have_times(&read)?;
    read.must_have_tasks()?;
    read.must_have_cores()?;
    let coverage = finder.coverage();
    if coverage.used == 0 {
        bail!(
            "{}: no selected event is clock-like (it has {}), so owners of cores are unknown; record cpu-clock or cycles",
            read.file.display(),
            read.names.events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>().join(", ")
        );
    }
    let mut found = finder.finish(&read.names);
    let mut somebody = selection.somebody();
    if !read.names.tasks().any(|(task, _)| somebody.has_task(&read.names, task)) {
        bail!("{}", nothing(&read, selection));
    }
    found.retain(|run| {
        let stacks = run.stacks.is_empty() && selection.symbol.is_none();
        somebody.has_task(&read.names, run.task)
            && (stacks || run.stacks.iter().any(|(stack, _)| somebody.has_stack(&read.names, *stack)))
    });
    Ok((read, found, coverage))
}
