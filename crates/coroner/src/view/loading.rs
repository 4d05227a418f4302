//! Profiles of other tools are read once, beside the server, which tells how far that is.

use super::shown::{MOST_KEPT, Shown};
use crate::args::profile::{SelectionArgs, SourceArgs};
use crate::commands::profile::import;
use crate::commands::profile::kept::Kept;
use anyhow::Context;
use coroner_profile::import::{Format, OddityKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What is shown, as soon as it is read.
pub struct Loading {
    pub name: String,
    pub format: &'static str,
    pub bytes: u64,
    read: AtomicU64,
    done: OnceLock<Result<Shown, String>>,
    stop: AtomicBool,
}

impl Loading {
    /// A recording is there at once; a profile of another tool is read on a thread of its own.
    pub fn start(source: SourceArgs) -> anyhow::Result<Arc<Loading>> {
        super::must_be_readable(&source.file)?;
        let name = source.file.display().to_string();
        let format = crate::commands::profile::format_of(&source)?.context("a pipe cannot be shown; save it first")?;
        let bytes = std::fs::metadata(&source.file).map_or(0, |about| about.len());
        let loading = Arc::new(Loading {
            name: name.clone(),
            format: format.id(),
            bytes,
            read: AtomicU64::new(0),
            done: OnceLock::new(),
            stop: AtomicBool::new(false),
        });
        if format == Format::Recording {
            let _ = loading.done.set(Ok(Shown::open(source, name, None)?));
            // Samples that fit into memory are read beforehand; whoever asks earlier waits for that.
            let prepared = Arc::clone(&loading);
            std::thread::spawn(move || prepared.shown().map(|shown| shown.map(Shown::kept).is_ok()));
            return Ok(loading);
        }
        let reading = Arc::clone(&loading);
        std::thread::Builder::new()
            .name("coroner-import".to_owned())
            .spawn(move || {
                let shown = reading.import(source).map_err(|error| format!("{error:#}"));
                let _ = reading.done.set(shown);
            })
            .context("no thread can be started")?;
        Ok(loading)
    }

    /// `None` while it is read.
    pub fn shown(&self) -> Option<Result<&Shown, &str>> {
        Some(self.done.get()?.as_ref().map_err(String::as_str))
    }

    /// Bytes read so far.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed).min(self.bytes)
    }

    fn import(&self, source: SourceArgs) -> anyhow::Result<Shown> {
        let name = self.name.clone();
        if let Some(kept) = Kept::load(&source, MOST_KEPT, &self.read)? {
            if kept.samples.is_empty() {
                anyhow::bail!("{name}: there is no sample in it");
            }
            // Any text has lines that could be taken for stacks.
            let unread = kept.report.count(OddityKind::UnparsedLine);
            if unread > 2 * kept.report.samples {
                anyhow::bail!(
                    "{name}: this is no profile that coroner knows: {unread} of its {} lines could not be read, and only {} looked like samples",
                    kept.report.lines,
                    kept.report.samples
                );
            }
            return Ok(Shown::of_profile(source, name, kept));
        }
        // Too much for memory: into a recording, which has an index.
        self.read.store(0, Ordering::Relaxed);
        let directory = tempfile::Builder::new().prefix("coroner-view-").tempdir().context("no temporary directory")?;
        let path = directory.path().join("profile.coroner");
        import::write_until(&source, &SelectionArgs::default(), &path, &self.stop)?;
        Shown::open(SourceArgs { file: path, input: None, ..source }, name, Some(directory))
    }
}
