//! Tens of thousands of paths become a few: a parent and a pattern that covers the names.
//!
//! Names are folded by their form ([`name_pattern_into`]), those without a pattern by what they have in common; parents that differ
//! only in an id are merged. Whatever is big keeps its own line, and nothing is lost: the rest is one line too.

use coroner_evidence::{Order, name_pattern_into, pattern_covers};
use hashbrown::hash_map::Entry;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::cmp::Reverse;
use std::hash::BuildHasher;

mod names;

/// A path to fold.
#[derive(Debug, Clone, Copy)]
pub struct Item<'p> {
    pub parent: &'p str,
    pub name: &'p str,
    /// How many cgroups or files it stands for.
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

/// Paths shown as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// The parent itself, with what differs folded; for the rest, their common ancestor.
    pub parent: String,
    pub pattern: String,
    /// How many classes were merged into the rest; 0 for an ordinary class.
    pub rest_of: u64,
    pub count: u64,
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub struct Folding {
    /// Largest first, the rest last.
    pub classes: Vec<Class>,
    /// The class of each item.
    pub class_of: Vec<u32>,
}

/// A parent with this many keeps its name if there are few such parents …
const MANY: u64 = 100;
const FEW_PARENTS: usize = 8;
/// … or if it has this many, and at least one in SHARE of what it and smaller parents like it have.
const SOME: u64 = 20;
const SHARE: u64 = 20;

/// Lines that a person reads at a glance.
const LINES: usize = 10;
/// What has a share of all gets a line beyond that, up to this many, the rest included.
const MOST_LINES: usize = 20;
const LINE_SHARE_COUNT: u64 = 100;
/// This many are worth a line, however many others there are.
const LINE_COUNT: u64 = 10;
const LINE_SHARE_BYTES: u64 = 20;

pub fn fold<'p>(items: impl Iterator<Item = Item<'p>>) -> Folding {
    let mut bases = Bases::default();
    let base_of: Vec<u32> = items.map(|item| bases.add(item)).collect();
    let mut links = Links(vec![NONE; bases.all.len()]);
    let kin = names::below_each_parent(&mut bases, &mut links);
    let folded = if bases.parents.len() > 1 { fold_parents(&bases.parents) } else { FoldedParents::default() };
    let lines = across_parents(&bases, &folded, kin, &mut links);
    let lines = limit(lines, &mut links);
    let lines = without_twins(lines, &bases, &mut links);

    let mut class_of_base = vec![0u32; bases.all.len()];
    for (i, line) in lines.iter().enumerate() {
        links.each(&line.members, |base| class_of_base[base as usize] = i as u32);
    }
    let classes = lines.iter().map(|line| line.class(&bases)).collect();
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

/// All of them; parents and patterns are stored once.
#[derive(Default)]
struct Bases<'p> {
    all: Vec<Base>,
    parents: Vec<&'p str>,
    patterns: Texts,
    parent_ids: HashMap<&'p str, u32>,
    ids: HashMap<(u32, u32), u32>,
    /// Items come in order of birth: the next one often has the same parent and pattern.
    last: Option<u32>,
    buffer: String,
}

