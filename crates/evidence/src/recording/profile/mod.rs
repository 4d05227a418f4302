//! CPU samples in a recording: rows of numbers, and the names that the numbers stand for.
//!
//! This is the storage only: `coroner-profile` knows what a stack means and turns its samples into these rows and back. Names of
//! each kind are numbered from 0 in the order in which they were first stored in this file.
//!
//! [`Writer::append_with_samples`](super::Writer::append_with_samples) stores samples and their new names in one transaction, so
//! whatever survives a kill can be read. [`ProfileReader`] returns the samples of a time range and looks up only the names that
//! are needed.

mod chunk;
mod read;
mod rows;

pub use super::chunk::ChunkError;
use crate::Wall;
pub use chunk::{unpack_samples, unpack_stacks};
pub use read::{Chunk, Names, PackedChunk, ProfileReader};

pub(super) use rows::{insert_names, replace_source};

/// The largest chunk, in samples and in time: importers store in such portions.
pub const CHUNK_ROWS: usize = super::write::CHUNK_ROWS;
pub const CHUNK_SPAN: std::time::Duration = super::write::CHUNK_SPAN;

/// One sample. Numbers refer to the tables of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRow {
    /// Nanoseconds of the profile's clock; see [`SourceRow::clock`].
    pub at: Option<u64>,
    pub core: Option<u32>,
    pub task: u32,
    pub event: u32,
    pub period: u64,
    /// 0 is the empty stack, otherwise the number of a [`StackRow`] plus one.
    pub stack: u32,
}

/// A stack: a frame on top of another stack, which was stored before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackRow {
    pub number: u32,
    /// As in [`SampleRow::stack`].
    pub below: u32,
    pub frame: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    pub comm: String,
    /// The number of a path.
    pub cgroup: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameRow {
    pub symbol: String,
    /// The number of a path.
    pub module: u32,
    /// The kind of code, such as `kernel`.
    pub place: String,
    pub is_inlined: bool,
    /// For a frame without a symbol that may be named later: its file's build id in hex, and the offset in the file.
    pub at: Option<(String, u64)>,
}

/// Samples, and names not stored before; each name's number follows from its place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfileRows {
    pub events: NewNames<String>,
    /// Modules and cgroups.
    pub paths: NewNames<String>,
    pub tasks: NewNames<TaskRow>,
    pub frames: NewNames<FrameRow>,
    pub stacks: Vec<StackRow>,
    pub samples: Vec<SampleRow>,
}

/// Names with consecutive numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNames<T> {
    /// The number of the first one.
    pub first: u32,
    pub names: Vec<T>,
}

impl<T> Default for NewNames<T> {
    fn default() -> NewNames<T> {
        NewNames { first: 0, names: Vec::new() }
    }
}

impl<T> NewNames<T> {
    /// Adds a name and returns its number.
    pub fn push(&mut self, name: T) -> u32 {
        self.names.push(name);
        self.first + (self.names.len() - 1) as u32
    }

    fn stored(&mut self) {
        self.first += self.names.len() as u32;
        self.names.clear();
    }
}

impl ProfileRows {
    /// Forgets what was stored; numbering continues.
    pub fn stored(&mut self) {
        self.events.stored();
        self.paths.stored();
        self.tasks.stored();
        self.frames.stored();
        self.stacks.clear();
        self.samples.clear();
    }
}

/// How the clock of a profile relates to the wall clock, where the file says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfileClock {
    /// A reading of the profile's clock, in nanoseconds …
    pub clock_ns: u64,
    /// … and of the wall clock at the same moment.
    pub wall: Wall,
}

impl ProfileClock {
    /// Samples of a directory are read on the wall clock, as its segments may be from several boots.
    pub const WALL: ProfileClock = ProfileClock { clock_ns: 0, wall: Wall(0) };

    pub fn wall_of(&self, time: u64) -> Option<Wall> {
        self.wall.0.checked_add(time)?.checked_sub(self.clock_ns).map(Wall)
    }
}

/// Where the samples of a recording come from: the one row of `profile_source`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceRow {
    /// `perf.data`, `perf script text`, …
    pub kind: String,
    /// The file that was imported.
    pub file: Option<String>,
    pub host: Option<String>,
    pub clock: Option<ProfileClock>,
    /// Samples that the kernel or perf lost.
    pub lost: Option<u64>,
    /// The importer's report, as JSON. `None` until the import is finished.
    pub report_json: Option<String>,
}
