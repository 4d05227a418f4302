//! Units that start, die and start again.
//!
//! systemd's NRestarts alone does not tell: `reset-failed` and a start by hand set it back (service_reset_failed, service_start in
//! systemd's service.c). So all looks at a unit are read together: what the count rose by, whether it was set back and rose again,
//! whether another invocation runs; and the journal, which has the time of each automatic restart and remembers more than was watched.

mod steps;

use crate::log_events;
use coroner_evidence::{Evidence, Time, Unit};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use steps::{Clock, Episode};
pub use steps::{Halves, Trend};

/// One or two automatic restarts are a crash; a loop begins with the third. (systemd itself gives up at 5 starts within 10 s,
/// but only where the unit's restarts come that fast.)
pub const LOOP: u32 = 3;

/// A loop too slow for the window shows in its history: at least so many restarts …
const SLOW_LOOP: u32 = 10;
/// … with no more than this between two of them on average since boot …
pub const SLOW_LOOP_PERIOD: Duration = Duration::from_secs(3600);
/// … and the last start no longer ago than two such periods. A unit that failed while the node booted and runs since then is not
/// looping.
const SLOW_LOOP_PERIODS: u32 = 2;

/// A loop is over if nothing has happened for so many of its periods …
const OVER_PERIODS: u32 = 5;
/// … and for this long: who restarts it may wait longer from time to time (RestartSteps=).
const OVER: Duration = Duration::from_secs(600);

/// From so many restarts on, what was watched is a better estimate than a longer past.
const WATCHED_ENOUGH: u64 = 10;

/// A service that systemd restarts again and again, or did once while it was watched.
#[derive(Debug, Clone)]
pub struct Loop<'e> {
    /// As it was seen last.
    pub unit: &'e Unit,
    /// The last look that saw how it failed: while it runs again, systemd no longer says so.
    pub failed: Option<&'e Unit>,
    pub how: How,
    /// Starts while it was watched that no administrator asked for, between which looks.
    pub in_window: Option<(u64, Duration)>,
    /// The most that anybody counted: systemd now, the looks, the journal.
    pub restarts: u64,
    /// The best estimate there is, and where it comes from: the window, the journal, the average since boot.
    pub per_hour: Option<f64>,
    pub rate_from: &'static str,
    /// The stretch that the rate is of.
    pub rate_over: Option<Duration>,
    /// Since when it loops, ns since 1970, as far back as anybody remembers.
    pub since_real_ns: Option<u64>,
    /// The first restart of this loop was seen. If not, it began then or earlier.
    pub since_is_exact: bool,
    /// It looped while it was watched, and has stopped so long ago.
    pub over_for: Option<Duration>,
    pub trend: Option<Trend>,
    /// The numbers that the trend rests on.
    pub halves: Option<Halves>,
}

/// Where a rate comes from.
pub const FROM_WATCHING: &str = "while it was watched";
pub const FROM_JOURNAL: &str = "the journal";
pub const FROM_BOOT: &str = "average since boot";

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

impl How {
    pub fn as_str(self) -> &'static str {
        match self {
            How::Seen => "seen",
            How::Waiting => "waiting",
            How::History => "history",
            How::Once => "once",
        }
    }
}

impl Loop<'_> {
    pub fn is_loop(&self) -> bool {
        self.how != How::Once
    }
}

/// All looks at each unit, the oldest first. What is equally old is put in an order of its own, so that the order of the evidence
/// does not matter.
pub fn looks(evidence: &Evidence) -> BTreeMap<&str, Vec<&Unit>> {
    let mut looks: BTreeMap<&str, Vec<&Unit>> = BTreeMap::new();
    for unit in &evidence.units {
        looks.entry(unit.name.as_str()).or_default().push(unit);
    }
    for looks in looks.values_mut() {
        looks.sort_by(|a, b| {
            let key = |u: &Unit| (u.at, u.restarts, u.main_started);
            key(a).cmp(&key(b)).then_with(|| (&a.invocation_id, &a.sub_state).cmp(&(&b.invocation_id, &b.sub_state)))
        });
    }
    looks
}

