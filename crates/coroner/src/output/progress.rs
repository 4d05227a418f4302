//! The progress line on a terminal.

use coroner_diagnosis::cores::timeline::{Shares, Timeline};
use coroner_evidence::{CoreTimes, Evidence};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Looks at the cores that the line speaks of: a little more than a second.
const RECENT_LOOKS: usize = 13;

/// A line on standard error that is rewritten in place; silent where that is no terminal.
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
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
        let _ = std::io::stderr().flush();
        self.shown = true;
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
            let _ = std::io::stderr().flush();
        }
    }
}

/// How far a watch is, and how busy the node is meanwhile.
pub struct Progress {
    line: StatusLine,
    what: &'static str,
    recent: Vec<CoreTimes>,
}

impl Progress {
    pub fn new(what: &'static str) -> Progress {
        Progress { line: StatusLine::new(), what, recent: Vec::new() }
    }

    pub fn show(&mut self, elapsed: Duration, of: Duration, seen: &Evidence) {
        if !self.line.enabled {
            return;
        }
        let mut line = format!("{} {:.0} of {:.0} s", self.what, elapsed.as_secs_f64(), of.as_secs_f64());
        // The last second or so, which is enough for a person to see that something happens.
        self.recent.extend(seen.core_times.iter().cloned());
        let too_many = self.recent.len().saturating_sub(RECENT_LOOKS);
        self.recent.drain(..too_many);
        let recent = Evidence { core_times: self.recent.clone(), ..Evidence::default() };
        let timeline = Timeline::of(&recent);
        if let Some(window) = recent.window()
            && let Some(average) = timeline.average(window)
            && let Some((core, worst)) = timeline.worst(Shares::busy)
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
