//! What rules, causes and links look at.

use crate::cgroup_paths::cgroup_name;
use crate::code::Code;
use crate::cores::Cores;
use crate::finding::Finding;
use crate::kernel_work::Work;
use crate::rules::zombie_memcgs::Judged;
use crate::units::cost::{UnitCost, costs};
use crate::waits::losses::{Loss, losses};
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
    zombies: OnceCell<Option<Judged<'e>>>,
    unit_costs: OnceCell<BTreeMap<String, UnitCost>>,
    losses: OnceCell<Option<Vec<Loss>>>,
}

impl<'e> Case<'e> {
    pub fn of(evidence: &'e Evidence) -> Case<'e> {
        Case {
            evidence,
            findings: Vec::new(),
            cores: OnceCell::new(),
            zombies: OnceCell::new(),
            unit_costs: OnceCell::new(),
            losses: OnceCell::new(),
        }
    }

    pub fn cores(&self) -> &Cores<'e> {
        self.cores.get_or_init(|| Cores::of(self.evidence))
    }

    /// `None` if the kernel was not sampled.
    pub fn work(&self) -> Option<Work<'e>> {
        Work::of(self.evidence)
    }

    /// The dead cgroups that the rule on them judges; `None` if they were not counted.
    pub fn judged_zombies(&self) -> Option<&Judged<'e>> {
        self.zombies.get_or_init(|| Judged::of(self.evidence)).as_ref()
    }

    /// Those by name; `None` if nothing looked for dead cgroups, or too long ago.
    pub fn zombies(&self) -> Option<&ZombieReport<'e>> {
        self.judged_zombies()?.report.as_ref()
    }

    /// Dead and live memory cgroups; `None` if they were not counted.
    pub fn memcgs(&self) -> Option<(u64, u64)> {
        self.judged_zombies().map(Judged::dead_and_live)
    }

    /// By unit name.
    pub fn unit_costs(&self) -> &BTreeMap<String, UnitCost> {
        self.unit_costs.get_or_init(|| costs(self.evidence))
    }

    /// Who lost markedly, and to whom; `None` if nobody kept the ledger.
    pub fn losses(&self) -> Option<&[Loss]> {
        self.losses.get_or_init(|| losses(self)).as_deref()
    }

    /// Whether it is this coroner, or another beside it.
    pub fn is_observer(&self, pid: u32) -> bool {
        let process = self.evidence.processes.iter().rev().find(|process| process.pid == pid);
        self.evidence.is_observer(pid, process.map(|process| process.started))
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
