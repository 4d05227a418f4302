//! Finds the agent of a unit or process without trying every pattern of the catalogue on every name.

use super::catalogue::Agent;
use coroner_evidence::{Order, glob_matches};
use std::collections::HashMap;
use std::sync::Arc;

/// The kernel keeps this many characters of a process name (TASK_COMM_LEN - 1).
const COMM: usize = 15;

#[derive(Debug, Clone, Default)]
pub struct Index {
    /// Unit names without wildcards. Of several agents with one name the last wins: that is the user's.
    exact: HashMap<String, usize>,
    /// All other patterns, the most specific first.
    wild: Vec<Wild>,
    /// By the full name of a program, and by what the kernel keeps of it.
    processes: HashMap<String, Vec<usize>>,
}

#[derive(Debug, Clone)]
struct Wild {
    pattern: String,
    /// The text before its first wildcard, which rules out most names.
    prefix: String,
    agent: usize,
}

impl Index {
    pub fn of(agents: &[Arc<Agent>]) -> Index {
        let mut index = Index::default();
        for (i, agent) in agents.iter().enumerate() {
            for pattern in &agent.units {
                match pattern.find(['*', '?', '[']) {
                    None => {
                        index.exact.insert(pattern.clone(), i);
                    }
                    Some(at) => {
                        let prefix = pattern[..at].to_owned();
                        index.wild.push(Wild { pattern: pattern.clone(), prefix, agent: i });
                    }
                }
            }
            for process in &agent.processes {
                let short: String = process.chars().take(COMM).collect();
                for name in [process.clone(), short] {
                    let agents = index.processes.entry(name).or_default();
                    if !agents.contains(&i) {
                        agents.push(i);
                    }
                }
            }
        }
        let specific = |pattern: &str| pattern.chars().filter(|c| !"*?[]".contains(*c)).count();
        index.wild.order_by_key(|w| std::cmp::Reverse((specific(&w.pattern), w.agent)));
        index
    }

    pub fn of_unit(&self, unit: &str) -> Option<usize> {
        let wild = || self.wild.iter().find(|w| unit.starts_with(&w.prefix) && glob_matches(&w.pattern, unit));
        self.exact.get(unit).copied().or_else(|| wild().map(|w| w.agent))
    }

    pub fn of_process(&self, name: &str) -> impl Iterator<Item = usize> + '_ {
        self.processes.get(name).into_iter().flatten().copied()
    }
}
