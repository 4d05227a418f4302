//! The processes' cgroups, for probes that read only cgroups with processes.

use coroner_evidence::{Evidence, probe};
use std::collections::{HashMap, HashSet};

pub struct ProcessHomes {
    by_pid: HashMap<u32, Home>,
    /// False if some processes are hidden from us.
    pub all_seen: bool,
}

struct Home {
    memory: Option<String>,
    cpu: Option<String>,
}

impl ProcessHomes {
    pub fn new() -> ProcessHomes {
        ProcessHomes { by_pid: HashMap::new(), all_seen: true }
    }

    /// Takes note of what the tasks probe has just reported.
    pub fn note(&mut self, evidence: &Evidence) {
        for process in &evidence.processes {
            let home = Home { memory: process.memory_cgroup.clone(), cpu: process.cpu_cgroup.clone() };
            self.by_pid.insert(process.pid, home);
        }
        self.all_seen &= evidence.why_unseen(probe::TASKS).is_none();
    }

    pub fn forget_unless(&mut self, is_alive: impl Fn(u32) -> bool) {
        self.by_pid.retain(|&pid, _| is_alive(pid));
    }

    /// The memory and the cpu cgroups with processes.
    pub fn paths(&self) -> (HashSet<String>, HashSet<String>) {
        let homes = self.by_pid.values();
        (homes.clone().filter_map(|h| h.memory.clone()).collect(), homes.filter_map(|h| h.cpu.clone()).collect())
    }
}
