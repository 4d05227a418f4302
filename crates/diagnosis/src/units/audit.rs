//! All that is known of each unit, side by side.

use super::churn::{Churning, churning};
use super::containers::{ContainerLoop, container_loops};
use super::cost::{UnitCost, costs, order};
use super::loops::{How, Loop, loops};
use crate::agents::baseline::{BaselineError, Drift};
use crate::agents::{self, CatalogueError, Judgement, Verdict};
use crate::code::Code;
use crate::finding::{Finding, diagnose};
use coroner_evidence::{Enablement, Evidence, Order, Unit, UnitFile, Unseen, probe};
use std::collections::BTreeMap;

/// The findings that the audit shows.
pub const CODES: [Code; 7] = [
    Code::UnitCrashloop,
    Code::UnitChurn,
    Code::ContainerCrashloop,
    Code::AgentConflict,
    Code::AgentUnused,
    Code::UnitFailing,
    Code::UnitDrift,
];

/// The probes that the audit depends on.
const PROBES: [&str; 13] = [
    probe::UNITS,
    probe::UNIT_FILES,
    probe::PACKAGES,
    probe::AGENT_FILES,
    probe::JOURNAL,
    probe::UNIT_SOCKETS,
    probe::CHILD_EXITS,
    probe::CONTAINERS,
    probe::CGROUP_CHURN,
    probe::ZOMBIES,
    probe::TASKS,
    coroner_evidence::recording::PROBE,
    coroner_evidence::recording::NOT_RECORDED,
];

pub struct Audit<'e> {
    /// Most expensive first.
    pub units: Vec<AuditedUnit<'e>>,
    /// If no unit was seen: what runs, by cgroup, most expensive first.
    pub cgroups: Vec<(String, UnitCost)>,
    pub containers: Vec<ContainerLoop<'e>>,
    /// For every unit that the catalogue knows.
    pub judgements: Result<Vec<Judgement>, CatalogueError>,
    /// Against the baseline, if there is one.
    pub drift: Option<Result<Drift, BaselineError>>,
    /// Worst first.
    pub findings: Vec<Finding>,
    pub unseen: Vec<Unseen>,
}

#[derive(Default)]
pub struct AuditedUnit<'e> {
    pub name: &'e str,
    /// As systemd last described it; `None` if it is not loaded, or systemd could not be asked.
    pub unit: Option<&'e Unit>,
    /// From its unit files.
    pub file: Option<&'e UnitFile>,
    /// The latest look that knew how its main process ended: one that was just restarted has not ended.
    pub exit: Option<&'e Unit>,
    pub looping: Option<Loop<'e>>,
    pub churning: Vec<Churning<'e>>,
    pub cost: UnitCost,
}

impl AuditedUnit<'_> {
    /// From its files; if they were not seen, from systemd.
    pub fn enablement(&self) -> Option<Enablement> {
        let from_systemd = || self.unit.and_then(|u| Enablement::of_word(u.unit_file_state.as_deref()?));
        self.file.map(|f| f.enablement).or_else(from_systemd)
    }

    pub fn is_active(&self) -> bool {
        self.unit.is_some_and(|u| matches!(u.active_state.as_str(), "active" | "activating" | "reloading"))
    }
}

pub fn audit(evidence: &Evidence) -> Audit<'_> {
    let mut costs = costs(evidence);
    let mut by_name: BTreeMap<&str, AuditedUnit> = BTreeMap::new();
    let new = |name| AuditedUnit { name, ..AuditedUnit::default() };
    for unit in &evidence.units {
        let audited = by_name.entry(&unit.name).or_insert_with(|| new(&unit.name));
        if audited.unit.is_none_or(|before| before.at <= unit.at) {
            audited.unit = Some(unit);
        }
        if unit.exit_kind.is_some() && audited.exit.is_none_or(|before| before.at <= unit.at) {
            audited.exit = Some(unit);
        }
    }
    // An alias is shown as its target.
    for file in evidence.unit_files.iter().filter(|f| f.alias_of.is_none()) {
        by_name.entry(&file.name).or_insert_with(|| new(&file.name)).file = Some(file);
    }
    for looping in loops(evidence).into_iter().filter(|l| l.how != How::Once) {
        if let Some(audited) = by_name.get_mut(looping.unit.name.as_str()) {
            audited.looping = Some(looping);
        }
    }
    for churning in churning(evidence) {
        if let Some(audited) = by_name.get_mut(churning.unit.as_str()) {
            audited.churning.push(churning);
        }
    }
    for (name, audited) in &mut by_name {
        if let Some(cost) = costs.remove(*name) {
            audited.cost = cost;
        }
    }
    let mut units: Vec<AuditedUnit> = by_name.into_values().collect();
    units.order_by(|a, b| order(&a.cost, &b.cost).then_with(|| a.name.cmp(b.name)));
    let mut cgroups: Vec<(String, UnitCost)> = costs.into_iter().collect();
    cgroups.order_by(|a, b| order(&a.1, &b.1).then_with(|| a.0.cmp(&b.0)));
    if evidence.image.is_some() || !evidence.units.is_empty() {
        cgroups.clear();
    }

    let mut findings = diagnose(evidence).findings;
    findings.retain(|f| CODES.contains(&f.code));
    let unseen = evidence.unseen.iter().filter(|u| PROBES.contains(&u.probe.as_str())).cloned().collect();
    Audit {
        units,
        cgroups,
        containers: container_loops(evidence),
        judgements: agents::judgements(evidence),
        // Unseen is not gone.
        drift: agents::drift(evidence).filter(|_| !evidence.unit_files.is_empty()),
        findings,
        unseen,
    }
}

impl Audit<'_> {
    pub fn judgement(&self, unit: &str) -> Option<&Judgement> {
        self.judgements.as_ref().ok()?.iter().find(|j| j.unit == unit)
    }

    /// Those that no finding covers, but that an image builder wants to know.
    pub fn lesser_judgements(&self) -> Vec<&Judgement> {
        let reported = |j: &Judgement| {
            let codes = [Code::AgentUnused, Code::AgentConflict];
            self.findings.iter().any(|f| codes.contains(&f.code) && f.subject.name == j.unit)
        };
        let against = |j: &&Judgement| matches!(j.verdict, Verdict::Unused | Verdict::Conflict);
        self.judgements.iter().flatten().filter(against).filter(|j| !reported(j)).collect()
    }
}
