//! Who will hurt, and when: growth of dead memory cgroups on each node, up to the level at which others got into trouble.
//!
//! The slope is Theil and Sen's: the median of the slopes between all pairs of points, with the interval of Kendall's tau. A node that
//! freed most of what it had begins anew there, as after a reboot.

use crate::answers::NodeSummary;
use crate::query::Expr;
use crate::store::Reader;
use crate::store::growth::Point;
use crate::store::read::wall;
use coroner_report::Wall;
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "coroner.fleet.next/1";
/// Problems that dead memory cgroups cause.
const CODES: [&str; 3] = ["zombie-memcgs", "slow-memcg-stat", "memcg-walk"];
/// With fewer nodes that were hurt, nobody knows what hurts.
const FEWEST_HURT: usize = 3;
/// With less of it, a slope is chance.
const FEWEST_POINTS: usize = 6;
const SHORTEST_S: i64 = 5 * 3600;
/// Growth is measured over this time at most: minutes are kept for a week unless told otherwise.
const LOOK_BACK_S: i64 = 7 * DAY_S;
/// What is later than this is not foreseen.
const HORIZON_DAYS: f64 = 365.0;
const DAY_S: i64 = 86_400;
/// 97.5 % of a normal distribution lie below.
const Z: f64 = 1.959_964;
/// A count that fell by more than this and to less than half begins anew.
const FREED: f64 = 100.0;

/// `coroner fleet next`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Next {
    pub schema: String,
    pub at: Wall,
    /// What is counted: `zombies`, dead memory cgroups.
    pub number: String,
    /// The problems that count as being hurt.
    pub codes: Vec<String>,
    /// `None` if fewer than three nodes were seen getting hurt.
    pub level: Option<Level>,
    /// Nodes that were seen getting hurt.
    pub seen_getting_hurt: u64,
    pub nodes: NextCounts,
    /// Those that will get there, the first of them first; then those that are there already. Without a level, those that grow most.
    pub next: Vec<NextNode>,
}

/// What nodes had when they got their first such problem.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Level {
    /// A tenth of them had fewer: the lowest may be a node that got hurt by something else.
    pub tenth: f64,
    pub median: f64,
    pub highest: f64,
}

/// Of the nodes that were asked about, each once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NextCounts {
    pub asked: u64,
    /// Have such a problem now.
    pub hurt: u64,
    /// No longer report.
    pub silent: u64,
    /// Listed.
    pub growing: u64,
    /// Of them, those that have as many as others had when they got hurt (by the median).
    pub reached: u64,
    /// No growth was shown, or it takes more than a year.
    pub steady: u64,
    /// Fewer than five hours of data since the boot.
    pub unknown: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NextNode {
    pub node: String,
    pub host: Option<String>,
    pub booted: Option<Wall>,
    /// At its last minute.
    pub zombies: f64,
    pub growth_per_day: Range,
    /// Of the data that the growth was measured on.
    pub hours: f64,
    pub points: u64,
    /// When it has what others had, by the median of them; not after the present if it has as many already. `None` without a level.
    pub reaches: Option<Reaches>,
    /// When it has what a tenth of the others had.
    pub reaches_tenth: Option<Wall>,
}

/// With its 95 % interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Range {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reaches {
    pub at: Wall,
    /// If it grows as fast as the interval allows.
    pub earliest: Wall,
    /// `None`: beyond a year.
    pub latest: Option<Wall>,
}

