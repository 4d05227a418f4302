//! Tens of thousands of paths become a few: a parent and a pattern that covers the names.
//!
//! Names are folded by what they look like ([`name_pattern_into`]); those without a pattern of their own by what they have in common;
//! parents that differ only in an id are put together. Whatever is big keeps its own line, and nothing is lost: what is left
//! over is one line, too.

use coroner_evidence::{name_pattern_into, pattern_covers};
use std::collections::HashMap;

mod names;

/// What is to be folded.
#[derive(Debug, Clone, Copy)]
pub struct Item<'p> {
    pub parent: &'p str,
    pub name: &'p str,
    /// How many it stands for.
    pub count: u64,
    pub bytes: u64,
}

/// Parent and name of a path.
pub fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => ("/", path),
    }
}

/// Paths that read as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// The parent as it is, with what changes folded, or, of the rest, what all have in common.
    pub parent: String,
    pub pattern: String,
    /// So many classes were put together as the rest; 0 for one that is none.
    pub rest_of: u64,
    pub count: u64,
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub struct Folding {
    /// The most first, the rest last.
    pub classes: Vec<Class>,
    /// For each item its class.
    pub class_of: Vec<u32>,
}

/// One parent has many: it keeps its name if there are few such parents …
const MANY: u64 = 100;
const FEW_PARENTS: usize = 8;
/// … or if it has this many and a share of what others like it have.
const SOME: u64 = 20;
const SHARE: u64 = 20;

/// So many lines a person reads at a glance.
const LINES: usize = 10;
/// What has a share of all gets a line beyond that, up to here, the rest included.
const MOST_LINES: usize = 20;
const LINE_SHARE_COUNT: u64 = 100;
const LINE_SHARE_BYTES: u64 = 20;

pub fn fold<'p>(items: impl Iterator<Item = Item<'p>>) -> Folding {
    let mut bases = Bases::default();
    let base_of: Vec<u32> = items.map(|item| bases.add(item)).collect();
    let lines = limit(across_parents(&mut bases));
    let mut class_of_base = vec![0u32; bases.all.len()];
    let mut classes = Vec::with_capacity(lines.len());
    for (i, line) in lines.into_iter().enumerate() {
        for base in line.bases {
            class_of_base[base as usize] = i as u32;
        }
        classes.push(line.class);
    }
    let class_of = base_of.into_iter().map(|base| class_of_base[base as usize]).collect();
    Folding { classes, class_of }
}

/// The items of one parent whose names look alike.
#[derive(Debug, Clone, Copy)]
struct Base {
    parent: u32,
    pattern: u32,
    count: u64,
    bytes: u64,
}

/// All of them, with their parents and patterns kept once.
#[derive(Debug, Default)]
struct Bases<'p> {
    all: Vec<Base>,
    parents: Vec<&'p str>,
    patterns: Vec<Box<str>>,
    parent_ids: HashMap<&'p str, u32>,
    pattern_ids: HashMap<Box<str>, u32>,
    ids: HashMap<(u32, u32), u32>,
    /// Items come in the order of their birth: the last one's parent and pattern are often the next one's.
    last: Option<u32>,
    buffer: String,
}

impl<'p> Bases<'p> {
    fn add(&mut self, item: Item<'p>) -> u32 {
        let mut buffer = std::mem::take(&mut self.buffer);
        name_pattern_into(item.name, &mut buffer);
        let last = self.last.map(|id| self.all[id as usize]);
        let parent = match last.filter(|last| self.parents[last.parent as usize] == item.parent) {
            Some(last) => last.parent,
            None => *self.parent_ids.entry(item.parent).or_insert_with(|| {
                self.parents.push(item.parent);
                self.parents.len() as u32 - 1
            }),
        };
        let pattern = match last.filter(|last| *self.patterns[last.pattern as usize] == *buffer) {
            Some(last) => last.pattern,
            None => self.pattern_id(&buffer),
        };
        self.buffer = buffer;
        let id = match last.filter(|last| (last.parent, last.pattern) == (parent, pattern)) {
            Some(_) => self.last.expect("there was a last one"),
            None => *self.ids.entry((parent, pattern)).or_insert_with(|| {
                self.all.push(Base { parent, pattern, count: 0, bytes: 0 });
                self.all.len() as u32 - 1
            }),
        };
        let base = &mut self.all[id as usize];
        base.count = base.count.saturating_add(item.count);
        base.bytes = base.bytes.saturating_add(item.bytes);
        self.last = Some(id);
        id
    }

    /// The pattern of a base.
    fn text(&self, base: u32) -> &str {
        &self.patterns[self.all[base as usize].pattern as usize]
    }

    fn pattern_id(&mut self, pattern: &str) -> u32 {
        if let Some(&id) = self.pattern_ids.get(pattern) {
            return id;
        }
        let id = self.patterns.len() as u32;
        self.patterns.push(pattern.into());
        self.pattern_ids.insert(pattern.into(), id);
        id
    }
}

