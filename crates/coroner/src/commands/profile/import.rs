//! `coroner import`.

use super::export::Summary;
use crate::args::profile::ImportArgs;
use crate::exit::Exit;
use crate::output::print;
use crate::output::profile::{counted, footer, header};
use crate::output::progress::reading;
use crate::output::terminal;
use anyhow::bail;
use coroner_evidence::recording::RecordingError;
use coroner_profile::import::{self as reader, Stacks};
use coroner_profile::recording::NewRecording;
use coroner_source::profile::select::{Selection, nothing};
use coroner_source::profile::{self, ProfileSource, ReadProfile};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub fn run(args: ImportArgs) -> anyhow::Result<Exit> {
    let name = args.output.to_string_lossy();
    if name == "-" || [".svg", ".folded", ".gz", ".json", ".pb", ".data", ".txt"].iter().any(|end| name.ends_with(end))
    {
        bail!(
            "{name}: import writes a recording, a file of its own: name it X.coroner; `coroner export` writes other formats"
        );
    }
    let read = write(&args.source.source(), &Selection::default(), &args.output)?;
    if args.json {
        print(&Summary::of(read).document("coroner.import/1", Some(&args.output)))?;
    } else {
        let mut text = header(&read, "", terminal::width());
        text.push_str(&format!(
            "{}: {}\n",
            terminal::printable(&args.output.display().to_string()),
            counted(read.selected, "sample")
        ));
        text.push_str(&footer(&read, terminal::width()));
        print(&text)?;
    }
    Ok(Exit::NothingWrong)
}

/// Writes the selected samples into a new recording. If that fails or is broken off, none is left behind.
pub fn write(source: &ProfileSource, selection: &Selection, output: &Path) -> anyhow::Result<ReadProfile> {
    let stop = crate::commands::stop_on_signals()?;
    reading(source, || write_until(source, selection, output, &stop))
}

/// The same, until `stop` becomes true.
pub fn write_until(
    source: &ProfileSource,
    selection: &Selection,
    output: &Path,
    stop: &AtomicBool,
) -> anyhow::Result<ReadProfile> {
    let mut recording = NewRecording::create(output, &source.file)?;
    let mut failed = None;
    let read = profile::read_until(source, selection, Stacks::All, &mut |names, sample| {
        failed = match recording.take(names, *sample) {
            Err(error) => Some(error.into()),
            Ok(()) if stop.load(Ordering::Relaxed) => Some(anyhow::anyhow!("broken off; nothing was written")),
            Ok(()) => return ControlFlow::Continue(()),
        };
        ControlFlow::Break(())
    });
    let filled = match (failed, read) {
        (Some(error), _) | (None, Err(error)) => Err(error),
        (None, Ok(read)) if read.selected == 0 => Err(anyhow::anyhow!("{}", nothing(&read, selection))),
        (None, Ok(read)) => Ok(read),
    };
    match filled {
        Ok(read) => {
            recording.finish(&read.names, &read.report, read.format, reader::host(&source.file))?;
            Ok(read)
        }
        Err(error) => {
            recording.discard();
            Err(match error.downcast_ref::<RecordingError>() {
                Some(RecordingError::DiskFull { path }) => {
                    anyhow::anyhow!("{}: the disk is full; the unfinished recording was removed", path.display())
                }
                _ => error,
            })
        }
    }
}
