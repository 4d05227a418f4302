//! How fast their number grows.

use super::folding::{covers, covers_path, split};
use super::{Group, makers};
use coroner_evidence::{Evidence, Point, Source, Time, ZombieScan};
use std::collections::HashSet;
use std::time::Duration;

/// Fewer new ones are noise, not growth.
const GROWTH: u64 = 10;
/// In a long window, fewer are enough.
const LONG_WINDOW: Duration = Duration::from_secs(60);
const GROWTH_IN_LONG_WINDOW: u64 = 3;

/// Growth while watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    Growing { by: u64, over: Duration },
    Steady { over: Duration },
    TooShort,
}

/// How many more come per hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerHour {
    pub value: f64,
    pub from: RateFrom,
}

/// What a rate is based on, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateFrom {
    /// Births of those now dead, within the last hour or since boot, whichever is shorter.
    Births { over: Duration },
    /// Two counts, or churn that was watched.
    Watched { over: Duration },
    /// All of them, averaged over the time since boot.
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

/// From the kernel's own counts, which are read often, else from the censuses. Counters are recorded when they move, so one that
/// does not move has one point.
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
    // Live cgroups are tracked too: new live ones are not growth of the dead.
    let tracked = of("tracked").find(|points| points.len() >= 2).and_then(rise);
    let known = dying
        .or(tracked.map(|(by, from)| (by.saturating_sub(new_live), from)))
        .or_else(|| rise(&censuses).filter(|_| censuses.len() >= 2))
        .or_else(|| between(&evidence.zombie_scans))
        .or_else(|| of("dying").chain(of("tracked")).find_map(rise));
    let Some((by, from)) = known else { return Growth::TooShort };
    let last_scan = evidence.zombie_scans.iter().map(|s| s.at).max();
    let end = window.map(|w| w.to).max(last_scan);
    let over = end.map_or(Duration::ZERO, |end| end.since(from));
    let enough = if over >= LONG_WINDOW { GROWTH_IN_LONG_WINDOW } else { GROWTH };
    if over >= Duration::from_secs(1) && by >= enough {
        Growth::Growing { by, over }
    } else if over >= LONG_WINDOW {
        Growth::Steady { over }
    } else {
        Growth::TooShort
    }
}

/// When their number was highest, and from when until when it was at least half of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peak {
    pub at: Time,
    pub dead: u64,
    pub from: Time,
    pub until: Time,
    /// Counts within the watched time.
    pub counts: usize,
}

/// From all censuses and scans; `None` if none of them could count the dead.
pub fn peak(evidence: &Evidence) -> Option<Peak> {
    let counted = evidence.cgroup_censuses.iter().filter(|c| !c.truncated).map(|c| (c.at, c.dying));
    let scanned = evidence.zombie_scans.iter().map(|s| (s.at, s.dead));
    let dying = ["memory", "unified"].into_iter().flat_map(|tree| {
        evidence.counters.points(Source::CgroupTree, tree, "dying").iter().map(|point| (point.at, Some(point.value)))
    });
    // What was before the window is its business only as the state at its beginning, which `growth` compares with.
    let from = evidence.window().map_or(Time::default(), |window| window.from);
    let points = counted.chain(scanned).chain(dying).filter(|(at, _)| *at >= from);
    let mut points: Vec<(Time, u64)> = points.filter_map(|(at, dead)| Some((at, dead?))).collect();
    points.sort_unstable();
    let (top, &(at, dead)) = points.iter().enumerate().max_by_key(|(place, (_, dead))| (*dead, *place))?;
    let high = |&&(_, n): &&(Time, u64)| n >= dead.div_ceil(2);
    let from = points[..=top].iter().rev().take_while(high).last().map_or(at, |(at, _)| *at);
    let until = points[top..].iter().take_while(high).last().map_or(at, |(at, _)| *at);
    Some(Peak { at, dead, from, until, counts: points.len() })
}

