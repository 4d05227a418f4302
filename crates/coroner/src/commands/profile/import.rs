//! `coroner import`.

use super::export::Summary;
use crate::args::profile::ImportArgs;
use crate::exit::Exit;
use crate::output::profile::{counted, footer, header};
use crate::output::progress::reading;
use crate::output::{print, terminal};
use anyhow::bail;
use coroner_source::profile::copy::write_until;
use coroner_source::profile::select::Selection;
use coroner_source::profile::{ProfileSource, ReadProfile};
use std::path::Path;

pub fn run(args: ImportArgs) -> anyhow::Result<Exit> {
    let name = args.output.to_string_lossy();
    if name == "-" || [".svg", ".folded", ".gz", ".json", ".pb", ".data", ".txt"].iter().any(|end| name.ends_with(end))
    {
        bail!("{name}: import writes a recording; name it X.coroner. `coroner export` writes other formats");
    }
    let read = write(&args.source.source(), &Selection::default(), &args.output)?;
    if args.json {
        print(&Summary::of(read).document("coroner.import/1", Some(&args.output)))?;
    } else {
        let mut text = header(&read, "", terminal::width());
        text.push_str(&format!("{}: {}\n", args.output.display(), counted(read.selected, "sample")));
        text.push_str(&footer(&read, terminal::width()));
        print(&text)?;
    }
    Ok(Exit::NothingWrong)
}

/// Writes the selected samples into a new recording. Leaves none behind if that fails or is interrupted.
pub fn write(source: &ProfileSource, selection: &Selection, output: &Path) -> anyhow::Result<ReadProfile> {
    let stop = crate::commands::stop_on_signals()?;
    reading(source, || write_until(source, selection, output, &stop))
}
