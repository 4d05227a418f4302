//! `coroner import`.

use super::ReadProfile;
use super::export::Summary;
use crate::args::profile::{ImportArgs, SelectionArgs, SourceArgs};
use crate::exit::Exit;
use crate::output::print;
use crate::output::profile::{header, thousands};
use crate::output::terminal;
use anyhow::bail;
use std::path::Path;

pub fn run(args: ImportArgs) -> anyhow::Result<Exit> {
    let read = write(&args.source, &SelectionArgs::default(), &args.output)?;
    if args.json {
        let summary = Summary::of(read);
        let document = serde_json::json!({ "schema": "coroner.import/1", "output": args.output, "source": summary });
        print(&format!("{document:#}\n"))?;
    } else {
        let mut text = header(&read, "", terminal::width());
        text.push_str(&format!("{}: {} samples\n", args.output.display(), thousands(read.selected)));
        print(&text)?;
    }
    Ok(Exit::NothingWrong)
}

/// Writes the selected samples into a new recording.
pub fn write(_source: &SourceArgs, _selection: &SelectionArgs, _output: &Path) -> anyhow::Result<ReadProfile> {
    bail!("recordings of profiles cannot be written yet")
}
