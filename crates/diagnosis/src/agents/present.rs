//! Which agents run on a node, or would after boot: possible rivals.

use super::catalogue::{Agent, Role};
use super::judge::{AgentCase, Of};
use super::{Harm, Start};
use std::collections::BTreeMap;

pub struct Present {
    role: Role,
    /// What shows it: a process or a unit.
    pub by: String,
    /// Something other than a rival speaks against it.
    pub doubtful: bool,
    /// More than a process name: a unit that starts or runs, or a configuration.
    pub firm: bool,
    /// It runs and does no harm.
    pub runs_well: bool,
}

/// By agent name; several units of one agent are merged.
pub fn present<'a>(cases: &[AgentCase<'a>]) -> BTreeMap<&'a str, Present> {
    let mut present: BTreeMap<&str, Present> = BTreeMap::new();
    for case in cases {
        let active = case.active();
        let starts = matches!(case.start, Start::Yes(_));
        if !active && !starts {
            continue;
        }
        let by = match (&case.of, active) {
            (Of::Process(process), _) => format!("the process {}[{}] runs", case.name(), process.pid),
            (Of::Unit(unit), true) => format!("{} runs", unit.name),
            (Of::Unit(unit), false) => format!("{} starts too", unit.name),
        };
        let is_unit = matches!(case.of, Of::Unit(_));
        let seen = present.entry(&case.agent.name).or_insert_with(|| Present {
            role: case.agent.role,
            by: String::new(),
            doubtful: false,
            firm: false,
            runs_well: false,
        });
        // What runs says more than what starts.
        if seen.by.is_empty() || (active && !seen.runs_well) {
            seen.by = by;
        }
        seen.doubtful |= !case.against.is_empty();
        seen.firm |= is_unit || !case.support.is_empty();
        seen.runs_well |= active && case.harm != Harm::Seen;
    }
    present
}

impl Present {
    /// Whether its presence is a reason against others.
    pub fn counts(&self) -> bool {
        !self.doubtful || self.runs_well
    }
}

/// The agents that want what this one wants.
pub fn rivals<'a, 'p>(agent: &Agent, present: &'p BTreeMap<&'a str, Present>) -> Vec<(&'a str, &'p Present)> {
    let rival = |name: &str, other: &Present| {
        name != agent.name && (both_own(agent, other) || agent.conflicts_with.iter().any(|c| c == name))
    };
    present.iter().filter(|(name, other)| rival(name, other)).map(|(name, other)| (*name, other)).collect()
}

/// Two orchestrators on one node.
pub fn both_own(agent: &Agent, other: &Present) -> bool {
    agent.role == Role::Orchestrator && other.role == Role::Orchestrator
}
