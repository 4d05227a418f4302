//! Risers: the commands and kernel functions whose share of the busy time rose most against a baseline. In a flame graph of a
//! loaded node an agent that went from under 1 % to 6 % is invisible; here it is the first line.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Kind, Kinds, Selection};
use crate::model::{Place, StackId};

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

type Shares = HashMap<(What, String), u64>;

/// The `most` risers, the largest rise first. A side without samples has shares of 0.
pub fn find(baseline: &Selection<'_>, now: &Selection<'_>, kinds: (&Kinds<'_>, &Kinds<'_>), most: usize) -> Vec<Riser> {
    let (before, total_before) = shares(baseline, kinds.0);
    let (after, total_after) = shares(now, kinds.1);
    let share = |weight: u64, total: u64| if total == 0 { 0.0 } else { weight as f64 / total as f64 };
    let mut risers: Vec<Riser> = after
        .into_iter()
        .map(|((what, name), weight)| {
            let key = (what, name);
            let baseline = share(before.get(&key).copied().unwrap_or(0), total_before);
            Riser { what, name: key.1, baseline, now: share(weight, total_after) }
        })
        .filter(|riser| riser.rise() > 0.0)
        .collect();
    risers.sort_by(|a, b| b.rise().total_cmp(&a.rise()).then_with(|| (a.what, &a.name).cmp(&(b.what, &b.name))));
    risers.truncate(most);
    risers
}

fn shares(selection: &Selection<'_>, kinds: &Kinds<'_>) -> (Shares, u64) {
    let profile = selection.profile();
    let mut commands: HashMap<u32, u64> = HashMap::new();
    let mut stacks: HashMap<u32, u64> = HashMap::new();
    let mut total = 0u64;
    for sample in selection.samples().filter(|sample| kinds.kind(sample) != Kind::Idle) {
        *commands.entry(profile.task(sample.task).comm.0).or_default() += sample.period;
        *stacks.entry(sample.stack.0).or_default() += sample.period;
        total = total.saturating_add(sample.period);
    }
    let mut shares = Shares::new();
    for (comm, weight) in commands {
        shares.insert((What::Command, profile.strings.get(crate::model::StrId(comm)).to_owned()), weight);
    }
    let mut symbols: HashMap<u32, u64> = HashMap::new();
    let mut in_stack: Vec<u32> = Vec::new();
    for (stack, weight) in stacks {
        in_stack.clear();
        for id in profile.stacks.leaf_first(StackId(stack)) {
            let frame = profile.frames.get(id);
            if frame.place == Place::Kernel && frame.symbol != crate::model::Strings::EMPTY {
                in_stack.push(frame.symbol.0);
            }
        }
        // A function that called itself counts once.
        in_stack.sort_unstable();
        in_stack.dedup();
        for symbol in &in_stack {
            *symbols.entry(*symbol).or_default() += weight;
        }
    }
    for (symbol, weight) in symbols {
        shares.insert((What::KernelSymbol, profile.strings.get(crate::model::StrId(symbol)).to_owned()), weight);
    }
    (shares, total)
}
