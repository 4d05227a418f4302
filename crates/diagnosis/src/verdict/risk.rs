//! What happens if nothing is done.

use crate::case::Case;
use crate::code::Code;
use crate::words::{count, duration_words};
use crate::zombies::Growth;
use crate::zombies::cost::stats_walk;
use crate::zombies::growth::growth;
use coroner_evidence::Wall;
use std::time::Duration;

/// A walk this long harms whatever needs the core: it is a fifth of the 5 s after which ENA resets a device.
const FELT: Duration = Duration::from_secs(1);
/// Measured reads of root statistics: 26.3 ms with 2,000 dead cgroups on 5.4; with 10,000, 197 ms on 5.10 with the old walk and 0.70 s on
/// 4.x. The most expensive one, so that the warning comes early rather than late.
const STATS_WALK_EACH: Duration = Duration::from_micros(70);
/// Measured on 6.18: reclaim took 1.4 s with 5,000 dead cgroups, 16 s with 60,000.
const RECLAIM_EACH: Duration = Duration::from_micros(270);
/// Nobody plans further ahead.
const FURTHEST: f64 = 366.0 * 24.0;

/// When dead cgroups that cost nothing yet will do harm. `None` if they already do, or if their number was not seen to grow: that many were
/// born in the last hour, or since boot, does not say that more will come.
pub fn when_zombies_hurt(case: &Case<'_>) -> Option<String> {
    if case.findings_of(Code::MemcgWalk).next().is_some() || case.findings_of(Code::SlowMemcgStat).next().is_some() {
        return None;
    }
    let (dead, _) = case.memcgs()?;
    let version = case.evidence.cgroup_censuses.last().map_or(2, |census| census.version);
    let walks = stats_walk(case.evidence, version) == Some(true);
    let (each, who) = match walks {
        true => (STATS_WALK_EACH, "each read of memory statistics"),
        false => (RECLAIM_EACH, "each pass of memory reclaim"),
    };
    let hurts = (FELT.as_nanos() / each.as_nanos()) as u64;
    // What is gone does no harm.
    if case.judged_zombies().is_some_and(|judged| judged.is_over()) {
        return None;
    }
    if dead >= hurts {
        return Some(format!(
            "With {} dead cgroups, {who} takes a second or more of one core (measured on other nodes, not seen here).",
            count(dead)
        ));
    }
    let Growth::Growing { by, over } = growth(case.evidence) else { return None };
    let per_hour = by as f64 * 3600.0 / over.as_secs_f64().max(1.0);
    let hours = (hurts - dead) as f64 / per_hour;
    if hours > FURTHEST {
        return None;
    }
    let date = case.evidence.clocks.last().map(|clock| clock.wall + Duration::from_secs_f64(hours * 3600.0));
    let on = date.and_then(|date| date_words(date, hours)).map(|date| format!(" (about {date})")).unwrap_or_default();
    Some(format!(
        "At this rate ({} more per hour) there will be {} dead cgroups in {}{on}; {who} then takes a second of one core.",
        count(per_hour.round() as u64),
        count(hurts),
        duration_words(Duration::from_secs_f64(hours * 3600.0))
    ))
}

/// `2026-11-28`; with the time of day if it is soon.
fn date_words(at: Wall, hours: f64) -> Option<String> {
    const SOON: f64 = 48.0;
    let at = jiff::Timestamp::from_nanosecond(at.0.into()).ok()?;
    Some(at.strftime(if hours < SOON { "%Y-%m-%d %H:%MZ" } else { "%Y-%m-%d" }).to_string())
}
