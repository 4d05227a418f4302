//! The file that `perf record` writes (tools/perf/Documentation/perf.data-file-format.txt in the kernel's sources).
//!
//! A header locates the event descriptions, the records and the features (host, build ids, clocks). A file written through a pipe
//! has only records. Records of one core are sorted, those of several cores are not: they are sorted round by round, as perf does,
//! so that a sample sees the mappings and names of its own time. [`decode`] parses the file; `crate::records` applies each record.
//!
//! Our own reader, because linux-perf-data (MIT) trusts sizes in the file (a header can make it allocate any amount of memory) and
//! reads nothing from a truncated file, which is what a node that went down leaves behind.

mod about;
mod decode;
mod layout;
mod unpack;

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;

pub use about::{About, about};
pub use layout::Source;

use super::{ImportError, ImportReport, Take};
use crate::model::Dictionary;
use crate::symbols::Symbols;

/// Reads a file or bytes in memory. Names come from `symbols`.
pub fn read<S: Source + ?Sized>(
    file: &S,
    symbols: &mut Symbols,
    take: &mut Take<'_>,
) -> Result<(Dictionary, ImportReport), ImportError> {
    decode::decode(file, symbols, take)
}

/// Whether a file that begins with `bytes` is a perf.data file.
pub fn is_perf_data(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PERFILE2") || bytes.starts_with(b"2ELIFREP")
}
