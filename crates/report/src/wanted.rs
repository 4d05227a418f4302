//! What a collector answers to a report. Older collectors answer less, and older nodes ignore it.

use serde::{Deserialize, Serialize};

/// Sent with each piece of a file: the largest that a collector takes.
pub const PIECE_BYTES: u64 = 256 << 10;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Acknowledged {
    pub batches: u64,
    /// Known already.
    pub repeated: u64,
    pub rows: u64,
    /// Files of this node that somebody asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<WantedFile>,
}

/// The recording of an incident, to be sent to `PUT /api/v1/incidents/N/file`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WantedFile {
    pub incident: u64,
}

/// What a collector answers to a piece of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Received {
    /// It has all bytes before this one: where the next piece begins.
    pub offset: u64,
}

/// Why a node sends no file: the parameter `unsent`.
pub const REFUSED: &str = "refused";
pub const GONE: &str = "gone";