/// By how much the counts of the scans rose, if several used the same method.
fn between(scans: &[ZombieScan]) -> Option<(u64, Time)> {
    let last = scans.iter().max_by_key(|s| s.at)?;
    let alike = scans.iter().filter(|s| s.method == last.method && s.truncated.is_none());
    let points: Vec<Point> = alike.filter_map(|s| Some(Point { at: s.at, value: s.dead? })).collect();
    rise(&points).filter(|_| points.len() >= 2)
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

fn per_hour(n: f64, over: Duration) -> f64 {
    n * 3600.0 / over.as_secs_f64().max(1.0)
}

fn since_boot(dead: u64, uptime: Duration) -> PerHour {
    PerHour { value: per_hour(dead as f64, uptime), from: RateFrom::SinceBoot { over: uptime } }
}

const HOUR: Duration = Duration::from_secs(3600);

/// Gives each group its best known rate: exact births, else what was watched, else the average since boot.
pub fn add_rates(evidence: &Evidence, scan: &ZombieScan, group_of: &[u32], groups: &mut [Group<'_>]) {
    let uptime = uptime(evidence);
    let births = births(scan, uptime, group_of, groups.len());
    let watched = between_scans(evidence, scan, group_of, groups);
    let churn_watched = makers::churn(evidence).map(|churn| churn.over()).filter(|over| *over >= LONG_WINDOW);
    for (i, group) in groups.iter_mut().enumerate() {
        let by_churn = || {
            let over = churn_watched?;
            // Watched, but no churn of this group: it did not grow.
            let more = group.churn.map_or(0.0, |c| c.removed as f64 - c.freed as f64);
            Some(PerHour { value: per_hour(more.max(0.0), over), from: RateFrom::Watched { over } })
        };
        group.per_hour = births[i]
            .or(watched.as_ref().and_then(|(more, over)| {
                Some(PerHour { value: per_hour(more[i]? as f64, *over), from: RateFrom::Watched { over: *over } })
            }))
            .or_else(|| by_churn().filter(|_| group.rest_of == 0))
            .or_else(|| Some(since_boot(group.dead?, uptime?)));
    }
}

/// The rate of all of them.
pub fn of_all(evidence: &Evidence, scan: &ZombieScan) -> Option<PerHour> {
    let uptime = uptime(evidence);
    let one_group = vec![0u32; scan.zombies.len()];
    let by_births = births(scan, uptime, &one_group, 1).into_iter().next().flatten();
    by_births.or_else(|| watched(evidence, scan)).or_else(|| Some(since_boot(scan.dead?, uptime?)))
}

/// From the kernel's counts or two scans, at least a minute apart.
fn watched(evidence: &Evidence, scan: &ZombieScan) -> Option<PerHour> {
    let rate = |more: u64, over| PerHour { value: per_hour(more as f64, over), from: RateFrom::Watched { over } };
    match growth(evidence) {
        Growth::Growing { by, over } if over >= LONG_WINDOW => Some(rate(by, over)),
        Growth::Steady { over } => Some(rate(0, over)),
        _ => {
            let earlier = earlier_scan(evidence, scan)?;
            Some(rate(scan.dead?.saturating_sub(earlier.dead?), scan.at.since(earlier.at)))
        }
    }
}

/// Births of each group's dead within the last hour. Only if all births are exact: a bound would make them younger than they are.
fn births(scan: &ZombieScan, uptime: Option<Duration>, group_of: &[u32], groups: usize) -> Vec<Option<PerHour>> {
    let over = uptime.map_or(HOUR, |up| up.min(HOUR));
    let since = scan.at - over;
    let mut recent: Vec<Option<u64>> = vec![None; groups];
    let mut inexact = vec![over < LONG_WINDOW; groups];
    for (zombie, &group) in scan.zombies.iter().zip(group_of) {
        let group = group as usize;
        match zombie.born {
            Some(born) if born.exact => {
                let n = recent[group].get_or_insert(0);
                *n += u64::from(born.at > since);
            }
            _ => inexact[group] = true,
        }
    }
    let rate = |n: u64| PerHour { value: per_hour(n as f64, over), from: RateFrom::Births { over } };
    recent.into_iter().zip(inexact).map(|(recent, inexact)| recent.filter(|_| !inexact).map(rate)).collect()
}

/// The oldest scan with the same method that is at least a minute older than this one.
fn earlier_scan<'e>(evidence: &'e Evidence, scan: &ZombieScan) -> Option<&'e ZombieScan> {
    let comparable = |s: &&ZombieScan| {
        s.method.is_bpf() == scan.method.is_bpf()
            && (s.method.is_bpf() || s.method == scan.method)
            && s.truncated.is_none()
            && scan.at.since(s.at) >= LONG_WINDOW
    };
    evidence.zombie_scans.iter().filter(comparable).min_by_key(|s| s.at)
}

