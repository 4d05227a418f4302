//! What a profile is: samples in columns; strings, frames and stacks interned.

pub mod folded;
mod frames;
pub mod hash;
mod intern;
pub mod label;
mod profile;
mod stacks;

pub use folded::FoldedStacks;
pub use frames::{Frame, FrameId, Frames, Place};
pub use intern::{ByteTable, StrId, Strings, WordTable};
pub use profile::{Clock, Event, EventId, Profile, Sample, Samples, Task, TaskId};
pub use stacks::{StackId, Stacks};
