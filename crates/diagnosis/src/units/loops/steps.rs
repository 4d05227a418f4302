//! Automatic restarts over time, from counts that may be reset at any time.

use super::{SLOW_LOOP_PERIOD, has_failed, is_job};
use coroner_evidence::{Clocks, Evidence, Unit};
use coroner_report::named;
use std::time::Duration;

/// Restarts between two moments, in nanoseconds of [`Clock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub from: u64,
    pub to: u64,
    pub restarts: u64,
    /// The first of them was the first since the unit was started or its count was reset.
    pub first_ever: bool,
}

/// The wall clock, so that looks and the journal share one time; monotonic time if the wall clock is unknown.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Option<Clocks>);

impl Clock {
    pub fn of(evidence: &Evidence) -> Clock {
        Clock(evidence.clocks.iter().max_by_key(|c| c.at).copied())
    }

    pub fn is_wall(&self) -> bool {
        self.0.is_some()
    }

    pub fn ns(&self, at: coroner_evidence::Time) -> u64 {
        self.0.map_or(at.0, |clocks| clocks.wall_of(at).0)
    }
}

/// From the looks, oldest first. A look that did not see the count is ignored; one that did not see the unit is not there.
pub fn of_looks(looks: &[&Unit], clock: &Clock) -> Vec<Step> {
    let telling: Vec<&Unit> = looks.iter().filter(|u| u.restarts.is_some()).copied().collect();
    let mut steps = Vec::new();
    for pair in telling.windows(2) {
        let [a, b] = pair else { continue };
        let restarts = between(a, b);
        if restarts > 0 {
            let (from, to) = (clock.ns(a.at), clock.ns(b.at));
            steps.push(Step { from, to, restarts, first_ever: a.restarts == Some(0) });
        }
    }
    steps
}

/// How many automatic restarts there were between two looks, at least.
fn between(a: &Unit, b: &Unit) -> u64 {
    let (Some(before), Some(after)) = (a.restarts, b.restarts) else { return 0 };
    if after > before {
        return u64::from(after - before);
    }
    if after < before {
        // Reset to 0 by reset-failed or a manual start; only automatic restarts raise it again.
        return match after {
            0 => u64::from(was_restarted_while_waiting(a, b)),
            after => at_most_possible(a, b, u64::from(after)),
        };
    }
    if !is_started_anew(a, b) {
        return 0;
    }
    match after {
        // A manual start, unless systemd was just about to do it.
        0 => u64::from(was_restarted_while_waiting(a, b) || was_started_to_fail_again(a, b)),
        // The restart that was queued at the first look was already counted.
        _ if a.sub_state == "auto-restart-queued" => 0,
        // Reset, and as high again as before.
        after => at_most_possible(a, b, u64::from(after)),
    }
}

fn is_started_anew(a: &Unit, b: &Unit) -> bool {
    // The start of the main process is read together with the count, the invocation a moment before by another call: if both are
    // known, both must have changed. (One invocation may run several commands.)
    let main = a.main_started.zip(b.main_started).map(|(a, b)| a != b);
    let invocation = a.invocation_id.as_ref().zip(b.invocation_id.as_ref()).map(|(a, b)| a != b);
    match (main, invocation) {
        (Some(main), Some(invocation)) => main && invocation,
        (one, other) => one.or(other).unwrap_or(false),
    }
}

/// It had failed, was started at once and failed again: not by `Restart=`, but by `Upholds=` of another unit or by a script. People
/// take longer.
fn was_started_to_fail_again(a: &Unit, b: &Unit) -> bool {
    let failed = |u: &Unit| u.active_state == "failed" && has_failed(u) && u.invocation_id.is_some();
    let at_once =
        b.at.since(a.at) <= AT_ONCE && b.main_started.is_some_and(|started| a.at < started && started <= b.at);
    failed(a) && failed(b) && at_once && !is_job(&[a, b])
}

/// Nobody keeps reading a log and restarting a unit within this time.
const AT_ONCE: Duration = Duration::from_secs(15);

/// systemd was about to restart it, and another invocation came. `reset-failed` hid it from the count.
fn was_restarted_while_waiting(a: &Unit, b: &Unit) -> bool {
    a.sub_state == "auto-restart" && is_started_anew(a, b)
}

/// Each restart takes at least as long as systemd waits before it.
fn at_most_possible(a: &Unit, b: &Unit, restarts: u64) -> u64 {
    let Some(delay) = a.restart_delay_us.or(b.restart_delay_us).filter(|us| *us > 0) else { return restarts };
    let possible = (b.at.since(a.at).as_micros() / u128::from(delay)).min(u128::from(u64::MAX)) as u64;
    restarts.min(possible.saturating_add(1))
}

/// From the journal: each line is a restart, and its number accounts for lines that are gone.
pub fn of_journal(mut lines: Vec<(u64, u32)>, now_ns: u64) -> Option<Vec<Step>> {
    lines.retain(|(at, n)| *n > 0 && *at <= now_ns.saturating_add(JOURNAL_AHEAD));
    lines.sort_unstable();
    lines.dedup();
    let mut steps: Vec<Step> = Vec::with_capacity(lines.len());
    let mut before: Option<(u64, u32)> = None;
    for (at, n) in lines {
        let step = match before {
            Some((then, m)) if n > m => Step { from: then, to: at, restarts: u64::from(n - m), first_ever: false },
            // Reset meanwhile.
            Some((then, _)) => Step { from: then, to: at, restarts: u64::from(n), first_ever: n == 1 },
            None => Step { from: at, to: at, restarts: 1, first_ever: n == 1 },
        };
        steps.push(step);
        before = Some((at, n));
    }
    Some(steps).filter(|steps| !steps.is_empty())
}

