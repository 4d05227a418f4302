//! Derives the surroundings of agents from evidence.

use super::{Activity, Catalogue, Running, Sockets, Surroundings};
use crate::cgroup_paths::is_same_or_below;
use crate::units::churn::{ChurnKind, Churning, churning};
use crate::units::loops::{How, Loop, loops};
use coroner_evidence::{CgroupChurn, Enablement, Evidence, Order, Process, Unit, UnitFile, UnitLogLine, Wall};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// At the rate that counts as harm (one birth per minute), two are expected within this time. Over a shorter one, none proves nothing.
const LONG_ENOUGH: Duration = Duration::from_secs(120);

/// A shorter look says nothing about CPU time: systemd reads what the kernel adds up per tick.
const IDLE_AFTER: Duration = Duration::from_secs(5);

/// More than a thread that only wakes up for its timers uses in that time.
const IDLE_CPU_NS: u64 = 1_000_000;

/// Older messages say nothing about now.
const LOG_AGE: Duration = Duration::from_secs(24 * 3600);

/// This many restarts within the window make a rate; one may be a single crash.
const SOME: u64 = 2;

/// The unit files, and what the manager says of units whose files were not read.
pub fn known_units(evidence: &Evidence) -> Cow<'_, [UnitFile]> {
    let known: HashSet<&str> = evidence.unit_files.iter().map(|u| u.name.as_str()).collect();
    let mut more: BTreeMap<&str, UnitFile> = BTreeMap::new();
    for unit in &evidence.units {
        if unit.load_state == "not-found" || known.contains(unit.name.as_str()) {
            continue;
        }
        // A unit without its own file (transient, a template instance) starts only when somebody starts it.
        let enablement = unit.unit_file_state.as_deref().and_then(Enablement::of_word).unwrap_or(Enablement::Static);
        let file = UnitFile {
            name: unit.name.clone(),
            enablement,
            triggered_by: unit.triggered_by.clone(),
            triggers: unit.triggers.clone(),
            service_type: unit.service_type.clone(),
            ..UnitFile::default()
        };
        more.insert(&unit.name, file);
    }
    if more.is_empty() {
        return Cow::Borrowed(&evidence.unit_files);
    }
    Cow::Owned(evidence.unit_files.iter().cloned().chain(more.into_values()).collect())
}

impl Surroundings {
    pub fn of(evidence: &Evidence, catalogue: &Catalogue) -> Surroundings {
        let booted = evidence.image.is_none();
        let mut surroundings = Surroundings {
            booted,
            image: evidence.image.clone(),
            cloud: evidence.node.as_ref().and_then(|n| n.cloud.clone()),
            files: evidence.agent_files.clone(),
            ..Surroundings::default()
        };
        // What runs here does not belong to the image.
        if !booted {
            return surroundings;
        }
        surroundings.hypervisor = evidence.node.as_ref().and_then(|n| n.hypervisor.clone());
        surroundings.processes = (!evidence.processes.is_empty()).then(|| running(evidence, catalogue));
        surroundings.activity = activities(evidence, catalogue);
        // Each look lists all containers of a runtime.
        let mut last_look = HashMap::new();
        for container in &evidence.containers {
            let at = last_look.entry(&container.runtime).or_insert(container.at);
            *at = container.at.max(*at);
        }
        for container in evidence.containers.iter().filter(|c| last_look[&c.runtime] == c.at) {
            *surroundings.containers.entry(container.runtime.clone()).or_default() += 1;
        }
        surroundings
    }
}

