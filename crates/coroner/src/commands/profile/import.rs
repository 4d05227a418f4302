//! `coroner import`.

use super::ReadProfile;
use super::export::Summary;
use crate::args::profile::{ImportArgs, SelectionArgs, SourceArgs};
use crate::exit::Exit;
use crate::output::print;
use crate::output::profile::{counted, footer, header};
use crate::output::terminal;
use anyhow::bail;
use coroner_evidence::recording::Writer;
use coroner_profile::import::{self as reader, Stacks};
use coroner_profile::recording::{Origin, SampleWriter};
use std::ops::ControlFlow;
use std::path::Path;

pub fn run(args: ImportArgs) -> anyhow::Result<Exit> {
    let name = args.output.to_string_lossy();
    if name == "-" || [".svg", ".folded", ".gz", ".json", ".pb", ".data", ".txt"].iter().any(|end| name.ends_with(end))
    {
        bail!(
            "{name}: import writes a recording, a file of its own: name it X.coroner; `coroner export` writes other formats"
        );
    }
    let read = write(&args.source, &SelectionArgs::default(), &args.output)?;
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
