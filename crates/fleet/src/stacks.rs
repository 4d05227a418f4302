//! The stacks of nodes, as shares: those of one set of nodes, or of two sets against each other.

use crate::answers::NodeSummary;
use crate::ingest::printable;
use crate::query::{self, BadExpr, Expr};
use crate::store::Reader;
use crate::store::read::wall;
use crate::store::stacks::{Side, StackCounts};
use coroner_report::Wall;
use coroner_report::stacks::SMALLER;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub const SCHEMA: &str = "coroner.fleet.stacks/1";
/// Stacks of an answer, unless more are asked for.
pub const USUAL_STACKS: usize = 1000;
pub const MOST_LISTED: usize = 5000;
/// Stacks of a picture.
pub const MOST_DRAWN: usize = 20_000;
const MOST_FUNCTIONS: usize = 30;

/// `GET /api/v1/stacks`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetStacks {
    /// `coroner.fleet.stacks/1`
    pub schema: String,
    pub at: Wall,
    pub from: Wall,
    pub a: Cohort,
    /// What `a` is compared with.
    pub b: Option<Cohort>,
    /// The heaviest of either side first.
    pub stacks: Vec<StackShare>,
    pub left_out: LeftOut,
    /// Of the samples that end in them; where the sides differ most first, or the largest first.
    pub functions: Vec<FunctionShare>,
    /// Every Nth ten minutes were read, as there were so many.
    pub one_slot_in: u64,
}

/// The nodes of one side.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cohort {
    /// The expression; `None` for all nodes.
    #[serde(rename = "where")]
    pub matching: Option<String>,
    pub matched: u64,
    /// Of them, those that sent stacks in this time.
    pub nodes: u64,
    pub samples: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StackShare {
    pub stack: String,
    pub a: Part,
    pub b: Option<Part>,
}

/// Of one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    /// 0 to 1, of the side's samples.
    pub share: f64,
    pub samples: u64,
    /// That had it among their heaviest, if that was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
}

/// What is not in the list: stacks beyond its limit, and those that nodes did not name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    pub stacks: u64,
    pub share_a: f64,
    pub share_b: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FunctionShare {
    pub function: String,
    pub share_a: f64,
    pub share_b: Option<f64>,
}

/// What is asked: parameters of the request.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    pub a: Option<String>,
    pub b: Option<String>,
    pub since: i64,
    /// Stacks in the answer.
    pub most: usize,
    /// How many nodes had each costs a second look at all.
    pub with_nodes: bool,
}

#[derive(Debug)]
pub enum NoStacks {
    Bad(String, BadExpr),
    NoNode { expression: Option<String>, known: usize },
    NoneSent { expression: Option<String>, matched: u64, minutes: i64 },
    Overlap { count: usize, example: String },
    Db(anyhow::Error),
}

impl From<anyhow::Error> for NoStacks {
    fn from(error: anyhow::Error) -> NoStacks {
        NoStacks::Db(error)
    }
}

