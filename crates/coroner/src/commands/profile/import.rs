//! `coroner import`.

use super::ReadProfile;
use super::export::Summary;
use crate::args::profile::{ImportArgs, SelectionArgs, SourceArgs};
use crate::exit::Exit;
use crate::output::print;
use crate::output::profile::{header, thousands};
use crate::output::terminal;
use anyhow::bail;
use coroner_evidence::recording::Writer;
use coroner_profile::import::{self as reader, Stacks};
use coroner_profile::recording::{Origin, SampleWriter};
use std::ops::ControlFlow;
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

/// Writes the selected samples into a new recording. If that fails, none is left behind.
pub fn write(source: &SourceArgs, selection: &SelectionArgs, output: &Path) -> anyhow::Result<ReadProfile> {
    let mut file = Writer::create(output)?;
    match fill(&mut file, source, selection) {
        Ok(read) => {
            file.finish(&[])?;
            Ok(read)
        }
        Err(error) => {
            drop(file);
            // We made it a moment ago.
            let _ = std::fs::remove_file(output);
            Err(error)
        }
    }
}

fn fill(file: &mut Writer, source: &SourceArgs, selection: &SelectionArgs) -> anyhow::Result<ReadProfile> {
    let name = source.file.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut origin = Origin { kind: "unfinished import".to_owned(), file: name, host: None };
    file.set_profile_source(&origin.row(None, None))?;
    let mut samples = SampleWriter::default();
    let mut failed = None;
    let read = super::read_until(source, selection, Stacks::All, &mut |names, sample| match samples
        .take(file, names, *sample)
    {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    let read = read?;
    if read.selected == 0 {
        bail!("{}", super::select::nothing(&read, selection));
    }
    samples.commit(file)?;
    origin.kind = read.format.name().to_owned();
    origin.host = reader::host(&source.file);
    file.set_profile_source(&origin.row(read.names.clock, Some(&read.report)))?;
    Ok(read)
}
