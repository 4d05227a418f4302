//! Units that never restart, but below which cgroups or processes are born and die again and again: supervisors that respawn.
//!
//! systemd counts only its own restarts. ecs-init, runsv, supervisord, s6, pm2 or a loop in a shell start what dies anew themselves, and
//! systemd's count stays 0. What tells them from honest work: the same name below the same parent, made by the same unit, gone again
//! soon; or a child of one name that fails each time.

mod who;

use super::loops::{self, Loop};
use super::paths::{UnitPaths, is_session};
use crate::cgroup_paths::cgroup_name;
use crate::zombies::groups::join_path;
use crate::zombies::makers;
use coroner_evidence::{CgroupOwner, ChildExits, Evidence, Time, name_pattern};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
pub use who::makes_for_others;

/// Fewer births are a service that starts up.
const BORN: u64 = 5;
/// One each half minute. ecs-init makes one each 15 s; a service that makes a cgroup for a task now and then stays below.
const PER_HOUR: f64 = 120.0;
/// Of those that are born, at least this part is gone again: a service that makes cgroups and keeps them is at work.
const GONE: f64 = 0.5;
/// Births must go on for so long (or half of what was watched, if that is less): starting forty tasks at once is no loop.
const GOES_ON: Duration = Duration::from_secs(30);

/// In a long recording it may have gone on for a part only: from this on the rate is that of its own time.
const OWN_TIME: Duration = Duration::from_secs(600);

/// If children of the unit fail, fewer births are enough …
const BORN_IF_FAILING: u64 = 3;
/// … and one each five minutes: who backs off waits no longer, as a rule.
const PER_HOUR_IF_FAILING: f64 = 12.0;

/// A child that fails so often …
const FAILED: u64 = 5;
/// … at least each minute …
const FAILED_PER_HOUR: f64 = 60.0;
/// … and nearly always. A check that fails from time to time does its work.
const FAILS_MOSTLY: f64 = 0.8;
/// Of a known supervisor's children less is enough: it starts nothing else.
const FAILED_UNDER_SUPERVISOR: u64 = 3;
/// Builds and tests let many different things fail: with more names than this, one of them must make up most of the failures.
const NAMES_THAT_FAIL: usize = 3;

/// The unit's own restarts are far below: births are at least so many for each.
const PER_RESTART: f64 = 4.0;

#[derive(Debug, Clone)]
pub struct Churning<'e> {
    pub unit: String,
    /// It is a container, not a unit; `unit` names it.
    pub is_container: bool,
    /// What is born again and again.
    pub kind: Kind<'e>,
    /// Births, or children that failed, while it was watched.
    pub times: u64,
    pub over: Duration,
    pub per_hour: f64,
    /// Restarts of the unit itself that systemd counted meanwhile.
    pub restarts: Option<u32>,
    /// Who makes the cgroups, for people.
    pub maker: Option<String>,
    /// Its children that fail meanwhile.
    pub failing: Option<Failing<'e>>,
}

#[derive(Debug, Clone)]
pub enum Kind<'e> {
    /// Cgroups of this parent and name pattern.
    Cgroups { parent: String, pattern: String, born: u64, removed: u64 },
    /// Children that fail.
    Children(&'e ChildExits),
}

/// Children of one process that have one name, all stretches together.
#[derive(Debug, Clone, Copy)]
pub struct Failing<'e> {
    /// The last that is known of them.
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
            let kind =
                Kind::Cgroups { parent: made.parent, pattern: made.pattern, born: made.born, removed: made.removed };
            found.push(Churning {
                is_container: false,
                kind,
                times: made.born,
                over,
                per_hour,
                restarts: restarts(evidence, &unit, &loops),
                maker: made.maker,
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
                kind: Kind::Children(of_it.last),
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
    found.sort_by(|a, b| b.per_hour.total_cmp(&a.per_hour).then_with(|| a.unit.cmp(&b.unit)));
    found
}

/// The time that a rate is of.
fn own_time(from: Time, to: Time, watched: Duration) -> Duration {
    Some(to.since(from)).filter(|own| *own >= OWN_TIME).unwrap_or(watched)
}

/// All that was watched: quiet stretches have no rows.
fn watched(evidence: &Evidence) -> Duration {
    let rows = evidence.cgroup_churn.iter().map(|r| (r.from, r.to));
    let exits = evidence.child_exits.iter().map(|r| (r.from, r.to));
    let window = evidence.window().map(|w| (w.from, w.to));
    let mut ends = rows.chain(exits).chain(window);
    let Some(first) = ends.next() else { return Duration::ZERO };
    let (from, to) = ends.fold(first, |(from, to), (a, b)| (from.min(a), to.max(b)));
    to.since(from)
}

/// What one unit makes again and again, most births first.
struct Made {
    parent: String,
    pattern: String,
    born: u64,
    removed: u64,
    from: Time,
    to: Time,
    maker: Option<String>,
}

/// Of each unit what it makes most of.
fn made_by_units(evidence: &Evidence, paths: &UnitPaths<'_>) -> BTreeMap<String, Made> {
    // Whoever removes them: the maker, systemd, or the kernel's release agent.
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
        // As it is while there is only one.
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

/// A path with what changes in each of its parts folded: what is made in `/ecs/task-1` and in `/ecs/task-2` is of one kind.
fn folded(path: &str) -> String {
    let parts: Vec<String> = path.split('/').map(name_pattern).collect();
    parts.join("/")
}

/// By unit, or by the name of a container: the child that fails most.
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

/// The unit that a process is of, or its container in words.
fn owner(cgroup: &str, paths: &UnitPaths<'_>) -> Option<String> {
    let in_container = CgroupOwner::of_path(cgroup).container_id.is_some();
    if in_container { Some(cgroup_name(cgroup)) } else { paths.unit_of(cgroup) }
}

/// What a unit that crashloops makes at each of its own starts is told there.
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

/// Where watching was possible at all; quiet is fine.
pub fn births(evidence: &Evidence) -> u64 {
    makers::churn(evidence).map_or(0, |churn| churn.born)
}

impl Kind<'_> {
    /// For people: the path of the cgroups, or the name of the child.
    pub fn what(&self) -> String {
        match self {
            Kind::Cgroups { parent, pattern, .. } => join_path(parent, pattern),
            Kind::Children(row) => row.comm.clone(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
