//! Units that die and are restarted over and over.
//!
//! systemd's NRestarts alone is not enough: `reset-failed` and a manual start reset it (service_reset_failed, service_start in
//! systemd's service.c). So all looks at a unit count together: by how much the count rose, whether it was reset and rose again,
//! whether another invocation runs; and the journal, which has the time of each automatic restart and reaches back further.

mod steps;

use crate::log_events;
use coroner_evidence::{Evidence, Order, Time, Unit, Wall};
use coroner_report::named;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use steps::{Clock, Episode};
pub use steps::{Halves, Trend};

/// One or two automatic restarts are a crash; a loop begins with the third. (systemd itself gives up after 5 starts within 10 s,
/// but only if restarts come that fast.)
pub const LOOP: u32 = 3;

/// A loop too slow for the window shows in its history: at least this many restarts …
const SLOW_LOOP: u32 = 10;
/// … with no more than this between two of them on average since boot …
pub const SLOW_LOOP_PERIOD: Duration = Duration::from_secs(3600);
/// … and the last start within two such periods. A unit that failed during boot and has been up since is not looping.
const SLOW_LOOP_PERIODS: u32 = 2;

/// A loop is over if nothing has happened for this many of its periods …
const OVER_PERIODS: u32 = 5;
/// … and for this long: the wait before a restart may grow (RestartSteps=).
const OVER: Duration = Duration::from_secs(600);

/// From this many restarts on, the watched time gives a better estimate than a longer past.
const WATCHED_ENOUGH: u64 = 10;

/// A service that systemd keeps restarting, or restarted once while watched.
#[derive(Debug, Clone)]
pub struct Loop<'e> {
    /// As last seen.
    pub unit: &'e Unit,
    /// The last look that saw how it failed: once it is up again, systemd no longer says.
    pub failed: Option<&'e Unit>,
    pub how: How,
    /// Automatic starts while watched, and over what time.
    pub in_window: Option<(u64, Duration)>,
    /// The highest count: systemd now, the looks, or the journal.
    pub restarts: u64,
    /// The best estimate, and where it comes from: the window, the journal, or the average since boot.
    pub per_hour: Option<f64>,
    pub rate_from: &'static str,
    /// The time that the rate covers.
    pub rate_over: Option<Duration>,
    /// Start of the loop, ns since 1970, as far back as known.
    pub since: Option<Wall>,
    /// The first restart of this loop was seen. If not, it began at that time or earlier.
    pub since_is_exact: bool,
    /// It looped while watched, and stopped this long ago.
    pub over_for: Option<Duration>,
    pub trend: Option<Trend>,
    /// The numbers behind the trend.
    pub halves: Option<Halves>,
}

/// Where a rate comes from.
pub const FROM_WATCHING: &str = "while it was watched";
pub const FROM_JOURNAL: &str = "the journal";
pub const FROM_BOOT: &str = "average since boot";

named! {
    pub enum How {
        /// Restarted while watched.
        Seen = "seen",
        /// Waits for its next automatic restart.
        Waiting = "waiting",
        /// Its history shows it.
        History = "history",
        /// Restarted, but too rarely to call it a loop.
        Once = "once",
    }
}

impl Loop<'_> {
    pub fn is_loop(&self) -> bool {
        self.how != How::Once
    }
}

/// All looks at each unit, oldest first. Ties are broken too, so that the order of the evidence does not matter.
pub fn looks(evidence: &Evidence) -> BTreeMap<&str, Vec<&Unit>> {
    let mut looks: BTreeMap<&str, Vec<&Unit>> = BTreeMap::new();
    for unit in &evidence.units {
        looks.entry(unit.name.as_str()).or_default().push(unit);
    }
    for looks in looks.values_mut() {
        looks.order_by(|a, b| {
            let key = |u: &Unit| (u.at, u.restarts, u.main_started);
            key(a).cmp(&key(b)).then_with(|| (&a.invocation_id, &a.sub_state).cmp(&(&b.invocation_id, &b.sub_state)))
        });
    }
    looks
}

/// The last look that saw the unit's state. One that did not changes nothing.
pub fn latest<'e>(looks: &[&'e Unit]) -> Option<&'e Unit> {
    looks.iter().rev().find(|u| !u.active_state.is_empty()).or(looks.last()).copied()
}

