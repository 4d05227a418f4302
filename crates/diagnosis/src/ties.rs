//! What findings have in common: what each is about, in the node's own terms.

use crate::cores::owners::Ownership;
use crate::cores::threads::Who;
use crate::log_events::LogEvent;
use coroner_evidence::{Nic, NicQueue, Time, Window};
use coroner_report::TimeSpan;
use std::time::Duration;

/// Text names a core in words; this names it so that two findings about it can be matched.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ties {
    /// Where it happened.
    pub cores: Vec<u32>,
    /// Who did it.
    pub culprits: Vec<Task>,
    /// Who suffered.
    pub victims: Vec<Task>,
    /// Paths in the cgroup tree: of the memory controller, if it is about memory.
    pub cgroups: Vec<String>,
    pub units: Vec<String>,
    /// By their uid.
    pub pods: Vec<String>,
    pub queues: Vec<Queue>,
    /// When it was at its worst, if it did not last throughout.
    pub when: Option<When>,
    /// When it was first seen, if earlier.
    pub since: Option<Time>,
    /// When it was last seen, if the rule knows. `None` for a state that holds at the end of the window.
    pub until: Option<Time>,
    /// The same as wall-clock times, and whether it goes on; computed from the above when the rules are done.
    pub time: TimeSpan,
}

pub use coroner_report::finding::{Nic as Queue, Task};

/// When it was, and by how much that may be off: the kernel log has its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    pub from: Time,
    pub to: Time,
    pub uncertainty: Duration,
}

impl When {
    pub fn at(at: Time, uncertainty: Duration) -> When {
        When { from: at, to: at, uncertainty }
    }

    /// Whether `self` may have begun before `other` ended, with both clocks at their worst.
    pub fn can_precede(&self, other: &When) -> bool {
        let slack = self.uncertainty.saturating_add(other.uncertainty);
        self.from <= other.to + slack
    }

    /// Whether it began before the other began, however far the clocks are off.
    pub fn surely_precedes(&self, other: &When) -> bool {
        let slack = self.uncertainty.saturating_add(other.uncertainty);
        self.from + slack <= other.from
    }

    /// Whether they overlap, however far the clocks are off.
    pub fn surely_overlaps(&self, other: &When) -> bool {
        let slack = self.uncertainty.saturating_add(other.uncertainty);
        self.from + slack <= other.to && other.from + slack <= self.to
    }

    /// Whether they may overlap, with both clocks at their worst.
    pub fn overlaps(&self, other: &When) -> bool {
        let slack = self.uncertainty.saturating_add(other.uncertainty);
        self.from <= other.to + slack && other.from <= self.to + slack
    }
}

impl When {
    /// From the first to the last line; the worst of their uncertainties.
    pub fn of_log(events: &[LogEvent<'_>]) -> Option<When> {
        Some(When {
            from: events.first()?.line.at,
            to: events.last()?.line.at,
            uncertainty: Duration::from_nanos(events.iter().map(|event| event.line.uncertainty_ns).max().unwrap_or(0)),
        })
    }
}

impl From<Window> for When {
    fn from(window: Window) -> When {
        When { from: window.from, to: window.to, uncertainty: Duration::ZERO }
    }
}

impl From<&Who> for Task {
    fn from(who: &Who) -> Task {
        Task { tid: who.tid, pid: who.pid.unwrap_or(who.tid), comm: who.comm.clone() }
    }
}

/// The kernel log names a device without its namespace.
fn is_same_device(one: &Queue, other: &Queue) -> bool {
    one.device == other.device && (one.netns == other.netns || one.netns.is_none() || other.netns.is_none())
}

pub fn device(nic: &Nic) -> Queue {
    let Nic { name, netns, driver, .. } = nic;
    Queue { device: name.clone(), netns: netns.clone(), driver: driver.clone(), queue: None }
}

pub fn queue(nic: &Nic, queue: &NicQueue) -> Queue {
    Queue { queue: Some(queue.label()), ..device(nic) }
}

/// The device that counters or the kernel log call by this name.
pub fn device_named(nics: &[Nic], name: &str) -> Queue {
    let nic = nics.iter().find(|nic| nic.display_name() == name);
    nic.map_or_else(|| Queue { device: name.to_owned(), ..Queue::default() }, device)
}

impl Ties {
    pub fn of_core(core: u32, window: Window, ownership: &Ownership) -> Ties {
        let culprit = ownership.owner().and_then(|owner| owner.who()).map(Task::from);
        let units = ownership.owner().and_then(|owner| owner.who()?.unit.clone());
        Ties {
            cores: vec![core],
            culprits: culprit.into_iter().collect(),
            units: units.into_iter().collect(),
            when: Some(window.into()),
            ..Ties::default()
        }
    }

    pub fn of_unit(unit: &str, cgroup: Option<&str>) -> Ties {
        Ties {
            units: vec![unit.to_owned()],
            cgroups: cgroup.map(str::to_owned).into_iter().collect(),
            ..Ties::default()
        }
    }

    pub fn of_cgroup(path: &str) -> Ties {
        Ties { cgroups: vec![path.to_owned()], ..Ties::default() }
    }

    /// As they leave the node: without times, which verdicts carry.
    pub fn report(&self) -> coroner_report::Ties {
        coroner_report::Ties {
            cores: self.cores.clone(),
            cgroups: self.cgroups.clone(),
            units: self.units.clone(),
            pods: self.pods.clone(),
            queues: self.queues.iter().map(Queue::queue_name).collect(),
            nics: self.queues.clone(),
            culprits: self.culprits.clone(),
            victims: self.victims.clone(),
        }
    }

    /// Who did it: `kubelet[4711]`.
    pub fn culprit(&self) -> Option<String> {
        self.culprits.first().map(Task::name)
    }

    /// A core both are about.
    pub fn common_core(&self, other: &Ties) -> Option<u32> {
        self.cores.iter().copied().find(|core| other.cores.contains(core))
    }

    /// A thread that did both; else a process.
    pub fn common_culprit(&self, other: &Ties) -> Option<&Task> {
        let same_thread = |task: &&Task| other.culprits.iter().any(|o| o.tid == task.tid);
        let same_process = |task: &&Task| other.culprits.iter().any(|o| o.pid == task.pid);
        self.culprits.iter().find(same_thread).or_else(|| self.culprits.iter().find(same_process))
    }

    pub fn common_nic(&self, other: &Ties) -> Option<&Queue> {
        self.queues.iter().find(|queue| other.queues.iter().any(|other| is_same_device(other, queue)))
    }

    pub fn common_unit(&self, other: &Ties) -> Option<&str> {
        self.units.iter().find(|unit| other.units.contains(unit)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(from: u64, to: u64, uncertainty: u64) -> When {
        When { from: Time::from_secs(from), to: Time::from_secs(to), uncertainty: Duration::from_secs(uncertainty) }
    }

    #[test]
    fn uncertain_clocks_prove_no_order() {
        assert!(at(1, 3, 0).surely_precedes(&at(2, 2, 0)));
        assert!(!at(1, 3, 0).surely_precedes(&at(2, 2, 2)));
        assert!(at(4, 5, 0).can_precede(&at(2, 2, 2)), "the log may be late by two seconds");
        assert!(!at(5, 6, 0).can_precede(&at(2, 2, 2)));
        assert!(at(1, 3, 0).overlaps(&at(3, 9, 0)));
        assert!(!at(1, 3, 0).overlaps(&at(4, 9, 0)));
    }
}
