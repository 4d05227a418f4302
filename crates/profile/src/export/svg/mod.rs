//! A flame graph as one self-contained SVG file: zoom, search and details in any browser, and a plain picture where scripts do
//! not run.
//!
//! The file holds the graph twice: as shapes for boxes wide enough to be seen initially, and as compact numbers that the script
//! draws from. So the file is small, and zooming shows frames that were too narrow before.

mod boxes;
mod page;
mod text;

#[cfg(test)]
mod tests;

use std::io::{self, Write};

use crate::model::FramePlace;
use crate::views::diff::DiffTree;
use crate::views::flame::FlameTree;
use boxes::{BoxKind, BoxNode, Picture};
use coroner_evidence::Order;
use page::Words;
use text::{amount, percent, points, shorten, thousands};

#[derive(Clone, Debug)]
pub struct SvgOptions {
    pub title: String,
    /// What was selected: event, range, filters.
    pub subtitle: String,
    /// Pixels if no script runs; otherwise the picture is as wide as its window.
    pub width: u32,
    /// Root at the top.
    pub icicle: bool,
    /// The unit of the weights: "ns" is shown as time, anything else as a number.
    pub unit: String,
    /// At most this many boxes, the widest: 20,000 make a file of about 1 MB. The picture says what was omitted.
    pub max_boxes: usize,
}

impl Default for SvgOptions {
    fn default() -> SvgOptions {
        SvgOptions {
            title: "Flame graph".to_owned(),
            subtitle: String::new(),
            width: 1200,
            icicle: false,
            unit: "samples".to_owned(),
            max_boxes: 20_000,
        }
    }
}

/// Draws a flame graph.
pub fn write(tree: &FlameTree, options: &SvgOptions, to: impl Write) -> io::Result<()> {
    let node = |at: u32| {
        let node = &tree.nodes[at as usize];
        let name = tree.name(at);
        BoxNode {
            name: boxes::without_mark(name),
            kind: kind(name, node.place, node.inlined),
            shade: boxes::shade(name),
            now: (node.total, node.own),
            was: (0, 0),
            children: &node.children,
        }
    };
    let picture = Picture::new(tree.nodes.len(), node, (tree.total(), 0), options.max_boxes);
    let mut facts = Vec::new();
    if options.unit != "samples" {
        facts.push(format!("{} samples", thousands(tree.samples)));
    }
    facts.push(amount(tree.total(), &options.unit));
    facts.push(format!("{} frames", thousands(tree.nodes.len() as u64 - 1)));
    let notes = vec![picture.left_out_note()];
    page::write(&picture, options, &Words { facts, notes, scale: None }, to)
}

/// Draws a difference: widths are current shares, red grew, blue shrank, deeper means more. What is gone has no width: the largest
/// are named below the picture, and a button switches to the widths of the baseline.
pub fn write_diff(tree: &DiffTree, options: &SvgOptions, to: impl Write) -> io::Result<()> {
    let largest = tree.nodes.iter().map(|node| node.change().abs()).fold(0.0, f64::max);
    let weight = |share: f64, total: u64| (share * total as f64).round() as u64;
    let (was, now) = (tree.total_before, tree.total_after);
    let node = |at: u32| {
        let node = &tree.nodes[at as usize];
        let (kind, shade) = boxes::change(node.change(), largest);
        BoxNode {
            name: boxes::without_mark(tree.labels.get(node.label)),
            kind,
            shade,
            now: (weight(node.after, now), weight(node.own_after, now)),
            was: (weight(node.before, was), weight(node.own_before, was)),
            children: &node.children,
        }
    };
    let picture = Picture::new(tree.nodes.len(), node, (now, was), options.max_boxes);
    let facts = vec![
        format!("baseline {}", amount(was, &options.unit)),
        format!("now {}", amount(now, &options.unit)),
        format!("{} frames", thousands((tree.nodes.len() as u64).saturating_sub(1))),
    ];
    let notes = [gone_note(tree), Some(picture.left_out_note())].into_iter().flatten().collect();
    page::write(&picture, options, &Words { facts, notes, scale: Some(points(largest)) }, to)
}

/// How many vanished frames the note names.
const GONE_NAMED: usize = 5;
const GONE_LETTERS: usize = 60;

/// Names what is only in the baseline: of each stack, the frame nearest to the root.
fn gone_note(tree: &DiffTree) -> Option<String> {
    if tree.total_before == 0 || tree.total_after == 0 {
        let side = if tree.total_before == 0 { "baseline" } else { "other side" };
        return Some(format!("The {side} has no samples."));
    }
    let mut gone: Vec<_> = tree
        .nodes
        .iter()
        .filter(|node| node.after > 0.0)
        .flat_map(|node| &node.children)
        .map(|child| &tree.nodes[*child as usize])
        .filter(|node| node.after == 0.0 && node.before > 0.0)
        .collect();
    if gone.is_empty() {
        return None;
    }
    gone.order_by(|a, b| b.before.total_cmp(&a.before));
    let all: f64 = gone.iter().map(|node| node.before).sum();
    let named: Vec<String> = gone
        .iter()
        .take(GONE_NAMED)
        .map(|node| {
            let name = shorten(boxes::without_mark(tree.labels.get(node.label)), GONE_LETTERS);
            format!("{name} {}", percent(node.before))
        })
        .collect();
    let others = match gone.len().saturating_sub(GONE_NAMED) {
        0 => String::new(),
        n => format!(" and {} others, {} together", thousands(n as u64), percent(all)),
    };
    Some(format!("Only in the baseline: {}{others}.", named.join(", ")))
}

fn kind(name: &str, place: Option<FramePlace>, inlined: bool) -> BoxKind {
    match place {
        None => BoxKind::Command,
        Some(_) if name == "[unknown]" => BoxKind::Unknown,
        Some(_) if inlined || name.ends_with("_[i]") => BoxKind::Inlined,
        Some(FramePlace::User) => BoxKind::User,
        Some(FramePlace::Jit) => BoxKind::Jit,
        Some(FramePlace::Kernel) => BoxKind::Kernel,
    }
}
