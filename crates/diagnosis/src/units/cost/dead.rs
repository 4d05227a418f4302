//! Dead cgroups, by the unit they belonged to or whose processes made them.

use super::PinnedBy;
use crate::units::churn::makes_for_others;
use crate::units::paths::UnitPaths;
use crate::zombies::groups::groups;
use crate::zombies::growth::growth;
use crate::zombies::{Growth, MakerShare, RateFrom, makers};
use coroner_evidence::{Evidence, Order, Time, ZombieScan};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// How many files are named.
const FILES: usize = 3;
/// This many new ones give a rate, however short the watch.
const RISEN: u64 = 10;
/// The rate of a leak that has just begun is taken over at least this time.
const SHORTEST_LEAK: Duration = Duration::from_secs(10);
/// Two scans closer than this count as one.
const SHORTEST: Duration = Duration::from_secs(1);
/// With fewer, a rate needs two scans this far apart, or a node that has been up this long.
const LONG_ENOUGH: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub struct Dead {
    /// All were named: a unit that is missing here has none.
    pub complete: bool,
    pub units: BTreeMap<String, OfUnit>,
}

#[derive(Debug, Default)]
pub struct OfUnit {
    pub zombies: u64,
    pub bytes: Option<u64>,
    pub per_hour: Option<f64>,
    pub rate_from: Option<&'static str>,
    pub pinned_by: Vec<PinnedBy>,
}

/// Of the newest scan; `None` if there is none.
pub fn by_unit(evidence: &Evidence, paths: &UnitPaths<'_>) -> Option<Dead> {
    let scan = ZombieScan::to_report(&evidence.zombie_scans)?;
    if scan.zombies.is_empty() {
        return Some(placed(scan, paths));
    }
    let joined = Joined::of(evidence, scan, paths);
    let mut tallies: Vec<Tally> = joined.units.iter().map(|_| Tally::default()).collect();
    let uptime = evidence.clocks.last().map(|c| Duration::from_nanos(c.boot_ns)).filter(|up| !up.is_zero());
    let recently = uptime.map_or(HOUR, |up| up.min(HOUR));
    let hour_ago = scan.at - recently;
    for (zombie, unit) in scan.zombies.iter().zip(&joined.unit_of) {
        let Some(tally) = unit.and_then(|unit| tallies.get_mut(unit)) else { continue };
        tally.zombies += 1;
        tally.bytes = tally.bytes.saturating_add(zombie.held.total());
        match zombie.born {
            Some(born) if born.exact => {
                tally.born_recently += u64::from(born.at > hour_ago);
                tally.oldest = Some(tally.oldest.map_or(born.at, |oldest| oldest.min(born.at)));
            }
            _ => tally.births_unknown = true,
        }
    }
    for hold in &scan.holds {
        let unit = joined.unit_of.get(hold.zombie as usize).copied().flatten();
        let Some(tally) = unit.and_then(|unit| tallies.get_mut(unit)) else { continue };
        let (bytes, zombies) = tally.files.entry(hold.file).or_default();
        *bytes = bytes.saturating_add(hold.bytes);
        *zombies += 1;
    }
    let before = earlier(evidence, scan).map(|earlier| {
        let mut counts: HashMap<String, u64> = HashMap::new();
        let joined = Joined::of(evidence, earlier, paths);
        for unit in joined.unit_of.iter().flatten().filter_map(|&unit| joined.units.get(unit)) {
            *counts.entry(unit.clone()).or_default() += 1;
        }
        (counts, scan.at.since(earlier.at))
    });
    let per_hour = |n: u64, over: Duration| n as f64 * 3600.0 / over.as_secs_f64().max(1.0);
    let node = match growth(evidence) {
        Growth::Growing { by, over } => Some((by, over)),
        Growth::Steady { .. } | Growth::TooShort => None,
    };
    let mut units = BTreeMap::new();
    for (name, tally) in joined.units.into_iter().zip(tallies) {
        let risen = before.as_ref().map(|(counts, over)| {
            let then = counts.get(&name).copied().unwrap_or(0);
            (tally.zombies.saturating_sub(then), *over)
        });
        let rate = if let Some((n, over)) = risen.filter(|(n, over)| *n >= RISEN || *over >= LONG_ENOUGH && *n > 0) {
            // The current rate, rather than that of the last hour, most of which may have been quiet.
            Some((n, RateFrom::Watched { over }))
        } else if !tally.births_unknown && recently >= LONG_ENOUGH {
            // The leak may have just begun: count from its first birth, not over a quiet hour.
            let since_first = tally.oldest.map_or(recently, |oldest| scan.at.since(oldest).max(SHORTEST_LEAK));
            let over = recently.min(since_first);
            Some(match node {
                // There was a burst earlier: no unit leaks faster than the node grows.
                Some((n, watched)) if per_hour(n, watched) < per_hour(tally.born_recently, over) => {
                    (n, RateFrom::Watched { over: watched })
                }
                _ => (tally.born_recently, RateFrom::Births { over }),
            })
        } else if let Some((n, over)) = risen.filter(|(_, over)| *over >= LONG_ENOUGH) {
            Some((n, RateFrom::Watched { over }))
        } else {
            uptime.map(|over| (tally.zombies, RateFrom::SinceBoot { over }))
        };
        let of_it = OfUnit {
            zombies: tally.zombies,
            bytes: Some(tally.bytes),
            per_hour: rate.map(|(n, from)| per_hour(n, from.over())),
            rate_from: rate.map(|(_, from)| from.as_str()),
            pinned_by: tally.pinned_by(scan),
        };
        units.insert(name, of_it);
    }
    Some(Dead { complete: scan.truncated.is_none(), units })
}