pub fn stacks(reader: &Reader, asked: &Asked, now: i64) -> Result<FleetStacks, NoStacks> {
    let nodes = reader.nodes_by_id(now)?;
    let picked = |expression: &Option<String>| -> Result<BTreeSet<i64>, NoStacks> {
        let parsed = expression.as_deref().map(query::parse).transpose();
        let bad = |bad| NoStacks::Bad(expression.clone().unwrap_or_default(), bad);
        let parsed = parsed.map_err(bad)?;
        if let Some(expr) = &parsed {
            expr.check(nodes.iter().map(|(_, node)| node)).map_err(bad)?;
        }
        let is_in =
            |node: &NodeSummary| parsed.as_ref().is_none_or(|expr: &Expr| expr.matches(node, now) == Some(true));
        let ids: BTreeSet<i64> = nodes.iter().filter(|(_, node)| is_in(node)).map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return Err(NoStacks::NoNode { expression: expression.clone(), known: nodes.len() });
        }
        Ok(ids)
    };
    let a = picked(&asked.a)?;
    let b = asked.b.is_some().then(|| picked(&asked.b)).transpose()?;
    let common: Vec<&i64> = b.iter().flat_map(|b| a.intersection(b)).collect();
    if let Some(first) = common.first() {
        let example = nodes.iter().find(|(id, _)| id == *first).map(|(_, node)| node);
        let example = example.map(|node| node.name().to_owned()).unwrap_or_default();
        return Err(NoStacks::Overlap { count: common.len(), example });
    }
    let of = |ids: &BTreeSet<i64>, side: Side| ids.iter().map(|id| (*id, side)).collect::<Vec<_>>();
    let sides: HashMap<i64, Side> = of(&a, Side::A).into_iter().chain(b.iter().flat_map(|b| of(b, Side::B))).collect();
    let since = asked.since.max(0);
    let counts = reader.stack_counts(&sides, since, now)?;
    let cohort = |expression: &Option<String>, matched: usize, side: Side| {
        let (nodes, samples) = (counts.nodes[side as usize], counts.samples[side as usize]);
        if samples == 0 {
            let (expression, minutes) = (expression.clone(), (now - since) / 60);
            return Err(NoStacks::NoneSent { expression, matched: matched as u64, minutes });
        }
        Ok(Cohort { matching: expression.clone(), matched: matched as u64, nodes, samples })
    };
    let side_a = cohort(&asked.a, a.len(), Side::A)?;
    let side_b = b.as_ref().map(|b| cohort(&asked.b, b.len(), Side::B)).transpose()?;
    let heaviest = heaviest(&counts, asked.most);
    let ids: Vec<i64> = heaviest.iter().map(|(id, _)| *id).collect();
    let nodes_of = if asked.with_nodes { reader.stack_nodes(&sides, &ids, since, now)? } else { Vec::new() };
    let mut texts = reader.stack_texts(&ids)?;
    let mut stacks = Vec::with_capacity(heaviest.len());
    for (at, (id, samples)) in heaviest.iter().enumerate() {
        let part = |side: Side| {
            let samples = samples[side as usize];
            let nodes = nodes_of.get(at).map(|nodes| nodes[side as usize]);
            Part { share: share(samples, counts.samples[side as usize]), samples, nodes }
        };
        // A text lives longer than the samples that refer to it.
        let Some(stack) = texts.remove(id) else { continue };
        stacks.push(StackShare { stack, a: part(Side::A), b: side_b.as_ref().map(|_| part(Side::B)) });
    }
    // Ids are those of a store.
    let weight = |stack: &StackShare| stack.a.share.max(stack.b.map_or(0.0, |b| b.share));
    stacks.sort_by(|x: &StackShare, y| weight(y).total_cmp(&weight(x)).then_with(|| x.stack.cmp(&y.stack)));
    let left = |part: fn(&StackShare) -> f64| (1.0 - stacks.iter().map(part).sum::<f64>()).max(0.0);
    let share_a = left(|stack| stack.a.share);
    let share_b = left(|stack| stack.b.map_or(0.0, |b| b.share));
    Ok(FleetStacks {
        schema: SCHEMA.to_owned(),
        at: wall(now),
        from: wall(since),
        left_out: LeftOut {
            stacks: (counts.stacks.len() - stacks.len()) as u64,
            share_a,
            share_b: side_b.is_some().then_some(share_b),
        },
        functions: functions(&stacks, side_b.is_some()),
        a: side_a,
        b: side_b,
        stacks,
        one_slot_in: counts.one_slot_in,
    })
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// By the larger share of the two sides.
fn heaviest(counts: &StackCounts, most: usize) -> Vec<(i64, [u64; 2])> {
    let weight = |samples: &[u64; 2]| share(samples[0], counts.samples[0]).max(share(samples[1], counts.samples[1]));
    let mut all: Vec<(i64, [u64; 2])> = counts.stacks.iter().map(|(id, samples)| (*id, *samples)).collect();
    all.sort_unstable_by(|(a, x), (b, y)| weight(y).total_cmp(&weight(x)).then(a.cmp(b)));
    all.truncate(most);
    all
}

/// Shares of the functions that stacks end in.
fn functions(stacks: &[StackShare], is_difference: bool) -> Vec<FunctionShare> {
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for stack in stacks {
        let Some(leaf) = stack.stack.rsplit(';').next().filter(|leaf| *leaf != SMALLER) else { continue };
        let sum = sums.entry(leaf).or_default();
        sum.0 += stack.a.share;
        sum.1 += stack.b.map_or(0.0, |b| b.share);
    }
    let mut sums: Vec<(&str, (f64, f64))> = sums.into_iter().collect();
    let size = |(a, b): (f64, f64)| if is_difference { (a - b).abs() } else { a };
    sums.sort_by(|x, y| size(y.1).total_cmp(&size(x.1)));
    let of = |(function, (share_a, share_b)): (&str, (f64, f64))| FunctionShare {
        function: function.to_owned(),
        share_a,
        share_b: is_difference.then_some(share_b),
    };
    sums.into_iter().take(MOST_FUNCTIONS).map(of).collect()
}

impl Cohort {
    /// `412 of 438 nodes with zombies>1000, 1,203,441 samples`
    pub fn words(&self) -> String {
        let nodes = if self.nodes == self.matched {
            crate::commands::plural(self.nodes, "node")
        } else {
            format!("{} of {}", crate::commands::grouped(self.nodes), crate::commands::plural(self.matched, "node"))
        };
        let of = match &self.matching {
            Some(expression) => format!(" with {}", printable(expression)),
            None => String::new(),
        };
        format!("{nodes}{of}, {}", crate::commands::plural(self.samples, "sample"))
    }
}

#[cfg(test)]
mod tests;
