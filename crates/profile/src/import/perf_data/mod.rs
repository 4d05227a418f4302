//! The file that `perf record` writes (tools/perf/Documentation/perf.data-file-format.txt in the kernel's sources).
//!
//! A header says where the events' descriptions, the records and the features (host, build ids, clocks) are. A file written
//! through a pipe has only records. Records of one core are in order, those of several cores are not: they are put in order
//! round by round, as perf does, so that a sample finds the mappings and names of its own moment. [`decode`] takes the file
//! apart; what each record says is in `crate::records`.
//!
//! Own reader: linux-perf-data (MIT) trusts sizes in the file (a header can make it ask for any amount of memory) and gives
//! nothing of a file that was cut, which is how a file looks after a node went down.

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

use super::{ImportError, Report, Take};
use crate::model::Dictionary;
use crate::symbols::Symbols;

/// Reads a file, or one that is in memory. Names come from `symbols`.
pub fn read<S: Source + ?Sized>(
    file: &S,
    symbols: &mut Symbols,
    take: &mut Take<'_>,
) -> Result<(Dictionary, Report), ImportError> {
    decode::decode(file, symbols, take)
}

/// Whether a file that begins with `bytes` is one of perf's.
pub fn is_perf_data(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PERFILE2") || bytes.starts_with(b"2ELIFREP")
}