/// The last look that saw the unit's state. One that saw nothing of it neither sets nor clears anything.
pub fn latest<'e>(looks: &[&'e Unit]) -> Option<&'e Unit> {
    looks.iter().rev().find(|u| !u.active_state.is_empty()).or(looks.last()).copied()
}

/// A unit that runs to do something and ends: it is started again and again by design.
pub fn is_job(looks: &[&Unit]) -> bool {
    looks
        .iter()
        .any(|u| u.service_type.as_deref() == Some("oneshot") || u.triggered_by.iter().any(|by| by.ends_with(".timer")))
}

/// Whether this look shows that its main process ended badly.
pub fn has_failed(unit: &Unit) -> bool {
    match (unit.exit_kind.as_deref(), unit.exit_status) {
        (Some("exited"), Some(status)) => status != 0,
        (Some("killed" | "dumped"), Some(_)) => true,
        _ => unit.result.as_deref().is_some_and(|result| result != "success"),
    }
}

/// Time since boot at the end of what was watched.
fn uptime(evidence: &Evidence) -> Option<Duration> {
    evidence.clocks.last().map(|c| Duration::from_nanos(c.boot_ns)).filter(|up| !up.is_zero())
}

/// The fastest first.
pub fn loops(evidence: &Evidence) -> Vec<Loop<'_>> {
    let clock = Clock::of(evidence);
    let now = log_events::end_of(evidence);
    let scene = Scene { now, uptime: uptime(evidence), clock, window: evidence.window().map(|w| w.from) };
    let mut restarts_told: BTreeMap<&str, Vec<(u64, u32)>> = BTreeMap::new();
    for line in &evidence.unit_log {
        if let Some(n) = line.restart {
            restarts_told.entry(line.unit.as_str()).or_default().push((line.real_ns, n));
        }
    }
    let mut loops: Vec<Loop<'_>> = looks(evidence)
        .into_iter()
        .filter_map(|(name, looks)| judge(&looks, restarts_told.remove(name).unwrap_or_default(), &scene))
        .collect();
    loops.sort_by(|a, b| {
        let rate = |l: &Loop<'_>| l.per_hour.unwrap_or(0.0);
        let counts = |l: &Loop<'_>| Reverse((l.in_window.map_or(0, |(n, _)| n), l.restarts));
        b.is_loop()
            .cmp(&a.is_loop())
            .then_with(|| rate(b).total_cmp(&rate(a)))
            .then_with(|| counts(a).cmp(&counts(b)))
            .then_with(|| a.unit.name.cmp(&b.unit.name))
    });
    loops
}

/// What is the same for all units.
struct Scene {
    now: Option<Time>,
    uptime: Option<Duration>,
    clock: Clock,
    /// When watching began.
    window: Option<Time>,
}

