//! `coroner monopolies`.

use super::heatmap::must_have_times;
use crate::args::profile::MonopoliesArgs;
use crate::exit::Exit;
use crate::output::print;
use crate::output::profile::{monopolies_json, monopolies_text};
use anyhow::bail;
use coroner_profile::views::monopolies::{Finder, Options};

pub fn run(args: MonopoliesArgs) -> anyhow::Result<Exit> {
    let options = Options { threshold: args.threshold.as_nanos() as u64, ..Options::default() };
    let mut finder = Finder::new(options);
    let read = super::read(&args.source, &args.selection, &mut |names, sample| finder.add(names, sample))?;
    must_have_times(&read)?;
    if read.cores.is_empty() {
        bail!(
            "{}: its samples do not say on which core they were taken: nobody can tell who had a core; \
             print the text with perf script -F +cpu",
            read.file.display()
        );
    }
    let coverage = finder.coverage();
    if coverage.used == 0 {
        bail!(
            "{}: none of its events ticks like a clock ({}): who had a core cannot be told; record cpu-clock or cycles",
            read.file.display(),
            read.names.events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>().join(", ")
        );
    }
    let found = finder.finish(&read.names);
    let text = if args.json {
        monopolies_json::document(&read, &found, &coverage, args.threshold)
    } else {
        monopolies_text::text(&read, &found, &coverage, &args)
    };
    print(&text)?;
    Ok(Exit::NothingWrong)
}
