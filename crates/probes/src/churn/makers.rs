//! Finds the process responsible: one that an admin can stop, not the `mkdir` it ran.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

use coroner_evidence::{Maker, Time};

use super::event::Process;
use crate::Root;
use crate::tasks::command_of;
use crate::tasks::parse_membership;

/// A process with more acts than this was not started just for them.
pub(super) const FEW_ACTS: u64 = 8;

/// A process older than this acts on its own.
const YOUNG: Duration = Duration::from_secs(2);

/// Bytes of a command line read: enough to find an interpreter's script.
const CMDLINE: u64 = 4096;

/// Descriptions kept; at this limit all are dropped.
const MAX_KNOWN: usize = 1024;

/// They live as long as their container and act for a daemon (the kernel truncates names to 15 bytes).
const GO_BETWEENS: [&str; 3] = ["containerd-shim", "docker-containe", "conmon"];

pub(super) const INIT: u32 = 1;
const KTHREADD: u32 = 2;

/// What /proc says about processes, read while they exist.
#[derive(Debug)]
pub(super) struct Makers {
    root: Root,
    /// Whether pids in /proc are those of the events.
    proc_is_theirs: bool,
    known: HashMap<u32, KnownMaker>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownMaker {
    comm: String,
    command: Option<String>,
    cgroup: Option<String>,
}

impl Makers {
    pub fn new(root: &Root, proc_is_theirs: bool) -> Makers {
        Makers { root: root.clone(), proc_is_theirs, known: HashMap::new() }
    }

    /// Reads processes that may be gone soon.
    pub fn learn(&mut self, chain: &[Process]) {
        if !self.proc_is_theirs {
            return;
        }
        for process in chain.iter().filter(|p| p.pid != KTHREADD) {
            if self.known.get(&process.pid).is_some_and(|k| k.comm == process.comm) {
                continue;
            }
            if !self.has(process) {
                continue;
            }
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            let cgroup = self.root.read(&format!("/proc/{}/cgroup", process.pid)).ok();
            let known = KnownMaker {
                comm: process.comm.clone(),
                command: self.command(process.pid),
                cgroup: cgroup.and_then(|text| parse_membership(&text).memory),
            };
            self.known.insert(process.pid, known);
        }
    }

    /// Whether a process still exists; `None` if unknown. Pids are reused, so the name must match.
    pub fn is_alive(&self, process: &Process) -> Option<bool> {
        self.proc_is_theirs.then(|| self.has(process))
    }

    fn has(&self, process: &Process) -> bool {
        let name = self.root.read_line(&format!("/proc/{}/comm", process.pid));
        name.is_some_and(|name| name == process.comm.trim())
    }

    fn command(&self, pid: u32) -> Option<String> {
        let mut bytes = Vec::new();
        let file = File::open(self.root.path(&format!("/proc/{pid}/cmdline"))).ok()?;
        file.take(CMDLINE).read_to_end(&mut bytes).ok()?;
        command_of(&bytes)
    }

    pub fn describe(&self, process: &Process, parent: Option<&Process>) -> Maker {
        let known = |p: &Process| self.known.get(&p.pid).filter(|k| k.comm == p.comm);
        let own = known(process);
        // A child is in its parent's cgroup, unless the service manager started it.
        let cgroup = own.and_then(|k| k.cgroup.as_ref()).or_else(|| {
            let parent = parent.filter(|p| p.pid > KTHREADD)?;
            known(parent)?.cgroup.as_ref()
        });
        Maker {
            pid: process.pid,
            comm: process.comm.clone(),
            via: None,
            processes: 1,
            command: own.and_then(|k| k.command.clone()),
            parent_pid: parent.map(|p| p.pid),
            parent_comm: parent.map(|p| p.comm.clone()),
            cgroup: cgroup.cloned(),
        }
    }
}

/// Signs that a process was started just for what it did.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signs {
    /// Its own acts and those of its descendants.
    pub acts: u64,
    pub alive: Option<bool>,
    /// Others with its name and parent did the same.
    pub one_of_many: bool,
    pub last_act: Time,
    pub now: Time,
}

/// Whether a process was probably started just for these acts: it did few, and is gone or about to go, like others of its kind.
pub(super) fn is_passing(process: &Process, signs: Signs) -> bool {
    let young = |at: Time| process.began.is_some_and(|began| at.since(began) < YOUNG);
    let goes = match signs.alive {
        Some(false) => true,
        Some(true) => signs.one_of_many && young(signs.now),
        None => young(signs.last_act),
    };
    goes && signs.acts <= FEW_ACTS
}

pub(super) fn is_go_between(process: &Process) -> bool {
    GO_BETWEENS.contains(&process.comm.as_str())
}

