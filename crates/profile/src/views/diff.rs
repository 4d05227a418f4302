//! The difference of two flame graphs, in shares of each side's total, so that a minute and an hour can be compared.

use serde::Serialize;

use super::flame::FlameTree;
use crate::model::{FramePlace, StrId, Strings};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffNode {
    #[serde(skip)]
    pub label: StrId,
    pub place: Option<FramePlace>,
    /// Shares of each side's total, between 0 and 1. A side without samples has 0 everywhere.
    pub before: f64,
    pub after: f64,
    pub own_before: f64,
    pub own_after: f64,
    pub children: Vec<u32>,
}

impl DiffNode {
    pub fn change(&self) -> f64 {
        self.after - self.before
    }
}

#[derive(Clone, Debug)]
pub struct DiffTree {
    pub labels: Strings,
    /// Node 0 is the root; children come after their parent.
    pub nodes: Vec<DiffNode>,
    pub total_before: u64,
    pub total_after: u64,
}

/// Compares two graphs.
pub fn diff(before: &FlameTree, after: &FlameTree) -> DiffTree {
    let (total_before, total_after) = (before.total(), after.total());
    let share = |weight: u64, total: u64| if total == 0 { 0.0 } else { weight as f64 / total as f64 };
    let mut tree = DiffTree { labels: Strings::default(), nodes: Vec::new(), total_before, total_after };
    // The node of each side for every result node; either may be missing.
    let mut sides: Vec<(Option<u32>, Option<u32>)> = vec![(Some(0), Some(0))];
    let mut at = 0;
    while at < sides.len() {
        let (a, b) = (sides[at].0.map(|a| &before.nodes[a as usize]), sides[at].1.map(|b| &after.nodes[b as usize]));
        let name = match (sides[at].0, sides[at].1) {
            (Some(a), _) => before.name(a),
            (None, Some(b)) => after.name(b),
            (None, None) => "",
        };
        let first_child = sides.len() as u32;
        merge(before, after, a.map_or(&[], |a| &a.children), b.map_or(&[], |b| &b.children), &mut sides);
        tree.nodes.push(DiffNode {
            label: tree.labels.intern(name),
            place: a.or(b).and_then(|node| node.place),
            before: a.map_or(0.0, |node| share(node.total, total_before)),
            after: b.map_or(0.0, |node| share(node.total, total_after)),
            own_before: a.map_or(0.0, |node| share(node.own, total_before)),
            own_after: b.map_or(0.0, |node| share(node.own, total_after)),
            children: (first_child..sides.len() as u32).collect(),
        });
        at += 1;
    }
    tree
}

/// Pairs children by name; both lists are sorted by it.
fn merge(before: &FlameTree, after: &FlameTree, a: &[u32], b: &[u32], pairs: &mut Vec<(Option<u32>, Option<u32>)>) {
    let (mut a, mut b) = (a.iter().copied().peekable(), b.iter().copied().peekable());
    loop {
        let order = match (a.peek(), b.peek()) {
            (None, None) => return,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(x), Some(y)) => before.name(*x).cmp(after.name(*y)),
        };
        pairs.push(match order {
            std::cmp::Ordering::Less => (a.next(), None),
            std::cmp::Ordering::Greater => (None, b.next()),
            std::cmp::Ordering::Equal => (a.next(), b.next()),
        });
    }
}
