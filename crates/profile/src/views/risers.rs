//! Risers: the commands and kernel functions whose share of the busy time rose most against a baseline. In a flame graph of a
//! loaded node an agent that went from under 1 % to 6 % is invisible; here it is the first line.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Kind, Kinds};
use crate::model::{Dictionary, Place, Sample, StackId, StrId, Strings};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Command,
    /// A kernel function and everything it called.
    KernelSymbol,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Riser {
    pub what: What,
    pub name: String,
    /// Shares of the weight that is not idle, between 0 and 1.
    pub baseline: f64,
    pub now: f64,
}

impl Riser {
    pub fn rise(&self) -> f64 {
        self.now - self.baseline
    }
}

/// Who had how much of the time that is not idle.
#[derive(Clone, Debug, Default)]
pub struct BusyShares {
    kinds: Kinds,
    commands: HashMap<StrId, u64>,
    stacks: HashMap<StackId, u64>,
    total: u64,
}

impl BusyShares {
    pub fn add(&mut self, names: &Dictionary, sample: &Sample) {
        if self.kinds.kind(names, sample) == Kind::Idle {
            return;
        }
        let command = self.commands.entry(names.task(sample.task).comm).or_default();
        *command = command.saturating_add(sample.period);
        let stack = self.stacks.entry(sample.stack).or_default();
        *stack = stack.saturating_add(sample.period);
        self.total = self.total.saturating_add(sample.period);
    }

    /// Shares by what they are shares of, between 0 and 1.
    fn shares(&self, names: &Dictionary) -> HashMap<(What, String), f64> {
        let mut symbols: HashMap<StrId, u64> = HashMap::new();
        let mut in_stack: Vec<StrId> = Vec::new();
        for (stack, weight) in &self.stacks {
            in_stack.clear();
            for id in names.stacks.leaf_first(*stack) {
                let frame = names.frames.get(id);
                if frame.place == Place::Kernel && frame.symbol != Strings::EMPTY {
                    in_stack.push(frame.symbol);
                }
            }
            // A function that called itself counts once.
            in_stack.sort_unstable();
            in_stack.dedup();
            for symbol in &in_stack {
                let sum = symbols.entry(*symbol).or_default();
                *sum = sum.saturating_add(*weight);
            }
        }
        let commands = self.commands.iter().map(|(comm, weight)| (What::Command, comm, weight));
        let symbols = symbols.iter().map(|(symbol, weight)| (What::KernelSymbol, symbol, weight));
        commands
            .chain(symbols)
            .map(|(what, name, weight)| {
                ((what, names.strings.get(*name).to_owned()), *weight as f64 / self.total.max(1) as f64)
            })
            .collect()
    }
}

/// The `most` risers, the largest rise first. A side without samples has shares of 0.
pub fn find(baseline: (&Dictionary, &BusyShares), now: (&Dictionary, &BusyShares), most: usize) -> Vec<Riser> {
    let before = baseline.1.shares(baseline.0);
    let mut risers: Vec<Riser> = now
        .1
        .shares(now.0)
        .into_iter()
        .map(|(key, now)| {
            let baseline = before.get(&key).copied().unwrap_or(0.0);
            Riser { what: key.0, name: key.1, baseline, now }
        })
        .filter(|riser| riser.rise() > 0.0)
        .collect();
    risers.sort_by(|a, b| b.rise().total_cmp(&a.rise()).then_with(|| (a.what, &a.name).cmp(&(b.what, &b.name))));
    risers.truncate(most);
    risers
}
