//! What a plan consists of.

use crate::measure::Measure;
use crate::planner::PinningFile;
use crate::reboot::Reboot;
use crate::steps::{Action, Kind};
use coroner_diagnosis::verdict::FindingRef;
use coroner_evidence::Node;
use serde::Serialize;

/// What could be done about a node, in the order in which to do it.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    #[serde(skip)]
    pub node: Node,
    /// What it is about: the root causes, worst first.
    pub causes: Vec<Cause>,
    pub steps: Vec<Step>,
    /// Other ways to the same end: done only if they are named.
    pub alternatives: Vec<Step>,
    /// What was considered and will not be done, with the reason.
    pub refused: Vec<Refused>,
    /// What coroner has no step for.
    pub by_hand: Vec<ByHand>,
    /// Files that keep dead cgroups: deleted only if they are named.
    pub files: Vec<PinningFile>,
    /// Dead cgroups that are not of these causes, and what would free them.
    pub other_dead: Option<String>,
    /// If only a reboot takes away the rest.
    pub reboot: Option<Reboot>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    #[serde(flatten)]
    pub finding: FindingRef,
    /// How sure the verdict is; `None` where there is no verdict about it.
    pub certainty: Option<&'static str>,
    /// What will come if nothing is done.
    pub risk: Option<String>,
}

/// One thing to do.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// By which people name it: `disable-unit:ecs.service`.
    pub id: String,
    pub kind: Kind,
    /// In a few words: "Switch ecs.service off".
    pub title: String,
    pub reason: String,
    /// What people would type to do the same.
    pub commands: Vec<String>,
    pub risk: Risk,
    /// What can go wrong, or who may miss something.
    pub risk_words: String,
    pub reversible: bool,
    /// How `coroner undo` takes it back, or why it cannot.
    pub undo: String,
    /// Why it is done only if it is named; `None` if it may be done with the others.
    pub dangerous: Option<String>,
    /// What it leaves as it is.
    pub not_fixed: String,
    /// How success will be measured.
    pub measures: Vec<Measure>,
    /// Details that some people want: the files that would be deleted.
    pub details: Vec<String>,
    pub action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Risk {
    Low,
    Medium,
    High,
}

impl Risk {
    pub fn as_str(self) -> &'static str {
        match self {
            Risk::Low => "low",
            Risk::Medium => "medium",
            Risk::High => "high",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// "switch kubelet.service off"
    pub what: String,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ByHand {
    #[serde(flatten)]
    pub finding: FindingRef,
    pub remedy: String,
}

impl Plan {
    /// The steps that were named, of all there are; without names the planned ones. A name is a step's id, or a kind.
    pub fn chosen(&self, names: &[String]) -> Result<Vec<&Step>, String> {
        if names.is_empty() {
            return Ok(self.steps.iter().collect());
        }
        for name in names {
            if !self.all().any(|step| step.is_named(name)) {
                let there: Vec<&str> = self.all().map(|step| step.id.as_str()).collect();
                let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
                return Err(format!("no step {name} in this plan; it has: {there}"));
            }
        }
        Ok(self.all().filter(|step| names.iter().any(|name| step.is_named(name))).collect())
    }

    pub fn all(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().chain(&self.alternatives)
    }

    /// There is nothing that coroner could do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.alternatives.is_empty()
    }
}

impl Step {
    pub fn is_named(&self, name: &str) -> bool {
        self.id == name || self.kind.as_str() == name
    }
}
