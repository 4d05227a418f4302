//! `monopolies PERF.DATA|TEXT [THRESHOLD_MS]`: what the views find, for checks by hand.

use coroner_profile::import::{perf_data, perf_script};
use coroner_profile::symbols::Symbols;
use coroner_profile::views::{Filter, Kinds, monopolies};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: monopolies FILE [THRESHOLD_MS]")?;
    let threshold: u64 = arguments.next().map_or(Ok(100), |threshold| threshold.parse())?;
    let file = std::fs::File::open(&path)?;
    let (profile, _) = match perf_data::read(&file, &mut Symbols::of_this_machine()) {
        Err(coroner_profile::import::ImportError::NotThisFormat { .. }) => perf_script::profile::read(&file)?,
        other => other?,
    };
    let options = monopolies::Options { threshold: threshold * 1_000_000, ..Default::default() };
    for found in monopolies::find(&Filter::default().on(&profile), &Kinds::of(&profile), &options) {
        let task = profile.task(found.task);
        let comm = |task: coroner_profile::model::TaskId| profile.strings.get(profile.task(task).comm);
        println!(
            "core {} {} ({:?}) from {:.3} s for {:.0} ms, {} samples, {} of others; before: {:?}",
            found.core,
            comm(found.task),
            task.tid,
            found.start as f64 / 1e9,
            found.length as f64 / 1e6,
            found.samples,
            found.foreign,
            found.before.map(comm)
        );
    }
    Ok(())
}