/// Index in the chain of the process responsible.
pub(super) fn who_wanted_it(chain: &[&Process], mut is_passing: impl FnMut(&Process) -> bool) -> usize {
    let mut level = 0;
    while let Some(parent) = chain.get(level + 1) {
        // Init adopts orphans and starts services; neither it nor kernel threads are responsible.
        let kernel = parent.pid <= KTHREADD || chain.get(level + 2).is_some_and(|p| p.pid == KTHREADD);
        if kernel || !(is_go_between(chain[level]) || is_passing(chain[level])) {
            break;
        }
        level += 1;
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn process(pid: u32, comm: &str) -> Process {
        Process { pid, began: None, comm: comm.into() }
    }

    fn wanted(chain: &[(u32, &str)], passing: &[u32]) -> u32 {
        let chain: Vec<Process> = chain.iter().map(|(pid, comm)| process(*pid, comm)).collect();
        let chain: Vec<&Process> = chain.iter().collect();
        chain[who_wanted_it(&chain, |p| passing.contains(&p.pid))].pid
    }

    #[test]
    fn a_short_lived_process_is_attributed_to_its_parent() {
        assert_eq!(wanted(&[(50, "mkdir"), (40, "bash"), (1, "systemd")], &[50]), 40);
        assert_eq!(wanted(&[(50, "mkdir"), (45, "sudo"), (44, "sh"), (40, "cron")], &[50, 45, 44]), 40);
        assert_eq!(wanted(&[(50, "python3"), (40, "bash")], &[]), 50, "it makes them itself");
        assert_eq!(wanted(&[(50, "agent"), (1, "systemd")], &[50]), 50, "systemd restarts it repeatedly");
        assert_eq!(wanted(&[(1, "systemd")], &[]), 1);
        assert_eq!(wanted(&[(50, "cgroups-agent"), (45, "kworker/0:1"), (2, "kthreadd")], &[50]), 50);
    }

    #[test]
    fn a_containers_shim_is_attributed_to_its_daemon() {
        assert_eq!(wanted(&[(50, "runc"), (45, "containerd-shim"), (40, "containerd"), (1, "systemd")], &[50]), 40);
        assert_eq!(wanted(&[(50, "runc"), (40, "containerd"), (1, "systemd")], &[50]), 40);
        assert_eq!(wanted(&[(50, "runc"), (45, "containerd-shim"), (1, "systemd")], &[50]), 45, "adopted by init");
    }

    #[test]
    fn a_process_is_short_lived_if_it_does_little_and_is_gone_or_new() {
        let now = Time(10_000_000_000);
        let began = |at| Process { began: Some(Time(at)), ..process(50, "mkdir") };
        let gone = Signs { acts: 1, alive: Some(false), one_of_many: false, last_act: Time(2), now };
        assert!(is_passing(&began(1), gone));
        assert!(!is_passing(&began(1), Signs { acts: 500, ..gone }), "one that made hundreds");
        let there = Signs { alive: Some(true), ..gone };
        assert!(!is_passing(&began(9_000_000_000), there), "it may stay");
        assert!(is_passing(&began(9_000_000_000), Signs { one_of_many: true, ..there }));
        assert!(!is_passing(&began(1), Signs { one_of_many: true, ..there }), "it was there before");
        let unknown = Signs { alive: None, ..gone };
        assert!(is_passing(&began(1), unknown), "it had just begun when it acted");
        assert!(!is_passing(&process(50, "x"), unknown), "nothing is known");
    }

    #[test]
    fn makers_are_described_from_proc() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| crate::test_tree::write(dir.path(), path, text);
        write("proc/40/comm", "bash\n");
        write("proc/40/cmdline", &format!("bash\0-c\0{}\0", "x".repeat(5000)));
        write("proc/40/cgroup", "4:memory:/system.slice/ecs.service\n0::/\n");
        let mut makers = Makers::new(&Root::at(dir.path()), true);
        let (child, shell) = (process(50, "mkdir"), process(40, "bash"));
        makers.learn(&[child.clone(), shell.clone()]);
        let maker = makers.describe(&shell, None);
        assert_eq!(maker.cgroup.as_deref(), Some("/system.slice/ecs.service"));
        assert_eq!(maker.command.as_deref(), Some("bash -c"), "no arguments: they may hold secrets");
        let orphan = makers.describe(&child, Some(&shell));
        assert_eq!((orphan.command, orphan.cgroup.as_deref()), (None, Some("/system.slice/ecs.service")));
        assert_eq!(makers.is_alive(&shell), Some(true));
        assert_eq!(makers.is_alive(&process(40, "other")), Some(false), "the pid was reused");

        let mut elsewhere = Makers::new(&Root::at(dir.path()), false);
        elsewhere.learn(std::slice::from_ref(&shell));
        assert_eq!(elsewhere.describe(&shell, None).command, None, "that pid is another process here");
        assert_eq!(elsewhere.is_alive(&shell), None);
    }

    proptest! {
        #[test]
        fn any_chain(pids in proptest::collection::vec(0u32..6, 1..6), passing in any::<u8>()) {
            let chain: Vec<Process> = pids.iter().map(|pid| process(*pid, "x")).collect();
            let chain: Vec<&Process> = chain.iter().collect();
            prop_assert!(who_wanted_it(&chain, |p| passing >> p.pid & 1 == 1) < chain.len());
        }
    }
}
