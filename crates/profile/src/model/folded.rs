//! Stacks and their weights, without samples: all that a flame graph of a whole file needs.

use std::collections::HashMap;
use std::io::{self, Write};

use super::intern::Looked;
use super::{Strings, WordTable, dictionary};

/// Distinct stacks of labels with their weights, per event.
#[derive(Clone, Debug, Default)]
pub struct FoldedStacks {
    pub labels: Strings,
    /// Event names; a stack refers to its event by position.
    pub events: Vec<String>,
    event_ids: HashMap<String, u32>,
    /// Event, root label, then the other labels, leaf first.
    keys: WordTable,
    weights: Vec<u64>,
}

/// Stacks to be added to [`FoldedStacks`]. Its tables exceed a core's private caches; looking up many stacks at a time overlaps
/// the cache misses.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    words: Vec<u32>,
    stacks: Vec<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    end: usize,
    weight: u64,
    looked: Looked,
}

impl Batch {
    const FULL: usize = 32;

    #[inline(always)]
    pub fn push(&mut self, event: u32, root: u32, leaf_first: &[u32], weight: u64) {
        self.words.extend_from_slice(&[event, root]);
        self.words.extend_from_slice(leaf_first);
        self.stacks.push(Waiting { end: self.words.len(), weight, looked: Looked::default() });
    }

    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.stacks.len() >= Batch::FULL
    }
}

impl FoldedStacks {
    /// Adds all stacks of a batch and empties it.
    pub fn add_batch(&mut self, batch: &mut Batch) {
        let mut start = 0;
        for stack in &mut batch.stacks {
            stack.looked = self.keys.look(&batch.words[start..stack.end]);
            start = stack.end;
        }
        start = 0;
        for stack in &batch.stacks {
            let (id, new) = self.keys.intern_looked(&batch.words[start..stack.end], stack.looked);
            self.weigh(id, new, stack.weight);
            start = stack.end;
        }
        batch.words.clear();
        batch.stacks.clear();
    }

    #[inline(always)]
    fn weigh(&mut self, id: u32, new: bool, weight: u64) {
        if new {
            self.weights.push(weight);
        } else {
            let sum = &mut self.weights[id as usize];
            *sum = sum.saturating_add(weight);
        }
    }

    /// Adds `weight` to the stack `[event, root label, leaf label, …]`.
    #[inline]
    pub fn add(&mut self, key: &[u32], weight: u64) {
        let (id, new) = self.keys.intern(key);
        self.weigh(id, new, weight);
    }

    /// The number of distinct stacks.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The position of the event `name`; adds it if it is new.
    pub fn event(&mut self, name: &str) -> u32 {
        if let Some(at) = self.event_ids.get(name) {
            return *at;
        }
        let (at, name) = dictionary::event_place(self.events.len(), name);
        if at == self.events.len() {
            self.events.push(name.to_owned());
            self.event_ids.insert(name.to_owned(), at as u32);
        }
        at as u32
    }

    /// Adds the stacks of another part of the same file.
    pub fn append(&mut self, other: &FoldedStacks) {
        let labels: Vec<u32> = other.labels.iter().map(|(_, text)| self.labels.intern(text).0).collect();
        let events: Vec<u32> = other.events.iter().map(|name| self.event(name)).collect();
        let mut key = Vec::new();
        for (id, weight) in other.weights.iter().enumerate() {
            let theirs = other.keys.get(id as u32);
            key.clear();
            key.push(events[theirs[0] as usize]);
            key.extend(theirs[1..].iter().map(|label| labels[*label as usize]));
            self.add(&key, *weight);
        }
    }

    /// Each stack: its event, its labels (root first), its weight.
    pub fn iter(&self) -> impl Iterator<Item = (u32, impl Iterator<Item = &str>, u64)> {
        self.weights.iter().enumerate().map(|(id, weight)| {
            let key = self.keys.get(id as u32);
            let labels = key[1..2].iter().chain(key[2..].iter().rev());
            (key[0], labels.map(|label| self.labels.get(super::StrId(*label))), *weight)
        })
    }

    /// Writes one line `label;label;… weight` per stack, ordered by label. If the file has several events, each stack begins with
    /// its event in brackets: their weights have different units and must not be added up.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        let order = self.alphabetical();
        let mut line = Vec::with_capacity(64 << 10);
        for id in order {
            let key = self.keys.get(id);
            if self.events.len() > 1 {
                line.push(b'[');
                line.extend(self.events[key[0] as usize].bytes().map(|byte| if byte == b';' { b':' } else { byte }));
                line.extend_from_slice(b"];");
            }
            line.extend_from_slice(self.labels.get(super::StrId(key[1])).as_bytes());
            for label in key[2..].iter().rev() {
                line.push(b';');
                line.extend_from_slice(self.labels.get(super::StrId(*label)).as_bytes());
            }
            writeln!(line, " {}", self.weights[id as usize])?;
            if line.len() > 48 << 10 {
                to.write_all(&line)?;
                line.clear();
            }
        }
        to.write_all(&line)?;
        to.flush()
    }

    /// The stacks ordered by their labels, root first.
    fn alphabetical(&self) -> Vec<u32> {
        let rank = self.ranks();
        // Contiguous and root first, so that sorting compares neighbours in memory.
        let mut ranks: Vec<u32> = Vec::new();
        let mut order: Vec<(usize, usize, u32)> = Vec::with_capacity(self.len());
        for id in 0..self.len() as u32 {
            let key = self.keys.get(id);
            let start = ranks.len();
            ranks.extend(key[1..2].iter().chain(key[2..].iter().rev()).map(|label| rank[*label as usize]));
            ranks.push(key[0]);
            order.push((start, ranks.len() - 1, id));
        }
        order.sort_unstable_by(|a, b| ranks[a.0..a.1].cmp(&ranks[b.0..b.1]).then_with(|| ranks[a.1].cmp(&ranks[b.1])));
        order.into_iter().map(|(_, _, id)| id).collect()
    }

    /// The position of each label in alphabetical order.
    fn ranks(&self) -> Vec<u32> {
        let mut sorted: Vec<u32> = (0..self.labels.len() as u32).collect();
        sorted.sort_unstable_by_key(|id| self.labels.get(super::StrId(*id)));
        let mut rank = vec![0; sorted.len()];
        for (position, id) in sorted.into_iter().enumerate() {
            rank[id as usize] = position as u32;
        }
        rank
    }
}

/// The label of a command at the root of a stack.
pub fn root_label(comm: &str) -> String {
    comm.chars()
        .map(|c| {
            if c == ' ' {
                '_'
            } else if c == ';' {
                ':'
            } else {
                c
            }
        })
        .collect()
}
