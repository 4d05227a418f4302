//! What rules, causes and links look at.

use crate::cgroup_paths::cgroup_name;
use crate::code::Code;
use crate::cores::Cores;
use crate::cores::threads::OBSERVER;
use crate::finding::Finding;
use crate::kernel_work::Work;
use crate::rules::zombie_memcgs;
use crate::units::cost::{UnitCost, costs};
use crate::zombies::ZombieReport;
use coroner_evidence::{CgroupOwner, Evidence};
use std::cell::OnceCell;
use std::collections::BTreeMap;

/// The evidence, and what several of them derive from it. Each part is computed on first use: for ten minutes of a large node that
/// takes longer than everything else.
pub struct Case<'e> {
    pub evidence: &'e Evidence,
    /// What the rules found: what goes on first, then the worst. Empty while they run.
    pub findings: Vec<Finding>,
    cores: OnceCell<Cores<'e>>,
    zombies: OnceCell<Option<ZombieReport<'e>>>,
    unit_costs: OnceCell<BTreeMap<String, UnitCost>>,
}

impl<'e> Case<'e> {
    pub fn of(evidence: &'e Evidence) -> Case<'e> {
        Case {
            evidence,
            findings: Vec::new(),
            cores: OnceCell::new(),
            zombies: OnceCell::new(),
            unit_costs: OnceCell::new(),
        }
    }

    pub fn cores(&self) -> &Cores<'e> {
        self.cores.get_or_init(|| Cores::of(self.evidence))
    }

    /// `None` if the kernel was not sampled.
    pub fn work(&self) -> Option<Work<'e>> {
        Work::of(self.evidence)
    }

    /// `None` if nothing looked for dead cgroups.
    pub fn zombies(&self) -> Option<&ZombieReport<'e>> {
        self.zombies.get_or_init(|| zombie_memcgs::current(self.evidence)).as_ref()
    }

    /// Dead and live memory cgroups; `None` if they were not counted.
    pub fn memcgs(&self) -> Option<(u64, u64)> {
        zombie_memcgs::dead_and_live(self.evidence, self.zombies())
    }

    /// By unit name.
    pub fn unit_costs(&self) -> &BTreeMap<String, UnitCost> {
        self.unit_costs.get_or_init(|| costs(self.evidence))
    }

    pub fn is_observer(&self, pid: u32) -> bool {
        let process = self.evidence.processes.iter().rev().find(|process| process.pid == pid);
        process.is_some_and(|process| process.comm == OBSERVER)
    }

    /// Where a process belongs, to follow its name: ` of train.service`, ` of pod 6f9b…`, ` in cgroup /a`; empty if unknown or the root.
    pub fn home_of(&self, pid: u32) -> String {
        let process = self.evidence.processes.iter().rev().find(|process| process.pid == pid);
        let Some(path) = process.and_then(|process| process.memory_cgroup.as_deref().or(process.cpu_cgroup.as_deref()))
        else {
            return String::new();
        };
        match cgroup_name(path) {
            _ if path == "/" => String::new(),
            name if CgroupOwner::of_path(path).is_known() => format!(" of {name}"),
            name => format!(" in {name}"),
        }
    }

    pub fn findings_of(&self, code: Code) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.code == code)
    }
}
