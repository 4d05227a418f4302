//! Maps the names of one file into a dictionary as samples use them.

use std::collections::HashMap;
use std::ops::ControlFlow;

use coroner_evidence::recording::profile::{Names, ProfileReader, SampleRow, StackRow};

use super::PLACES;
use super::places::Places;
use crate::import::{ImportReport, OddityKind};
use crate::model::{
    Dictionary, EventId, Frame, FrameId, FramePlace, Sample, Seeded, StackId, StrId, Strings, Task, TaskId,
};

/// How many stacks of a file are kept. Each takes twelve bytes here, and a file could claim any number.
const MAX_STACKS: usize = 1 << 24;
/// How many numbers may be missing before a stack, from lost chunks. A chunk with one stack could claim any number.
const MAX_MISSING: usize = 1 << 20;
/// How deep a stack may be: the kernel's default is 127 frames. Beyond it the frames next to the root are cut.
const MAX_DEPTH: u16 = 4096;

/// Marks an unknown parent.
const STRAY: u32 = u32::MAX;

/// A stack of the file.
#[derive(Clone, Copy)]
struct StoredStack {
    below: u32,
    frame: u32,
    depth: u16,
}

/// How many numbers are indexed directly: files count from 0, so nearly all are.
const DIRECT: usize = 1 << 18;

/// Ids by the file's numbers. Looked up for each sample.
#[derive(Default)]
struct KnownIds {
    direct: Vec<u32>,
    others: HashMap<u32, u32, Seeded>,
}

impl KnownIds {
    fn get(&self, number: u32) -> Option<u32> {
        match self.direct.get(number as usize) {
            Some(&id) if id != STRAY => Some(id),
            Some(_) => None,
            None => self.others.get(&number).copied(),
        }
    }

    fn insert(&mut self, number: u32, id: u32) {
        let at = number as usize;
        if at >= DIRECT {
            self.others.insert(number, id);
            return;
        }
        if self.direct.len() <= at {
            self.direct.resize(at + 1, STRAY);
        }
        self.direct[at] = id;
    }
}

/// Maps a file's numbers to the dictionary's ids.
pub(super) struct Numbers<'p, 's> {
    places: &'p mut Places<'s>,
    nodes: Vec<StoredStack>,
    /// The stack of each node; [`STRAY`] until it is used.
    stacks: Vec<u32>,
    events: HashMap<u32, EventId, Seeded>,
    paths: HashMap<u32, StrId, Seeded>,
    tasks: KnownIds,
    frames: KnownIds,
}

impl<'p, 's> Numbers<'p, 's> {
    pub fn new(places: &'p mut Places<'s>) -> Numbers<'p, 's> {
        Numbers {
            places,
            nodes: Vec::new(),
            stacks: Vec::new(),
            events: HashMap::default(),
            paths: HashMap::default(),
            tasks: KnownIds::default(),
            frames: KnownIds::default(),
        }
    }

    /// Reads the stacks of a file. Unreadable ones are reported; their samples are kept with the known part of the stack.
    pub fn of(file: &ProfileReader, places: &'p mut Places<'s>, report: &mut ImportReport) -> Numbers<'p, 's> {
        let mut numbers = Numbers::new(places);
        file.stacks(&mut |stacks| {
            match stacks {
                Ok(stacks) => numbers.add_stacks(&stacks, report),
                Err(why) => report.odd(OddityKind::BadRecord, 0, format!("stacks: {why}").as_bytes()),
            }
            ControlFlow::Continue(())
        });
        numbers
    }

    pub fn add_stacks(&mut self, stacks: &[StackRow], report: &mut ImportReport) {
        let unknown = StoredStack { below: STRAY, frame: STRAY, depth: 0 };
        for stack in stacks {
            let at = stack.number as usize;
            if at >= MAX_STACKS || at > self.nodes.len() + MAX_MISSING {
                report.odd(OddityKind::BadRecord, at as u64, b"stack number out of range");
                return;
            }
            if self.nodes.len() <= at {
                self.nodes.resize(at + 1, unknown);
            }
            let below = (stack.below as usize).checked_sub(1).map(|below| self.nodes.get(below).unwrap_or(&unknown));
            self.nodes[at] = match below {
                None => StoredStack { below: 0, frame: stack.frame, depth: 1 },
                Some(below) if below.frame != STRAY && below.depth < MAX_DEPTH => {
                    StoredStack { below: stack.below, frame: stack.frame, depth: below.depth + 1 }
                }
                Some(_) => StoredStack { below: STRAY, frame: stack.frame, depth: 1 },
            };
        }
    }

