//! Units that never restart, but whose cgroups or processes come and go over and over: supervisors that respawn.
//!
//! systemd counts only its own restarts. ecs-init, runsv, supervisord, s6, pm2 or a shell loop restart what dies themselves, and
//! systemd's count stays 0. What tells them from legitimate work: the same name below the same parent, made by the same unit, soon
//! gone again; or a child of one name that fails each time.

mod who;

use super::loops::{self, Loop};
use super::paths::{UnitPaths, is_session};
use crate::cgroup_paths::cgroup_name;
use crate::zombies::groups::join_path;
use crate::zombies::makers;
use coroner_evidence::{CgroupOwner, ChildExits, Evidence, Order, Time, name_pattern};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
pub use who::makes_for_others;

/// Fewer births are just a service starting up.
const BORN: u64 = 5;
/// One every 30 s. ecs-init makes one every 15 s; a service that makes a cgroup per task now and then stays below.
const PER_HOUR: f64 = 120.0;
/// At least this share of those born is gone again: a service that makes cgroups and keeps them is working.
const GONE: f64 = 0.5;
/// Births must go on for this long, or half of the watched time if that is less: starting forty tasks at once is no loop.
const GOES_ON: Duration = Duration::from_secs(30);

/// In a long recording churn may cover only a part: if it lasted this long, the rate is over that part.
const OWN_TIME: Duration = Duration::from_secs(600);

/// If children of the unit fail, fewer births are enough …
const BORN_IF_FAILING: u64 = 3;
/// … and one every five minutes: supervisors that back off rarely wait longer.
const PER_HOUR_IF_FAILING: f64 = 12.0;

/// A child that fails so often …
const FAILED: u64 = 5;
/// … at least once a minute …
const FAILED_PER_HOUR: f64 = 60.0;
/// … and nearly always. A check that fails now and then is doing its work.
const FAILS_MOSTLY: f64 = 0.8;
/// For a known supervisor's children fewer are enough: it starts nothing else.
const FAILED_UNDER_SUPERVISOR: u64 = 3;
/// In builds and tests many different things fail: with more names than this, one must make up most of the failures.
const NAMES_THAT_FAIL: usize = 3;

/// Births per restart of the unit itself, so that its own restarts do not explain them.
const PER_RESTART: f64 = 4.0;

#[derive(Debug, Clone)]
pub struct Churning<'e> {
    pub unit: String,
    /// A container, not a unit; `unit` is its name.
    pub is_container: bool,
    /// What comes and goes.
    pub kind: ChurnKind<'e>,
    /// Births, or children that failed, while watched.
    pub times: u64,
    pub over: Duration,
    pub per_hour: f64,
    /// Restarts of the unit itself that systemd counted in that time.
    pub restarts: Option<u32>,
    /// Who makes the cgroups, for people.
    pub maker: Option<String>,
    /// Its children that failed in that time.
    pub failing: Option<Failing<'e>>,
}

#[derive(Debug, Clone)]
pub enum ChurnKind<'e> {
    /// Cgroups of this parent and name pattern.
    Cgroups { parent: String, pattern: String, born: u64, removed: u64 },
    /// Children that fail.
    Children(&'e ChildExits),
}

/// Children of one process with the same name, over all stretches.
#[derive(Debug, Clone, Copy)]
pub struct Failing<'e> {
    /// The last row with a failure.
    pub last: &'e ChildExits,
    pub exits: u64,
    pub failed_young: u64,
    /// From the first to the last stretch with a failure.
    pub from: Time,
    pub to: Time,
}