pub fn next(reader: &Reader, picked: Option<&Expr>, limit: usize, now: i64) -> anyhow::Result<Next> {
    let since = now - LOOK_BACK_S;
    let mut levels: Vec<f64> = reader.levels_at_onset(&CODES, since)?.into_values().collect();
    let level = level(&mut levels);
    let mut points = reader.points(since, now)?;
    let mut counts = NextCounts::default();
    let mut next = Vec::new();
    let nodes = reader.nodes_by_id(now)?;
    if let Some(expr) = picked {
        expr.check(nodes.iter().map(|(_, node)| node))?;
    }
    for (id, node) in nodes {
        if picked.is_some_and(|expr| expr.matches(&node, now) != Some(true)) {
            continue;
        }
        counts.asked += 1;
        let points = points.remove(&id).unwrap_or_default();
        if is_hurt(&node) {
            counts.hurt += 1;
        } else if node.is_silent {
            counts.silent += 1;
        } else {
            match forecast(&node, since_freed(&points), level, now) {
                Forecast::Unknown => counts.unknown += 1,
                Forecast::Steady => counts.steady += 1,
                Forecast::Grows(node) => next.push(*node),
            }
        }
    }
    counts.growing = next.len() as u64;
    counts.reached =
        next.iter().filter(|node| node.reaches.is_some_and(|reaches| reaches.at <= wall(now))).count() as u64;
    next.sort_by(|a, b| {
        // What is to come, then what has come.
        let soon = |node: &NextNode| {
            let at = node.reaches.map_or(Wall::MAX, |reaches| reaches.at);
            (at <= wall(now), at)
        };
        soon(a)
            .cmp(&soon(b))
            .then(b.growth_per_day.value.total_cmp(&a.growth_per_day.value))
            .then_with(|| a.node.cmp(&b.node))
    });
    next.truncate(limit);
    Ok(Next {
        schema: SCHEMA.to_owned(),
        at: wall(now),
        number: "zombies".to_owned(),
        codes: CODES.map(str::to_owned).to_vec(),
        level,
        seen_getting_hurt: levels.len() as u64,
        nodes: counts,
        next,
    })
}

fn is_hurt(node: &NodeSummary) -> bool {
    node.problems.iter().any(|problem| CODES.contains(&problem.code.as_str()) && problem.severity != "info")
}

fn level(levels: &mut [f64]) -> Option<Level> {
    levels.sort_by(f64::total_cmp);
    match &*levels {
        [lowest, .., highest] if levels.len() >= FEWEST_HURT => {
            let tenth = levels.get(levels.len() / 10).copied().unwrap_or(*lowest);
            Some(Level { tenth, median: median(levels), highest: *highest })
        }
        _ => None,
    }
}

/// Of sorted numbers.
fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The points after the last time that most were freed.
fn since_freed(points: &[Point]) -> &[Point] {
    let freed = points.windows(2).rposition(|pair| {
        let (before, after) = (pair[0].1, pair[1].1);
        before - after > FREED && after < before / 2.0
    });
    &points[freed.map_or(0, |at| at + 1)..]
}

enum Forecast {
    Unknown,
    Steady,
    Grows(Box<NextNode>),
}

fn forecast(node: &NodeSummary, points: &[Point], level: Option<Level>, now: i64) -> Forecast {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Forecast::Unknown };
    let seconds = last.0 - first.0;
    if points.len() < FEWEST_POINTS || seconds < SHORTEST_S {
        return Forecast::Unknown;
    }
    let Some(per_day) = slope(points).filter(|slope| slope.low > 0.0) else { return Forecast::Steady };
    let mut offsets: Vec<f64> = points.iter().map(|(at, dead)| dead - per_day.value * days(at - last.0)).collect();
    offsets.sort_by(f64::total_cmp);
    let fitted = median(&offsets) + per_day.value * days(now - last.0);
    let at = |level: f64, per_day: f64| {
        let days = ((level - fitted) / per_day).max(0.0);
        (days <= HORIZON_DAYS).then(|| wall(now + (days * DAY_S as f64) as i64))
    };
    let reaches = match level.map(|level| (level, at(level.median, per_day.value))) {
        None => None,
        Some((_, None)) => return Forecast::Steady,
        Some((level, Some(reached))) => Some(Reaches {
            at: reached,
            earliest: at(level.median, per_day.high).unwrap_or(reached),
            latest: at(level.median, per_day.low),
        }),
    };
    Forecast::Grows(Box::new(NextNode {
        node: node.node.clone(),
        host: node.host.clone(),
        booted: node.booted,
        zombies: last.1,
        growth_per_day: per_day,
        hours: seconds as f64 / 3600.0,
        points: points.len() as u64,
        reaches,
        reaches_tenth: level.and_then(|level| at(level.tenth, per_day.value)),
    }))
}

fn days(seconds: i64) -> f64 {
    seconds as f64 / DAY_S as f64
}

