//! Flame graphs in the terminal: the widest stacks as an indented tree, and the functions with the highest own cost.

use super::{counted, footer, header, shortened, thousands, weight};
use crate::output::safe::one_line;
use crate::output::terminal::{bold, by_load, dim};
use coroner_profile::import::Format;
use coroner_profile::views::diff::DiffTree;
use coroner_profile::views::flame::FlameTree;
use coroner_profile::views::risers::{Riser, RiserKind};
use coroner_source::profile::flame::Side;
use std::collections::HashMap;
use std::fmt::Write;

/// Lines of the tree; narrower stacks are left out.
const LINES: usize = 40;
const FUNCTIONS: usize = 10;
/// Deeper levels are not indented further.
const MOST_INDENT: usize = 30;

pub fn flame(side: &Side, tree: &FlameTree, inverted: bool, width: usize) -> String {
    let mut out = header(&side.read, &side.selection, width);
    let total = tree.total().max(1) as f64;
    let event = side.event_name();
    let weight = weight(side.is_clock(), tree.total());
    let mut shown = match side.read.format {
        Format::Folded => format!("weight {weight}"),
        _ => format!("{event}, {weight} in {}", counted(tree.samples, "sample")),
    };
    if side.idle > 0 {
        let (idle, busy) = (side.idle_total as f64, tree.total() as f64);
        shown.push_str(&format!("; in addition, cores were idle for {:.1} % of all", 100.0 * idle / (idle + busy)));
    }
    let _ = writeln!(out, "\n{}", bold(&one_line(&shown)));
    others(side, &mut out);
    let least = narrowest(tree, LINES);
    let mut open = vec![(0u32, 0usize)];
    while let Some((at, level)) = open.pop() {
        // A function that calls only one other shares its line.
        let mut chain = vec![at];
        let mut last = at;
        while let [only] = shown_children(tree, last, least)[..] {
            let (node, child) = (&tree.nodes[last as usize], &tree.nodes[only as usize]);
            if last == 0 || (child.total as f64) < 0.995 * node.total as f64 {
                break;
            }
            chain.push(only);
            last = only;
        }
        if at != 0 {
            let share = tree.nodes[at as usize].total as f64 / total;
            let names: Vec<&str> = chain.iter().map(|node| tree.name(*node)).collect();
            line(&mut out, share, level, &names, width);
        }
        let mut children = shown_children(tree, last, least);
        children.sort_by_key(|child| tree.nodes[*child as usize].total);
        open.extend(children.into_iter().map(|child| (child, level + usize::from(at != 0))));
    }
    if least > 1 {
        let percent = 100.0 * least as f64 / total;
        let _ = writeln!(
            out,
            "{}",
            dim(&format!("stacks below {percent:.2} % are not shown; _[k] marks kernel functions"))
        );
    }
    let what = if inverted { "Commands" } else { "Functions" };
    let _ = writeln!(out, "\n{}", bold(&format!("{what} with the highest own cost")));
    let mut own: HashMap<&str, u64> = HashMap::new();
    for (at, node) in tree.nodes.iter().enumerate().skip(1) {
        *own.entry(tree.name(at as u32)).or_default() += node.own;
    }
    let mut own: Vec<(&str, u64)> = own.into_iter().filter(|(_, own)| *own > 0).collect();
    own.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    for (name, own) in own.into_iter().take(FUNCTIONS) {
        line(&mut out, own as f64 / total, 0, &[name], width);
    }
    out.push_str(&footer(&side.read, width));
    out
}

/// The events of the file that are not shown.
fn others(side: &Side, out: &mut String) {
    let names = &side.read.names;
    let others: Vec<String> = side
        .sums
        .events()
        .into_iter()
        .filter(|(id, _)| Some(*id) != side.event)
        .filter_map(|(id, samples)| {
            let event = names.events.get(usize::from(id.0))?;
            Some(format!("{} ({} samples)", one_line(&event.name), thousands(samples)))
        })
        .collect();
    if !others.is_empty() {
        let _ = writeln!(out, "{}", dim(&format!("not shown: {}; --event NAME shows one", others.join(", "))));
    }
}

fn shown_children(tree: &FlameTree, at: u32, least: u64) -> Vec<u32> {
    let children = &tree.nodes[at as usize].children;
    children.iter().copied().filter(|child| tree.nodes[*child as usize].total >= least).collect()
}