    /// The sample that a row stands for. `source` is the file; without one nothing has a name.
    pub fn sample(
        &mut self,
        source: &mut Option<Names<'_>>,
        names: &mut Dictionary,
        report: &mut ImportReport,
        row: &SampleRow,
    ) -> Sample {
        Sample {
            time: row.at,
            core: row.core,
            task: self.task(source, names, report, row.task),
            event: self.event(source, names, report, row.event),
            period: row.period,
            stack: self.stack(source, names, report, row.stack),
        }
    }

    fn event(
        &mut self,
        source: &mut Option<Names<'_>>,
        names: &mut Dictionary,
        report: &mut ImportReport,
        n: u32,
    ) -> EventId {
        *self.events.entry(n).or_insert_with(|| match source.as_mut().and_then(|from| from.event(n)) {
            Some(name) => names.intern_event(&name),
            None => {
                lost(report, "event", n);
                names.intern_event("unknown")
            }
        })
    }

    fn path(
        &mut self,
        source: &mut Option<Names<'_>>,
        names: &mut Dictionary,
        report: &mut ImportReport,
        n: u32,
    ) -> StrId {
        *self.paths.entry(n).or_insert_with(|| match source.as_mut().and_then(|from| from.path(n)) {
            Some(path) => names.strings.intern(&path),
            None => {
                lost(report, "path", n);
                Strings::EMPTY
            }
        })
    }

    fn task(
        &mut self,
        source: &mut Option<Names<'_>>,
        names: &mut Dictionary,
        report: &mut ImportReport,
        n: u32,
    ) -> TaskId {
        if let Some(known) = self.tasks.get(n) {
            return TaskId(known);
        }
        let task = match source.as_mut().and_then(|from| from.task(n)) {
            Some(row) => Task {
                pid: row.pid,
                tid: row.tid,
                comm: names.strings.intern(&row.comm),
                cgroup: row.cgroup.map(|cgroup| self.path(source, names, report, cgroup)),
            },
            None => {
                lost(report, "task", n);
                Task { pid: None, tid: None, comm: Strings::EMPTY, cgroup: None }
            }
        };
        let id = names.intern_task(task);
        self.tasks.insert(n, id.0);
        id
    }

    fn frame(
        &mut self,
        source: &mut Option<Names<'_>>,
        names: &mut Dictionary,
        report: &mut ImportReport,
        n: u32,
    ) -> FrameId {
        if let Some(known) = self.frames.get(n) {
            return FrameId(known);
        }
        let id = match source.as_mut().and_then(|from| from.frame(n)) {
            Some(row) => {
                let frame = Frame {
                    symbol: names.strings.intern(&row.symbol),
                    module: self.path(source, names, report, row.module),
                    place: PLACES.iter().find(|known| known.1 == row.place).map_or(FramePlace::User, |known| known.0),
                    inlined: row.is_inlined,
                };
                match row.at.filter(|_| row.symbol.is_empty()) {
                    Some((build_id, offset)) => self.places.frame(names, frame, &build_id, offset),
                    None => names.frames.intern(frame),
                }
            }
            None => {
                lost(report, "frame", n);
                let nothing = Strings::EMPTY;
                names.frames.intern(Frame { symbol: nothing, module: nothing, place: FramePlace::User, inlined: false })
            }
        };
        self.frames.insert(n, id.0);
        id
    }

    fn stack(
        &mut self,
        source: &mut Option<Names<'_>>,
        names: &mut Dictionary,
        report: &mut ImportReport,
        n: u32,
    ) -> StackId {
        self.stacks.resize(self.nodes.len(), STRAY);
        let mut new = Vec::new();
        let mut at = n;
        let mut stack = loop {
            let Some(place) = at.checked_sub(1).map(|place| place as usize) else { break StackId::EMPTY };
            match (self.stacks.get(place), self.nodes.get(place)) {
                (Some(&known), _) if known != STRAY => break StackId(known),
                (_, Some(node)) if node.frame != STRAY => {
                    new.push((place, node.frame));
                    at = node.below;
                }
                _ => {
                    report.odd(OddityKind::StrayStack, n.into(), b"stack is incomplete in the recording");
                    break StackId::EMPTY;
                }
            }
        };
        while let Some((place, frame)) = new.pop() {
            let frame = self.frame(source, names, report, frame);
            stack = names.stacks.push(stack, frame);
            self.stacks[place] = stack.0;
        }
        stack
    }
}

fn lost(report: &mut ImportReport, what: &str, number: u32) {
    report.odd(OddityKind::BadRecord, number.into(), format!("{what} {number} is not in the recording").as_bytes());
}
