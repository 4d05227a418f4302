//! Stacks as a tree: each distinct stack is a node, its parent is the stack without the leaf. Common prefixes are shared, and a
//! flame graph is a walk over the nodes.

use super::{FrameId, WordTable};

/// A node of the tree. 0 is the empty stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

impl StackId {
    pub const EMPTY: StackId = StackId(0);
}

#[derive(Clone, Debug)]
pub struct Stacks {
    /// (parent, frame + 1) of each node; the root has frame 0. A parent's id is always below its child's.
    nodes: WordTable,
    /// Whole stacks, leaf first as in files, so that a known stack costs one lookup and not one per frame.
    seen: WordTable,
    node_of_seen: Vec<StackId>,
}

impl Default for Stacks {
    fn default() -> Stacks {
        let mut nodes = WordTable::default();
        nodes.intern(&[0, 0]);
        Stacks { nodes, seen: WordTable::default(), node_of_seen: Vec::new() }
    }
}

impl Stacks {
    /// The stack with `frame` on top of `parent`.
    pub fn push(&mut self, parent: StackId, frame: FrameId) -> StackId {
        StackId(self.nodes.intern(&[parent.0, frame.0 + 1]).0)
    }

    /// The stack with the frames `leaf_first` (values of [`FrameId`]).
    pub fn intern(&mut self, leaf_first: &[u32]) -> StackId {
        let (id, new) = self.seen.intern(leaf_first);
        if new {
            let mut node = StackId::EMPTY;
            for frame in leaf_first.iter().rev() {
                node = self.push(node, FrameId(*frame));
            }
            self.node_of_seen.push(node);
        }
        self.node_of_seen[id as usize]
    }

    /// The parent of `stack`, and its leaf; `None` for the empty stack.
    #[inline]
    pub fn split(&self, stack: StackId) -> Option<(StackId, FrameId)> {
        match self.nodes.get(stack.0) {
            [_, 0] => None,
            words => Some((StackId(words[0]), FrameId(words[1] - 1))),
        }
    }

    /// The frames from the leaf to the root.
    pub fn leaf_first(&self, stack: StackId) -> impl Iterator<Item = FrameId> + '_ {
        let mut at = stack;
        std::iter::from_fn(move || {
            let (parent, frame) = self.split(at)?;
            at = parent;
            Some(frame)
        })
    }

    /// The frames from the root to the leaf.
    pub fn root_first(&self, stack: StackId) -> Vec<FrameId> {
        let mut frames: Vec<FrameId> = self.leaf_first(stack).collect();
        frames.reverse();
        frames
    }

    /// For each stack, whether `holds` is true for any of its frames. One pass: a parent's id is below its children's.
    pub fn inherit(&self, holds: impl Fn(FrameId) -> bool) -> Vec<bool> {
        let mut marked = vec![false; self.len()];
        for id in 1..self.len() {
            if let Some((parent, frame)) = self.split(StackId(id as u32)) {
                marked[id] = marked[parent.0 as usize] || holds(frame);
            }
        }
        marked
    }

    pub fn held_bytes(&self) -> usize {
        self.nodes.held_bytes() + self.seen.held_bytes() + self.node_of_seen.capacity() * 4
    }

    /// How many nodes there are; every id is below it.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_share_their_common_prefix() {
        let mut stacks = Stacks::default();
        let a = stacks.intern(&[3, 2, 1]);
        let b = stacks.intern(&[4, 2, 1]);
        assert_eq!(stacks.len(), 5);
        assert_eq!(stacks.root_first(a), [FrameId(1), FrameId(2), FrameId(3)]);
        assert_eq!(stacks.split(a).map(|(below, _)| below), stacks.split(b).map(|(below, _)| below));
        assert_eq!(stacks.intern(&[3, 2, 1]), a);
        assert_eq!(stacks.intern(&[]), StackId::EMPTY);
        assert_eq!(stacks.root_first(StackId::EMPTY), []);
    }
}