fn judge<'e>(looks: &[&'e Unit], told: Vec<(u64, u32)>, scene: &Scene) -> Option<Loop<'e>> {
    let (first, latest) = (*looks.first()?, latest(looks)?);
    // A look that saw no properties does not make the unit another one.
    let unit = looks.iter().rev().find(|u| u.restarts.is_some() || u.result.is_some()).copied().unwrap_or(latest);
    let counted = looks.iter().rev().find_map(|u| u.restarts).unwrap_or(0);
    let waiting = latest.sub_state.starts_with("auto-restart");
    let now = scene.now.map_or(latest.at, |now| now.max(latest.at));
    let now_ns = scene.clock.ns(now);

    let seen = steps::of_looks(looks, &scene.clock);
    let told = steps::of_journal(told, now_ns).filter(|_| scene.clock.is_wall());
    let told = told.unwrap_or_default();
    // Nobody asked about the unit after the last look (of a part of a recording it may be long before the end), nor read its journal.
    let known_until = told.iter().map(|step| step.to).fold(scene.clock.ns(latest.at), u64::max);
    let from = scene.window.map_or(first.at, |from| from.min(first.at));
    let from_ns = scene.clock.ns(from);
    let by_looks = steps::total(&seen);
    let by_journal = steps::total_since(&told, from_ns);
    // Where the counts are seen twice, between these looks; else over all that was watched.
    let span_of_looks = steps::span(looks);
    let in_window = if by_looks == 0 && by_journal == 0 {
        None
    } else if by_journal > by_looks {
        Some((by_journal, Duration::from_nanos(known_until.saturating_sub(from_ns))))
    } else {
        Some((by_looks, span_of_looks))
    };
    let rose = by_looks.max(by_journal);

    let episode_seen = steps::last_episode(&seen);
    let episode_told = steps::last_episode(&told);
    let most = [&episode_seen, &episode_told].into_iter().flatten().map(|e| e.restarts).max().unwrap_or(0);
    let restarts = u64::from(counted).max(rose).max(most);
    let dense = |e: &Option<Episode>| e.as_ref().is_some_and(|e| e.restarts >= u64::from(LOOP) && e.is_dense());
    let told_in_window = episode_told.filter(|e| e.last >= from_ns);
    let short = now.since(from) <= SLOW_LOOP_PERIOD;

    let how = if rose > 0 && (dense(&episode_seen) || dense(&told_in_window) || short && restarts >= u64::from(LOOP)) {
        How::Seen
    } else if waiting && counted >= LOOP {
        How::Waiting
    } else if looping_slowly(looks, counted, now, scene.uptime)
        || !is_down(latest) && episode_told.is_some_and(|e| told_slowly(&e, now_ns))
    {
        How::History
    } else if rose > 0 && !is_job(looks) {
        How::Once
    } else {
        return None;
    };

    let best = [episode_seen, episode_told].into_iter().flatten().max_by_key(|e| e.restarts);
    let over_for = best.filter(|_| how == How::Seen && !waiting).and_then(|e| {
        let quiet = known_until.saturating_sub(e.last);
        let enough = OVER.max(e.period().saturating_mul(OVER_PERIODS));
        (u128::from(quiet) > enough.as_nanos()).then(|| Duration::from_nanos(quiet))
    });
    let (per_hour, rate_from, rate_over) = rate(in_window, &seen, &told, known_until, over_for, counted, scene.uptime);
    let (since, since_is_exact) = since(unit, counted, waiting, episode_seen, episode_told, scene);
    // The journal was read some time during the watch: what the looks tell of may have come after that.
    let told_until = |e: &Episode| if by_looks > 0 { e.last } else { known_until };
    let halves = [
        steps::halves(&seen, looks.first().map(|u| scene.clock.ns(u.at)), Some(scene.clock.ns(latest.at))),
        episode_told.and_then(|e| steps::halves(&told, Some(e.first), Some(told_until(&e)))),
    ];
    let halves = halves.into_iter().flatten().max_by_key(|h| h.older.saturating_add(h.newer));
    Some(Loop {
        unit,
        failed: looks.iter().rev().find(|u| has_failed(u)).copied(),
        how,
        in_window,
        restarts,
        per_hour,
        rate_from,
        rate_over,
        since_real_ns: since.filter(|_| scene.clock.is_wall()),
        since_is_exact,
        over_for,
        trend: halves.and_then(|h| h.trend()),
        halves: halves.filter(|h| h.trend().is_some()),
    })
}

fn looping_slowly(looks: &[&Unit], restarts: u32, now: Time, uptime: Option<Duration>) -> bool {
    let Some(latest) = latest(looks) else { return false };
    let started = looks.iter().filter_map(|u| u.main_started).max();
    let (Some(uptime), Some(started)) = (uptime, started) else { return false };
    if restarts < SLOW_LOOP || is_down(latest) {
        return false;
    }
    let period = uptime / restarts;
    period <= SLOW_LOOP_PERIOD && now.since(started) <= period * SLOW_LOOP_PERIODS
}

