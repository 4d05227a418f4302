//! How fast they become more.

use super::Group;
use coroner_evidence::{Evidence, Point, Source, Time, ZombieScan};
use std::time::Duration;

/// Fewer new ones are noise, not growth.
const GROWTH: u64 = 10;
/// In a long window fewer are enough.
const LONG_WINDOW: Duration = Duration::from_secs(60);
const GROWTH_IN_LONG_WINDOW: u64 = 3;

/// What was watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    Growing { by: u64, over: Duration },
    Steady { over: Duration },
    TooShort,
}

/// How many more there are each hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerHour {
    pub value: f64,
    pub from: RateFrom,
}

/// What a rate rests on, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateFrom {
    /// Births within the last hour, or since boot if that is less, of those that are dead now.
    Births { over: Duration },
    /// Counted twice, or churn that was watched.
    Watched { over: Duration },
    /// All of them over all the time since boot: an average.
    SinceBoot { over: Duration },
}

impl RateFrom {
    pub fn as_str(self) -> &'static str {
        match self {
            RateFrom::Births { .. } => "births",
            RateFrom::Watched { .. } => "watched",
            RateFrom::SinceBoot { .. } => "since-boot",
        }
    }

    pub fn over(self) -> Duration {
        match self {
            RateFrom::Births { over } | RateFrom::Watched { over } | RateFrom::SinceBoot { over } => over,
        }
    }
}

/// From the kernel's own counts, which are read often, else from the censuses. Counters are written down when they move, so one that
/// stands still has one point.
pub fn growth(evidence: &Evidence) -> Growth {
    let window = evidence.window();
    let trees = ["memory", "unified"];
    let of =
        |name: &'static str| trees.iter().map(move |tree| evidence.counters.points(Source::CgroupTree, tree, name));
    let censuses: Vec<Point> =
        evidence.cgroup_censuses.iter().filter_map(|c| Some(Point { at: c.at, value: c.dying? })).collect();
    let live: Vec<Point> = evidence.cgroup_censuses.iter().map(|c| Point { at: c.at, value: c.live }).collect();
    let new_live =
        rise(&live).map_or(0, |(by, _)| by).max(of("live").filter_map(rise).map(|(by, _)| by).max().unwrap_or(0));

    let dying = of("dying").find(|points| points.len() >= 2).and_then(rise);
    // Tracked are the living and the dead; what came to life is no growth of the dead.
    let tracked = of("tracked").find(|points| points.len() >= 2).and_then(rise);
    let known = dying
        .or(tracked.map(|(by, from)| (by.saturating_sub(new_live), from)))
        .or_else(|| rise(&censuses).filter(|_| censuses.len() >= 2))
        .or_else(|| of("dying").chain(of("tracked")).find_map(rise));
    let Some((by, from)) = known else { return Growth::TooShort };
    let over = window.map_or(Duration::ZERO, |w| w.to.since(from));
    let enough = if over >= LONG_WINDOW { GROWTH_IN_LONG_WINDOW } else { GROWTH };
    if over >= Duration::from_secs(1) && by >= enough {
        Growth::Growing { by, over }
    } else if over >= LONG_WINDOW {
        Growth::Steady { over }
    } else {
        Growth::TooShort
    }
}

/// By how much a series rose, and since when.
fn rise(points: &[Point]) -> Option<(u64, Time)> {
    let first = points.iter().min_by_key(|p| p.at)?;
    let last = points.iter().max_by_key(|p| p.at)?;
    Some((last.value.saturating_sub(first.value), first.at))
}

fn uptime(evidence: &Evidence) -> Option<Duration> {
    evidence.clocks.last().map(|c| Duration::from_nanos(c.boot_ns)).filter(|up| !up.is_zero())
}

fn since_boot(dead: u64, uptime: Duration) -> PerHour {
    PerHour { value: dead as f64 * 3600.0 / uptime.as_secs_f64().max(1.0), from: RateFrom::SinceBoot { over: uptime } }
}

/// Gives each group its rate.
pub fn add_rates(evidence: &Evidence, _scan: &ZombieScan, groups: &mut [Group<'_>]) {
    let Some(uptime) = uptime(evidence) else { return };
    for group in groups {
        group.per_hour = group.dead.map(|dead| since_boot(dead, uptime));
    }
}

/// The rate of all of them.
pub fn of_all(evidence: &Evidence, scan: &ZombieScan) -> Option<PerHour> {
    Some(since_boot(scan.dead?, uptime(evidence)?))
}
