//! Events, summed by parent, name pattern and maker.
//!
//! First by acting process and its ancestors ([`Class`]), since only later is it clear which of them were short-lived; then by
//! the process responsible ([`RowKey`]).

use std::collections::{BTreeMap, HashMap, HashSet};

use coroner_evidence::{CgroupChurn, CgroupFate, Maker, Order, Time, name_pattern};

use super::event::{Event, EventKind, Process};
use super::fates::Fates;
use super::makers::{INIT, Makers, Signs, is_go_between, is_passing, who_wanted_it};

/// Rows per interval.
pub(super) const MAX_ROWS: usize = 200;
/// This many are reported in full; the rest is merged by parent.
const MAX_FULL_ROWS: usize = 150;
/// Rows kept during an interval; beyond this new ones are merged by parent, and beyond twice this into one.
const MAX_KEPT: usize = 2000;
/// Limits for classes and actors; beyond them they are settled early.
const MAX_CLASSES: usize = 1000;
const MAX_ACTORS: usize = 8192;
/// Cgroups removed by this process and not yet freed.
const MAX_OWN: usize = 4096;
/// How many intermediate commands are named.
const MAX_VIA: usize = 3;

/// Stands for any parent or any name.
const ANY: &str = "*";

#[derive(Debug)]
pub(super) struct Tally {
    own_pid: u32,
    own: HashSet<u64>,
    classes: HashMap<Class, Acts>,
    actors: usize,
    rows: HashMap<RowKey, Row>,
    fates: Fates<RowKey>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Class {
    parent: String,
    pattern: String,
    comm: String,
    ancestors: Vec<Process>,
}

#[derive(Debug, Default)]
struct Acts {
    example: String,
    actors: HashMap<u32, Actor>,
}

#[derive(Debug, Default)]
struct Actor {
    began: Option<Time>,
    last: Time,
    made: u64,
    removed: u64,
    /// Those it made that are followed.
    ids: Vec<u64>,
}

impl Actor {
    fn acts(&self) -> u64 {
        self.made.saturating_add(self.removed)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RowKey {
    parent: String,
    pattern: String,
    maker: MakerKey,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum MakerKey {
    /// Not known, or the kernel.
    Nobody,
    Itself(u32),
    /// Through short-lived child processes.
    ByOthers(u32),
    /// Each time another process with the same name and parent.
    Alike {
        comm: String,
        by_others: bool,
        parent: Option<u32>,
    },
}

#[derive(Debug, Default)]
struct Row {
    example: String,
    counts: Counts,
    maker: Option<Maker>,
    /// Made and removed, by intermediate command.
    via: BTreeMap<String, (u64, u64)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    made: u64,
    removed: u64,
    freed: u64,
}

impl Counts {
    fn of(kind: EventKind, count: u64) -> Counts {
        let mut counts = Counts::default();
        match kind {
            EventKind::Made => counts.made = count,
            EventKind::Removed => counts.removed = count,
            EventKind::Freed => counts.freed = count,
        }
        counts
    }

    fn add(&mut self, other: Counts) {
        self.made = self.made.saturating_add(other.made);
        self.removed = self.removed.saturating_add(other.removed);
        self.freed = self.freed.saturating_add(other.freed);
    }

    fn total(&self) -> u64 {
        self.made.saturating_add(self.removed).saturating_add(self.freed)
    }
}

impl Tally {
    /// Does not count what `own_pid` does.
    pub fn new(own_pid: u32) -> Tally {
        Tally {
            own_pid,
            own: HashSet::new(),
            classes: HashMap::new(),
            actors: 0,
            rows: HashMap::new(),
            fates: Fates::new(),
        }
    }

    pub fn add(&mut self, mut event: Event, makers: &mut Makers, now: Time) {
        match event.kind {
            EventKind::Made => {}
            EventKind::Removed => self.fates.removed(event.id, event.at),
            EventKind::Freed => self.fates.freed(event.id),
        }
        if event.kind == EventKind::Freed {
            if !self.own.remove(&event.id) {
                self.add_without_maker(&event);
            }
            return;
        }
        let Some(pid) = event.chain.first().map(|p| p.pid) else { return self.add_without_maker(&event) };
        if pid == self.own_pid {
            if event.kind == EventKind::Removed && self.own.len() < MAX_OWN {
                self.own.insert(event.id);
            }
            return;
        }
        if self.classes.len() >= MAX_CLASSES || self.actors >= MAX_ACTORS {
            self.settle(makers, now);
        }
        let (parent, name) = event.parent_and_name();
        let (parent, pattern, name) = (parent.to_owned(), name_pattern(name), name.to_owned());
        let mut chain = std::mem::take(&mut event.chain).into_iter();
        let Some(actor) = chain.next() else { return };
        let class = Class { parent, pattern, comm: actor.comm.clone(), ancestors: chain.collect() };
        if !self.classes.contains_key(&class) {
            makers.learn(std::slice::from_ref(&actor));
            makers.learn(&class.ancestors);
        }
        let acts = self.classes.entry(class).or_insert_with(|| Acts { example: name, actors: HashMap::new() });
        let actors = &mut self.actors;
        let entry = acts.actors.entry(pid).or_insert_with(|| {
            *actors += 1;
            Actor { began: actor.began, ..Actor::default() }
        });
        entry.last = entry.last.max(event.at);
        match event.kind {
            EventKind::Made => {
                entry.made += 1;
                if self.fates.made(event.id) {
                    entry.ids.push(event.id);
                }
            }
            _ => entry.removed += 1,
        }
    }

    /// Events of which only the number is known.
    pub fn add_unnamed(&mut self, kind: EventKind, count: u64) {
        if count > 0 {
            self.row(ANY, ANY, MakerKey::Nobody, "").counts.add(Counts::of(kind, count));
        }
    }

    fn add_without_maker(&mut self, event: &Event) {
        let (parent, name) = event.parent_and_name();
        self.row(parent, &name_pattern(name), MakerKey::Nobody, name).counts.add(Counts::of(event.kind, 1));
    }

    fn row(&mut self, parent: &str, pattern: &str, maker: MakerKey, example: &str) -> &mut Row {
        let mut key = RowKey { parent: parent.to_owned(), pattern: pattern.to_owned(), maker };
        if self.rows.len() >= MAX_KEPT && !self.rows.contains_key(&key) {
            (key.pattern, key.maker) = (ANY.to_owned(), MakerKey::Nobody);
            if self.rows.len() >= 2 * MAX_KEPT && !self.rows.contains_key(&key) {
                key.parent = ANY.to_owned();
            }
        }
        self.rows.entry(key).or_insert_with(|| Row { example: example.to_owned(), ..Row::default() })
    }

    /// Attributes the events so far to the processes responsible.
    fn settle(&mut self, makers: &Makers, now: Time) {
        let classes = std::mem::take(&mut self.classes);
        self.actors = 0;
        let mut acts: HashMap<u32, u64> = HashMap::new();
        for (class, done) in &classes {
            for (&pid, actor) in &done.actors {
                for pid in std::iter::once(pid).chain(class.ancestors.iter().map(|p| p.pid)) {
                    let sum = acts.entry(pid).or_default();
                    *sum = sum.saturating_add(actor.acts());
                }
            }
        }
        let mut alive: HashMap<(u32, String), Option<bool>> = HashMap::new();
        let mut passes = |process: &Process, one_of_many: bool, last_act: Time| {
            let alive = *alive.entry((process.pid, process.comm.clone())).or_insert_with(|| makers.is_alive(process));
            let acts = acts.get(&process.pid).copied().unwrap_or(0);
            is_passing(process, Signs { acts, alive, one_of_many, last_act, now })
        };
        for (class, done) in classes {
            let many = done.actors.len() > 1;
            for (pid, actor) in done.actors {
                let mut passes = |process: &Process| passes(process, many && process.pid == pid, actor.last);
                let itself = Process { pid, began: actor.began, comm: class.comm.clone() };
                let chain: Vec<&Process> = std::iter::once(&itself).chain(&class.ancestors).collect();
                let level = who_wanted_it(&chain, &mut passes);
                let (wanted, parent) = (chain[level], chain.get(level + 1).copied());
                let by_others = level > 0;
                // If it leads back to no long-lived process, it is attributed by name.
                let one_of_many = wanted.pid != INIT && (passes(wanted) || is_go_between(wanted));
                let key = match (one_of_many, by_others) {
                    (true, by_others) => {
                        MakerKey::Alike { comm: wanted.comm.clone(), by_others, parent: parent.map(|p| p.pid) }
                    }
                    (false, true) => MakerKey::ByOthers(wanted.pid),
                    (false, false) => MakerKey::Itself(wanted.pid),
                };
                self.fates.settle(&actor.ids, &key_of(&class, &key), &class.parent, &class.pattern, || {
                    makers.describe(wanted, parent)
                });
                let row = self.row(&class.parent, &class.pattern, key, &done.example);
                row.counts.add(Counts { made: actor.made, removed: actor.removed, freed: 0 });
                row.add_maker(makers, wanted, parent, by_others);
                if by_others {
                    let via = row.via.entry(class.comm.clone()).or_default();
                    *via = (via.0.saturating_add(actor.made), via.1.saturating_add(actor.removed));
                }
            }
        }
    }

    /// The rows of the interval that ends now; starts the next.
    pub fn tell(&mut self, from: Time, to: Time, makers: &Makers) -> Vec<CgroupChurn> {
        self.settle(makers, to);
        let mut rows = Vec::with_capacity(self.rows.len());
        for (key, row) in std::mem::take(&mut self.rows) {
            let row = row.told(key.clone(), from, to);
            if let Some(maker) = &row.maker {
                self.fates.describe(&key, maker);
            }
            rows.push(row);
        }
        sort(&mut rows);
        if rows.len() > MAX_ROWS {
            let rest = rows.split_off(MAX_FULL_ROWS);
            let mut rest = merged(rest, |row| row.parent.clone());
            let places = MAX_ROWS - MAX_FULL_ROWS;
            if rest.len() > places {
                let small = rest.split_off(places - 1);
                rest.extend(merged(small, |_| ANY.to_owned()));
            }
            rows.extend(rest);
        }
        rows
    }

    /// What became of the cgroups made since the start. To be called after [`Tally::tell`], which finds their makers.
    pub fn tell_fates(&mut self, from: Time, to: Time, last: bool) -> Vec<CgroupFate> {
        self.fates.tell(from, to, last)
    }
}

fn key_of(class: &Class, maker: &MakerKey) -> RowKey {
    RowKey { parent: class.parent.clone(), pattern: class.pattern.clone(), maker: maker.clone() }
}

impl Row {
    fn add_maker(&mut self, makers: &Makers, process: &Process, parent: Option<&Process>, by_others: bool) {
        let Some(maker) = &mut self.maker else {
            self.maker = Some(makers.describe(process, parent));
            return;
        };
        // The same process again, from another class or an early settlement.
        if maker.pid == process.pid && !by_others {
            return;
        }
        maker.processes = maker.processes.saturating_add(1);
        if maker.pid != process.pid {
            let mut last = makers.describe(process, parent);
            last.processes = maker.processes;
            last.command = last.command.or(maker.command.take());
            last.cgroup = last.cgroup.or(maker.cgroup.take());
            *maker = last;
        }
    }

    fn told(self, key: RowKey, from: Time, to: Time) -> CgroupChurn {
        let mut via: Vec<(String, (u64, u64))> = self.via.into_iter().collect();
        via.order_by_key(|(_, acts)| std::cmp::Reverse(*acts));
        let via: Vec<String> = via.into_iter().take(MAX_VIA).map(|(comm, _)| comm).collect();
        // Rows merged for lack of space have several makers.
        let maker = self.maker.filter(|_| key.maker != MakerKey::Nobody);
        let maker = maker.map(|maker| Maker { via: (!via.is_empty()).then(|| via.join(", ")), ..maker });
        CgroupChurn {
            from,
            to,
            parent: key.parent,
            pattern: key.pattern,
            example: self.example,
            born: self.counts.made,
            removed: self.counts.removed,
            freed: self.counts.freed,
            maker,
        }
    }
}

/// Most events first; ties in a fixed order.
fn sort(rows: &mut [CgroupChurn]) {
    let total = |row: &CgroupChurn| Counts { made: row.born, removed: row.removed, freed: row.freed }.total();
    let pid = |row: &CgroupChurn| row.maker.as_ref().map(|m| m.pid);
    rows.order_by(|a, b| {
        let places = (&a.parent, &a.pattern, pid(a)).cmp(&(&b.parent, &b.pattern, pid(b)));
        total(b).cmp(&total(a)).then(places)
    });
}

/// Merges rows with the same parent, whatever their names and makers.
fn merged(rows: Vec<CgroupChurn>, parent: impl Fn(&CgroupChurn) -> String) -> Vec<CgroupChurn> {
    let mut sums: BTreeMap<String, CgroupChurn> = BTreeMap::new();
    for row in rows {
        let parent = parent(&row);
        let Some(sum) = sums.get_mut(&parent) else {
            sums.insert(parent.clone(), CgroupChurn { parent, pattern: ANY.to_owned(), maker: None, ..row });
            continue;
        };
        sum.born = sum.born.saturating_add(row.born);
        sum.removed = sum.removed.saturating_add(row.removed);
        sum.freed = sum.freed.saturating_add(row.freed);
    }
    let mut rows: Vec<CgroupChurn> = sums.into_values().collect();
    sort(&mut rows);
    rows
}
