//! The parts of a plan.

use crate::measure::Measure;
use crate::planner::PinningFile;
use crate::reboot::Reboot;
use crate::steps::{Action, StepKind};
use coroner_diagnosis::verdict::{FindingRef, TimeSpan};
use coroner_evidence::Node;
use coroner_report::named;
use serde::Serialize;

/// What could be done about a node, in the order in which to do it.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    #[serde(skip)]
    pub node: Node,
    /// The root causes, worst first.
    pub causes: Vec<Cause>,
    /// Root causes of what is over: nothing is planned for them.
    pub over: Vec<Over>,
    pub steps: Vec<Step>,
    /// Other ways to the same end: done only if named.
    pub alternatives: Vec<Step>,
    /// Considered and rejected, with the reason.
    pub refused: Vec<Refused>,
    /// Causes that coroner has no step for.
    pub by_hand: Vec<ByHand>,
    /// Files that keep dead cgroups: deleted only if named.
    pub files: Vec<PinningFile>,
    /// Dead cgroups from other causes, and what would free them.
    pub other_dead: Option<String>,
    /// For what only a reboot frees.
    pub reboot: Option<Reboot>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    #[serde(flatten)]
    pub finding: FindingRef,
    /// `None` if no verdict is about it.
    pub certainty: Option<&'static str>,
    /// What will happen if nothing is done.
    pub risk: Option<String>,
}

/// What ended before the end of the window.
#[derive(Debug, Clone, Serialize)]
pub struct Over {
    #[serde(flatten)]
    pub finding: FindingRef,
    pub time: TimeSpan,
    pub if_it_comes_back: String,
}

/// One thing to do.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Its name on the command line: `disable-unit:ecs.service`.
    pub id: String,
    pub kind: StepKind,
    /// "Disable ecs.service, now and at boot"
    pub title: String,
    pub reason: String,
    /// What to type to do the same by hand.
    pub commands: Vec<String>,
    pub risk: Risk,
    /// What can go wrong, or who loses something.
    pub risk_words: String,
    pub reversible: bool,
    /// How `coroner undo` undoes it, or why it cannot.
    pub undo: String,
    /// Why it needs `--allow`; `None` if it does not.
    pub dangerous: Option<String>,
    /// What it does not fix.
    pub not_fixed: String,
    /// How success will be measured.
    pub measures: Vec<Measure>,
    /// For those who want to know more: the files that would be deleted, the text of a drop-in.
    pub details: Vec<String>,
    pub action: Action,
}

named! {
    pub enum Risk {
        Low = "low",
        Medium = "medium",
        High = "high",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// "disable kubelet.service"
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
    /// The named steps (by id or kind), alternatives included; without names, the planned ones.
    pub fn chosen(&self, names: &[String]) -> Result<Vec<&Step>, String> {
        if names.is_empty() {
            return Ok(self.steps.iter().collect());
        }
        for name in names {
            if !self.all().any(|step| step.is_named(name)) {
                let there: Vec<&str> = self.all().map(|step| step.id.as_str()).collect();
                let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
                return Err(format!("no step {name} in this plan; its steps: {there}"));
            }
        }
        Ok(self.all().filter(|step| names.iter().any(|name| step.is_named(name))).collect())
    }

    pub fn all(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().chain(&self.alternatives)
    }

    /// coroner has no step to offer.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.alternatives.is_empty()
    }
}

impl Step {
    pub fn is_named(&self, name: &str) -> bool {
        self.id == name || self.kind.as_str() == name
    }
}
