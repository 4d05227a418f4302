//! What a profile is: samples in columns; strings, frames and stacks interned.

mod frames;
pub mod folded;
pub mod hash;
pub mod label;
mod intern;
mod profile;
mod stacks;

pub use folded::FoldedStacks;
pub use frames::{Frame, FrameId, Frames, Place};
pub use intern::{ByteTable, StrId, Strings, WordTable};
pub use profile::{Clock, Event, EventId, Profile, Sample, Samples, Task, TaskId};
pub use stacks::{StackId, Stacks};
