//! Copies a profile, or a part of it, into a recording.

use super::select::{Selection, nothing};
use super::{ProfileSource, ReadProfile};
use coroner_evidence::recording::RecordingError;
use coroner_profile::import::{self as reader, Stacks};
use coroner_profile::recording::NewRecording;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes the selected samples into a new recording until `stop` becomes true. On failure or interruption, removes the file.
pub fn write_until(
    source: &ProfileSource,
    selection: &Selection,
    output: &Path,
    stop: &AtomicBool,
) -> anyhow::Result<ReadProfile> {
    let mut recording = NewRecording::create(output, &source.file)?;
    let mut failed = None;
    let read = super::read_until(source, selection, Stacks::All, &mut |names, sample| {
        failed = match recording.take(names, *sample) {
            Err(error) => Some(error.into()),
            Ok(()) if stop.load(Ordering::Relaxed) => Some(anyhow::anyhow!("interrupted; nothing was written")),
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
