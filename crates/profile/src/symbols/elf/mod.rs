//! Function names of programs and libraries.
//!
//! Our own reader, because it must follow perf in choosing among several names of one address, in ending functions without a
//! size and in naming stubs (`malloc@plt`), so that both name a recording alike. Of a file only its symbol table is read, names
//! one by one as needed.

mod debugdata;
mod demangle;
mod image;
mod locate;
mod plt;
mod table;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::Path;

pub(crate) use image::Image;
pub(super) use image::build_id_in;
pub(crate) use locate::hex;
pub(super) use locate::{FileId, cached};

use image::Segment;
use table::{MAX_SYMBOLS, Table};

/// The names of a mapped file.
pub(super) struct NamedFile {
    /// The loaded segments of the mapped file.
    segments: Vec<Segment>,
    table: Table,
}

impl NamedFile {
    /// Opens the file that `wanted` describes, if it is there.
    pub fn open(root: &Path, wanted: &FileId<'_>, problem: &mut dyn FnMut(String)) -> Option<NamedFile> {
        NamedFile::open_small(root, wanted, MAX_SYMBOLS, problem)
    }

    /// The same, if none of its symbol tables is larger than `most`.
    pub fn open_small(
        root: &Path,
        wanted: &FileId<'_>,
        most: u64,
        problem: &mut dyn FnMut(String),
    ) -> Option<NamedFile> {
        let found = locate::locate(root, wanted, problem).map_err(&mut *problem).ok()?;
        let named = NamedFile::read(found.mapped, found.debug, most);
        if named.is_none() {
            problem(format!(
                "{}: not a 64-bit program or library, or too many symbols; its functions stay unnamed",
                wanted.path
            ));
        }
        named
    }

    /// Reads the names in `mapped`, and further ones in `debug`.
    pub fn read(mapped: Image, debug: Option<Image>, most: u64) -> Option<NamedFile> {
        let segments = mapped.segments()?;
        let table = Table::read(mapped, debug, most)?;
        (!segments.is_empty()).then_some(NamedFile { segments, table })
    }

    /// Closes the files. `None` if that fails.
    pub fn closed(mut self) -> Option<NamedFile> {
        self.table.close()?;
        Some(self)
    }

    /// Drops what lookups left in the page cache, which would be charged to us.
    pub fn uncache(&self) {
        self.table.uncache();
    }

    /// Memory used, approximately.
    pub fn held_bytes(&self) -> usize {
        size_of::<NamedFile>() + self.segments.len() * size_of::<Segment>() + self.table.held_bytes()
    }

    /// The function at a file offset: its range in the file and its name.
    pub fn find(&mut self, file_offset: u64) -> Option<(Range<u64>, String)> {
        let segment = self.segments.iter().find(|segment| file_offset.wrapping_sub(segment.offset) < segment.size)?;
        let address = segment.address.wrapping_add(file_offset.wrapping_sub(segment.offset));
        let (range, name) = self.table.find(address)?;
        let offset_of = |address: u64| address.wrapping_sub(segment.address).wrapping_add(segment.offset);
        Some((offset_of(range.start)..offset_of(range.end), name))
    }
}
