//! Reads other tools' profiles once, in the background; the server reports the progress.

use super::shown::{MOST_KEPT, Shown};
use super::temporary::Temporary;
use anyhow::Context;
use coroner_profile::import::{Format, OddityKind};
use coroner_source::profile::kept::KeptProfile;
use coroner_source::profile::select::Selection;
use coroner_source::profile::{ProfileSource, Reading, copy};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a reader may take to stop.
const STOPS_WITHIN: Duration = Duration::from_secs(2);

/// The source shown, once it is read.
pub struct Loading {
    pub name: String,
    pub format: &'static str,
    pub bytes: u64,
    read: AtomicU64,
    done: OnceLock<Result<Shown, String>>,
    stop: AtomicBool,
    /// The recording that a profile was read into.
    temporary: Mutex<Option<Temporary>>,
}

impl Loading {
    /// A recording opens at once; another tool's profile is read on its own thread.
    pub fn start(source: ProfileSource) -> anyhow::Result<Arc<Loading>> {
        Loading::start_with(source, MOST_KEPT)
    }

    /// A profile with more than `most_kept` samples becomes a temporary recording.
    fn start_with(source: ProfileSource, most_kept: usize) -> anyhow::Result<Arc<Loading>> {
        super::must_be_readable(&source.file)?;
        let name = source.file.display().to_string();
        let format = coroner_source::profile::format_of(&source)?.context("cannot show a pipe; save it first")?;
        let bytes = std::fs::metadata(&source.file).map_or(0, |about| about.len());
        let loading = Arc::new(Loading {
            name: name.clone(),
            format: format.id(),
            bytes,
            read: AtomicU64::new(0),
            done: OnceLock::new(),
            stop: AtomicBool::new(false),
            temporary: Mutex::default(),
        });
        if format == Format::Recording {
            let _ = loading.done.set(Ok(Shown::open(source, name)?));
            // Samples that fit into memory are read in advance; earlier requests wait for that.
            let prepared = Arc::clone(&loading);
            std::thread::spawn(move || prepared.shown().map(|shown| shown.map(Shown::kept).is_ok()));
            return Ok(loading);
        }
        let reading = Arc::clone(&loading);
        std::thread::Builder::new()
            .name("coroner-import".to_owned())
            .spawn(move || {
                let shown = reading.import(source, most_kept).map_err(|error| format!("{error:#}"));
                let _ = reading.done.set(shown);
            })
            .context("cannot start a thread")?;
        Ok(loading)
    }

    /// `None` while it is being read.
    pub fn shown(&self) -> Option<Result<&Shown, &str>> {
        Some(self.done.get()?.as_ref().map_err(String::as_str))
    }

    /// Bytes read so far.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed).min(self.bytes)
    }

    fn import(&self, source: ProfileSource, most_kept: usize) -> anyhow::Result<Shown> {
        let name = self.name.clone();
        if let Some(kept) = KeptProfile::load(&source, most_kept, &self.read)? {
            if kept.samples.is_empty() {
                anyhow::bail!("{name}: no samples");
            }
            // Any text has lines that look like stacks.
            let unread = kept.report.count(OddityKind::UnparsedLine);
            if unread > 2 * kept.report.samples {
                anyhow::bail!(
                    "{name}: not a known profile format: {unread} of its {} lines could not be parsed, and only {} looked like \
                    samples",
                    kept.report.lines,
                    kept.report.samples
                );
            }
            return Ok(Shown::of_profile(source, name, kept));
        }
        // Too large for memory: store it in a recording, which has an index.
        self.read.store(0, Ordering::Relaxed);
        let path = self.make_temporary()?;
        copy::write_until(&source, &Selection::default(), &path, &self.stop)?;
        let reading = Reading { input: None, ..source.reading };
        Shown::open(ProfileSource { file: path, reading, ..source }, name)
    }

    fn temporary(&self) -> MutexGuard<'_, Option<Temporary>> {
        self.temporary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path to write to; refused after the end, when nobody would remove it.
    fn make_temporary(&self) -> anyhow::Result<PathBuf> {
        let mut temporary = self.temporary();
        anyhow::ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        Ok(temporary.insert(Temporary::new()?).path())
    }

    /// Stops reading and removes what was written.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.temporary().is_none() {
            return;
        }
        let until = Instant::now() + STOPS_WITHIN;
        while self.done.get().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        *self.temporary() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(directory: &std::path::Path) -> ProfileSource {
        let file = directory.join("a.folded");
        std::fs::write(&file, "web;main;parse 3\nweb;main;serve 2\nweb;main 1\n").unwrap();
        let reading = Reading { no_symbols: true, ..Reading::default() };
        ProfileSource { file, reading, ..ProfileSource::default() }
    }

    fn wait(loading: &Loading) {
        let until = Instant::now() + Duration::from_secs(180);
        while loading.shown().is_none() {
            assert!(Instant::now() < until, "it is still being read");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_temporary_recording_is_removed_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let loading = Loading::start_with(folded(directory.path()), 1).unwrap();
        wait(&loading);
        assert!(loading.shown().unwrap().is_ok(), "{:?}", loading.shown());
        let written = loading.temporary().as_ref().unwrap().path();
        assert!(written.exists());
        loading.end();
        assert!(!written.parent().unwrap().exists());
    }

    #[test]
    fn nothing_is_written_after_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let loading = Loading::start_with(folded(directory.path()), usize::MAX).unwrap();
        wait(&loading);
        loading.end();
        assert!(loading.make_temporary().is_err() && loading.temporary().is_none());
    }
}
