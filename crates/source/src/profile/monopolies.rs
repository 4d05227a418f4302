//! Who had a core for itself, by the samples.

use super::heatmap::must_have_times;
use super::select::{Selection, nothing};
use super::{ProfileSource, ReadProfile};
use anyhow::bail;
use coroner_profile::views::monopolies::{Coverage, Finder, Monopoly, Options};
use std::time::Duration;

/// The runs of whoever is asked for, and what they were found by.
pub fn find(
    source: &ProfileSource,
    selection: &Selection,
    threshold: Duration,
) -> anyhow::Result<(ReadProfile, Vec<Monopoly>, Coverage)> {
    let options = Options { threshold: threshold.as_nanos() as u64, ..Options::default() };
    let mut finder = Finder::new(options);
    // Who had a core is told by everybody's samples; whose runs are listed is asked afterwards.
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