impl<'p> Bases<'p> {
    fn add(&mut self, item: Item<'p>) -> u32 {
        name_pattern_into(item.name, &mut self.buffer);
        let last = self.last.map(|id| (id, self.all[id as usize]));
        let parent = match last {
            Some((_, last)) if self.parents[last.parent as usize] == item.parent => last.parent,
            _ => *self.parent_ids.entry(item.parent).or_insert_with(|| {
                self.parents.push(item.parent);
                self.parents.len() as u32 - 1
            }),
        };
        let pattern = match last {
            Some((_, last)) if self.patterns.get(last.pattern) == self.buffer => last.pattern,
            _ => self.patterns.id(&self.buffer),
        };
        let id = match last {
            Some((id, last)) if (last.parent, last.pattern) == (parent, pattern) => id,
            _ => *self.ids.entry((parent, pattern)).or_insert_with(|| {
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
        self.patterns.get(self.all[base as usize].pattern)
    }
}

/// Texts stored once, in one buffer: most lists have a handful, but some as many as there are names.
#[derive(Default)]
struct Texts {
    all: String,
    ends: Vec<usize>,
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Texts {
    fn get(&self, id: u32) -> &str {
        let start = (id as usize).checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.all[start..self.ends[id as usize]]
    }

    fn id(&mut self, text: &str) -> u32 {
        let hash = self.hasher.hash_one(text);
        if let Some(&id) = self.ids.find(hash, |&id| self.get(id) == text) {
            return id;
        }
        let id = self.ends.len() as u32;
        self.all.push_str(text);
        self.ends.push(self.all.len());
        let Texts { all, ends, ids, hasher } = self;
        let get = |id: u32| &all[(id as usize).checked_sub(1).map_or(0, |before| ends[before])..ends[id as usize]];
        ids.insert_unique(hash, id, |&id| hasher.hash_one(get(id)));
        id
    }
}

/// Linked lists of bases, joined without copying: for each base the next one.
#[derive(Debug)]
struct Links(Vec<u32>);

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Members {
    first: u32,
    last: u32,
}

impl Members {
    fn one(base: u32) -> Members {
        Members { first: base, last: base }
    }
}

impl Links {
    fn join(&mut self, to: &mut Members, more: Members) {
        self.0[to.last as usize] = more.first;
        to.last = more.last;
    }

    fn each(&self, members: &Members, mut visit: impl FnMut(u32)) {
        let mut base = members.first;
        while base != NONE {
            visit(base);
            base = self.0[base as usize];
        }
    }
}

/// Similar names below one parent.
#[derive(Debug)]
struct Kin {
    parent: u32,
    pattern: u32,
    count: u64,
    bytes: u64,
    members: Members,
}

/// A class in the making.
#[derive(Debug)]
struct Line<'a> {
    parent: Parent<'a>,
    pattern: Pattern,
    count: u64,
    bytes: u64,
    members: Members,
    rest_of: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Parent<'a> {
    /// This path, folded or not.
    Path(&'a str),
    /// Any child of this path.
    AnyBelow(&'a str),
    Ancestor(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pattern {
    Of(u32),
    Any,
}

impl<'a> Line<'a> {
    fn of(parent: &'a str, kin: Kin) -> Line<'a> {
        let Kin { pattern, count, bytes, members, .. } = kin;
        Line { parent: Parent::Path(parent), pattern: Pattern::Of(pattern), count, bytes, members, rest_of: 0 }
    }

    fn add(&mut self, count: u64, bytes: u64, members: Members, links: &mut Links) {
        self.count = self.count.saturating_add(count);
        self.bytes = self.bytes.saturating_add(bytes);
        links.join(&mut self.members, members);
    }

    /// The directory above its parent.
    fn above(&self) -> &'a str {
        match self.parent {
            Parent::Path(path) => split(path).0,
            Parent::AnyBelow(path) => path,
            Parent::Ancestor(_) => "/",
        }
    }

    fn parent(&self) -> String {
        match &self.parent {
            Parent::Path(path) => (*path).to_owned(),
            Parent::AnyBelow(path) => format!("{}/*", path.trim_end_matches('/')),
            Parent::Ancestor(path) => path.clone(),
        }
    }

    fn class(&self, bases: &Bases<'_>) -> Class {
        let pattern = match self.pattern {
            Pattern::Of(id) => bases.patterns.get(id).to_owned(),
            Pattern::Any => "*".to_owned(),
        };
        let Line { count, bytes, rest_of, .. } = *self;
        Class { parent: self.parent(), pattern, rest_of, count, bytes }
    }
}

/// Merges parents that differ only in what is folded.
fn across_parents<'a>(
    bases: &Bases<'a>,
    folded: &'a FoldedParents,
    mut kin: Vec<Kin>,
    links: &mut Links,
) -> Vec<Line<'a>> {
    let alike = |k: &Kin| (folded.of.get(k.parent as usize).copied().unwrap_or(0), k.pattern);
    kin.order_by_key(|k| (alike(k), Reverse(k.count), k.members.first));
    let mut lines: Vec<Line<'a>> = Vec::new();
    let mut kin = kin.into_iter().peekable();
    let mut run: Vec<Kin> = Vec::new();
    while let Some(first) = kin.next() {
        let key = alike(&first);
        run.push(first);
        while let Some(next) = kin.next_if(|k| alike(k) == key) {
            run.push(next);
        }
        let own = stand_out(&run);
        let mut others: Option<Line<'a>> = None;
        for (i, k) in run.drain(..).enumerate() {
            if i < own {
                lines.push(Line::of(bases.parents[k.parent as usize], k));
            } else if let Some(others) = &mut others {
                others.add(k.count, k.bytes, k.members, links);
            } else {
                others = Some(Line::of(folded.texts.get(key.0), k));
            }
        }
        lines.extend(others);
    }
    lines
}

/// How many of these parents keep their name; they are alike and sorted, largest first.
fn stand_out(alike: &[Kin]) -> usize {
    let many = alike.iter().take_while(|k| k.count >= MANY).count();
    let mut remaining: u64 = alike.iter().fold(0, |sum, k| sum.saturating_add(k.count));
    let mut own = 0;
    for k in alike {
        let has_share = k.count >= SOME && k.count.saturating_mul(SHARE) >= remaining;
        if !(has_share || k.count >= MANY && many <= FEW_PARENTS) {
            break;
        }
        own += 1;
        remaining = remaining.saturating_sub(k.count);
    }
    // A single leftover has nothing to be merged with.
    if alike.len() - own == 1 { alike.len() } else { own }
}

#[derive(Default)]
struct FoldedParents {
    texts: Texts,
    /// For each parent its folded path.
    of: Vec<u32>,
}

fn fold_parents(parents: &[&str]) -> FoldedParents {
    let mut folded = FoldedParents::default();
    let (mut path, mut pattern) = (String::new(), String::new());
    // Parents with the same grandparent often follow each other.
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
        folded.of.push(folded.texts.id(&path));
    }
    folded
}

/// Merges lines until a person can read them.
fn limit<'a>(mut lines: Vec<Line<'a>>, links: &mut Links) -> Vec<Line<'a>> {
    // Parents may have no pattern either: then merge by what is above them.
    for any_name in [false, true] {
        let small = small(&mut lines);
        if small.is_empty() {
            return lines;
        }
        widen(&mut lines, small, any_name, links);
    }
    let mut small = small(&mut lines).into_iter();
    if let Some(mut rest) = small.next() {
        rest.rest_of = 1;
        for line in small {
            rest.parent = Parent::Ancestor(common_ancestor(&rest.parent(), &line.parent()));
            rest.pattern = Pattern::Any;
            rest.add(line.count, line.bytes, line.members, links);
            rest.rest_of += 1;
        }
        // A rest of one is that one.
        rest.rest_of = if rest.rest_of == 1 { 0 } else { rest.rest_of };
        lines.push(rest);
    }
    lines
}

/// Takes out the lines too small to stay; the others are left sorted, largest first.
fn small<'a>(lines: &mut Vec<Line<'a>>) -> Vec<Line<'a>> {
    let (count, bytes) = lines.iter().fold((0u64, 0u64), |(count, bytes), line| {
        (count.saturating_add(line.count), bytes.saturating_add(line.bytes))
    });
    let rank = |line: &Line<'_>| (Reverse(line.count), Reverse(line.bytes), line.members.first);
    if lines.len() > LINES {
        lines.select_nth_unstable_by_key(LINES, rank);
    }
    let mut first: Vec<Line<'a>> = Vec::with_capacity(MOST_LINES);
    let (mut shares, mut small) = (Vec::new(), Vec::new());
    for (i, line) in lines.drain(..).enumerate() {
        // A few that hold much matter more than many that hold little.
        let holds_much = line.bytes > 0 && line.bytes.saturating_mul(LINE_SHARE_BYTES) >= bytes;
        if i < LINES {
            first.push(line);
        } else if holds_much || line.count >= LINE_COUNT || line.count.saturating_mul(LINE_SHARE_COUNT) >= count {
            shares.push((!holds_much, line));
        } else {
            small.push(line);
        }
    }
    shares.order_by_key(|(many, line)| (*many, rank(line)));
    // One less if there is a rest, which takes a line too.
    let all = small.is_empty() && first.len() + shares.len() <= MOST_LINES;
    let room = if all { shares.len() } else { shares.len().min(MOST_LINES - 1 - LINES) };
    small.extend(shares.split_off(room).into_iter().map(|(_, line)| line));
    lines.extend(first);
    lines.extend(shares.into_iter().map(|(_, line)| line));
    lines.order_by_key(rank);
    small
}