/// The fastest first.
pub fn churning(evidence: &Evidence) -> Vec<Churning<'_>> {
    let paths = UnitPaths::of(evidence);
    let loops = loops::loops(evidence);
    let over = watched(evidence);
    if over < Duration::from_secs(1) {
        return Vec::new();
    }
    let mut failing = failing_children(evidence, &paths, over);
    let mut found = Vec::new();
    for (unit, made) in made_by_units(evidence, &paths) {
        let of_it = failing.get(&unit).copied();
        let goes_on = made.to.since(made.from) >= GOES_ON.min(over / 2);
        let over = own_time(made.from, made.to, over);
        let per_hour = made.born as f64 * 3600.0 / over.as_secs_f64();
        let enough = match of_it {
            Some(_) => made.born >= BORN_IF_FAILING && per_hour >= PER_HOUR_IF_FAILING,
            None => made.born >= BORN && per_hour >= PER_HOUR && !who::starts_short_things(&unit),
        };
        let gone = made.removed as f64 >= made.born as f64 * GONE;
        if enough && goes_on && gone && is_beyond_restarts(&unit, made.born, per_hour, &loops) {
            failing.remove(&unit);
            let Made { parent, pattern, born, removed, maker, .. } = made;
            found.push(Churning {
                is_container: false,
                kind: ChurnKind::Cgroups { parent, pattern, born, removed },
                times: born,
                over,
                per_hour,
                restarts: restarts(evidence, &unit, &loops),
                maker,
                failing: of_it,
                unit,
            });
        }
    }
    for (unit, of_it) in failing {
        let over = own_time(of_it.from, of_it.to, over);
        let per_hour = of_it.failed_young as f64 * 3600.0 / over.as_secs_f64();
        if is_beyond_restarts(&unit, of_it.failed_young, per_hour, &loops) {
            found.push(Churning {
                // No unit has a space in its name.
                is_container: unit.contains(' '),
                kind: ChurnKind::Children(of_it.last),
                times: of_it.failed_young,
                over,
                per_hour,
                restarts: restarts(evidence, &unit, &loops),
                maker: None,
                failing: Some(of_it),
                unit,
            });
        }
    }
    found.order_by(|a, b| b.per_hour.total_cmp(&a.per_hour).then_with(|| a.unit.cmp(&b.unit)));
    found
}

/// The time that a rate covers.
fn own_time(from: Time, to: Time, watched: Duration) -> Duration {
    Some(to.since(from)).filter(|own| *own >= OWN_TIME).unwrap_or(watched)
}

/// The whole watched time: quiet stretches have no rows.
fn watched(evidence: &Evidence) -> Duration {
    let rows = evidence.cgroup_churn.iter().map(|r| (r.from, r.to));
    let exits = evidence.child_exits.iter().map(|r| (r.from, r.to));
    let window = evidence.window().map(|w| (w.from, w.to));
    let mut ends = rows.chain(exits).chain(window);
    let Some(first) = ends.next() else { return Duration::ZERO };
    let (from, to) = ends.fold(first, |(from, to), (a, b)| (from.min(a), to.max(b)));
    to.since(from)
}

/// What one unit keeps making.
struct Made {
    parent: String,
    pattern: String,
    born: u64,
    removed: u64,
    from: Time,
    to: Time,
    maker: Option<String>,
}

/// For each unit, what it makes most of.
fn made_by_units(evidence: &Evidence, paths: &UnitPaths<'_>) -> BTreeMap<String, Made> {
    // By whomever: the maker, systemd, or the cgroup release agent.
    let mut removed: HashMap<(String, &str), u64> = HashMap::new();
    let mut made: BTreeMap<(String, String, &str), Made> = BTreeMap::new();
    for row in evidence.cgroup_churn.iter().filter(|row| row.parent != "*") {
        let parent = folded(&row.parent);
        if row.removed > 0 {
            let n = removed.entry((parent.clone(), &row.pattern)).or_default();
            *n = n.saturating_add(row.removed);
        }
        let Some(maker) = row.maker.as_ref().filter(|_| row.born > 0) else { continue };
        let Some(unit) = who::unit_behind(row, maker, paths) else { continue };
        let of_it = made.entry((unit, parent.clone(), &row.pattern)).or_insert_with(|| Made {
            parent: row.parent.clone(),
            pattern: row.pattern.clone(),
            born: 0,
            removed: 0,
            from: row.from,
            to: row.to,
            maker: None,
        });
        // The path itself as long as there is only one.
        if of_it.parent != row.parent {
            of_it.parent = parent;
        }
        of_it.born = of_it.born.saturating_add(row.born);
        (of_it.from, of_it.to) = (of_it.from.min(row.from), of_it.to.max(row.to));
        let via = maker.via.as_ref().map(|via| format!(" through {via}")).unwrap_or_default();
        of_it.maker = Some(format!("{}[{}]{via}", maker.comm, maker.pid));
    }
    let mut units: BTreeMap<String, Made> = BTreeMap::new();
    for ((unit, parent, pattern), mut of_it) in made {
        of_it.removed = removed.get(&(parent, pattern)).copied().unwrap_or(0);
        match units.get(&unit) {
            Some(most) if most.born >= of_it.born => {}
            _ => drop(units.insert(unit, of_it)),
        }
    }
    units
}

/// A path with each of its parts folded: what is made in `/ecs/task-1` and `/ecs/task-2` is of one kind.
fn folded(path: &str) -> String {
    let parts: Vec<String> = path.split('/').map(name_pattern).collect();
    parts.join("/")
}