/// Per day. `None` with fewer than two different times.
fn slope(points: &[Point]) -> Option<Range> {
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (index, (at, dead)) in points.iter().enumerate() {
        let later = points[index + 1..].iter().filter(|(later, _)| later > at);
        slopes.extend(later.map(|(later, more)| (more - dead) / days(later - at)));
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let (n, pairs) = (points.len() as f64, slopes.len() as f64);
    let spread = Z * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let rank = |rank: f64| slopes.get((rank.max(0.0) as usize).min(slopes.len().saturating_sub(1))).copied();
    Some(Range {
        value: (!slopes.is_empty()).then(|| median(&slopes))?,
        low: rank((pairs - spread) / 2.0 - 1.0)?,
        high: rank((pairs + spread) / 2.0)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_790_000_000;
    const HOUR: i64 = 3600;

    /// One point an hour for so many hours up to now.
    fn hourly(hours: i64, dead: impl Fn(f64) -> f64) -> Vec<Point> {
        (0..=hours).map(|hour| (NOW - (hours - hour) * HOUR, dead(hour as f64))).collect()
    }

    fn grows(points: &[Point], level: Option<Level>) -> NextNode {
        match forecast(&NodeSummary::default(), since_freed(points), level, NOW) {
            Forecast::Grows(node) => *node,
            Forecast::Steady => panic!("steady"),
            Forecast::Unknown => panic!("unknown"),
        }
    }

    const LEVEL: Level = Level { tenth: 30_000.0, median: 50_000.0, highest: 60_000.0 };

    #[test]
    fn a_line_is_carried_on_to_the_level() {
        let node = grows(&hourly(48, |hour| 1000.0 * hour), Some(LEVEL));
        assert!((node.growth_per_day.value - 24_000.0).abs() < 1e-6, "{node:?}");
        let reaches = node.reaches.unwrap();
        // Two hours from now; the lowest was passed before.
        assert_eq!(reaches.at, wall(NOW + 2 * HOUR));
        assert!(reaches.earliest <= reaches.at && reaches.latest.unwrap() >= reaches.at);
        assert_eq!(node.reaches_tenth, Some(wall(NOW)));
        let grown = grows(&hourly(48, |hour| 1000.0 * hour), None);
        assert!(grown.reaches.is_none() && grown.reaches_tenth.is_none());
    }

    #[test]
    fn a_few_wild_points_change_little() {
        let wild = hourly(40, |hour| match hour as i64 {
            7 | 21 | 30 => 900_000.0,
            _ => 100.0 * hour + 50.0 * (hour * 1.7).sin(),
        });
        // Wild ones upwards begin anew when they fall; the others follow the line.
        let per_day = slope(&wild).unwrap();
        assert!((per_day.value - 2400.0).abs() < 400.0, "{per_day:?}");
        assert!(per_day.low < per_day.value && per_day.value < per_day.high, "{per_day:?}");
    }

    #[test]
    fn noise_is_not_growth_and_little_data_is_unknown() {
        let judge = |points: &[Point]| forecast(&NodeSummary::default(), points, Some(LEVEL), NOW);
        let noise = hourly(60, |hour| 20.0 + (hour * 12.9898).sin() * 15.0);
        assert!(matches!(judge(&noise), Forecast::Steady));
        assert!(matches!(judge(&hourly(60, |_| 5.0)), Forecast::Steady));
        assert!(matches!(judge(&hourly(60, |hour| hour * 0.1)), Forecast::Steady), "more than a year");
        assert!(matches!(judge(&hourly(4, |hour| hour * 1000.0)), Forecast::Unknown));
        assert!(matches!(judge(&[]), Forecast::Unknown));
    }

    #[test]
    fn what_was_freed_does_not_count() {
        let sawtooth = hourly(40, |hour| if hour < 20.0 { 1000.0 * hour } else { 500.0 * (hour - 20.0) });
        let node = grows(&sawtooth, Some(LEVEL));
        assert!((node.growth_per_day.value - 12_000.0).abs() < 1.0, "{node:?}");
        assert!((node.hours - 20.0).abs() < 0.01, "{node:?}");
    }

    #[test]
    fn three_nodes_make_a_level() {
        assert_eq!(level(&mut [5.0, 1.0]), None);
        assert_eq!(level(&mut [5.0, 1.0, 3.0, 4.0]), Some(Level { tenth: 1.0, median: 3.5, highest: 5.0 }));
    }
}
