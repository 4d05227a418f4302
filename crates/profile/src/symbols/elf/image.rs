//! The parts of a 64-bit ELF file in this machine's byte order.

use std::fs::{File, Metadata};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

/// A file, or bytes in memory if there is none: the vdso, unpacked symbols.
pub(crate) enum Image {
    File {
        file: File,
        length: u64,
        path: PathBuf,
    },
    /// Reopened for each lookup: an open file would keep a container's file system from being unmounted.
    Closed {
        path: PathBuf,
        same: Same,
    },
    Memory(Vec<u8>),
}

/// Identifies a file: device, inode, length, modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Same(u64, u64, u64, i64);

impl Same {
    fn of(about: &Metadata) -> Same {
        Same(about.dev(), about.ino(), about.len(), about.mtime())
    }
}

/// A loaded part of a file: offset, size, address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub offset: u64,
    pub size: u64,
    pub address: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Section {
    pub name: Vec<u8>,
    pub kind: u32,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub alignment: u64,
    pub entry_size: u64,
}

impl Section {
    /// Zeros that are not stored in the file.
    pub const NOBITS: u32 = 8;

    pub fn covers(&self, address: u64) -> bool {
        address.wrapping_sub(self.address) < self.size
    }
}

const HEADER: usize = 64;
const PAGE: u64 = 4096;
/// The kernel's read-ahead.
const READ_AHEAD: u64 = 128 << 10;
/// Limit for header tables and the string table of section names.
const MAX_TABLE: u64 = 16 << 20;

fn uncache(file: &File, ranges: impl Iterator<Item = Range<u64>>) {
    for range in ranges {
        let length = NonZeroU64::new(range.end.saturating_sub(range.start).saturating_add(READ_AHEAD));
        let _ = fadvise(file, range.start & !(PAGE - 1), length, Advice::DontNeed);
    }
}