/// The processes of agents, by name or by unit. Each once, as last described.
pub(super) fn running(evidence: &Evidence, catalogue: &Catalogue) -> Vec<Running> {
    let known = |process: &&Process| {
        let by_name = || names(process).any(|name| catalogue.agents_of_process(name).next().is_some());
        let by_unit = || process.owner.unit.as_ref().is_some_and(|unit| catalogue.agent_of(unit).is_some());
        !process.kernel && (by_name() || by_unit())
    };
    let mut last: HashMap<(u32, u64), &Process> = HashMap::new();
    for process in evidence.processes.iter().filter(known) {
        last.insert((process.pid, process.started), process);
    }
    let mut births: HashMap<u32, (u64, Duration)> = HashMap::new();
    for row in &evidence.cgroup_churn {
        if let Some(maker) = &row.maker {
            let (born, over) = births.entry(maker.pid).or_default();
            *born = born.saturating_add(row.born);
            *over = (*over).max(row.to.since(row.from));
        }
    }
    let describe = |process: &Process| Running {
        pid: process.pid,
        names: names(process).map(str::to_owned).collect(),
        unit: process.owner.unit.clone(),
        contained: process.owner.pod_uid.is_some() || process.owner.container_id.is_some(),
        cgroup_births_per_hour: births.get(&process.pid).and_then(|(born, over)| per_hour(*born, *over)),
    };
    let mut running: Vec<Running> = last.into_values().map(describe).collect();
    running.order_by_key(|r| r.pid);
    running
}

/// Its comm, and the file names of what it runs.
fn names(process: &Process) -> impl Iterator<Item = &str> {
    let words = process.command.iter().flat_map(|command| command.split_whitespace());
    let last_parts = words.map(|word| word.rsplit('/').next().unwrap_or(word));
    std::iter::once(process.comm.as_str()).chain(last_parts.filter(|name| *name != process.comm))
}

/// Only of units that the catalogue knows; others are not judged.
fn activities(evidence: &Evidence, catalogue: &Catalogue) -> BTreeMap<String, Activity> {
    let mut looks: BTreeMap<&str, Vec<&Unit>> = BTreeMap::new();
    for unit in &evidence.units {
        looks.entry(&unit.name).or_default().push(unit);
    }
    looks.retain(|name, _| catalogue.agent_of(name).is_some());
    if looks.is_empty() {
        return BTreeMap::new();
    }
    let (loops, churning) = (loops(evidence), churning(evidence));
    let mut makers: HashMap<u32, &str> = HashMap::new();
    for process in &evidence.processes {
        if let Some(unit) = &process.owner.unit {
            makers.insert(process.pid, unit);
        }
    }
    let mut log: HashMap<&str, Vec<&UnitLogLine>> = HashMap::new();
    for line in &evidence.unit_log {
        log.entry(&line.unit).or_default().push(line);
    }
    looks
        .into_iter()
        .filter_map(|(name, mut looks)| {
            looks.order_by_key(|u| u.at);
            let (first, last) = (*looks.first()?, *looks.last()?);
            let births = births(evidence, last, &makers)
                .max_of(rate_of(&churning, name, |k| matches!(k, ChurnKind::Cgroups { .. })));
            let mut activity = Activity {
                active: Some(matches!(last.active_state.as_str(), "active" | "activating" | "reloading")),
                restarts_per_hour: restarts(first, last, loops.iter().find(|l| l.unit.name == name), evidence),
                cgroup_births_per_hour: births,
                failed_children_per_hour: rate_of(&churning, name, |k| matches!(k, ChurnKind::Children(_))),
                log: None,
                sockets: sockets(evidence, name),
                idle: idle(first, last),
            };
            activity.log = log.get(name).map(|lines| recent(lines, last, &activity, evidence));
            Some((name.to_owned(), activity))
        })
        .collect()
}

trait MaxOf {
    fn max_of(self, other: Self) -> Self;
}

impl MaxOf for Option<f64> {
    fn max_of(self, other: Option<f64>) -> Option<f64> {
        match (self, other) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        }
    }
}

fn per_hour(n: u64, over: Duration) -> Option<f64> {
    (over > Duration::ZERO).then(|| n as f64 * 3600.0 / over.as_secs_f64())
}

fn rate_of(churning: &[Churning<'_>], name: &str, kind: impl Fn(&ChurnKind<'_>) -> bool) -> Option<f64> {
    let rates = churning.iter().filter(|c| c.unit == name && kind(&c.kind)).map(|c| c.per_hour);
    rates.reduce(f64::max)
}

