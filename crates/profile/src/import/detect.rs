//! Detects the format of a file from its beginning.

use std::io::Read;

use serde::{Deserialize, Serialize};

use super::gz::{Unpacked, is_gz};
use super::perf_script::{frame, header};
use super::{folded, perf_data};

/// How much of a file is examined.
pub(super) const HEAD: usize = 64 << 10;
/// Limit for the unpacked beginning of compressed text.
const UNPACKED: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The file of `perf record`.
    PerfData,
    /// The text of `perf script`.
    PerfScript,
    /// `frame;frame;… weight`.
    Folded,
    /// Our own file, or a directory of them.
    Recording,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Format::PerfData => "perf.data",
            Format::PerfScript => "perf script text",
            Format::Folded => "folded stacks",
            Format::Recording => "coroner recording",
        }
    }

    /// The machine-readable name.
    pub fn id(self) -> &'static str {
        match self {
            Format::PerfData => "perf-data",
            Format::PerfScript => "perf-script",
            Format::Folded => "folded",
            Format::Recording => "recording",
        }
    }
}

/// The format of a file that begins with `head`.
pub(super) fn format(head: &[u8]) -> Option<Format> {
    if is_gz(head) {
        let mut unpacked = Vec::new();
        Unpacked::new(head).ok()?.take(UNPACKED).read_to_end(&mut unpacked).ok()?;
        return if is_gz(&unpacked) { None } else { format(&unpacked) };
    }
    if perf_data::is_perf_data(head) {
        return Some(Format::PerfData);
    }
    if head.starts_with(b"SQLite format 3\0") {
        return Some(Format::Recording);
    }
    if memchr::memchr(0, head).is_some() {
        return None;
    }
    let mut lines = head.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    let (mut perf, mut stacks) = (0, 0);
    for line in lines.by_ref().take(1000) {
        if line.starts_with(b"\t") && frame::is_frame(line) || !line.starts_with(b"\t") && header::parse(line).is_some()
        {
            perf += 1;
        } else if folded::is_line(line) {
            stacks += 1;
        }
    }
    match (perf, stacks) {
        (0, 0) => None,
        // A folded line with spaces in a name may look like a header; a frame never looks like a folded line.
        (perf, stacks) => Some(if perf >= stacks { Format::PerfScript } else { Format::Folded }),
    }
}

/// The first bytes, for an error message.
pub(super) fn describe(head: &[u8]) -> String {
    let cut = &head[..head.len().min(24)];
    format!("\"{}\"", cut.escape_ascii())
}