/// By how much each group grew since an earlier scan, and how long ago that was.
fn between_scans(
    evidence: &Evidence,
    scan: &ZombieScan,
    group_of: &[u32],
    groups: &[Group<'_>],
) -> Option<(Vec<Option<u64>>, Duration)> {
    let earlier = earlier_scan(evidence, scan)?;
    let over = scan.at.since(earlier.at);
    if scan.zombies.is_empty() {
        let then = |group: &Group<'_>| {
            let mut before = earlier.below.iter().filter(|b| covers_path(&group.parent, &b.parent));
            let before = before.try_fold(0u64, |sum, b| Some(sum.saturating_add(b.dead?)))?;
            Some(group.dead?.saturating_sub(before))
        };
        return Some((groups.iter().map(|g| then(g).filter(|_| g.rest_of == 0)).collect(), over));
    }
    if earlier.zombies.is_empty() && earlier.dead != Some(0) {
        return None;
    }
    // An id may be reused after its cgroup was freed; together with the serial number it is unique.
    let known: HashSet<(u64, u64)> = earlier.zombies.iter().map(|z| (z.id, z.serial)).collect();
    let mut more: Vec<u64> = vec![0; groups.len()];
    let mut still: HashSet<(u64, u64)> = HashSet::with_capacity(known.len());
    for (zombie, &group) in scan.zombies.iter().zip(group_of) {
        let key = (zombie.id, zombie.serial);
        if known.contains(&key) {
            still.insert(key);
        } else {
            more[group as usize] = more[group as usize].saturating_add(1);
        }
    }
    for gone in earlier.zombies.iter().filter(|z| !still.contains(&(z.id, z.serial))) {
        let (parent, name) = split(&gone.path);
        if let Some(group) = groups.iter().position(|g| g.rest_of == 0 && covers(&g.parent, &g.pattern, parent, name)) {
            more[group] = more[group].saturating_sub(1);
        }
    }
    Some((more.into_iter().map(Some).collect(), over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, start, watched};
    use crate::zombies::report;
    use crate::zombies::test_scan::{born, scan};
    use coroner_evidence::{CgroupChurn, ZombieMethod};

    fn rates(evidence: &Evidence) -> (Option<PerHour>, Option<PerHour>) {
        let report = report(evidence).unwrap();
        (report.groups[0].per_hour, report.per_hour)
    }

    const BOOT: Duration = Duration::from_nanos(END.0);

    #[test]
    fn exact_births_of_the_last_hour_are_the_rate() {
        let mut scan = scan((0..100).map(|i| format!("/p/z{i}")));
        for (i, zombie) in scan.zombies.iter_mut().enumerate() {
            zombie.born = born(start(if i < 70 { 7200 } else { 1800 }), true);
        }
        let mut evidence = Evidence { zombie_scans: vec![scan], ..watched(5) };
        let by_births = Some(PerHour { value: 30.0, from: RateFrom::Births { over: HOUR } });
        assert_eq!(rates(&evidence), (by_births, by_births));
        // A single bound spoils it: that one may be much older.
        evidence.zombie_scans[0].zombies[99].born = born(start(1800), false);
        assert_eq!(rates(&evidence).0.unwrap().from, RateFrom::SinceBoot { over: BOOT });
        // A node that has been up for less than an hour.
        let mut young = evidence.clone();
        young.zombie_scans[0].zombies.truncate(99);
        young.clocks[0].boot_ns = 2_400_000_000_000;
        let rate = rates(&young).0.unwrap();
        assert_eq!((rate.value.round(), rate.from.over().as_secs()), (44.0, 2400));
    }

    #[test]
    fn two_scans_show_what_came_and_what_went() {
        let now = scan((0..100).map(|i| format!("/p/z{i}")));
        let mut before = ZombieScan { at: start(600), ..scan((0..70).map(|i| format!("/p/z{i}"))) };
        // Ten of them were freed since.
        for zombie in &mut before.zombies[..10] {
            zombie.serial += 5_000;
        }
        before.dead = Some(70);
        let mut evidence = Evidence { zombie_scans: vec![before, now], ..watched(5) };
        let watched_rate =
            |n: f64| Some(PerHour { value: n * 6.0, from: RateFrom::Watched { over: Duration::from_secs(600) } });
        assert_eq!(rates(&evidence), (watched_rate(30.0), watched_rate(30.0)));
        assert_eq!(growth(&evidence), Growth::Growing { by: 30, over: Duration::from_secs(600) });
        // Half a minute is too short.
        evidence.zombie_scans[0].at = start(30);
        assert_eq!(rates(&evidence).0.unwrap().from.as_str(), "since-boot");
        // A scan by another method does not compare.
        evidence.zombie_scans[0].at = start(600);
        evidence.zombie_scans[0].method = ZombieMethod::Count;
        assert_eq!(rates(&evidence).0.unwrap().from.as_str(), "since-boot");
    }

    #[test]
    fn churn_gives_the_rate_if_births_do_not() {
        let row = |from: u64, removed, freed| CgroupChurn {
            from: start(from),
            to: start(from - 60),
            parent: "/p".into(),
            pattern: "z*".into(),
            example: "z1".into(),
            removed,
            freed,
            ..CgroupChurn::default()
        };
        let mut evidence = Evidence { zombie_scans: vec![scan((0..100).map(|i| format!("/p/z{i}")))], ..watched(5) };
        evidence.cgroup_churn = vec![row(300, 50, 0), row(240, 0, 40)];
        let rate = rates(&evidence).0.unwrap();
        // Counted until the end, though nothing happened after the second row.
        assert_eq!((rate.value, rate.from), (120.0, RateFrom::Watched { over: Duration::from_secs(300) }));
    }

    #[test]
    fn the_peak_lasts_while_there_are_half_as_many() {
        use coroner_evidence::CgroupCensus;
        let census =
            |second: u64, dead| CgroupCensus { at: start(second), dying: Some(dead), ..CgroupCensus::default() };
        let mut evidence = watched(60);
        let counts = [(90, 9_000), (55, 10), (50, 1_999), (40, 2_001), (30, 4_001), (20, 2_001), (10, 2_000), (2, 12)];
        evidence.cgroup_censuses = counts.map(|(second, dead)| census(second, dead)).into();
        let peak = peak(&evidence).unwrap();
        assert_eq!((peak.at, peak.dead, peak.counts), (start(30), 4_001, 7), "what was before the window is not meant");
        assert_eq!((peak.from, peak.until), (start(40), start(20)));
        evidence.cgroup_censuses.clear();
        assert_eq!(super::peak(&evidence), None);
    }

    #[test]
    fn without_evidence_there_is_no_rate() {
        let mut evidence = Evidence { zombie_scans: vec![scan(["/p/z1"])], ..watched(5) };
        evidence.clocks.clear();
        assert_eq!(rates(&evidence), (None, None));
    }
}
