//! Containers that die and are restarted over and over.
//!
//! Judged by the restart count and by the first and last start that are still known: kubelet waits up to five minutes between two
//! starts, longer than anybody watches. If no runtime's files were seen, new cgroups below the same pod show it.

use super::loops::{SLOW_LOOP_PERIOD, Trend};
use crate::log_events;
use coroner_evidence::{CgroupOwner, Clocks, Container, Evidence, Order, Wall};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// One or two restarts are a crash; a loop begins with the third.
const LOOP: u64 = 3;
/// kubelet backs off up to this (MaxContainerBackOff in pkg/kubelet/kubelet.go) …
const BACK_OFF: Duration = Duration::from_secs(300);
/// … so a start within two such waits, or two of its own periods, is recent.
const PERIODS: u32 = 2;
/// A pod starts with a sandbox and a handful of containers, one after the other: more births than that are restarts.
const BORN_IN_POD: u64 = 8;

#[derive(Debug, Clone)]
pub struct ContainerLoop<'e> {
    /// As last seen. If only cgroups showed it: what they say, with an empty name.
    pub container: Cow<'e, Container>,
    /// Restarts while watched.
    pub in_window: Option<(u64, Duration)>,
    pub per_hour: Option<f64>,
    pub since: Option<Wall>,
    pub trend: Option<Trend>,
    /// It was not restarted but recreated each time, under the same name.
    pub made_anew: bool,
}

/// The `runtime` of a loop that only cgroups showed.
pub const BY_CGROUPS: &str = "cgroups";

impl ContainerLoop<'_> {
    /// `namespace/pod/container`, or the container's name.
    pub fn name(&self) -> String {
        let c = &self.container;
        let uid = c.pod_uid.as_ref().filter(|_| c.pod.is_none() && c.name.is_empty()).map(|uid| format!("pod {uid}"));
        let name = Some(c.name.as_str()).filter(|name| !name.is_empty());
        let parts = [c.namespace.as_deref(), c.pod.as_deref(), uid.as_deref(), name];
        parts.into_iter().flatten().collect::<Vec<_>>().join("/")
    }

    pub fn told_by_cgroups(&self) -> bool {
        self.container.runtime == BY_CGROUPS
    }
}

/// The fastest first.
pub fn container_loops(evidence: &Evidence) -> Vec<ContainerLoop<'_>> {
    type Key<'e> = (&'e str, Option<&'e str>, Option<&'e str>, Option<&'e str>, &'e str);
    let mut looks: BTreeMap<Key<'_>, Vec<&Container>> = BTreeMap::new();
    for c in &evidence.containers {
        let key = (&*c.runtime, c.namespace.as_deref(), c.pod.as_deref(), c.pod_uid.as_deref(), &*c.name);
        looks.entry(key).or_default().push(c);
    }
    let clock = evidence.clocks.iter().max_by_key(|c| c.at);
    let now = log_events::end_of(evidence);
    let wall = clock.zip(now).map(|(clock, now)| clock.wall_of(now));
    let mut loops: Vec<ContainerLoop<'_>> = looks
        .into_values()
        .filter_map(|mut looks| {
            looks.order_by(|a, b| (a.at, a.restarts, &a.id).cmp(&(b.at, b.restarts, &b.id)));
            judge(&looks, wall, clock)
        })
        .collect();
    let known_pods: HashSet<String> = loops.iter().filter_map(|l| l.container.pod_uid.clone()).collect();
    loops.extend(
        by_cgroups(evidence)
            .into_iter()
            .filter(|l| !l.container.pod_uid.as_ref().is_some_and(|uid| known_pods.contains(uid))),
    );
    loops.order_by(|a, b| {
        let rate = |l: &ContainerLoop<'_>| l.per_hour.unwrap_or(0.0);
        rate(b).total_cmp(&rate(a)).then_with(|| a.name().cmp(&b.name()))
    });
    loops
}

fn judge<'e>(looks: &[&'e Container], now: Option<Wall>, clock: Option<&Clocks>) -> Option<ContainerLoop<'e>> {
    let (first, last) = (*looks.first()?, *looks.last()?);
    let (mut risen, mut made_anew) = (0u64, 0u64);
    for pair in looks.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        let another = a.id.is_some() && b.id.is_some() && a.id != b.id;
        if b.restarts > a.restarts {
            risen = risen.saturating_add(b.restarts - a.restarts);
        } else if another {
            // A new container under the old name, with its own count.
            made_anew += 1;
            risen = risen.saturating_add(b.restarts);
        }
    }
    // Replacing a container once or twice is done on purpose.
    let made_anew = if made_anew >= LOOP { made_anew } else { 0 };
    let n = risen.saturating_add(made_anew);
    let between = last.at.since(first.at);
    // In a long recording it may have looped for only a part of it.
    let differs = |p: &&[&Container]| p[1].restarts > p[0].restarts || p[1].id != p[0].id;
    let began = looks.windows(2).find(differs).map(|p| p[0].at);
    let ended = looks.windows(2).rfind(differs).map(|p| p[1].at);
    let looped = began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended.since(began));
    let dense = n > 0 && looped / u32::try_from(n).unwrap_or(u32::MAX) <= SLOW_LOOP_PERIOD;
    let seen = dense && (n >= 2 || last.restarts >= LOOP);
    let history = history(last, now);
    if !seen && history.is_none() {
        return None;
    }
    let second = Duration::from_secs(1);
    let watched = Some((n, looped)).filter(|(n, over)| seen && *n >= 2 && *over >= second);
    let per_hour = watched
        .map(|(n, over)| n as f64 * 3600.0 / over.as_secs_f64())
        .or(history.map(|period| 3600.0 / period.as_secs_f64().max(1.0)));
    let since_watched = clock.zip(began).map(|(clock, at)| clock.wall_of(at));
    let since = [last.first_started, first.first_started, since_watched].into_iter().flatten().min();
    Some(ContainerLoop {
        container: Cow::Borrowed(last),
        in_window: (n > 0).then_some((n, between)),
        per_hour,
        since,
        trend: trend(looks),
        made_anew: made_anew > 0,
    })
}

