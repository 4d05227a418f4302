//! Samples in our own recordings: [`SampleWriter`] puts them into one, [`read`] passes those of a stretch of time on, out of one
//! file or a directory of them. The tables are in `coroner_evidence::recording::profile`; here is what their rows mean.

mod names;
mod places;
mod read;
mod write;

#[cfg(test)]
mod tests;

pub use read::{read, read_named, read_picked, read_unpacked, span};
pub use write::{NewRecording, Origin, SampleWriter};

use crate::model::Place;

/// What the column `place` of `profile_frames` says.
const PLACES: [(Place, &str); 3] = [(Place::User, "user"), (Place::Jit, "jit"), (Place::Kernel, "kernel")];
