//! Stacks that share their callers, cut down to few of them without losing weight: what is too small is added to its caller.

use coroner_profile::model::{StrId, Strings};
use coroner_report::stacks::{DEEPEST_STACK, LONGEST_STACK, SMALLER};
use std::collections::HashMap;

/// A smaller part than this is never told apart.
const SMALLEST_PART: u64 = 2000;
/// Longer names are cut.
const LONGEST_LABEL: usize = 100;
/// Stands for frames in the middle that were left out.
const CUT: &str = "[cut]";

#[derive(Default)]
pub struct Tree {
    labels: Strings,
    /// Children come after their parent. The first is the root, once there is one.
    nodes: Vec<Node>,
    children: HashMap<(u32, u32), u32>,
}

struct Node {
    label: u32,
    parent: u32,
    own: u64,
}

impl Tree {
    /// Adds a stack, the root first.
    pub fn add<'a>(&mut self, labels: impl Iterator<Item = &'a str>, weight: u64) {
        if self.nodes.is_empty() {
            self.nodes.push(Node { label: 0, parent: 0, own: 0 });
        }
        let mut at = 0;
        for label in labels {
            let label = self.labels.intern(label).0;
            let nodes = &mut self.nodes;
            at = *self.children.entry((at, label)).or_insert_with(|| {
                nodes.push(Node { label, parent: at, own: 0 });
                nodes.len() as u32 - 1
            });
        }
        let own = &mut self.nodes[at as usize].own;
        *own = own.saturating_add(weight);
    }

    /// At most `most` stacks, in order; together they have all weight. Stacks below a certain share are added to `[smaller]` above a
    /// caller; the share is about the smallest that does it.
    pub fn heaviest(&self, most: usize) -> Vec<(String, u64)> {
        let all = self.nodes.iter().fold(0u64, |all, node| all.saturating_add(node.own));
        let mut least = (all / SMALLEST_PART).max(1);
        loop {
            let kept = self.at_least(least);
            if kept.len() <= most || least > all {
                let mut stacks: Vec<(String, u64)> =
                    kept.into_iter().map(|(at, is_smaller, weight)| (self.text(at, is_smaller), weight)).collect();
                stacks.sort_unstable();
                return stacks;
            }
            least = least.saturating_add(least / 4).saturating_add(1);
        }
    }

    /// Nodes with their own weight, and with that of smaller stacks above them.
    fn at_least(&self, least: u64) -> Vec<(u32, bool, u64)> {
        let mut kept = Vec::new();
        let mut smaller = vec![0u64; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate().rev() {
            // What an earlier turn added up may be told, but not apart from what this one adds to it.
            let is_smaller = at > 0 && self.labels.get(StrId(node.label)) == SMALLER;
            let mut rest = smaller[at];
            if node.own >= least && !is_smaller {
                kept.push((at as u32, false, node.own));
            } else {
                rest = rest.saturating_add(node.own);
            }
            if rest > 0 && (at == 0 || rest >= least && !is_smaller) {
                kept.push((at as u32, true, rest));
            } else if rest > 0 {
                let of_caller = &mut smaller[node.parent as usize];
                *of_caller = of_caller.saturating_add(rest);
            }
        }
        kept
    }

    fn text(&self, at: u32, is_smaller: bool) -> String {
        let mut labels = if is_smaller { vec![SMALLER] } else { Vec::new() };
        let mut at = at;
        while at != 0 {
            let node = &self.nodes[at as usize];
            labels.push(self.labels.get(StrId(node.label)));
            at = node.parent;
        }
        labels.reverse();
        labels.join(";")
    }
}

/// The same stack within the limits of a row: long names are cut, frames without a name of one file are one, and a stack that is still
/// too deep lacks its middle.
pub fn bounded(labels: &[String]) -> Vec<String> {
    let mut kept: Vec<String> = labels.iter().map(|label| short(label)).collect();
    kept.dedup_by(|a, b| a == b && a.starts_with('['));
    let (bytes, count) = (LONGEST_STACK / 2 - 2 * CUT.len() - SMALLER.len(), DEEPEST_STACK / 2 - 2);
    let fitting = |labels: &mut dyn Iterator<Item = &String>| {
        let mut left = bytes;
        labels
            .take(count)
            .take_while(|label| {
                let fits = label.len() < left;
                left = left.saturating_sub(label.len() + 1);
                fits
            })
            .count()
    };
    let (front, back) = (fitting(&mut kept.iter()), fitting(&mut kept.iter().rev()));
    if front + back < kept.len() {
        kept.splice(front..kept.len() - back, [CUT.to_owned()]);
    }
    kept
}

/// The mark of whose code it is stays: `_[k]`.
fn short(label: &str) -> String {
    // `/tmp/perf-4711.map`, the file of one process.
    if label.starts_with("[perf-") && label.ends_with("_[j]") {
        return "[jit]_[j]".to_owned();
    }
    if label.len() <= LONGEST_LABEL {
        return label.to_owned();
    }
    let mark = ["_[k]", "_[j]", "_[i]"].into_iter().find(|mark| label.ends_with(mark)).unwrap_or_default();
    let end = (0..=LONGEST_LABEL).rev().find(|end| label.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…{mark}", &label[..end])
}
