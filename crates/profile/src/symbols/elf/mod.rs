//! Functions of programs and libraries.
//!
//! An own reader: which of several names of one address is shown, where a function without a size ends, and what a jump into
//! another library is called (`malloc@plt`) follow perf, so that both name a recording alike. Of a file only its symbol table is
//! read, names one by one as they are needed.

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
pub(super) use locate::{Wanted, cached};

use image::Segment;
use table::{MAX_SYMBOLS, Table};

/// What names a mapped file.
pub(super) struct NamedFile {
    /// What the file that was mapped loads where.
    segments: Vec<Segment>,
    table: Table,
}

impl NamedFile {
    /// The file that `wanted` means, if it is there.
    pub fn open(root: &Path, wanted: &Wanted<'_>, problem: &mut dyn FnMut(String)) -> Option<NamedFile> {
        NamedFile::open_small(root, wanted, MAX_SYMBOLS, problem)
    }

    /// The same, if no symbol table of it is larger than `most`.
    pub fn open_small(
        root: &Path,
        wanted: &Wanted<'_>,
        most: u64,
        problem: &mut dyn FnMut(String),
    ) -> Option<NamedFile> {
        let found = locate::locate(root, wanted, problem).map_err(&mut *problem).ok()?;
        let named = NamedFile::read(found.mapped, found.debug, most);
        if named.is_none() {
            problem(format!(
                "{}: is no 64-bit program or library, or has too many symbols; its functions stay unnamed",
                wanted.path
            ));
        }
        named
    }

    /// Names of `mapped`, with more of them in `debug`.
    pub fn read(mapped: Image, debug: Option<Image>, most: u64) -> Option<NamedFile> {
        let segments = mapped.segments()?;
        let table = Table::read(mapped, debug, most)?;
        (!segments.is_empty()).then_some(NamedFile { segments, table })
    }

    /// Keeps no file open from now on. `None` if that cannot be.
    pub fn closed(mut self) -> Option<NamedFile> {
        self.table.close()?;
        Some(self)
    }

    /// Lets go of what looking for names left in the page cache, which would be charged to us.
    pub fn uncache(&self) {
        self.table.uncache();
    }

    /// What it takes of memory, about.
    pub fn held_bytes(&self) -> usize {
        size_of::<NamedFile>() + self.segments.len() * size_of::<Segment>() + self.table.held_bytes()
    }

    /// The function at an offset into the file: where it lies in the file, and its name.
    pub fn find(&mut self, file_offset: u64) -> Option<(Range<u64>, String)> {
        let segment = self.segments.iter().find(|segment| file_offset.wrapping_sub(segment.offset) < segment.size)?;
        let address = segment.address.wrapping_add(file_offset.wrapping_sub(segment.offset));
        let (range, name) = self.table.find(address)?;
        let offset_of = |address: u64| address.wrapping_sub(segment.address).wrapping_add(segment.offset);
        Some((offset_of(range.start)..offset_of(range.end), name))
    }
}
