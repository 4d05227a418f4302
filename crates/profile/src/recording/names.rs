//! The names of one file, brought into a dictionary as samples use them.

use std::collections::HashMap;
use std::ops::ControlFlow;

use coroner_evidence::recording::profile::{FrameRow, Names, Reader, SampleRow, StackRow, TaskRow};

use super::PLACES;
use super::places::Places;
use crate::import::{OddityKind, Report};
use crate::model::hash::Seeded;
use crate::model::{Dictionary, EventId, Frame, FrameId, Place, Sample, StackId, StrId, Strings, Task, TaskId};

/// How many stacks of a file are kept. A stack takes twelve bytes here, and a file could claim any number.
const MAX_STACKS: usize = 1 << 24;
/// How many numbers may be missing before a stack: those of some chunks that were lost. A chunk of one stack could claim any number.
const MAX_MISSING: usize = 1 << 20;
/// How deep a stack may be: the kernel takes 127 frames unless told otherwise. Beyond it the frames next to the root are cut.
const MAX_DEPTH: u16 = 4096;

/// Says that it is not known what is below.
const STRAY: u32 = u32::MAX;

/// Where names come from: a file, or nowhere.
pub(super) trait Source {
    fn event(&mut self, number: u32) -> Option<String>;
    fn path(&mut self, number: u32) -> Option<String>;
    fn task(&mut self, number: u32) -> Option<TaskRow>;
    fn frame(&mut self, number: u32) -> Option<FrameRow>;
}

impl Source for Names<'_> {
    fn event(&mut self, number: u32) -> Option<String> {
        Names::event(self, number)
    }
    fn path(&mut self, number: u32) -> Option<String> {
        Names::path(self, number)
    }
    fn task(&mut self, number: u32) -> Option<TaskRow> {
        Names::task(self, number)
    }
    fn frame(&mut self, number: u32) -> Option<FrameRow> {
        Names::frame(self, number)
    }
}

/// A stack of the file.
#[derive(Clone, Copy)]
struct StoredStack {
    below: u32,
    frame: u32,
    depth: u16,
}

/// How many numbers have a place of their own: files number names from 0, so that nearly all have one.
const DIRECT: usize = 1 << 18;

/// Ids by the file's numbers. Asked for each sample.
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

/// What a file's numbers are in the dictionary.
pub(super) struct Numbers<'p, 's> {
    places: &'p mut Places<'s>,
    nodes: Vec<StoredStack>,
    /// The stack of each node; [`STRAY`] if it was not asked for yet.
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

    /// Reads the stacks of a file. What cannot be read is noted; samples with such a stack are kept as far as it is known.
    pub fn of(file: &Reader, places: &'p mut Places<'s>, report: &mut Report) -> Numbers<'p, 's> {
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

    pub fn add_stacks(&mut self, stacks: &[StackRow], report: &mut Report) {
        let unknown = StoredStack { below: STRAY, frame: STRAY, depth: 0 };
        for stack in stacks {
            let at = stack.number as usize;
            if at >= MAX_STACKS || at > self.nodes.len() + MAX_MISSING {
                report.odd(OddityKind::BadRecord, at as u64, b"a stack with a number beyond those that are kept");
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

    /// The sample that a row stands for.
    pub fn sample(
        &mut self,
        source: &mut dyn Source,
        names: &mut Dictionary,
        report: &mut Report,
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

    fn event(&mut self, source: &mut dyn Source, names: &mut Dictionary, report: &mut Report, number: u32) -> EventId {
        *self.events.entry(number).or_insert_with(|| match source.event(number) {
            Some(name) => names.intern_event(&name),
            None => {
                lost(report, "event", number);
                names.intern_event("unknown")
            }
        })
    }

    fn path(&mut self, source: &mut dyn Source, names: &mut Dictionary, report: &mut Report, number: u32) -> StrId {
        *self.paths.entry(number).or_insert_with(|| match source.path(number) {
            Some(path) => names.strings.intern(&path),
            None => {
                lost(report, "path", number);
                Strings::EMPTY
            }
        })
    }

    fn task(&mut self, source: &mut dyn Source, names: &mut Dictionary, report: &mut Report, number: u32) -> TaskId {
        if let Some(known) = self.tasks.get(number) {
            return TaskId(known);
        }
        let task = match source.task(number) {
            Some(row) => Task {
                pid: row.pid,
                tid: row.tid,
                comm: names.strings.intern(&row.comm),
                cgroup: row.cgroup.map(|cgroup| self.path(source, names, report, cgroup)),
            },
            None => {
                lost(report, "task", number);
                Task { pid: None, tid: None, comm: Strings::EMPTY, cgroup: None }
            }
        };
        let id = names.intern_task(task);
        self.tasks.insert(number, id.0);
        id
    }

    fn frame(&mut self, source: &mut dyn Source, names: &mut Dictionary, report: &mut Report, number: u32) -> FrameId {
        if let Some(known) = self.frames.get(number) {
            return FrameId(known);
        }
        let id = match source.frame(number) {
            Some(row) => {
                let frame = Frame {
                    symbol: names.strings.intern(&row.symbol),
                    module: self.path(source, names, report, row.module),
                    place: PLACES.iter().find(|(_, word)| *word == row.place).map_or(Place::User, |(place, _)| *place),
                    inlined: row.is_inlined,
                };
                match row.at.filter(|_| row.symbol.is_empty()) {
                    Some((build_id, offset)) => self.places.frame(names, frame, &build_id, offset),
                    None => names.frames.intern(frame),
                }
            }
            None => {
                lost(report, "frame", number);
                let nothing = Strings::EMPTY;
                names.frames.intern(Frame { symbol: nothing, module: nothing, place: Place::User, inlined: false })
            }
        };
        self.frames.insert(number, id.0);
        id
    }

    fn stack(&mut self, source: &mut dyn Source, names: &mut Dictionary, report: &mut Report, number: u32) -> StackId {
        self.stacks.resize(self.nodes.len(), STRAY);
        let mut new = Vec::new();
        let mut at = number;
        let mut stack = loop {
            let Some(place) = at.checked_sub(1).map(|place| place as usize) else { break StackId::EMPTY };
            match (self.stacks.get(place), self.nodes.get(place)) {
                (Some(&known), _) if known != STRAY => break StackId(known),
                (_, Some(node)) if node.frame != STRAY => {
                    new.push((place, node.frame));
                    at = node.below;
                }
                _ => {
                    report.odd(OddityKind::StrayStack, number.into(), b"a stack that is not whole in the recording");
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

fn lost(report: &mut Report, what: &str, number: u32) {
    report.odd(OddityKind::BadRecord, number.into(), format!("{what} {number} is not in the recording").as_bytes());
}