/// The least weight to show, so that the tree fits into `lines`.
fn narrowest(tree: &FlameTree, lines: usize) -> u64 {
    // Nodes of one chain share a line: count a node only if its weight differs from its parent's.
    let mut below = vec![0u64; tree.nodes.len()];
    for (at, node) in tree.nodes.iter().enumerate() {
        for child in &node.children {
            below[*child as usize] = if at == 0 { 0 } else { node.total };
        }
    }
    let mut totals: Vec<u64> = tree
        .nodes
        .iter()
        .zip(&below)
        .skip(1)
        .filter(|(node, below)| (node.total as f64) < 0.995 * **below as f64 || **below == 0)
        .map(|(node, _)| node.total)
        .collect();
    totals.sort_unstable_by(|a, b| b.cmp(a));
    totals.get(lines).map_or(1, |total| total + 1)
}

fn line(out: &mut String, share: f64, level: usize, names: &[&str], width: usize) {
    let indent = (level * 2).min(MOST_INDENT);
    let room = width.saturating_sub(10 + indent).max(20);
    let mut text = String::new();
    let mut skipped = 0;
    for (at, name) in names.iter().enumerate() {
        let last = at + 1 == names.len();
        // The ends of a chain say most; skip what does not fit between them.
        if !text.is_empty() && !last && text.chars().count() + name.chars().count() + 3 > room / 2 {
            skipped += 1;
            continue;
        }
        if !text.is_empty() {
            text.push_str(if skipped > 0 { " → … → " } else { " → " });
        }
        text.push_str(name);
    }
    let text = shortened(&text, room);
    let percent = format!("{:6.2} %", share * 100.0);
    let _ = writeln!(out, "{} {}{text}", by_load(share, &percent), " ".repeat(indent + 1));
}

pub fn difference(before: &Side, after: &Side, tree: &DiffTree, risers: &[Riser], width: usize) -> String {
    let mut out = format!("{}\n", bold("Baseline"));
    out.push_str(&header(&before.read, &before.selection, width));
    let _ = writeln!(out, "{}", bold("Now"));
    out.push_str(&header(&after.read, &after.selection, width));
    for (side, what) in [(before, "in the baseline"), (after, "now")] {
        if side.read.selected == 0 {
            let _ = writeln!(out, "no samples {what}: its shares are 0");
        }
    }
    let _ = writeln!(out, "\n{}", bold("What rose (shares of the non-idle time)"));
    if before.read.selected == 0 {
        let _ = writeln!(out, "  cannot tell: the baseline is empty");
    } else if risers.is_empty() {
        let _ = writeln!(out, "  nothing: no command or kernel function rose beyond chance");
    }
    for riser in risers {
        let what = match (riser.what, &riser.mostly_in) {
            (RiserKind::Command, _) => "command".to_owned(),
            (RiserKind::KernelSymbol, Some((command, share))) if *share >= 0.5 => {
                format!("kernel function, {:.0} % of it in {command}", share * 100.0)
            }
            (RiserKind::KernelSymbol, _) => "kernel function".to_owned(),
        };
        change(&mut out, riser.baseline, riser.now, &format!("{} ({what})", riser.name), width);
    }
    let _ = writeln!(out, "\n{}", bold("Functions whose own share changed most"));
    let mut own: HashMap<&str, (f64, f64)> = HashMap::new();
    for node in tree.nodes.iter().skip(1) {
        let (baseline, now) = own.entry(tree.labels.get(node.label)).or_default();
        *baseline += node.own_before;
        *now += node.own_after;
    }
    let mut own: Vec<(&str, (f64, f64))> = own.into_iter().filter(|(_, (a, b))| (b - a).abs() >= 0.0005).collect();
    own.sort_by(|a, b| (b.1.1 - b.1.0).abs().total_cmp(&(a.1.1 - a.1.0).abs()).then(a.0.cmp(b.0)));
    for (name, (baseline, now)) in own.into_iter().take(2 * FUNCTIONS) {
        change(&mut out, baseline, now, name, width);
    }
    out.push_str(&footer(&after.read, width));
    if before.read.file != after.read.file {
        out.push_str(&footer(&before.read, width));
    }
    out
}

fn change(out: &mut String, baseline: f64, now: f64, name: &str, width: usize) {
    let room = width.saturating_sub(34).max(20);
    let name = shortened(name, room);
    let (baseline, now) = (baseline * 100.0, now * 100.0);
    let _ = writeln!(out, "{baseline:7.2} % → {now:6.2} %  {:+7.2}  {name}", now - baseline);
}