/// The average time between two starts, if what its runtime remembers shows a loop.
fn history(last: &Container, now: Option<Wall>) -> Option<Duration> {
    let (now, started, first) = (now?, last.started?, last.first_started?);
    if last.restarts < LOOP || started <= first {
        return None;
    }
    let known = started.since(first);
    let mut period = known / u32::try_from(last.restarts).unwrap_or(u32::MAX).max(1);
    if last.runtime == "kubelet" {
        // It forgets all starts but the last two: the first known one may not be the first.
        period = period.max(back_off(last.restarts).min(known));
    }
    let quiet = now.since(started);
    // docker waits a minute at most; one that has just ended and is about to restart loops now, whenever it was created.
    if last.runtime == "docker" && last.exit_code.is_some() && quiet <= DOCKER_WAIT * PERIODS {
        period = period.min(DOCKER_WAIT);
    }
    (period <= SLOW_LOOP_PERIOD && quiet <= period.max(BACK_OFF) * PERIODS).then_some(period)
}

/// The longest that docker waits before it restarts a container (moby, restartmanager.go).
const DOCKER_WAIT: Duration = Duration::from_secs(60);

/// How long kubelet waits on average, if a container restarted this often and died at once each time: 10 s after the first, then
/// twice as long each time, up to five minutes.
fn back_off(restarts: u64) -> Duration {
    let waits = (0..restarts.saturating_sub(1).min(5)).map(|i| 10u64 << i).sum::<u64>();
    let rest = restarts.saturating_sub(6).saturating_mul(BACK_OFF.as_secs());
    Duration::from_secs(waits.saturating_add(rest) / restarts.max(1))
}

/// Fewer restarts say nothing about a trend.
const TREND_RESTARTS: u64 = 12;

/// Compares the counts of the older and newer half of the looks.
fn trend(looks: &[&Container]) -> Option<Trend> {
    let (first, last) = (looks.first()?, looks.last()?);
    let half = first.at + last.at.since(first.at) / 2;
    let middle = looks.iter().rfind(|c| c.at <= half)?;
    // Without a look near the middle the halves are unequal; counts that were reset cannot be compared.
    let off = half.since(middle.at);
    if off > last.at.since(first.at) / 10 || middle.restarts < first.restarts || last.restarts < middle.restarts {
        return None;
    }
    let (older, newer) = (middle.restarts - first.restarts, last.restarts - middle.restarts);
    let all = older.saturating_add(newer);
    if all < TREND_RESTARTS {
        return None;
    }
    let differs = older.abs_diff(newer) as f64 > 2.0 * (all as f64).sqrt();
    Some(match differs {
        true if newer > older => Trend::Worse,
        true => Trend::Better,
        false => Trend::Steady,
    })
}

/// Pods below which containers keep being made, though no runtime's files show restarts.
fn by_cgroups(evidence: &Evidence) -> Vec<ContainerLoop<'_>> {
    #[derive(Default)]
    struct Births {
        born: u64,
        removed: u64,
        stretches: HashSet<u64>,
    }
    let mut pods: BTreeMap<String, Births> = BTreeMap::new();
    let mut ends: Option<(coroner_evidence::Time, coroner_evidence::Time)> = evidence.window().map(|w| (w.from, w.to));
    for row in &evidence.cgroup_churn {
        let (from, to) = ends.unwrap_or((row.from, row.to));
        ends = Some((from.min(row.from), to.max(row.to)));
        let owner = CgroupOwner::of_path(&row.parent);
        // Directly below the pod: what a container makes within its own cgroup is its business.
        let (Some(uid), None) = (owner.pod_uid, owner.container_id) else { continue };
        let births = pods.entry(uid).or_default();
        births.born = births.born.saturating_add(row.born);
        births.removed = births.removed.saturating_add(row.removed);
        if row.born > 0 {
            births.stretches.insert(row.from.0);
        }
    }
    let over = ends.map_or(Duration::ZERO, |(from, to)| to.since(from));
    let looping = pods.into_iter().filter(|(_, b)| {
        let spread = over < Duration::from_secs(60) || b.stretches.len() >= 2;
        b.born >= BORN_IN_POD && b.removed >= b.born / 2 && spread && over >= Duration::from_secs(1)
    });
    looping
        .map(|(uid, births)| {
            let known = evidence.containers.iter().find(|c| c.pod_uid.as_deref() == Some(&uid));
            let container = Container {
                at: ends.map(|(_, to)| to).unwrap_or_default(),
                runtime: BY_CGROUPS.to_owned(),
                namespace: known.and_then(|c| c.namespace.clone()),
                pod: known.and_then(|c| c.pod.clone()),
                pod_uid: Some(uid),
                ..Container::default()
            };
            ContainerLoop {
                container: Cow::Owned(container),
                in_window: Some((births.born, over)),
                per_hour: Some(births.born as f64 * 3600.0 / over.as_secs_f64()),
                since: None,
                trend: None,
                made_anew: false,
            }
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests;