/// Merges small lines by the directory above their parents and, unless `any_name`, by their pattern.
fn widen<'a>(lines: &mut Vec<Line<'a>>, small: Vec<Line<'a>>, any_name: bool, links: &mut Links) {
    let pattern = |line: &Line<'_>| if any_name { Pattern::Any } else { line.pattern };
    let mut index: HashMap<(&str, Pattern), usize> = HashMap::new();
    let mut wide: Vec<Line<'a>> = Vec::new();
    for line in small {
        match index.entry((line.above(), pattern(&line))) {
            Entry::Occupied(at) => {
                let into = &mut wide[*at.get()];
                (into.parent, into.pattern) = (Parent::AnyBelow(line.above()), pattern(&line));
                into.add(line.count, line.bytes, line.members, links);
            }
            Entry::Vacant(place) => {
                place.insert(wide.len());
                wide.push(line);
            }
        }
    }
    for line in wide {
        match lines.iter_mut().find(|l| l.parent == line.parent && l.pattern == line.pattern) {
            Some(same) => same.add(line.count, line.bytes, line.members, links),
            None => lines.push(line),
        }
    }
}

/// Merges lines that ended up with the same parent and pattern.
fn without_twins<'a>(lines: Vec<Line<'a>>, bases: &Bases<'_>, links: &mut Links) -> Vec<Line<'a>> {
    let mut kept: Vec<(Class, Line<'a>)> = Vec::with_capacity(lines.len());
    for line in lines {
        let class = line.class(bases);
        let twin = kept.iter_mut().find(|(other, _)| {
            other.rest_of == 0
                && class.rest_of == 0
                && (&other.parent, &other.pattern) == (&class.parent, &class.pattern)
        });
        match twin {
            Some((_, twin)) => twin.add(line.count, line.bytes, line.members, links),
            None => kept.push((class, line)),
        }
    }
    kept.into_iter().map(|(_, line)| line).collect()
}

/// The deepest directory above both, without folded parts.
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

/// Whether a folded path matches another: `*` stands for part of one name, not for several names.
pub fn covers_path(path: &str, other: &str) -> bool {
    let depth = |path: &str| path.bytes().filter(|&b| b == b'/').count();
    depth(path) == depth(other) && pattern_covers(path, other)
}

pub fn covers(parent: &str, pattern: &str, other_parent: &str, other_pattern: &str) -> bool {
    covers_path(parent, other_parent) && pattern_covers(pattern, other_pattern)
}

#[cfg(test)]
pub(super) mod tests;
