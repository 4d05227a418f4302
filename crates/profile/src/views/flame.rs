//! Flame graphs: the selected samples as a tree of labels.

use std::collections::HashMap;

use serde::Serialize;

use super::{Owner, StackSums, Sum};
use crate::model::{Dictionary, EventId, FramePlace, Seeded, StackId, StrId, Strings, label};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlameOptions {
    /// Leaves at the bottom: shows who calls the most expensive functions.
    pub invert: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlameNode {
    #[serde(skip)]
    pub label: StrId,
    /// Whose code; `None` for the root and for commands.
    pub place: Option<FramePlace>,
    /// Inlined into the frame below.
    pub inlined: bool,
    /// Weight of this node and all above it.
    pub total: u64,
    /// Weight of stacks that end here.
    pub own: u64,
    /// Ordered by label.
    pub children: Vec<u32>,
}

/// Node 0 is the root; children come after their parent.
#[derive(Clone, Debug)]
pub struct FlameTree {
    pub labels: Strings,
    pub nodes: Vec<FlameNode>,
    pub samples: u64,
    /// Frames too small to be included; their weight is in the totals below them.
    pub left_out: usize,
}

impl Default for FlameTree {
    fn default() -> FlameTree {
        let mut labels = Strings::default();
        let label = labels.intern("all");
        FlameTree {
            labels,
            nodes: vec![FlameNode { label, place: None, inlined: false, total: 0, own: 0, children: Vec::new() }],
            samples: 0,
            left_out: 0,
        }
    }
}

impl FlameTree {
    pub fn total(&self) -> u64 {
        self.nodes[0].total
    }

    pub fn name(&self, node: u32) -> &str {
        self.labels.get(self.nodes[node as usize].label)
    }

    /// The deepest level; the root is 0.
    pub fn depth(&self) -> usize {
        let mut level = vec![0usize; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for child in &node.children {
                level[*child as usize] = level[at] + 1;
            }
        }
        level.into_iter().max().unwrap_or(0)
    }
}

#[derive(Clone, Copy)]
struct Label {
    label: StrId,
    place: Option<FramePlace>,
    inlined: bool,
}

/// Builds trees.
#[derive(Default)]
struct Grower {
    tree: FlameTree,
    children: HashMap<(u32, u32), u32, Seeded>,
    /// Weight of the frames left out above a node.
    hidden: HashMap<u32, u64, Seeded>,
}

impl Grower {
    fn child(&mut self, parent: u32, Label { label, place, inlined }: Label) -> u32 {
        let nodes = &mut self.tree.nodes;
        *self.children.entry((parent, label.0)).or_insert_with(|| {
            let id = nodes.len() as u32;
            nodes.push(FlameNode { label, place, inlined, total: 0, own: 0, children: Vec::new() });
            nodes[parent as usize].children.push(id);
            id
        })
    }

    fn add(&mut self, path: impl Iterator<Item = Label>, weight: u64) {
        let mut at = 0;
        for label in path {
            at = self.child(at, label);
        }
        let own = &mut self.tree.nodes[at as usize].own;
        *own = own.saturating_add(weight);
    }

    /// The node of a stack. `known` has the node of the empty stack and gets those of all ancestors.
    fn stack(
        &mut self,
        names: &Dictionary,
        frames: &mut FrameLabels<'_>,
        known: &mut HashMap<StackId, u32, Seeded>,
        stack: StackId,
    ) -> u32 {
        let mut new = Vec::new();
        let (mut rest, mut at) = (stack, 0);
        loop {
            if let Some(node) = known.get(&rest) {
                at = *node;
                break;
            }
            let Some((below, frame)) = names.stacks.split(rest) else { break };
            new.push((rest, frame));
            rest = below;
        }
        while let Some((stack, frame)) = new.pop() {
            for label in frames.labels(frame, &mut self.tree.labels) {
                at = self.child(at, *label);
            }
            known.insert(stack, at);
        }
        at
    }

    fn hide(&mut self, at: u32, weight: u64) {
        if weight > 0 {
            let hidden = self.hidden.entry(at).or_default();
            *hidden = hidden.saturating_add(weight);
        }
    }

    fn finish(mut self) -> FlameTree {
        for at in (0..self.tree.nodes.len()).rev() {
            let node = &self.tree.nodes[at];
            let above: u64 =
                node.children.iter().map(|child| self.tree.nodes[*child as usize].total).fold(0, u64::saturating_add);
            let hidden = self.hidden.get(&(at as u32)).copied().unwrap_or(0);
            let total = node.own.saturating_add(above).saturating_add(hidden);
            let mut children = std::mem::take(&mut self.tree.nodes[at].children);
            children.sort_by(|a, b| self.tree.name(*a).cmp(self.tree.name(*b)));
            let node = &mut self.tree.nodes[at];
            node.total = total;
            node.children = children;
        }
        self.tree
    }
}

/// The flame graph of one event's stacks, weighted by their periods.
pub fn tree(names: &Dictionary, sums: &StackSums, event: EventId, options: &FlameOptions) -> FlameTree {
    let mut grower = Grower::default();
    let mut frames = FrameLabels { names, known: HashMap::default() };
    let mut path = Vec::new();
    // Stacks with a common prefix share nodes: only the new part of each is walked.
    let mut known: HashMap<StackId, u32, Seeded> = HashMap::default();
    let mut owner = None;
    for sum in sums.sorted().into_iter().filter(|sum| sum.event == event) {
        grower.tree.samples += sum.samples;
        if !options.invert {
            if owner.replace(sum.owner) != Some(sum.owner) {
                known.clear();
                let label = grower.tree.labels.intern(command(names, sum.owner));
                known.insert(StackId::EMPTY, grower.child(0, Label { label, place: None, inlined: false }));
            }
            let at = grower.stack(names, &mut frames, &mut known, sum.stack);
            let own = &mut grower.tree.nodes[at as usize].own;
            *own = own.saturating_add(sum.weight);
            continue;
        }
        path.clear();
        for frame in names.stacks.leaf_first(sum.stack) {
            path.extend(frames.labels(frame, &mut grower.tree.labels).iter().rev());
        }
        let label = grower.tree.labels.intern(command(names, sum.owner));
        path.push(Label { label, place: None, inlined: false });
        grower.add(path.iter().copied(), sum.weight);
    }
    grower.finish()
}

/// The same without frames below a share of `min`, which are not drawn and most of the work. Inverted graphs are complete.
pub fn tree_of_large(names: &Dictionary, sums: &StackSums, event: EventId, how: &FlameOptions, min: f64) -> FlameTree {
    if how.invert || min <= 0.0 {
        return tree(names, sums, event, how);
    }
    let sums: Vec<Sum> = sums.sorted().into_iter().filter(|sum| sum.event == event).collect();
    let all = sums.iter().fold(0u64, |all, sum| all.saturating_add(sum.weight));
    // Frames of one name may be in several stacks that are large only together.
    let least = (all as f64 * min / 4.0) as u64;
    let mut grower = Grower::default();
    let mut frames = FrameLabels { names, known: HashMap::default() };
    let mut totals = Totals::default();
    for of_owner in sums.chunk_by(|a, b| a.owner == b.owner) {
        let mut known: HashMap<StackId, u32, Seeded> = HashMap::default();
        let label = grower.tree.labels.intern(command(names, of_owner[0].owner));
        known.insert(StackId::EMPTY, grower.child(0, Label { label, place: None, inlined: false }));
        totals.add_up(names, of_owner);
        for sum in of_owner {
            grower.tree.samples += sum.samples;
            let large = totals.large(names, sum.stack, least);
            let at = grower.stack(names, &mut frames, &mut known, large);
            if large == sum.stack {
                let own = &mut grower.tree.nodes[at as usize].own;
                *own = own.saturating_add(sum.weight);
            } else {
                grower.hide(at, sum.weight);
            }
        }
        grower.tree.left_out += totals.stacks.iter().filter(|stack| totals.of(**stack) < least).count();
    }
    grower.finish()
}

/// Weights of one owner's stacks, including all stacks above each.
#[derive(Default)]
struct Totals {
    /// By stack; `None` for other owners' stacks.
    weights: Vec<Option<u64>>,
    stacks: Vec<StackId>,
}

impl Totals {
    fn of(&self, stack: StackId) -> u64 {
        self.weights.get(stack.0 as usize).copied().flatten().unwrap_or(0)
    }

    fn add(&mut self, stack: StackId, weight: u64) {
        if let Some(Some(total)) = self.weights.get_mut(stack.0 as usize) {
            *total = total.saturating_add(weight);
        }
    }

    fn add_up(&mut self, names: &Dictionary, sums: &[Sum]) {
        for stack in self.stacks.drain(..) {
            self.weights[stack.0 as usize] = None;
        }
        self.weights.resize(names.stacks.len(), None);
        for sum in sums {
            let mut at = sum.stack;
            while let Some((below, _)) = names.stacks.split(at)
                && self.weights[at.0 as usize].is_none()
            {
                self.weights[at.0 as usize] = Some(0);
                self.stacks.push(at);
                at = below;
            }
            self.add(sum.stack, sum.weight);
        }
        // Children have larger ids than their parent.
        self.stacks.sort_unstable_by_key(|stack| std::cmp::Reverse(*stack));
        for place in 0..self.stacks.len() {
            let stack = self.stacks[place];
            if let Some((below, _)) = names.stacks.split(stack) {
                self.add(below, self.of(stack));
            }
        }
    }

    /// The stack itself if it is large enough, else its nearest ancestor that is.
    fn large(&self, names: &Dictionary, stack: StackId, least: u64) -> StackId {
        let mut at = stack;
        while self.of(at) < least
            && let Some((below, _)) = names.stacks.split(at)
        {
            at = below;
        }
        at
    }
}

/// Merges several graphs into one.
pub fn merged(trees: &[FlameTree]) -> FlameTree {
    let mut grower = Grower::default();
    for tree in trees {
        grower.tree.samples += tree.samples;
        grower.tree.left_out += tree.left_out;
        // The node of each old node in the new graph; children come after their parent.
        let mut places = vec![0u32; tree.nodes.len()];
        let mut labels: HashMap<StrId, StrId, Seeded> = HashMap::default();
        for (at, node) in tree.nodes.iter().enumerate() {
            let own = &mut grower.tree.nodes[places[at] as usize].own;
            *own = own.saturating_add(node.own);
            let above = node.children.iter().map(|child| tree.nodes[*child as usize].total);
            let told = above.fold(node.own, u64::saturating_add);
            grower.hide(places[at], node.total.saturating_sub(told));
            for child in &node.children {
                let FlameNode { label, place, inlined, .. } = &tree.nodes[*child as usize];
                let new = &mut grower.tree.labels;
                let label = *labels.entry(*label).or_insert_with(|| new.intern(tree.labels.get(*label)));
                places[*child as usize] = grower.child(places[at], Label { label, place: *place, inlined: *inlined });
            }
        }
    }
    grower.finish()
}

fn command(names: &Dictionary, owner: Owner) -> &str {
    let comm = match owner {
        Owner::Command(comm) => comm,
        Owner::Thread(task) => names.task(task).comm,
    };
    let comm = names.strings.get(comm);
    if comm.is_empty() { "[unknown]" } else { comm }
}

struct FrameLabels<'p> {
    names: &'p Dictionary,
    known: HashMap<u32, Vec<Label>, Seeded>,
}

impl FrameLabels<'_> {
    /// The labels of a frame, callers first: several if a compiler's `outer->inner` names several functions.
    fn labels(&mut self, id: crate::model::FrameId, labels: &mut Strings) -> &[Label] {
        self.known.entry(id.0).or_insert_with(|| {
            let frame = self.names.frames.get(id);
            let (symbol, module) = (frame.symbol(&self.names.strings), frame.module(&self.names.strings));
            let text = label::label(symbol, module, frame.place, true);
            let one = |(at, part): (usize, &str)| Label {
                label: labels.intern(part),
                place: Some(frame.place),
                inlined: frame.inlined || at > 0,
            };
            text.split(';').enumerate().map(one).collect()
        })
    }
}
