//! The progress line on a terminal.

use coroner_diagnosis::cores::timeline::{Shares, Timeline};
use coroner_evidence::{Evidence, Window};
use coroner_source::profile::{ProfileSource, is_stream};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Smaller files are read too fast for a progress line.
const SHOW_PROGRESS_FROM: u64 = 8 << 20;

/// The line shows the load over this time.
const RECENT: Duration = Duration::from_secs(2);

/// A line on standard error that is rewritten in place; silent without a terminal.
pub struct StatusLine {
    enabled: bool,
    shown: bool,
}

impl StatusLine {
    pub fn new() -> StatusLine {
        StatusLine { enabled: std::io::stderr().is_terminal(), shown: false }
    }

    pub fn show(&mut self, text: &str) {
        if !self.enabled {
            return;
        }
        // A failing standard error must not end the examination.
        super::show_progress(text);
        self.shown = true;
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if self.shown {
            super::show_progress("");
        }
    }
}

/// How far a watch is, and how busy the node is.
pub struct Progress {
    line: StatusLine,
    what: &'static str,
    recent: Timeline,
}

impl Progress {
    pub fn new(what: &'static str) -> Progress {
        Progress { line: StatusLine::new(), what, recent: Timeline::keeping(RECENT) }
    }

    pub fn show(&mut self, elapsed: Duration, of: Duration, seen: &Evidence) {
        if !self.line.enabled {
            return;
        }
        let mut line = format!("{} {:.0} of {:.0} s", self.what, elapsed.as_secs_f64(), of.as_secs_f64());
        seen.core_times.iter().for_each(|look| self.recent.look(look));
        if let Some(now) = self.recent.newest()
            && let Some(average) = self.recent.average(Window { from: now - RECENT, to: now })
            && let Some((core, worst)) = self.recent.worst(Shares::busy)
        {
            line.push_str(&format!(
                " · average {:.0} % busy · worst core {core}: {:.0} %",
                average.busy() * 100.0,
                worst * 100.0
            ));
        }
        self.line.show(&line);
    }
}

/// Runs `work` with a progress line that says how much of the file was read.
pub fn reading<T>(source: &ProfileSource, work: impl FnOnce() -> T) -> T {
    let file = &source.file;
    let size = std::fs::metadata(file).map_or(0, |about| if about.is_file() { about.len() } else { 0 });
    let from_pipe = is_stream(file);
    if (size < SHOW_PROGRESS_FROM && !from_pipe) || !std::io::stderr().is_terminal() {
        return work();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let line = scope.spawn(|| {
            let mut line = StatusLine::new();
            while !done.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(200));
                let read = source.bytes_read.load(Ordering::Relaxed);
                let mb = |bytes: u64| bytes as f64 / 1e6;
                let text = match (read.min(size) * 100).checked_div(size) {
                    Some(percent) => format!("reading {}: {percent} % of {:.0} MB", file.display(), mb(size)),
                    None => format!("reading: {:.0} MB", mb(read)),
                };
                if !done.load(Ordering::Relaxed) {
                    line.show(&text);
                }
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        line.thread().unpark();
        result
    })
}
