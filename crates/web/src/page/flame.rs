//! Flame graphs in columns: `coroner.flame/1` at a tenth of its size, without frames too small to see.

use super::api::{most_read, refused, samples};
use super::parallel;
use super::question::{rest, selection, share};
use super::shown::Shown;
use crate::documents::flame::{self as flame_json, FlameHead};
use crate::documents::{SourceJson, source_json};
use anyhow::Context;
use coroner_http::{Answer, ApiQuery, Refusal};
use coroner_profile::import::Picked;
use coroner_profile::model::{FramePlace, StrId, Strings};
use coroner_profile::views::diff;
use coroner_profile::views::flame::FlameTree;
use coroner_profile::views::risers::Riser;
use coroner_source::profile::ProfileSource;
use coroner_source::profile::flame::{Side, find_risers, read_part, read_side};
use coroner_source::profile::select::Selection;
use serde::Serialize;
use std::collections::HashMap;

/// Smaller nodes are left out by default: half a pixel in a thousand.
const MIN_SHARE: f64 = 0.0005;

#[derive(Serialize)]
struct Flame<'a> {
    #[serde(flatten)]
    head: FlameHead<'a>,
    /// Samples of idle cores that were left out, and their weight.
    idle: u64,
    idle_total: u64,
    /// The fraction of the selected samples that was read.
    part: f64,
    pruned: Pruned,
    names: Vec<&'a str>,
    nodes: Nodes,
}

/// What was too small to show.
#[derive(Serialize)]
struct Pruned {
    min_share: f64,
    nodes: usize,
}

/// A node has the same position in all of these.
#[derive(Default, Serialize)]
struct Nodes {
    /// Position in `names`.
    name: Vec<u32>,
    /// -1 for the root, which is first. Children come after their parent.
    parent: Vec<i64>,
    place: Vec<&'static str>,
    total: Vec<u64>,
    own: Vec<u64>,
}

/// Distinct labels by position.
struct Names<'a> {
    labels: &'a Strings,
    known: HashMap<StrId, u32>,
    names: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn of(labels: &'a Strings) -> Names<'a> {
        Names { labels, known: HashMap::new(), names: Vec::new() }
    }

    fn number(&mut self, label: StrId) -> u32 {
        let (labels, names) = (self.labels, &mut self.names);
        *self.known.entry(label).or_insert_with(|| {
            names.push(labels.get(label));
            (names.len() - 1) as u32
        })
    }
}

fn place(place: Option<FramePlace>) -> &'static str {
    match place {
        Some(FramePlace::User) => "u",
        Some(FramePlace::Kernel) => "k",
        Some(FramePlace::Jit) => "j",
        None => "",
    }
}

/// The kept nodes and their new positions, parents first. A kept node's parent is kept.
fn kept<'t>(children: impl Fn(usize) -> &'t [u32], nodes: usize, is_kept: impl Fn(usize) -> bool) -> Vec<(usize, i64)> {
    let mut found: Vec<(usize, i64)> = Vec::new();
    if nodes == 0 {
        return found;
    }
    found.push((0, -1));
    let mut at = 0;
    while at < found.len() {
        let (node, _) = found[at];
        found
            .extend(children(node).iter().map(|child| *child as usize).filter(|c| is_kept(*c)).map(|c| (c, at as i64)));
        at += 1;
    }
    found
}

pub fn answer(shown: &Shown, ask: &ApiQuery) -> Result<Answer, Refusal> {
    let selection = selection(ask, shown, "")?;
    let (source, part) = samples(shown, ask, &selection, most_read(ask))?;
    let inverted = ask.is_set("invert");
    let min_share = share(ask, "min", MIN_SHARE)?;
    let is_whole = ask.is_set("exact") || ask.get("shape") == Some("tree");
    let least = if is_whole { 0.0 } else { min_share };
    let read = read_together(shown, &source, &selection, ask.is_set("idle"), (inverted, least));
    let (side, tree) = read.map_err(refused)?;
    if ask.get("shape") == Some("tree") {
        return Ok(Answer::text(flame_json::flame(&side, &tree, inverted)));
    }
    let least = (min_share * tree.total() as f64).ceil() as u64;
    let places = kept(|at| &tree.nodes[at].children, tree.nodes.len(), |at| tree.nodes[at].total >= least.max(1));
    let mut names = Names::of(&tree.labels);
    let mut nodes = Nodes::default();
    for (at, parent) in &places {
        let node = &tree.nodes[*at];
        nodes.name.push(names.number(node.label));
        nodes.parent.push(*parent);
        nodes.place.push(place(node.place));
        nodes.total.push(node.total);
        nodes.own.push(node.own);
    }
    Ok(Answer::json(&Flame {
        head: flame_json::head("coroner.flame-columns/1", &side, &tree, inverted),
        idle: side.idle,
        idle_total: side.idle_total,
        part,
        pruned: Pruned { min_share, nodes: tree.nodes.len() - places.len() + tree.left_out },
        names: names.names,
        nodes,
    }))
}

/// Two threads share the segments of a directory.
const THREADS: u32 = 2;

