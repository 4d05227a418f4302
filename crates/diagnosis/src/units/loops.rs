//! Units that start, die and start again.

use coroner_evidence::{Evidence, Time, Unit};
use std::time::Duration;

/// A service that systemd restarts again and again, or did once while it was watched.
#[derive(Debug, Clone)]
pub struct Loop<'e> {
    /// As it was seen last.
    pub unit: &'e Unit,
    pub how: How,
    /// Starts while it was watched that no administrator asked for, between which looks.
    pub in_window: Option<(u64, Duration)>,
    /// The best estimate there is, and where it comes from: the window, the journal, the average since boot.
    pub per_hour: Option<f64>,
    pub rate_from: &'static str,
    /// Since when it loops, ns since 1970, as far back as anybody remembers.
    pub since_real_ns: Option<u64>,
    pub trend: Option<Trend>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Restarted while it was watched.
    Seen,
    /// Waits for its next automatic restart.
    Waiting,
    /// Its history says so.
    History,
    /// Restarted, but too seldom to call it a loop.
    Once,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trend {
    Worse,
    Steady,
    Better,
}

/// The fastest first.
pub fn loops(_evidence: &Evidence) -> Vec<Loop<'_>> {
    let _: Option<Time> = None;
    Vec::new()
}