/// Restarts per hour. Two looks without a restart, and without a history of them, make a 0; one look does not.
fn restarts(first: &Unit, last: &Unit, known: Option<&Loop<'_>>, evidence: &Evidence) -> Option<f64> {
    if let Some(rate) = known.filter(|l| l.how != How::Once).and_then(|l| l.per_hour) {
        return Some(rate);
    }
    let anew = first.invocation_id != last.invocation_id || first.main_started != last.main_started;
    let rose = match (first.restarts, last.restarts) {
        (Some(a), Some(b)) if b >= a => b - a,
        // The counter was reset: what it shows came since.
        (Some(_), Some(b)) if anew => b,
        _ => 0,
    };
    let over = last.at.since(first.at);
    if u64::from(rose) >= SOME
        && let Some(rate) = per_hour(rose.into(), over)
    {
        return Some(rate);
    }
    let uptime = evidence.clocks.last().map(|c| Duration::from_nanos(c.boot_ns));
    let waits = last.sub_state.starts_with("auto-restart");
    match (uptime, last.restarts) {
        (Some(uptime), Some(restarts)) if waits => per_hour(restarts.into(), uptime),
        (_, Some(_)) if over >= IDLE_AFTER => Some(0.0),
        _ => None,
    }
}

/// Cgroups made below its own, or by its processes.
fn births(evidence: &Evidence, unit: &Unit, makers: &HashMap<u32, &str>) -> Option<f64> {
    let own = |row: &&CgroupChurn| {
        let below = |path: &str| unit.cgroup.as_deref().is_some_and(|own| own != "/" && is_same_or_below(path, own));
        let made = |pid: u32| unit.main_pid == Some(pid) || makers.get(&pid).is_some_and(|name| *name == unit.name);
        let maker = row.maker.as_ref();
        below(&row.parent) || maker.is_some_and(|m| made(m.pid) || m.cgroup.as_deref().is_some_and(below))
    };
    let from = evidence.cgroup_churn.iter().map(|row| row.from).min()?;
    let to = evidence.cgroup_churn.iter().map(|row| row.to).max()?;
    let born: u64 = evidence.cgroup_churn.iter().filter(own).fold(0, |sum, row| sum.saturating_add(row.born));
    let over = to.since(from);
    if born < SOME && over < LONG_ENOUGH { None } else { per_hour(born, over) }
}

fn sockets(evidence: &Evidence, unit: &str) -> Option<Sockets> {
    let last = evidence.unit_sockets.iter().filter(|s| s.unit == unit).max_by_key(|s| s.at)?;
    (last.processes > 0).then_some(Sockets { listening: last.listening, connected: last.connected })
}

fn idle(first: &Unit, last: &Unit) -> Option<Duration> {
    let over = last.at.since(first.at);
    let used = last.cpu_ns?.checked_sub(first.cpu_ns?)?;
    let same = first.invocation_id == last.invocation_id && last.active_state == "active";
    (same && over >= IDLE_AFTER && used < IDLE_CPU_NS).then_some(over)
}

/// Messages that still count. What a unit logged before its last start is history, unless it keeps restarting.
fn recent(lines: &[&UnitLogLine], unit: &Unit, activity: &Activity, evidence: &Evidence) -> Vec<UnitLogLine> {
    let clocks = evidence.clocks.last();
    let mut since = clocks.map_or(Wall(0), |c| c.wall - LOG_AGE);
    if unit.active_state == "active"
        && activity.restarts_per_hour == Some(0.0)
        && let (Some(started), Some(clocks)) = (unit.main_started.or(unit.active_since), clocks)
    {
        since = since.max(clocks.wall_of(started));
    }
    let mut recent: Vec<UnitLogLine> = lines.iter().filter(|l| l.at >= since).map(|l| (*l).clone()).collect();
    recent.order_by_key(|l| l.at);
    recent
}