/// The journal is read a little after the last look at the cores.
const JOURNAL_AHEAD: u64 = 60_000_000_000;

pub fn total(steps: &[Step]) -> u64 {
    steps.iter().fold(0, |sum, s| sum.saturating_add(s.restarts))
}

/// Of journal lines: each one since `from` counts at least once.
pub fn total_since(steps: &[Step], from: u64) -> u64 {
    let inside = steps.iter().filter(|s| s.to >= from);
    inside.fold(0, |sum, s| sum.saturating_add(if s.from >= from { s.restarts } else { 1 }))
}

/// From the first to the last look that knew the count.
pub fn span(looks: &[&Unit]) -> Duration {
    let mut telling = looks.iter().filter(|u| u.restarts.is_some()).map(|u| u.at);
    let Some(first) = telling.next() else { return Duration::ZERO };
    telling.next_back().map_or(Duration::ZERO, |last| last.since(first))
}

/// Restarts that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Episode {
    pub first: u64,
    pub last: u64,
    pub restarts: u64,
    /// Includes the first restart of the unit.
    pub from_its_start: bool,
}

/// After a longer pause between two restarts another episode begins.
const EPISODE_GAP: Duration = Duration::from_secs(2 * 3600);

impl Episode {
    pub fn period(&self) -> Duration {
        Duration::from_nanos(self.last.saturating_sub(self.first) / self.restarts.max(1))
    }

    /// Not much slower than the slowest thing that is called a loop.
    pub fn is_dense(&self) -> bool {
        self.period() <= SLOW_LOOP_PERIOD
    }
}

/// The last episode with more than one restart, else the last.
pub fn last_episode(steps: &[Step]) -> Option<Episode> {
    let mut episodes: Vec<Episode> = Vec::new();
    for step in steps {
        let together = Duration::from_nanos(step.to.saturating_sub(step.from) / step.restarts.max(1)) <= EPISODE_GAP;
        match episodes.last_mut() {
            Some(e) if together && u128::from(step.from.saturating_sub(e.last)) <= EPISODE_GAP.as_nanos() => {
                e.last = e.last.max(step.to);
                e.restarts = e.restarts.saturating_add(step.restarts);
            }
            // Somewhere in a long step: at its end at the latest.
            _ => episodes.push(Episode {
                first: if together { step.from } else { step.to },
                last: step.to,
                restarts: if together { step.restarts } else { 1 },
                from_its_start: step.first_ever,
            }),
        }
    }
    let last = episodes.last().copied();
    episodes.into_iter().rev().find(|e| e.restarts > 1).or(last)
}

/// Restarts in the older and newer half of a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Halves {
    pub older: u64,
    pub newer: u64,
    /// How long each half is.
    pub each: Duration,
}

named! {
    pub enum Trend {
        Worse = "worse",
        Steady = "steady",
        Better = "better",
    }
}

/// With fewer there is no trend.
const TREND_RESTARTS: u64 = 12;
/// At least half as many again …
const TREND_RATIO: f64 = 1.5;
/// … and more than two standard deviations of a random process.
const TREND_DEVIATIONS: f64 = 2.0;
/// At most one in this many may be of unknown half.
const TREND_UNPLACED: u64 = 10;

impl Halves {
    pub fn trend(&self) -> Option<Trend> {
        let all = self.older.saturating_add(self.newer);
        if all < TREND_RESTARTS || self.each.is_zero() {
            return None;
        }
        let (older, newer) = (self.older as f64, self.newer as f64);
        let differs = (newer - older).abs() > TREND_DEVIATIONS * (all as f64).sqrt();
        Some(match differs {
            true if newer >= older * TREND_RATIO => Trend::Worse,
            true if older >= newer * TREND_RATIO => Trend::Better,
            _ => Trend::Steady,
        })
    }
}

pub fn halves(steps: &[Step], from: Option<u64>, to: Option<u64>) -> Option<Halves> {
    let (from, to) = (from?, to?);
    let each = to.saturating_sub(from) / 2;
    let middle = from.saturating_add(each);
    let (mut older, mut newer, mut unplaced) = (0u64, 0u64, 0u64);
    for step in steps.iter().filter(|s| s.from >= from && s.to <= to.saturating_add(JOURNAL_AHEAD)) {
        let place = match (step.to <= middle, step.from >= middle) {
            (true, _) => &mut older,
            (false, true) => &mut newer,
            // It spans the middle; the restart of a journal line is at its end.
            (false, false) if step.restarts == 1 => &mut newer,
            (false, false) => &mut unplaced,
        };
        *place = place.saturating_add(step.restarts);
    }
    let all = older.saturating_add(newer).saturating_add(unplaced);
    (all > 0 && unplaced <= all / TREND_UNPLACED).then(|| Halves { older, newer, each: Duration::from_nanos(each) })
}
