//! Cuts the plain tables to a window, and merges the segments of one boot.
//!
//! The result is what a watcher would have seen who started when the window began: what happened in it, and the state at its
//! beginning. So of descriptions (processes, threads, devices, units, censuses) the latest before the window stays; of events
//! before it (churn, exits, slow reads) nothing does. Kernel log and journal lines are an exception, as for a live watcher: those
//! before the window stay, because rules report what happened within the last day. Everything after the window is dropped.

use crate::order::Order;
use crate::time::{Time, Window};
use crate::{Clocks, Evidence, LogLine, Nic, Observer, Process, Thread, Wall};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Cuts plain rows to a window. Streams and scans are read that way already.
pub fn cut(evidence: &mut Evidence, window: Window) {
    let wall = wall_end(&evidence.clocks, window);
    states(&mut evidence.clocks, window, |c| c.at, |_| ());
    states(&mut evidence.processes, window, |p| p.at, |p| p.pid);
    states(&mut evidence.threads, window, |t| t.at, |t| t.key);
    states(&mut evidence.observers, window, |o| o.at, |o| o.pid);
    let holders = last_before(&evidence.memory_holders, window, |h| h.at);
    evidence.memory_holders.retain(|h| h.at <= window.to && (h.at >= window.from || Some(h.at) == holders));
    states(&mut evidence.nics, window, |n| n.at, |n| (n.netns.clone(), n.name.clone()));
    states(&mut evidence.cgroup_censuses, window, |c| c.at, |c| c.mount_point.clone());
    states(&mut evidence.units, window, |u| u.at, |u| u.name.clone());
    states(&mut evidence.unit_sockets, window, |s| s.at, |s| s.unit.clone());
    let looks = last_looks(evidence, window);
    evidence
        .containers
        .retain(|c| c.at <= window.to && (c.at >= window.from || looks.get(c.runtime.as_str()) == Some(&c.at)));
    if evidence.stat_reads.iter().any(|r| window.contains(r.at)) {
        evidence.stat_reads.retain(|r| window.contains(r.at));
    } else {
        // How long a read takes is state, too.
        states(&mut evidence.stat_reads, window, |r| r.at, |r| r.path.clone());
    }
    stretches(&mut evidence.cgroup_churn, window, |c| (c.from, c.to));
    stretches(&mut evidence.cgroup_fates, window, |f| (f.from, f.to));
    stretches(&mut evidence.kernel_work, window, |s| (s.from, s.to));
    stretches(&mut evidence.waits, window, |w| (w.from, w.to));
    stretches(&mut evidence.child_exits, window, |e| (e.from, e.to));
    evidence.log.retain(|line| line.at <= window.to);
    if let Some(wall) = wall {
        evidence.unit_log.retain(|line| line.at <= wall);
    }
    // It covers the recorder's whole life.
    evidence.cost = None;
}

/// Wall-clock time of the window's end.
fn wall_end(clocks: &[Clocks], window: Window) -> Option<Wall> {
    clocks.iter().max_by_key(|c| c.at).map(|c| c.wall_of(window.to))
}

/// When containers were last looked at before the window, by runtime.
fn last_looks(evidence: &Evidence, window: Window) -> HashMap<String, Time> {
    let mut looks = HashMap::new();
    for container in evidence.containers.iter().filter(|c| c.at < window.from) {
        let last: &mut Time = looks.entry(container.runtime.clone()).or_default();
        *last = container.at.max(*last);
    }
    looks
}

/// When something was last looked at before the window.
fn last_before<T>(items: &[T], window: Window, at: fn(&T) -> Time) -> Option<Time> {
    items.iter().map(at).filter(|at| *at < window.from).max()
}

/// Keeps what is in the window, and the latest of each key before it.
fn states<T, K: Hash + Eq>(items: &mut Vec<T>, window: Window, at: fn(&T) -> Time, key: fn(&T) -> K) {
    let mut latest: HashMap<K, usize> = HashMap::new();
    for (i, item) in items.iter().enumerate().filter(|(_, item)| at(item) < window.from) {
        let place = latest.entry(key(item)).or_insert(i);
        if at(item) >= at(&items[*place]) {
            *place = i;
        }
    }
    let stood: HashSet<usize> = latest.into_values().collect();
    let mut i = 0;
    items.retain(|item| {
        i += 1;
        at(item) <= window.to && (at(item) >= window.from || stood.contains(&(i - 1)))
    });
}

/// Keeps what lasted into the window or began in it.
fn stretches<T>(items: &mut Vec<T>, window: Window, ends: fn(&T) -> (Time, Time)) {
    items.retain(|item| {
        let (from, to) = ends(item);
        to > window.from && from <= window.to
    });
}

