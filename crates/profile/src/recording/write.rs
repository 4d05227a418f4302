//! Stores samples in a recording.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coroner_evidence::Evidence;
use coroner_evidence::recording::profile::{
    CHUNK_ROWS, CHUNK_SPAN, FrameRow, ProfileRows, SampleRow, SourceRow, StackRow, TaskRow,
};
use coroner_evidence::recording::{RecordingError, Writer};

use super::PLACES;
use crate::import::{Format, ImportReport};
use crate::model::{Clock, Dictionary, FrameId, Sample, StackId, StrId, TaskId};

/// Collects samples and the names they use for one file. At most one uncommitted chunk is held in memory.
#[derive(Debug, Default)]
pub struct SampleWriter {
    rows: ProfileRows,
    /// The earliest and latest time held.
    span: Option<(u64, u64)>,
    next_stack: u32,
    // By dictionary id: the file's number plus one; 0 if not stored yet.
    events: Vec<u32>,
    paths: Vec<u32>,
    tasks: Vec<u32>,
    frames: Vec<u32>,
    stacks: Vec<u32>,
}

impl SampleWriter {
    /// Adds a sample; stores a full chunk. `names` must be the same at each call, until [`SampleWriter::begin_anew`]; it may grow.
    pub fn take(&mut self, file: &mut Writer, names: &Dictionary, sample: Sample) -> Result<(), RecordingError> {
        let row = SampleRow {
            at: sample.time,
            core: sample.core,
            task: self.task(names, sample.task),
            event: self.event(names, sample.event.0.into()),
            period: sample.period,
            stack: self.stack(names, sample.stack),
        };
        self.rows.samples.push(row);
        if let Some(time) = sample.time {
            let (first, last) = self.span.unwrap_or((time, time));
            self.span = Some((first.min(time), last.max(time)));
        }
        let full = self.span.is_some_and(|(first, last)| u128::from(last - first) >= CHUNK_SPAN.as_nanos());
        if full || self.rows.samples.len() >= CHUNK_ROWS { self.commit(file) } else { Ok(()) }
    }

    /// Stores what is held. After an error it is still held, for a retry.
    pub fn commit(&mut self, file: &mut Writer) -> Result<(), RecordingError> {
        self.commit_with(file, &Evidence::default())
    }

    /// Stores what is held together with evidence: both, or after an error neither.
    pub fn commit_with(&mut self, file: &mut Writer, seen: &Evidence) -> Result<(), RecordingError> {
        file.append_with_samples(seen, &self.rows)?;
        self.rows.stored();
        self.span = None;
        Ok(())
    }

    /// Continues with an empty dictionary: names are stored again under new numbers.
    pub fn begin_anew(&mut self) {
        for known in [&mut self.events, &mut self.paths, &mut self.tasks, &mut self.frames, &mut self.stacks] {
            *known = Vec::new();
        }
    }

    /// Samples held and not stored, by core.
    pub fn held(&self) -> BTreeMap<u32, u64> {
        let mut held = BTreeMap::new();
        for row in &self.rows.samples {
            *held.entry(row.core.unwrap_or(0)).or_default() += 1;
        }
        held
    }

    fn event(&mut self, names: &Dictionary, id: usize) -> u32 {
        let slot = slot(&mut self.events, id);
        if *slot == 0 {
            let name = names.events.get(id).map_or(String::new(), |event| event.name.clone());
            *slot = self.rows.events.push(name) + 1;
        }
        *slot - 1
    }

    fn path(&mut self, names: &Dictionary, id: StrId) -> u32 {
        let slot = slot(&mut self.paths, id.0 as usize);
        if *slot == 0 {
            *slot = self.rows.paths.push(names.strings.get(id).to_owned()) + 1;
        }
        *slot - 1
    }

    fn task(&mut self, names: &Dictionary, id: TaskId) -> u32 {
        if let Some(known) = slot(&mut self.tasks, id.0 as usize).checked_sub(1) {
            return known;
        }
        let task = names.task(id);
        let cgroup = task.cgroup.map(|cgroup| self.path(names, cgroup));
        let row = TaskRow { pid: task.pid, tid: task.tid, comm: names.strings.get(task.comm).to_owned(), cgroup };
        let number = self.rows.tasks.push(row);
        self.tasks[id.0 as usize] = number + 1;
        number
    }

