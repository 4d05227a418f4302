//! Why one of two that want the same core comes first.

use coroner_evidence::{CgroupWeight, Evidence, Party, WaitLedger};
use std::collections::HashMap;

/// Why the runner had the core while the victim waited.
#[derive(Debug, Clone, PartialEq)]
pub enum Precedence {
    /// A real-time or deadline thread runs before every ordinary one.
    Class,
    /// Its cgroup, or an ancestor of it, weighs more than the victim's.
    CgroupWeight { runner: Weighed, victim: Weighed },
    /// It weighs more by its nice value, in the same cgroup.
    Nice,
    /// Neither has an advantage: they take turns.
    Turns,
}

/// The part of a path at which two cgroups compete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighed {
    /// `None`: a thread of the common parent itself, which weighs as one cgroup with the default weight.
    pub path: Option<String>,
    pub weight: u64,
}

/// With twice the weight, the other still gets a third of the core. That is a preference; beyond it, the victim is at its mercy.
const HEAVIER: f64 = 2.0;
/// nice -3 weighs twice as much as nice 0: a step is a factor of 1.25 (kernel/sched/core.c, sched_prio_to_weight).
const NICER: i16 = 3;

/// The weights of all cgroups that were read.
#[derive(Debug, Default)]
pub struct Weights<'a> {
    by_path: HashMap<&'a str, u64>,
    /// What a thread beside cgroups weighs: 1024 with cpu.shares (v1), 100 with cpu.weight.
    of_thread: u64,
}

impl<'a> Weights<'a> {
    pub fn of(evidence: &Evidence, ledger: &'a WaitLedger) -> Weights<'a> {
        let mount = evidence.cgroup_mounts.iter().rev().find(|mount| mount.has("cpu"));
        Weights::new(ledger.weights.iter(), mount.map_or(2, |mount| mount.version))
    }

    /// `version`: of the hierarchy with the cpu controller.
    pub fn new(weights: impl Iterator<Item = &'a CgroupWeight>, version: u8) -> Weights<'a> {
        let by_path = weights.map(|w| (w.path.as_str(), w.weight)).collect();
        Weights { by_path, of_thread: if version == 1 { 1024 } else { 100 } }
    }

    pub fn precedence(&self, runner: &Party, victim: &Party) -> Precedence {
        if outranks(runner, victim) {
            return Precedence::Class;
        }
        let (Some(runners), Some(victims)) = (&runner.cgroup, &victim.cgroup) else { return Precedence::Turns };
        if runners == victims {
            let advantage = i16::from(victim.nice) - i16::from(runner.nice);
            return if advantage >= NICER { Precedence::Nice } else { Precedence::Turns };
        }
        let [runner, victim] = compete_at(runners, victims).map(|path| self.weighed(path));
        match (runner, victim) {
            (Some(runner), Some(victim)) if runner.weight as f64 > HEAVIER * victim.weight as f64 => {
                Precedence::CgroupWeight { runner, victim }
            }
            _ => Precedence::Turns,
        }
    }

    fn weighed(&self, path: Option<&str>) -> Option<Weighed> {
        match path {
            None => Some(Weighed { path: None, weight: self.of_thread }),
            Some(path) => Some(Weighed { path: Some(path.to_owned()), weight: *self.by_path.get(path)? }),
        }
    }
}

/// Deadline runs before real time, and real time before the rest; among real-time threads the higher priority.
fn outranks(runner: &Party, victim: &Party) -> bool {
    use coroner_evidence::tasks::SchedulingClass::{Deadline, Fifo, RoundRobin};
    let rank = |party: &Party| match party.class {
        Deadline => 200,
        Fifo | RoundRobin => 100 + u16::from(party.rt_priority),
        _ => 0,
    };
    rank(runner) > rank(victim)
}

/// The ancestors of two cgroups that are siblings; `None` for one that is the common ancestor itself.
fn compete_at<'p>(one: &'p str, other: &'p str) -> [Option<&'p str>; 2] {
    let parts = |path: &'p str| path.split('/').filter(|part| !part.is_empty());
    let common = parts(one).zip(parts(other)).take_while(|(a, b)| a == b).count();
    [one, other].map(|path| {
        let part = parts(path).nth(common)?;
        let end = part.as_ptr() as usize - path.as_ptr() as usize + part.len();
        Some(&path[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::tasks::SchedulingClass;

    fn in_cgroup(path: &str) -> Party {
        Party { cgroup: Some(path.to_owned()), ..Party::default() }
    }

    fn weights(list: &[(&str, u64)]) -> Vec<CgroupWeight> {
        list.iter().map(|(path, weight)| CgroupWeight { path: (*path).to_owned(), weight: *weight }).collect()
    }

    #[test]
    fn cgroups_compete_where_their_paths_part() {
        assert_eq!(compete_at("/a/b/c", "/a/d"), [Some("/a/b"), Some("/a/d")]);
        assert_eq!(compete_at("/a/b", "/a"), [Some("/a/b"), None]);
        assert_eq!(compete_at("/", "/x/y"), [None, Some("/x")]);
        assert_eq!(compete_at("/a", "/ab"), [Some("/a"), Some("/ab")]);
        assert_eq!(compete_at("/a", "/a"), [None, None]);
    }

    #[test]
    fn the_heavier_cgroup_comes_first() {
        let list = weights(&[("/hogs", 1024), ("/hogs/one", 2), ("/job", 2), ("/equal", 1024)]);
        let weights = Weights::new(list.iter(), 1);
        let against = |runner: &str, victim: &str| weights.precedence(&in_cgroup(runner), &in_cgroup(victim));
        assert_eq!(
            against("/hogs/one", "/job"),
            Precedence::CgroupWeight {
                runner: Weighed { path: Some("/hogs".into()), weight: 1024 },
                victim: Weighed { path: Some("/job".into()), weight: 2 }
            }
        );
        assert_eq!(against("/job", "/hogs/one"), Precedence::Turns);
        assert_eq!(against("/equal", "/hogs/one"), Precedence::Turns, "their own weights do not meet");
        assert!(matches!(
            against("/", "/job"),
            Precedence::CgroupWeight { runner: Weighed { path: None, weight: 1024 }, .. }
        ));
        assert_eq!(against("/unread", "/job"), Precedence::Turns, "nothing is claimed of what was not read");
    }

    #[test]
    fn class_beats_weight_and_nice_counts_within_a_cgroup() {
        let weights = Weights::default();
        let ordinary = in_cgroup("/");
        let fifo = Party { class: SchedulingClass::Fifo, rt_priority: 1, ..ordinary.clone() };
        let higher = Party { rt_priority: 2, ..fifo.clone() };
        let deadline = Party { class: SchedulingClass::Deadline, ..ordinary.clone() };
        for (runner, victim) in [(&fifo, &ordinary), (&deadline, &ordinary), (&higher, &fifo), (&deadline, &higher)] {
            assert_eq!(weights.precedence(runner, victim), Precedence::Class);
            assert_ne!(weights.precedence(victim, runner), Precedence::Class);
        }
        let eager = Party { nice: -5, ..ordinary.clone() };
        assert_eq!(weights.precedence(&eager, &ordinary), Precedence::Nice);
        assert_eq!(weights.precedence(&ordinary, &eager), Precedence::Turns);
        assert_eq!(weights.precedence(&Party { nice: -2, ..ordinary.clone() }, &ordinary), Precedence::Turns);
    }
}
