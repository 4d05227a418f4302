//! Samples in our own recordings. `coroner_evidence::recording::profile` has the tables; here is what their rows mean.

mod names;
mod places;
mod read;
mod write;

#[cfg(test)]
mod tests;

pub use read::{read, read_named, read_picked, read_unpacked, span};
pub use write::{NewRecording, Origin, SampleWriter};

use crate::model::FramePlace;

/// The values of the column `place` of `profile_frames`.
const PLACES: [(FramePlace, &str); 3] =
    [(FramePlace::User, "user"), (FramePlace::Jit, "jit"), (FramePlace::Kernel, "kernel")];