/// Nobody starts it again: it failed for good, or somebody stopped it.
fn is_down(unit: &Unit) -> bool {
    matches!(unit.active_state.as_str(), "failed" | "inactive" | "deactivating")
}

/// The journal has every restart: fewer are enough.
fn told_slowly(episode: &Episode, now_ns: u64) -> bool {
    let quiet = Duration::from_nanos(now_ns.saturating_sub(episode.last));
    let recently = quiet <= episode.period().saturating_mul(SLOW_LOOP_PERIODS).max(Duration::from_secs(2));
    episode.restarts >= u64::from(LOOP) && episode.is_dense() && recently
}

/// Two or more in the window make a rate, three or more in the journal; else the average since boot is the best estimate (and a lower
/// bound, if the count was set back).
fn rate(
    in_window: Option<(u64, Duration)>,
    seen: &[steps::Step],
    told: &[steps::Step],
    known_until: u64,
    over_for: Option<Duration>,
    counted: u32,
    uptime: Option<Duration>,
) -> (Option<f64>, &'static str, Option<Duration>) {
    let second = Duration::from_secs(1);
    let per_hour = |n: u64, over: Duration| Some(n as f64 * 3600.0 / over.as_secs_f64());
    // Of a loop that is over, while it went on.
    let watched = match (over_for, steps::last_episode(seen)) {
        (Some(_), Some(e)) => Some((e.restarts, Duration::from_nanos(e.last.saturating_sub(e.first)))),
        _ => in_window,
    };
    let watched = watched.filter(|(n, over)| *n >= 2 && *over >= second);
    let told = steps::last_episode(told).map(|e| {
        // The journal may have been read before what the looks saw.
        let until = if over_for.is_some() || steps::total(seen) > 0 { e.last } else { known_until };
        (e.restarts, Duration::from_nanos(until.saturating_sub(e.first)))
    });
    let told = told.filter(|(n, over)| *n >= u64::from(LOOP) && *over >= second);
    match (watched, told) {
        (Some((n, over)), told) if n >= WATCHED_ENOUGH || told.is_none_or(|(m, _)| m <= n) => {
            (per_hour(n, over), FROM_WATCHING, Some(over))
        }
        (_, Some((n, over))) => (per_hour(n, over), FROM_JOURNAL, Some(over)),
        (Some((n, over)), None) => (per_hour(n, over), FROM_WATCHING, Some(over)),
        (None, None) => match uptime.filter(|_| counted > 0) {
            Some(up) => (per_hour(u64::from(counted), up.max(second)), FROM_BOOT, Some(up)),
            None => (None, "", None),
        },
    }
}

/// The earliest that anything says, and whether it saw the beginning.
fn since(
    unit: &Unit,
    counted: u32,
    waiting: bool,
    seen: Option<Episode>,
    told: Option<Episode>,
    scene: &Scene,
) -> (Option<u64>, bool) {
    // systemd waits so long before each restart: it cannot have taken less.
    let at_least = unit.restart_delay_us.filter(|_| (waiting || seen.is_some()) && counted > 1).map(|us| {
        let took = Duration::from_micros(us.saturating_mul(u64::from(counted)));
        (scene.clock.ns(unit.at - took), false)
    });
    let boot = scene.uptime.zip(scene.now).map(|(up, now)| scene.clock.ns(now).saturating_sub(up.as_nanos() as u64));
    let at_least = at_least.map(|(at, exact)| (boot.map_or(at, |boot| at.max(boot)), exact));
    let of = |e: Episode| (e.first, e.from_its_start);
    let candidates = [seen.map(of), told.map(of), at_least];
    match candidates.into_iter().flatten().min_by_key(|(at, exact)| (*at, Reverse(*exact))) {
        Some((at, exact)) => (Some(at), exact),
        None => (None, false),
    }
}

#[cfg(test)]
mod tests;
