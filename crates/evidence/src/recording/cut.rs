//! Cuts what plain tables hold to a window, and puts the segments of one boot together.
//!
//! What is left reads like what somebody would have seen who began to watch when the window began: what happened in it, and how
//! things stood at its beginning. So of what is described (processes, threads, devices, units, censuses) the latest word before
//! the window stays; of what happened before it (churn, exits, reads that took time) nothing does. Lines of the kernel log and
//! of units' journals are an exception, as they are for a live watcher: those before the window stay, because rules tell what
//! happened within the last day and how long ago that was. What is later than the window goes without exception.

use crate::time::{Time, Window};
use crate::{Clocks, Evidence, LogLine, Nic, Process, Thread};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Cuts plain rows to a window. The streams and scans are read so already.
pub fn cut(evidence: &mut Evidence, window: Window) {
    let wall = wall_end(&evidence.clocks, window);
    states(&mut evidence.clocks, window, |c| c.at, |_| ());
    states(&mut evidence.processes, window, |p| p.at, |p| p.pid);
    states(&mut evidence.threads, window, |t| t.at, |t| t.key);
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
        // How long a read takes is how things stand, too.
        states(&mut evidence.stat_reads, window, |r| r.at, |r| r.path.clone());
    }
    stretches(&mut evidence.cgroup_churn, window, |c| (c.from, c.to));
    stretches(&mut evidence.kernel_work, window, |s| (s.from, s.to));
    stretches(&mut evidence.child_exits, window, |e| (e.from, e.to));
    evidence.log.retain(|line| line.at <= window.to);
    if let Some(wall) = wall {
        evidence.unit_log.retain(|line| line.real_ns <= wall);
    }
    // It is of the recorder's whole life.
    evidence.cost = None;
}

/// When the window ends by the wall clock.
fn wall_end(clocks: &[Clocks], window: Window) -> Option<u64> {
    clocks.iter().max_by_key(|c| c.at).map(|c| c.real_ns_of(window.to))
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

/// What is in the window, and of each thing the latest word before it.
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

/// What lasted into the window, or began in it.
fn stretches<T>(items: &mut Vec<T>, window: Window, ends: fn(&T) -> (Time, Time)) {
    items.retain(|item| {
        let (from, to) = ends(item);
        to > window.from && from <= window.to
    });
}

/// Of many looks at the dead the first and the last in the window tell what changed; each can have tens of thousands of names.
/// Without one in the window it is the last before it. Besides, the last that named them: in the window, else before it.
pub fn scans<T>(scans: Vec<T>, window: Window, at: impl Fn(&T) -> Time, names: impl Fn(&T) -> bool) -> Vec<T> {
    let of = |wanted: &dyn Fn(&T) -> bool| {
        let mut places: Vec<usize> =
            (0..scans.len()).filter(|&i| at(&scans[i]) <= window.to && wanted(&scans[i])).collect();
        places.sort_by_key(|&i| at(&scans[i]));
        places
    };
    let within = of(&|scan| at(scan) >= window.from);
    let before = of(&|scan| at(scan) < window.from);
    let named = of(&names);
    let last = within.last().or(before.last());
    let wanted: Vec<usize> = [within.first(), last, named.last()].into_iter().flatten().copied().collect();
    scans.into_iter().enumerate().filter(|(i, _)| wanted.contains(i)).map(|(_, scan)| scan).collect()
}

/// What each segment tells anew is told once.
pub fn told_once(evidence: &mut Evidence, window: Window) {
    lines_once(&mut evidence.log);
    let mut told = HashSet::new();
    evidence.unit_log.retain(|line| told.insert((line.unit.clone(), line.real_ns, line.text.clone(), line.restart)));
    again(&mut evidence.processes, |p| (p.pid, p.started), |a, b| *a == Process { at: a.at, ..b.clone() });
    again(&mut evidence.threads, |t| t.key, |a, b| *a == Thread { at: a.at, ..b.clone() });
    again(&mut evidence.nics, |n| (n.netns.clone(), n.name.clone()), |a, b| *a == Nic { at: a.at, ..b.clone() });
    let mut mounts = Vec::new();
    for mount in std::mem::take(&mut evidence.cgroup_mounts) {
        if !mounts.contains(&mount) {
            mounts.push(mount);
        }
    }
    evidence.cgroup_mounts = mounts;
    let all = std::mem::take(&mut evidence.zombie_scans);
    evidence.zombie_scans = scans(all, window, |scan| scan.at, |scan| !scan.zombies.is_empty());
}

/// A segment begins with the lines that the kernel still remembers. Their numbers tell them apart; the telling that knows best
/// when it was stays, in the place of the first.
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

/// Drops what says the same of a thing as the word before on it.
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
            scans(scans_at.to_vec(), window, |(at, _)| Time(*at), |(_, named)| *named)
        };
        let all = [(1, true), (2, false), (3, true), (4, false), (5, false), (9, true)];
        assert_eq!(kept(&all, 2, 5), [(2, false), (3, true), (5, false)]);
        assert_eq!(kept(&all, 4, 5), [(3, true), (4, false), (5, false)], "named before it");
        assert_eq!(kept(&all, 6, 8), [(3, true), (5, false)]);
        assert_eq!(kept(&all[..2], 0, 9), [(1, true), (2, false)]);
        assert_eq!(kept(&all[1..2], 3, 9), [(2, false)]);
        assert_eq!(kept(&[], 3, 9), []);
    }
}