    fn frame(&mut self, names: &Dictionary, id: FrameId) -> u32 {
        if let Some(known) = slot(&mut self.frames, id.0 as usize).checked_sub(1) {
            return known;
        }
        let frame = names.frames.get(id);
        let place = PLACES.iter().find(|(place, _)| *place == frame.place).map_or("", |(_, word)| word);
        let row = FrameRow {
            symbol: frame.symbol(&names.strings).to_owned(),
            module: self.path(names, frame.module),
            place: place.to_owned(),
            is_inlined: frame.inlined,
            at: names.frames.file_offset(id).map(|at| (names.strings.get(at.build_id).to_owned(), at.offset)),
        };
        let number = self.rows.frames.push(row);
        self.frames[id.0 as usize] = number + 1;
        number
    }

    /// The number of a stack in rows: 0 is the empty one.
    fn stack(&mut self, names: &Dictionary, id: StackId) -> u32 {
        let mut new = Vec::new();
        let mut at = id;
        let mut below = loop {
            let known = *slot(&mut self.stacks, at.0 as usize);
            if known > 0 {
                break known;
            }
            let Some((parent, frame)) = names.stacks.split(at) else { break 0 };
            new.push((at, frame));
            at = parent;
        };
        while let Some((node, frame)) = new.pop() {
            let frame = self.frame(names, frame);
            self.rows.stacks.push(StackRow { number: self.next_stack, below, frame });
            self.next_stack += 1;
            below = self.next_stack;
            self.stacks[node.0 as usize] = below;
        }
        below
    }
}

fn slot(map: &mut Vec<u32>, id: usize) -> &mut u32 {
    if map.len() <= id {
        map.resize(id + 1, 0);
    }
    &mut map[id]
}

/// Where samples come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// `perf.data`, `perf script text`, …
    pub kind: String,
    pub file: Option<String>,
    pub host: Option<String>,
}

impl Origin {
    /// The row for this origin. No report means that the import is not finished.
    pub fn row(&self, clock: Option<Clock>, report: Option<&ImportReport>) -> SourceRow {
        SourceRow {
            kind: self.kind.clone(),
            file: self.file.clone(),
            host: self.host.clone(),
            clock,
            lost: report.map(|report| report.lost),
            report_json: report.and_then(|report| serde_json::to_string(report).ok()),
        }
    }
}

/// A new recording of one profile. Until finished it is marked so, and readable.
pub struct NewRecording {
    path: PathBuf,
    file: Writer,
    samples: SampleWriter,
    origin: Origin,
    clock: Option<Clock>,
}

impl NewRecording {
    /// Creates the file at `path`, which must not exist, for the samples of `from`.
    pub fn create(path: &Path, from: &Path) -> Result<NewRecording, RecordingError> {
        let name = from.file_name().map(|name| name.to_string_lossy().into_owned());
        let origin = Origin { kind: "unfinished import".to_owned(), file: name, host: None };
        let mut file = Writer::create(path)?;
        file.set_profile_source(&origin.row(None, None))?;
        Ok(NewRecording { path: path.to_owned(), file, samples: SampleWriter::default(), origin, clock: None })
    }

    pub fn take(&mut self, names: &Dictionary, sample: Sample) -> Result<(), RecordingError> {
        if names.clock != self.clock {
            self.clock = names.clock;
            self.file.set_profile_source(&self.origin.row(self.clock, None))?;
        }
        self.samples.take(&mut self.file, names, sample)
    }

    /// Stores what is held, and the origin.
    pub fn finish(
        mut self,
        names: &Dictionary,
        report: &ImportReport,
        format: Format,
        host: Option<String>,
    ) -> Result<(), RecordingError> {
        self.samples.commit(&mut self.file)?;
        self.origin.kind = format.name().to_owned();
        self.origin.host = host;
        self.file.set_profile_source(&self.origin.row(names.clock, Some(report)))?;
        self.file.finish(&[])
    }

    /// Removes the file, which we just created.
    pub fn discard(self) {
        drop(self.file);
        for suffix in ["", "-wal", "-shm"] {
            let mut name = self.path.clone().into_os_string();
            name.push(suffix);
            let _ = std::fs::remove_file(name);
        }
    }
}