fn read_whole(file: &File, buffer: &mut [u8], at: u64) -> usize {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at.saturating_add(filled as u64)) {
            Ok(0) | Err(_) => break,
            Ok(n) => filled += n,
        }
    }
    filled
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Image {
    pub fn open(path: &Path) -> Option<Image> {
        // A recording may name any path: never open a pipe or a device, which could block.
        let length = std::fs::metadata(path).ok().filter(|metadata| metadata.is_file())?.len();
        Some(Image::File { file: File::open(path).ok()?, length, path: path.to_owned() })
    }

    /// Closes the file and drops `ranges` from the page cache: the pages would be charged to us and keep our memory cgroup alive
    /// after we exit.
    pub fn close(self, ranges: impl Iterator<Item = Range<u64>>) -> Option<Image> {
        match self {
            Image::File { file, path, .. } => {
                let same = Same::of(&file.metadata().ok()?);
                uncache(&file, ranges);
                Some(Image::Closed { path, same })
            }
            other => Some(other),
        }
    }

    /// Drops `ranges` of a closed file from the page cache.
    pub fn uncache(&self, ranges: impl Iterator<Item = Range<u64>>) {
        if let Image::Closed { path, .. } = self
            && std::fs::metadata(path).is_ok_and(|about| about.is_file())
            && let Ok(file) = File::open(path)
        {
            uncache(&file, ranges);
        }
    }

    /// Memory used.
    pub fn held_bytes(&self) -> usize {
        if let Image::Memory(bytes) = self { bytes.len() } else { 0 }
    }

    pub fn length(&self) -> u64 {
        match self {
            Image::File { length, .. } => *length,
            Image::Closed { same, .. } => same.2,
            Image::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Fills `buffer` as far as the file goes.
    pub fn read_at(&self, buffer: &mut [u8], at: u64) -> usize {
        match self {
            Image::File { file, .. } => read_whole(file, buffer, at),
            Image::Closed { path, same } => {
                let again = || -> Option<File> {
                    let about = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
                    (Same::of(&about) == *same).then(|| File::open(path).ok())?
                };
                let Some(file) = again() else { return 0 };
                read_whole(&file, buffer, at)
            }
            Image::Memory(bytes) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let n = buffer.len().min(bytes.len() - from);
                buffer[..n].copy_from_slice(&bytes[from..from + n]);
                n
            }
        }
    }

    /// `size` bytes at `at`, if they exist and are no more than `limit`.
    pub fn bytes(&self, at: u64, size: u64, limit: u64) -> Option<Vec<u8>> {
        if size > limit || at.checked_add(size)? > self.length() {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        (self.read_at(&mut bytes, at) == bytes.len()).then_some(bytes)
    }

    /// A string of a string table.
    pub(super) fn string(&self, table: &Section, at: u32) -> Vec<u8> {
        let mut text = Vec::new();
        let mut buffer = [0; 256];
        while text.len() < 1 << 16 {
            let from = u64::from(at) + text.len() as u64;
            let left = usize::try_from(table.size.saturating_sub(from)).unwrap_or(usize::MAX);
            let want = buffer.len().min(left);
            let n = self.read_at(&mut buffer[..want], table.offset.saturating_add(from));
            let end = memchr::memchr(0, &buffer[..n]);
            text.extend_from_slice(&buffer[..end.unwrap_or(n)]);
            if end.is_some() || n == 0 {
                break;
            }
        }
        text
    }

    fn header(&self) -> Option<Vec<u8>> {
        let header = self.bytes(0, HEADER as u64, HEADER as u64)?;
        let order = if cfg!(target_endian = "little") { 1 } else { 2 };
        (header.starts_with(b"\x7fELF\x02") && header[5] == order).then_some(header)
    }

    pub fn machine(&self) -> Option<u16> {
        u16_at(&self.header()?, 18)
    }

    /// The loaded segments.
    pub(super) fn segments(&self) -> Option<Vec<Segment>> {
        const LOAD: u32 = 1;
        self.program_headers(|kind, segment| (kind == LOAD).then_some(segment))
    }

    fn program_headers<T>(&self, take: impl Fn(u32, Segment) -> Option<T>) -> Option<Vec<T>> {
        let header = self.header()?;
        let (at, each, count) = (u64_at(&header, 32)?, u16_at(&header, 54)?, u16_at(&header, 56)?);
        if each < 56 {
            return None;
        }
        let bytes = self.bytes(at, u64::from(each) * u64::from(count), MAX_TABLE)?;
        let parts = bytes.chunks_exact(usize::from(each)).filter_map(|entry| {
            let segment = Segment { offset: u64_at(entry, 8)?, address: u64_at(entry, 16)?, size: u64_at(entry, 32)? };
            take(u32_at(entry, 0)?, segment)
        });
        Some(parts.collect())
    }

    pub(super) fn sections(&self) -> Option<Vec<Section>> {
        let header = self.header()?;
        let (at, each) = (u64_at(&header, 40)?, u64::from(u16_at(&header, 58)?));
        let (mut count, mut names) = (u64::from(u16_at(&header, 60)?), u32::from(u16_at(&header, 62)?));
        if at == 0 || each < 64 {
            return Some(Vec::new());
        }
        if count == 0 || names == 0xffff {
            // Too many for the header field: the first section has the number.
            let first = self.bytes(at, 64, 64)?;
            (count, names) = (u64_at(&first, 32)?, u32_at(&first, 40)?);
        }
        let table = self.bytes(at, each.checked_mul(count)?, MAX_TABLE)?;
        let mut sections: Vec<Section> = Vec::new();
        let mut name_at = Vec::new();
        for entry in table.chunks_exact(each as usize) {
            name_at.push(u32_at(entry, 0)? as usize);
            sections.push(Section {
                name: Vec::new(),
                kind: u32_at(entry, 4)?,
                address: u64_at(entry, 16)?,
                offset: u64_at(entry, 24)?,
                size: u64_at(entry, 32)?,
                link: u32_at(entry, 40)?,
                alignment: u64_at(entry, 48)?,
                entry_size: u64_at(entry, 56)?,
            });
        }
        let strings = sections.get(names as usize).and_then(|names| self.bytes(names.offset, names.size, MAX_TABLE));
        if let Some(strings) = strings {
            for (section, at) in sections.iter_mut().zip(name_at) {
                let text = strings.get(at..).unwrap_or_default();
                section.name = text[..memchr::memchr(0, text).unwrap_or(text.len())].to_vec();
            }
        }
        Some(sections)
    }

    /// The build id, from the loaded notes.
    pub fn build_id(&self) -> Option<Vec<u8>> {
        const NOTE: u32 = 4;
        let notes = self.program_headers(|kind, segment| (kind == NOTE).then_some(segment))?;
        notes.iter().find_map(|note| build_id_in(&self.bytes(note.offset, note.size, MAX_TABLE)?))
    }
}

/// The GNU build id in a run of notes.
pub(in crate::symbols) fn build_id_in(mut notes: &[u8]) -> Option<Vec<u8>> {
    const BUILD_ID: u32 = 3;
    loop {
        let (name_size, size) = (u32_at(notes, 0)? as usize, u32_at(notes, 4)? as usize);
        let kind = u32_at(notes, 8)?;
        let name = notes.get(12..12usize.checked_add(name_size)?)?;
        let at = 12usize.checked_add(name_size.checked_next_multiple_of(4)?)?;
        let content = notes.get(at..at.checked_add(size)?)?;
        if kind == BUILD_ID && name == b"GNU\0" {
            return Some(content.to_vec());
        }
        notes = notes.get(at.checked_add(size.checked_next_multiple_of(4)?)?..)?;
    }
}