/// A class in the making.
#[derive(Debug)]
struct Line {
    class: Class,
    bases: Vec<u32>,
}

impl Line {
    fn absorb(&mut self, other: Line) {
        self.class.count = self.class.count.saturating_add(other.class.count);
        self.class.bytes = self.class.bytes.saturating_add(other.class.bytes);
        self.bases.extend(other.bases);
    }
}

/// Names alike below one parent.
#[derive(Debug)]
struct Kin {
    parent: u32,
    pattern: u32,
    count: u64,
    bytes: u64,
    bases: Vec<u32>,
}

/// Below each parent names are put together; then parents that differ only in what changes from one to the next.
fn across_parents(bases: &mut Bases<'_>) -> Vec<Line> {
    let mut order: Vec<u32> = (0..bases.all.len() as u32).collect();
    order.sort_unstable_by_key(|&base| bases.all[base as usize].parent);
    let mut kin: Vec<Kin> = Vec::new();
    let mut start = 0;
    while start < order.len() {
        let parent = bases.all[order[start] as usize].parent;
        let len = order[start..].partition_point(|&base| bases.all[base as usize].parent == parent);
        names::put_together(bases, &order[start..start + len], &mut kin);
        start += len;
    }

    let folded = if bases.parents.len() > 1 { fold_parents(&bases.parents) } else { FoldedParents::default() };
    let alike = |k: &Kin| (folded.of.get(k.parent as usize).copied().unwrap_or(0), k.pattern);
    kin.sort_unstable_by(|a, b| alike(a).cmp(&alike(b)).then(b.count.cmp(&a.count)));
    let mut lines = Vec::new();
    let mut kin = kin.into_iter().peekable();
    while let Some(first) = kin.next() {
        let key = alike(&first);
        let mut run = vec![first];
        while let Some(next) = kin.next_if(|k| alike(k) == key) {
            run.push(next);
        }
        let many = run.iter().filter(|k| k.count >= MANY).count();
        let mut remaining: u64 = run.iter().fold(0, |sum, k| sum.saturating_add(k.count));
        let mut own = 0;
        for k in &run {
            let stands_out = k.count >= SOME && k.count.saturating_mul(SHARE) >= remaining;
            if !(stands_out || k.count >= MANY && many <= FEW_PARENTS) {
                break;
            }
            own += 1;
            remaining = remaining.saturating_sub(k.count);
        }
        // The last one has nobody to be put together with.
        if run.len() - own == 1 {
            own += 1;
        }
        let others = run.split_off(own);
        let pattern = |k: &Kin| bases.patterns[k.pattern as usize].to_string();
        for k in run {
            let parent = bases.parents[k.parent as usize].to_owned();
            lines.push(line(parent, pattern(&k), k));
        }
        let mut others = others.into_iter();
        if let Some(first) = others.next() {
            let parent = folded.texts.get(key.0 as usize).map_or("/", |text| text).to_owned();
            let mut merged = line(parent, pattern(&first), first);
            for k in others {
                merged.class.count = merged.class.count.saturating_add(k.count);
                merged.class.bytes = merged.class.bytes.saturating_add(k.bytes);
                merged.bases.extend(k.bases);
            }
            lines.push(merged);
        }
    }
    lines
}

fn line(parent: String, pattern: String, kin: Kin) -> Line {
    Line { class: Class { parent, pattern, rest_of: 0, count: kin.count, bytes: kin.bytes }, bases: kin.bases }
}

#[derive(Debug, Default)]
struct FoldedParents {
    texts: Vec<Box<str>>,
    /// For each parent its folded path.
    of: Vec<u32>,
}

fn fold_parents(parents: &[&str]) -> FoldedParents {
    let mut folded = FoldedParents::default();
    let mut ids: HashMap<Box<str>, u32> = HashMap::new();
    let (mut path, mut pattern) = (String::new(), String::new());
    // Parents of one grandparent often follow each other.
    let (mut above, mut above_len) = ("", 0);
    for parent in parents {
        let (grandparent, name) = split(parent);
        if grandparent != above {
            path.clear();
            for part in grandparent.split('/').filter(|part| !part.is_empty()) {
                name_pattern_into(part, &mut pattern);
                path.push('/');
                path.push_str(&pattern);
            }
            (above, above_len) = (grandparent, path.len());
        }
        path.truncate(above_len);
        name_pattern_into(name, &mut pattern);
        path.push('/');
        path.push_str(&pattern);
        let id = match ids.get(path.as_str()) {
            Some(&id) => id,
            None => {
                let id = folded.texts.len() as u32;
                folded.texts.push(path.as_str().into());
                ids.insert(path.as_str().into(), id);
                id
            }
        };
        folded.of.push(id);
    }
    folded
}