fn read_together(
    shown: &Shown,
    source: &ProfileSource,
    selection: &Selection,
    with_idle: bool,
    (inverted, least): (bool, f64),
) -> anyhow::Result<(Side, FlameTree)> {
    let turns = if shown.is_directory() { THREADS } else { 1 };
    let turn: Vec<u32> = (0..turns).collect();
    let parts = parallel::each(&turn, |turn| -> anyhow::Result<(Side, FlameTree)> {
        let picked = Picked { turn: *turn, turns, in_any_order: true, ..source.picked };
        let source = ProfileSource { picked, ..source.clone() };
        let side = read_part(&source, selection, with_idle, false)?;
        let tree = side.large(inverted, least);
        Ok((side, tree))
    });
    let parts = parts.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let (side, tree) = Side::joined(parts, inverted).context("nothing was read")?;
    Ok((side.must_have_samples(selection)?, tree))
}

#[derive(Serialize)]
struct Difference<'a> {
    schema: &'static str,
    source: SourceJson<'a>,
    baseline: SourceJson<'a>,
    event: &'a str,
    baseline_event: &'a str,
    unit: &'static str,
    inverted: bool,
    total: u64,
    baseline_total: u64,
    idle: u64,
    baseline_idle: u64,
    /// The fractions of the selected samples that were read.
    part: f64,
    baseline_part: f64,
    pruned: Pruned,
    risers: &'a [Riser],
    names: Vec<&'a str>,
    nodes: DifferenceNodes,
}

/// Shares of each side's total, between 0 and 1.
#[derive(Default, Serialize)]
struct DifferenceNodes {
    name: Vec<u32>,
    parent: Vec<i64>,
    place: Vec<&'static str>,
    baseline: Vec<f64>,
    now: Vec<f64>,
    own_baseline: Vec<f64>,
    own_now: Vec<f64>,
}

pub fn difference(shown: &Shown, ask: &ApiQuery) -> Result<Answer, Refusal> {
    let now = selection(ask, shown, "")?;
    let before = match ask.get("base") {
        Some("rest") => rest(&now, shown.axis(), shown.whole()),
        Some(other) => return Err(Refusal::bad(format!("base={other}: expected rest"), "or base_from and base_to")),
        None => {
            // Filters not given for the baseline are those of the selection; its times are not.
            let base = selection(ask, shown, "base_")?;
            let mut before = Selection { range: base.range, ..now.clone() };
            if base.band.is_some() {
                before.band = base.band;
            }
            if !base.core.is_empty() {
                before.core = base.core;
            }
            for (ours, theirs) in [(&mut before.pid, base.pid), (&mut before.tid, base.tid)] {
                if !theirs.is_empty() {
                    *ours = theirs;
                }
            }
            if !base.comm.is_empty() {
                before.comm = base.comm;
            }
            before.cgroup = base.cgroup.or(before.cgroup);
            before.symbol = base.symbol.or(before.symbol);
            before
        }
    };
    if before.range.is_empty() && !now.range.is_empty() && ask.get("base") == Some("rest") {
        return Err(Refusal::bad("everything is selected: there is no rest to compare with", "select a part first"));
    }
    let (inverted, with_idle) = (ask.is_set("invert"), ask.is_set("idle"));
    let side = |selection: &_| -> Result<(Side, f64), Refusal> {
        let (source, part) = samples(shown, ask, selection, most_read(ask) / 2)?;
        let picked = Picked { in_any_order: true, ..source.picked };
        let source = ProfileSource { picked, ..source };
        Ok((read_side(&source, selection, with_idle, false).map_err(refused)?, part))
    };
    let mut both = parallel::each(&[&before, &now], |selection| side(selection)).into_iter();
    let (Some(before), Some(after)) = (both.next(), both.next()) else {
        return Err(Refusal::failed("nothing was read"));
    };
    let ((before, baseline_part), (after, part)) = (before?, after?);
    if before.read.selected == 0 && after.read.selected == 0 {
        return Err(Refusal::absent("no samples in the selection or in the baseline", "choose other ranges"));
    }
    let tree = diff::diff(&before.tree(inverted), &after.tree(inverted));
    let risers = find_risers(&before, &after);
    let min_share = share(ask, "min", MIN_SHARE)?;
    let size = |at: usize| tree.nodes[at].before.max(tree.nodes[at].after);
    let places = kept(|at| &tree.nodes[at].children, tree.nodes.len(), |at| size(at) >= min_share && size(at) > 0.0);
    let mut names = Names::of(&tree.labels);
    let mut nodes = DifferenceNodes::default();
    let rounded = |share: f64| (share * 1e6).round() / 1e6;
    for (at, parent) in &places {
        let node = &tree.nodes[*at];
        nodes.name.push(names.number(node.label));
        nodes.parent.push(*parent);
        nodes.place.push(place(node.place));
        nodes.baseline.push(rounded(node.before));
        nodes.now.push(rounded(node.after));
        nodes.own_baseline.push(rounded(node.own_before));
        nodes.own_now.push(rounded(node.own_after));
    }
    Ok(Answer::json(&Difference {
        schema: "coroner.flame-difference-columns/1",
        source: source_json(&after.read),
        baseline: source_json(&before.read),
        event: after.event_name(),
        baseline_event: before.event_name(),
        unit: after.unit(),
        inverted,
        total: tree.total_after,
        baseline_total: tree.total_before,
        idle: after.idle,
        baseline_idle: before.idle,
        part,
        baseline_part,
        pruned: Pruned { min_share, nodes: tree.nodes.len() - places.len() },
        risers: &risers,
        names: names.names,
        nodes,
    }))
}
