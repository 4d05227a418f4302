//! Flame graphs as JSON: a flat list of nodes, since stacks can be deeper than parsers of nested documents allow.

use super::{SourceJson, source_json};
use coroner_profile::model::FramePlace;
use coroner_profile::views::diff::DiffTree;
use coroner_profile::views::flame::FlameTree;
use coroner_profile::views::risers::Riser;
use coroner_source::profile::flame::Side;
use serde::Serialize;

/// The common start of all flame graph documents, whatever the shape of their nodes.
#[derive(Serialize)]
pub struct FlameHead<'a> {
    schema: &'static str,
    source: SourceJson<'a>,
    event: &'a str,
    unit: &'static str,
    inverted: bool,
    samples: u64,
    total: u64,
}

pub fn head<'a>(schema: &'static str, side: &'a Side, tree: &FlameTree, inverted: bool) -> FlameHead<'a> {
    FlameHead {
        schema,
        source: source_json(&side.read),
        event: side.event_name(),
        unit: side.unit(),
        inverted,
        samples: tree.samples,
        total: tree.total(),
    }
}

#[derive(Serialize)]
struct Flame<'a> {
    #[serde(flatten)]
    head: FlameHead<'a>,
    nodes: Vec<FlameNode<'a>>,
}

#[derive(Serialize)]
struct FlameNode<'a> {
    /// Position of the parent; `None` for the root, which is first.
    parent: Option<u32>,
    name: &'a str,
    /// Whose code; `None` for the root and for commands.
    place: Option<FramePlace>,
    total: u64,
    own: u64,
}

pub fn flame(side: &Side, tree: &FlameTree, inverted: bool) -> String {
    let mut nodes: Vec<FlameNode<'_>> = (0..tree.nodes.len() as u32)
        .map(|at| {
            let node = &tree.nodes[at as usize];
            FlameNode { parent: None, name: tree.name(at), place: node.place, total: node.total, own: node.own }
        })
        .collect();
    for (at, node) in tree.nodes.iter().enumerate() {
        for child in &node.children {
            nodes[*child as usize].parent = Some(at as u32);
        }
    }
    super::long_document(&Flame { head: head("coroner.flame/1", side, tree, inverted), nodes })
}

#[derive(Serialize)]
struct Difference<'a> {
    schema: &'static str,
    source: SourceJson<'a>,
    baseline: SourceJson<'a>,
    event: &'a str,
    unit: &'static str,
    total: u64,
    baseline_total: u64,
    risers: &'a [Riser],
    nodes: Vec<DifferenceNode<'a>>,
}

/// Shares of each side's total, between 0 and 1.
#[derive(Serialize)]
struct DifferenceNode<'a> {
    parent: Option<u32>,
    name: &'a str,
    place: Option<FramePlace>,
    baseline: f64,
    now: f64,
    own_baseline: f64,
    own_now: f64,
}

pub fn difference(before: &Side, after: &Side, tree: &DiffTree, risers: &[Riser]) -> String {
    let mut nodes: Vec<DifferenceNode<'_>> = tree
        .nodes
        .iter()
        .map(|node| DifferenceNode {
            parent: None,
            name: tree.labels.get(node.label),
            place: node.place,
            baseline: node.before,
            now: node.after,
            own_baseline: node.own_before,
            own_now: node.own_after,
        })
        .collect();
    for (at, node) in tree.nodes.iter().enumerate() {
        for child in &node.children {
            nodes[*child as usize].parent = Some(at as u32);
        }
    }
    super::long_document(&Difference {
        schema: "coroner.flame-difference/1",
        source: source_json(&after.read),
        baseline: source_json(&before.read),
        event: after.event_name(),
        unit: after.unit(),
        total: tree.total_after,
        baseline_total: tree.total_before,
        risers,
        nodes,
    })
}