/// Not more lines than a person reads.
fn limit(mut lines: Vec<Line>) -> Vec<Line> {
    // Names of parents may be without a pattern as well.
    let any_parent =
        |class: &Class| (format!("{}/*", split(&class.parent).0.trim_end_matches('/')), class.pattern.clone());
    let any_name = |class: &Class| (any_parent(class).0, "*".to_owned());
    for wider in [&any_parent as &dyn Fn(&Class) -> (String, String), &any_name] {
        sort(&mut lines);
        let own = own_lines(&lines);
        if own >= lines.len() {
            return lines;
        }
        lines = widen(lines, own, wider);
    }
    sort(&mut lines);
    let own = own_lines(&lines);
    let rest = lines.split_off(own);
    // A rest of one is that one.
    let n = rest.len() as u64;
    let mut rest = rest.into_iter();
    if let Some(mut first) = rest.next() {
        for other in rest {
            first.class.parent = common_ancestor(&first.class.parent, &other.class.parent);
            first.absorb(other);
        }
        if n > 1 {
            first.class.pattern = "*".to_owned();
            first.class.rest_of = n;
        }
        lines.push(first);
    }
    lines
}

/// Those that keep their line come first.
fn sort(lines: &mut [Line]) {
    let total = totals(lines);
    lines.sort_by(|a, b| {
        let by_count = (b.class.count, b.class.bytes).cmp(&(a.class.count, a.class.bytes));
        let by_name = || (&a.class.parent, &a.class.pattern).cmp(&(&b.class.parent, &b.class.pattern));
        by_count.then_with(by_name)
    });
    // A few that hold much are worth a line as well: the last of those that get one.
    if lines.len() > LINES {
        lines[LINES..].sort_by_key(|line| !has_share(&line.class, total));
    }
}

fn totals(lines: &[Line]) -> (u64, u64) {
    lines
        .iter()
        .fold((0, 0), |sum, line| (line.class.count.saturating_add(sum.0), line.class.bytes.saturating_add(sum.1)))
}

fn has_share(class: &Class, (count, bytes): (u64, u64)) -> bool {
    class.count.saturating_mul(LINE_SHARE_COUNT) >= count
        || class.bytes > 0 && class.bytes.saturating_mul(LINE_SHARE_BYTES) >= bytes
}

fn own_lines(lines: &[Line]) -> usize {
    if lines.len() <= LINES {
        return lines.len();
    }
    let total = totals(lines);
    let more = lines[LINES..].iter().take_while(|line| has_share(&line.class, total)).count();
    // All, or one less to leave room for the rest.
    if LINES + more == lines.len() && lines.len() <= MOST_LINES {
        return lines.len();
    }
    (LINES + more).min(MOST_LINES - 1)
}

/// Puts those without a line of their own together by something wider.
fn widen(mut lines: Vec<Line>, own: usize, wider: &dyn Fn(&Class) -> (String, String)) -> Vec<Line> {
    let small = lines.split_off(own);
    let mut index: HashMap<(String, String), usize> = HashMap::new();
    let mut wide: Vec<(Line, usize)> = Vec::new();
    for line in small {
        let key = wider(&line.class);
        match index.get(&key) {
            Some(&i) => {
                let (into, n) = &mut wide[i];
                if *n == 1 {
                    (into.class.parent, into.class.pattern) = key;
                }
                into.absorb(line);
                *n += 1;
            }
            None => {
                index.insert(key, wide.len());
                wide.push((line, 1));
            }
        }
    }
    for (line, _) in wide {
        let same = |l: &&mut Line| l.class.parent == line.class.parent && l.class.pattern == line.class.pattern;
        match lines.iter_mut().take(own).find(same) {
            Some(kept) => kept.absorb(line),
            None => lines.push(line),
        }
    }
    lines
}

/// The directory below which both are, without what is folded.
fn common_ancestor(a: &str, b: &str) -> String {
    let mut path = String::new();
    let parts = |path: &'_ str| path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    for (a, b) in parts(a).into_iter().zip(parts(b)) {
        if a != b || a.contains('*') {
            break;
        }
        path.push('/');
        path.push_str(&a);
    }
    if path.is_empty() { "/".to_owned() } else { path }
}

/// Whether a folded path covers another one: `*` stands for a part of one name, not for several.
pub fn covers_path(path: &str, other: &str) -> bool {
    let depth = |path: &str| path.bytes().filter(|&b| b == b'/').count();
    depth(path) == depth(other) && pattern_covers(path, other)
}

pub fn covers(parent: &str, pattern: &str, other_parent: &str, other_pattern: &str) -> bool {
    covers_path(parent, other_parent) && pattern_covers(pattern, other_pattern)
}

#[cfg(test)]
mod tests;
