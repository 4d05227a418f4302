//! The profile: samples in columns; strings, frames and stacks interned.

mod dictionary;
pub mod folded;
mod frames;
mod intern;
pub mod label;
mod profile;
mod samples;
mod stacks;

pub use coroner_evidence::recording::profile::ProfileClock as Clock;
pub use dictionary::{Dictionary, Event, EventId, Task, TaskId};
pub use folded::FoldedStacks;
/// A fast hash with a random seed, so that no file can make a table degenerate.
pub use foldhash::fast::RandomState as Seeded;
pub use frames::{FileOffset, Frame, FrameId, FramePlace, Frames};
pub(crate) use intern::Slots;
pub use intern::{ByteTable, StrId, Strings, WordTable};
pub use profile::Profile;
pub use samples::{Sample, Samples};
pub use stacks::{StackId, Stacks};