/// A unit that runs and exits: it is started repeatedly by design.
pub fn is_job(looks: &[&Unit]) -> bool {
    looks
        .iter()
        .any(|u| u.service_type.as_deref() == Some("oneshot") || u.triggered_by.iter().any(|by| by.ends_with(".timer")))
}

/// Whether this look shows that its main process failed.
pub fn has_failed(unit: &Unit) -> bool {
    match (unit.exit_kind.as_deref(), unit.exit_status) {
        (Some("exited"), Some(status)) => status != 0,
        (Some("killed" | "dumped"), Some(_)) => true,
        _ => unit.result.as_deref().is_some_and(|result| result != "success"),
    }
}

/// Time since boot at the end of the window.
fn uptime(evidence: &Evidence) -> Option<Duration> {
    evidence.clocks.last().map(|c| Duration::from_nanos(c.boot_ns)).filter(|up| !up.is_zero())
}

/// The fastest first.
pub fn loops(evidence: &Evidence) -> Vec<Loop<'_>> {
    let clock = Clock::of(evidence);
    let now = log_events::end_of(evidence);
    let scene = Scene { now, uptime: uptime(evidence), clock, window: evidence.window().map(|w| w.from) };
    let mut restarts_logged: BTreeMap<&str, Vec<(u64, u32)>> = BTreeMap::new();
    for line in &evidence.unit_log {
        if let Some(n) = line.restart {
            restarts_logged.entry(line.unit.as_str()).or_default().push((line.at.0, n));
        }
    }
    let mut loops: Vec<Loop<'_>> = looks(evidence)
        .into_iter()
        .filter_map(|(name, looks)| judge(&looks, restarts_logged.remove(name).unwrap_or_default(), &scene))
        .collect();
    loops.order_by(|a, b| {
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

fn judge<'e>(looks: &[&'e Unit], logged: Vec<(u64, u32)>, scene: &Scene) -> Option<Loop<'e>> {
    let (first, latest) = (*looks.first()?, latest(looks)?);
    // Skip looks that saw no properties.
    let unit = looks.iter().rev().find(|u| u.restarts.is_some() || u.result.is_some()).copied().unwrap_or(latest);
    let counted = looks.iter().rev().find_map(|u| u.restarts).unwrap_or(0);
    let waiting = latest.sub_state.starts_with("auto-restart");
    let now = scene.now.map_or(latest.at, |now| now.max(latest.at));
    let now_ns = scene.clock.ns(now);

    let seen = steps::of_looks(looks, &scene.clock);
    let logged = steps::of_journal(logged, now_ns).filter(|_| scene.clock.is_wall());
    let logged = logged.unwrap_or_default();
    // Nothing is known after the last look or journal line; in a part of a recording that may be long before the end.
    let known_until = logged.iter().map(|step| step.to).fold(scene.clock.ns(latest.at), u64::max);
    let from = scene.window.map_or(first.at, |from| from.min(first.at));
    let from_ns = scene.clock.ns(from);
    let by_looks = steps::total(&seen);
    let by_journal = steps::total_since(&logged, from_ns);
    // If two looks saw the count, between these looks; else over the whole watched time.
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
    let episode_logged = steps::last_episode(&logged);
    let most = [&episode_seen, &episode_logged].into_iter().flatten().map(|e| e.restarts).max().unwrap_or(0);
    let restarts = u64::from(counted).max(rose).max(most);
    let dense = |e: &Option<Episode>| e.as_ref().is_some_and(|e| e.restarts >= u64::from(LOOP) && e.is_dense());
    let logged_in_window = episode_logged.filter(|e| e.last >= from_ns);
    let short = now.since(from) <= SLOW_LOOP_PERIOD;

    let how = if rose > 0 && (dense(&episode_seen) || dense(&logged_in_window) || short && restarts >= u64::from(LOOP))
    {
        How::Seen
    } else if waiting && counted >= LOOP {
        How::Waiting
    } else if looping_slowly(looks, counted, now, scene.uptime)
        || !is_down(latest) && episode_logged.is_some_and(|e| logged_slowly(&e, now_ns))
    {
        How::History
    } else if rose > 0 && !is_job(looks) {
        How::Once
    } else {
        return None;
    };

    let best = [episode_seen, episode_logged].into_iter().flatten().max_by_key(|e| e.restarts);
    let over_for = best.filter(|_| how == How::Seen && !waiting).and_then(|e| {
        let quiet = known_until.saturating_sub(e.last);
        let enough = OVER.max(e.period().saturating_mul(OVER_PERIODS));
        (u128::from(quiet) > enough.as_nanos()).then(|| Duration::from_nanos(quiet))
    });
    let (per_hour, rate_from, rate_over) =
        rate(in_window, &seen, &logged, known_until, over_for, counted, scene.uptime);
    let (since, since_is_exact) = since(unit, counted, waiting, episode_seen, episode_logged, scene);
    // The journal was read at some point during the watch: looks may show restarts after that.
    let logged_until = |e: &Episode| if by_looks > 0 { e.last } else { known_until };
    let halves = [
        steps::halves(&seen, looks.first().map(|u| scene.clock.ns(u.at)), Some(scene.clock.ns(latest.at))),
        episode_logged.and_then(|e| steps::halves(&logged, Some(e.first), Some(logged_until(&e)))),
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
        since: since.filter(|_| scene.clock.is_wall()).map(Wall),
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

/// Nothing restarts it: it failed for good, or somebody stopped it.
fn is_down(unit: &Unit) -> bool {
    matches!(unit.active_state.as_str(), "failed" | "inactive" | "deactivating")
}

/// The journal has every restart, so fewer are enough.
fn logged_slowly(episode: &Episode, now_ns: u64) -> bool {
    let quiet = Duration::from_nanos(now_ns.saturating_sub(episode.last));
    let recently = quiet <= episode.period().saturating_mul(SLOW_LOOP_PERIODS).max(Duration::from_secs(2));
    episode.restarts >= u64::from(LOOP) && episode.is_dense() && recently
}

/// Two or more restarts in the window give a rate, or three or more in the journal; else the average since boot is the best estimate
/// (a lower bound if the count was reset).
fn rate(
    in_window: Option<(u64, Duration)>,
    seen: &[steps::Step],
    logged: &[steps::Step],
    known_until: u64,
    over_for: Option<Duration>,
    counted: u32,
    uptime: Option<Duration>,
) -> (Option<f64>, &'static str, Option<Duration>) {
    let second = Duration::from_secs(1);
    let per_hour = |n: u64, over: Duration| Some(n as f64 * 3600.0 / over.as_secs_f64());
    // If the loop is over, the rate while it lasted.
    let watched = match (over_for, steps::last_episode(seen)) {
        (Some(_), Some(e)) => Some((e.restarts, Duration::from_nanos(e.last.saturating_sub(e.first)))),
        _ => in_window,
    };
    let watched = watched.filter(|(n, over)| *n >= 2 && *over >= second);
    let logged = steps::last_episode(logged).map(|e| {
        // The journal may have been read before the looks saw restarts.
        let until = if over_for.is_some() || steps::total(seen) > 0 { e.last } else { known_until };
        (e.restarts, Duration::from_nanos(until.saturating_sub(e.first)))
    });
    let logged = logged.filter(|(n, over)| *n >= u64::from(LOOP) && *over >= second);
    match (watched, logged) {
        (Some((n, over)), logged) if n >= WATCHED_ENOUGH || logged.is_none_or(|(m, _)| m <= n) => {
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

/// The earliest known start, and whether the beginning was seen.
fn since(
    unit: &Unit,
    counted: u32,
    waiting: bool,
    seen: Option<Episode>,
    logged: Option<Episode>,
    scene: &Scene,
) -> (Option<u64>, bool) {
    // systemd waits this long before each restart, so the loop has lasted at least that.
    let at_least = unit.restart_delay_us.filter(|_| (waiting || seen.is_some()) && counted > 1).map(|us| {
        let took = Duration::from_micros(us.saturating_mul(u64::from(counted)));
        (scene.clock.ns(unit.at - took), false)
    });
    let boot = scene.uptime.zip(scene.now).map(|(up, now)| scene.clock.ns(now).saturating_sub(up.as_nanos() as u64));
    let at_least = at_least.map(|(at, exact)| (boot.map_or(at, |boot| at.max(boot)), exact));
    let of = |e: Episode| (e.first, e.from_its_start);
    let candidates = [seen.map(of), logged.map(of), at_least];
    match candidates.into_iter().flatten().min_by_key(|(at, exact)| (*at, Reverse(*exact))) {
        Some((at, exact)) => (Some(at), exact),
        None => (None, false),
    }
}

#[cfg(test)]
mod tests;