#[derive(Debug, Default)]
struct Tally {
    zombies: u64,
    bytes: u64,
    born_recently: u64,
    births_unknown: bool,
    oldest: Option<Time>,
    /// By index in the scan: bytes, and how many dead it keeps.
    files: HashMap<u32, (u64, u64)>,
}

impl Tally {
    fn pinned_by(&self, scan: &ZombieScan) -> Vec<PinnedBy> {
        let mut files: Vec<(u32, u64, u64)> = self.files.iter().map(|(file, (b, z))| (*file, *b, *z)).collect();
        files.order_by_key(|(file, bytes, zombies)| (std::cmp::Reverse((*zombies, *bytes)), *file));
        let named = files.into_iter().take(FILES).filter_map(|(file, bytes, zombies)| {
            Some(PinnedBy { file: scan.files.get(file as usize)?.name(), bytes, zombies })
        });
        named.collect()
    }
}

/// For each zombie of a scan, the index of its unit.
struct Joined {
    units: Vec<String>,
    unit_of: Vec<Option<usize>>,
}

impl Joined {
    fn of(evidence: &Evidence, scan: &ZombieScan, paths: &UnitPaths<'_>) -> Joined {
        let mut joined = Joined { units: Vec::new(), unit_of: Vec::with_capacity(scan.zombies.len()) };
        let mut places: HashMap<String, usize> = HashMap::new();
        // Many share the same path.
        let mut known: HashMap<&str, Option<usize>> = HashMap::new();
        let mut place = |unit: String, units: &mut Vec<String>| {
            *places.entry(unit).or_insert_with_key(|unit| {
                units.push(unit.clone());
                units.len() - 1
            })
        };
        for zombie in &scan.zombies {
            let unit = *known
                .entry(&zombie.path)
                .or_insert_with(|| paths.unit_of(&zombie.path).map(|unit| place(unit, &mut joined.units)));
            joined.unit_of.push(unit);
        }
        if evidence.cgroup_churn.is_empty() || joined.unit_of.iter().all(Option::is_some) {
            return joined;
        }
        // No unit by path: whose processes make cgroups like these that stay?
        let (mut groups, group_of) = groups(scan);
        makers::join(evidence, scan, None, &mut groups);
        let makers: Vec<Option<usize>> = groups
            .iter()
            .map(|group| only_maker(&makers::leakers(group), paths).map(|unit| place(unit, &mut joined.units)))
            .collect();
        for (unit, &group) in joined.unit_of.iter_mut().zip(&group_of) {
            if unit.is_none() {
                *unit = makers.get(group as usize).copied().flatten();
            }
        }
        joined
    }
}

/// The unit whose processes left all cgroups of a group that came while watching; not one that makes cgroups for others.
fn only_maker(leakers: &[&MakerShare], paths: &UnitPaths<'_>) -> Option<String> {
    let mut units = leakers.iter().map(|m| {
        let maker = m.maker.as_ref()?;
        paths.unit_of(maker.cgroup.as_deref()?).filter(|unit| !makes_for_others(unit, &maker.comm))
    });
    let first = units.next()??;
    units.all(|unit| unit.as_ref() == Some(&first)).then_some(first)
}

/// If they have no names: those whose parent belongs to a unit.
fn placed(scan: &ZombieScan, paths: &UnitPaths<'_>) -> Dead {
    let mut units: BTreeMap<String, OfUnit> = BTreeMap::new();
    for below in &scan.below {
        let (Some(unit), Some(dead)) = (paths.unit_of(&below.parent), below.dead) else { continue };
        let of_it = units.entry(unit).or_default();
        of_it.zombies = of_it.zombies.saturating_add(dead);
        let held = below.held.as_ref().map(|held| held.total());
        of_it.bytes = held.map(|held| of_it.bytes.unwrap_or(0).saturating_add(held)).or(of_it.bytes);
    }
    Dead { complete: scan.dead == Some(0), units }
}

/// The oldest earlier scan that named them.
fn earlier<'e>(evidence: &'e Evidence, scan: &ZombieScan) -> Option<&'e ZombieScan> {
    let names = |s: &&ZombieScan| {
        s.truncated.is_none() && (!s.zombies.is_empty() || s.dead == Some(0)) && scan.at.since(s.at) >= SHORTEST
    };
    evidence.zombie_scans.iter().filter(names).min_by_key(|s| s.at)
}