/// Keeps the first and the last scan in the window, which show what changed: each may have tens of thousands of names. Without
/// one in the window, the last before it. Also the last that names zombies: in the window, otherwise before it; and of those in the
/// window the one with the most, and the one that names the most: what was bad may be over at the end.
pub fn scans<T>(
    scans: Vec<T>,
    window: Window,
    at: impl Fn(&T) -> Time,
    dead: impl Fn(&T) -> u64,
    names: impl Fn(&T) -> bool,
) -> Vec<T> {
    let of = |wanted: &dyn Fn(&T) -> bool| {
        let mut places: Vec<usize> =
            (0..scans.len()).filter(|&i| at(&scans[i]) <= window.to && wanted(&scans[i])).collect();
        places.order_by_key(|&i| at(&scans[i]));
        places
    };
    let within = of(&|scan| at(scan) >= window.from);
    let before = of(&|scan| at(scan) < window.from);
    let named = of(&names);
    let last = within.last().or(before.last());
    let worst = |named: bool| {
        within.iter().filter(|&&i| !named || names(&scans[i])).max_by_key(|&&i| (dead(&scans[i]), std::cmp::Reverse(i)))
    };
    let wanted = [within.first(), last, named.last(), worst(false), worst(true)];
    let wanted: Vec<usize> = wanted.into_iter().flatten().copied().collect();
    scans.into_iter().enumerate().filter(|(i, _)| wanted.contains(i)).map(|(_, scan)| scan).collect()
}

/// Removes what each segment repeats.
pub fn told_once(evidence: &mut Evidence, window: Window) {
    lines_once(&mut evidence.log);
    let mut told = HashSet::new();
    evidence.unit_log.retain(|line| told.insert((line.unit.clone(), line.at, line.text.clone(), line.restart)));
    again(&mut evidence.processes, |p| (p.pid, p.started), |a, b| *a == Process { at: a.at, ..b.clone() });
    again(&mut evidence.threads, |t| t.key, |a, b| *a == Thread { at: a.at, ..b.clone() });
    again(&mut evidence.observers, |o| (o.pid, o.started), |a, b| *a == Observer { at: a.at, ..*b });
    again(&mut evidence.nics, |n| (n.netns.clone(), n.name.clone()), |a, b| *a == Nic { at: a.at, ..b.clone() });
    let mut mounts = Vec::new();
    for mount in std::mem::take(&mut evidence.cgroup_mounts) {
        if !mounts.contains(&mount) {
            mounts.push(mount);
        }
    }
    evidence.cgroup_mounts = mounts;
    let all = std::mem::take(&mut evidence.zombie_scans);
    evidence.zombie_scans =
        scans(all, window, |scan| scan.at, |scan| scan.dead.unwrap_or(0), |scan| !scan.zombies.is_empty());
}

/// Each segment begins with the lines still in the kernel's buffer. Of lines with the same number, the one with the most precise
/// time stays, in the place of the first.
fn lines_once(log: &mut Vec<LogLine>) {
    let mut places: HashMap<(u64, u64), usize> = HashMap::new();
    let mut once: Vec<LogLine> = Vec::with_capacity(log.len());
    for line in log.drain(..) {
        match places.get(&(line.sequence, line.stamp_us)) {
            Some(&place) if once[place].text == line.text => {
                if line.uncertainty_ns < once[place].uncertainty_ns {
                    once[place] = line;
                }
            }
            _ => {
                places.insert((line.sequence, line.stamp_us), once.len());
                once.push(line);
            }
        }
    }
    *log = once;
}

/// Drops items equal to the one before with the same key.
fn again<T, K: Hash + Eq>(items: &mut Vec<T>, key: fn(&T) -> K, same: fn(&T, &T) -> bool) {
    let mut latest: HashMap<K, usize> = HashMap::new();
    let mut kept: Vec<T> = Vec::with_capacity(items.len());
    for item in items.drain(..) {
        let known = latest.get(&key(&item)).is_some_and(|&place| same(&kept[place], &item));
        if !known {
            latest.insert(key(&item), kept.len());
            kept.push(item);
        }
    }
    *items = kept;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_scans_the_first_the_last_and_the_last_with_names_stay() {
        let kept = |scans_at: &[(u64, bool)], from, to| {
            let window = Window { from: Time(from), to: Time(to) };
            scans(scans_at.to_vec(), window, |(at, _)| Time(*at), |_| 5, |(_, named)| *named)
        };
        let all = [(1, true), (2, false), (3, true), (4, false), (5, false), (9, true)];
        assert_eq!(kept(&all, 2, 5), [(2, false), (3, true), (5, false)]);
        assert_eq!(kept(&all, 4, 5), [(3, true), (4, false), (5, false)], "named before the window");
        assert_eq!(kept(&all, 6, 8), [(3, true), (5, false)]);
        assert_eq!(kept(&all[..2], 0, 9), [(1, true), (2, false)]);
        assert_eq!(kept(&all[1..2], 3, 9), [(2, false)]);
        assert_eq!(kept(&[], 3, 9), []);
    }

    #[test]
    fn of_scans_the_worst_stays_also_when_it_is_over() {
        let scan = [(1, 10, true), (2, 4_001, true), (3, 4_000, false), (4, 12, true), (5, 12, false)];
        let window = Window { from: Time(1), to: Time(5) };
        let kept = |all: &[(u64, u64, bool)]| {
            scans(all.to_vec(), window, |s| Time(s.0), |s| s.1, |s| s.2).iter().map(|s| s.0).collect::<Vec<_>>()
        };
        assert_eq!(kept(&scan), [1, 2, 4, 5]);
        let counted_later = [(1, 10, true), (2, 3_000, true), (3, 4_001, false), (5, 12, true)];
        assert_eq!(kept(&counted_later), [1, 2, 3, 5], "the most, and the most with names");
    }
}