/// The child that fails most, by unit or container name.
fn failing_children<'e>(
    evidence: &'e Evidence,
    paths: &UnitPaths<'_>,
    over: Duration,
) -> BTreeMap<String, Failing<'e>> {
    let mut children: BTreeMap<(u32, &str, &str), Failing<'e>> = BTreeMap::new();
    let mut cgroups: HashMap<(u32, &str), &str> = HashMap::new();
    for row in &evidence.child_exits {
        let of_it = children.entry((row.parent_pid, row.parent_comm.as_str(), row.comm.as_str())).or_insert(Failing {
            last: row,
            exits: 0,
            failed_young: 0,
            from: row.from,
            to: row.to,
        });
        of_it.exits = of_it.exits.saturating_add(row.exits);
        of_it.failed_young = of_it.failed_young.saturating_add(row.failed_young);
        if row.failed > 0 {
            (of_it.from, of_it.to) = (of_it.from.min(row.from), of_it.to.max(row.to));
            if row.to >= of_it.last.to {
                of_it.last = row;
            }
        }
        if let Some(cgroup) = &row.cgroup {
            cgroups.insert((row.parent_pid, &row.parent_comm), cgroup);
        }
    }
    let mut of_parents: HashMap<(u32, &str), (u64, BTreeSet<&str>)> = HashMap::new();
    for ((pid, parent, comm), of_it) in children.iter().filter(|(_, f)| f.failed_young > 0) {
        let (failed, names) = of_parents.entry((*pid, parent)).or_default();
        *failed = failed.saturating_add(of_it.failed_young);
        names.insert(comm);
    }
    let mut units: BTreeMap<String, Failing<'e>> = BTreeMap::new();
    for ((pid, parent, comm), of_it) in children {
        let supervisor = who::is_supervisor(parent);
        let per_hour = of_it.failed_young as f64 * 3600.0 / own_time(of_it.from, of_it.to, over).as_secs_f64();
        let often = if supervisor {
            of_it.failed_young >= FAILED_UNDER_SUPERVISOR && per_hour >= PER_HOUR_IF_FAILING
        } else {
            of_it.failed_young >= FAILED && per_hour >= FAILED_PER_HOUR && !who::answers_by_its_exit_code(comm)
        };
        let mostly = |n: u64, of: u64| n as f64 >= of as f64 * FAILS_MOSTLY;
        let (all, names) = of_parents.get(&(pid, parent)).map_or((0, 0), |(n, names)| (*n, names.len()));
        let one_thing = names <= NAMES_THAT_FAIL || mostly(of_it.failed_young, all);
        if !often || !one_thing || !mostly(of_it.failed_young, of_it.exits) || pid <= 1 {
            continue;
        }
        let Some(cgroup) = cgroups.get(&(pid, parent)) else { continue };
        let Some(unit) = owner(cgroup, paths).filter(|unit| !makes_for_others(unit, parent) && !is_session(unit))
        else {
            continue;
        };
        match units.get(&unit) {
            Some(most) if most.failed_young >= of_it.failed_young => {}
            _ => drop(units.insert(unit, of_it)),
        }
    }
    units
}

/// The unit of a process, or its container in words.
fn owner(cgroup: &str, paths: &UnitPaths<'_>) -> Option<String> {
    let in_container = CgroupOwner::of_path(cgroup).container_id.is_some();
    if in_container { Some(cgroup_name(cgroup)) } else { paths.unit_of(cgroup) }
}

/// False if the unit's own crashloop explains it: unit-crashloop reports that.
fn is_beyond_restarts(unit: &str, times: u64, per_hour: f64, loops: &[Loop<'_>]) -> bool {
    let Some(of_it) = loops.iter().find(|l| l.unit.name == unit) else { return true };
    let seen = of_it.in_window.map_or(0, |(n, _)| n);
    let expected = of_it.per_hour.filter(|_| of_it.is_loop()).unwrap_or(0.0);
    times as f64 >= seen as f64 * PER_RESTART && per_hour >= expected * PER_RESTART
}

fn restarts(evidence: &Evidence, unit: &str, loops: &[Loop<'_>]) -> Option<u32> {
    let seen = loops.iter().find(|l| l.unit.name == unit).and_then(|l| l.in_window);
    match seen {
        Some((n, _)) => Some(u32::try_from(n).unwrap_or(u32::MAX)),
        None => evidence.units.iter().any(|u| u.name == unit && u.restarts.is_some()).then_some(0),
    }
}

/// Cgroups born while watched.
pub fn births(evidence: &Evidence) -> u64 {
    makers::churn(evidence).map_or(0, |churn| churn.born)
}

impl ChurnKind<'_> {
    /// For people: the path of the cgroups, or the name of the child.
    pub fn what(&self) -> String {
        match self {
            ChurnKind::Cgroups { parent, pattern, .. } => join_path(parent, pattern),
            ChurnKind::Children(row) => row.comm.clone(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
