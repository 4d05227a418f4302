//! The layout of the file.

use coroner_evidence::Wall;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use coroner_evidence::perf::{Attr, Fields};

use super::about::About;
use crate::import::{ImportError, ImportReport, OddityKind};
use crate::model::{Clock, Seeded};
use crate::records::Beyond;
use crate::records::space::Tasks;
use crate::symbols::RecordedKernel;

/// Something that can be read at any offset.
pub trait Source {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;
    fn length(&self) -> io::Result<u64>;
}

impl Source for File {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, at)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl Source for [u8] {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(self.len());
        let n = buffer.len().min(self.len() - at);
        buffer[..n].copy_from_slice(&self[at..at + n]);
        Ok(n)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// Limit for a section read at once. Build ids and event descriptions of large machines take a few hundred kilobytes.
const MAX_SECTION: u64 = 32 << 20;
/// More events than are ever recorded at once.
const MAX_ATTRS: usize = 1 << 14;

/// Feature numbers (tools/perf/util/header.h).
mod feature {
    pub const BUILD_ID: u32 = 2;
    pub const HOSTNAME: u32 = 3;
    pub const OS_RELEASE: u32 = 4;
    pub const CMDLINE: u32 = 11;
    pub const EVENT_DESC: u32 = 12;
    pub const SAMPLE_TIME: u32 = 21;
    pub const CLOCK_DATA: u32 = 29;
    pub const READ: [u32; 7] = [BUILD_ID, HOSTNAME, OS_RELEASE, CMDLINE, EVENT_DESC, SAMPLE_TIME, CLOCK_DATA];
}

#[derive(Default)]
pub(super) struct Layout {
    pub swap: bool,
    pub attrs: Vec<Attr>,
    /// Positions by first event id.
    by_first_id: HashMap<u64, usize, Seeded>,
    /// Renamed events; the consumer empties it.
    pub renamed: Vec<usize>,
    /// The records.
    pub data: std::ops::Range<u64>,
    pub clock: Option<Clock>,
    pub more: Header,
    pub about: About,
    /// Written through a pipe: descriptions are records.
    pub pipe: bool,
}

/// What the file has besides its records.
#[derive(Default)]
pub(super) struct Header {
    /// Build ids by path.
    build_ids: HashMap<String, Rc<[u8]>, Seeded>,
    kernel: RecordedKernel,
    /// The kernel facts were passed on.
    is_kernel_told: bool,
}

impl Beyond for Header {
    fn build_id(&mut self, _pid: u32, path: &str, _inode: Option<u64>) -> Option<Rc<[u8]>> {
        self.build_ids.get(path).map(Rc::clone)
    }

    fn kernel_mapped(&mut self, path: &str, start: u64, length: u64, reference: u64, build_id: Option<&[u8]>) {
        if let (Some(id), true) = (build_id, path.starts_with("[kernel.kallsyms]")) {
            self.kernel.build_id = Some(id.to_vec());
        }
        self.kernel.mapped(path, start, length, reference);
        self.is_kernel_told = false;
    }

    fn changed_kernel(&mut self) -> Option<RecordedKernel> {
        (!std::mem::replace(&mut self.is_kernel_told, true)).then(|| self.kernel.clone())
    }

    fn meet(&mut self, _pid: u32, _tid: u32, _tasks: &mut Tasks) {}
}

/// Reads at most `MAX_SECTION` bytes, as far as the file goes.
pub(super) fn section<S: Source + ?Sized>(file: &S, at: u64, size: u64) -> io::Result<Vec<u8>> {
    let size = size.min(MAX_SECTION).min(file.length()?.saturating_sub(at));
    let mut bytes = vec![0; size as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        let n = file.read_at(&mut bytes[filled..], at + filled as u64)?;
        if n == 0 {
            break;
        }
        filled += n;
    }
    bytes.truncate(filled);
    Ok(bytes)
}

pub(super) fn layout<S: Source + ?Sized>(file: &S, report: &mut ImportReport) -> Result<Layout, ImportError> {
    let length = file.length()?;
    report.bytes = length;
    let head = section(file, 0, 104)?;
    let swap = match head.get(..8) {
        Some(b"PERFILE2") => cfg!(target_endian = "big"),
        Some(b"2ELIFREP") => cfg!(target_endian = "little"),
        _ => return Err(ImportError::NotThisFormat { expected: "perf.data" }),
    };
    let mut fields = Fields::new(&head[8..], swap);
    let mut layout = Layout { swap, data: 16..length, ..Layout::default() };
    if fields.u64() == Some(16) {
        layout.pipe = true;
        return Ok(layout);
    }
    let mut words = [0; 11];
    for word in &mut words {
        *word = fields.u64().ok_or(ImportError::NotThisFormat { expected: "perf.data" })?;
    }
    let [attr_size, attrs_at, attrs_size, data_at, data_size, _, _, flags @ ..] = words;
    let data_end = data_at.saturating_add(data_size);
    // perf writes the size last: after a crash it is 0, and records extend to the end of the file.
    let unfinished = data_size == 0 || data_end > length;
    report.truncated |= unfinished;
    layout.data = data_at.min(length)..if unfinished { length } else { data_end };
    attributes(file, &mut layout, (attrs_at, attrs_size, attr_size), report)?;
    if !unfinished {
        features(file, &mut layout, data_end, flags, report)?;
    }
    Ok(layout)
}

fn attributes<S: Source + ?Sized>(
    file: &S,
    layout: &mut Layout,
    (at, size, each): (u64, u64, u64),
    report: &mut ImportReport,
) -> Result<(), ImportError> {
    let bytes = section(file, at, size)?;
    let Some(each) = usize::try_from(each).ok().filter(|each| *each > 16) else { return Ok(()) };
    // The ids of all descriptions must fit into the file: many could point at the same ones.
    let mut ids_left = file.length()?;
    for (index, entry) in bytes.chunks_exact(each).enumerate() {
        let place = at + (index * each) as u64;
        let (attr, ids) = entry.split_at(each - 16);
        let mut ids = Fields::new(ids, layout.swap);
        let (ids_at, ids_size) = (ids.u64().unwrap_or(0), ids.u64().unwrap_or(0));
        match Attr::parse(Fields::new(attr, layout.swap)) {
            Some(mut attr) => {
                let bytes = section(file, ids_at, ids_size.min(ids_left))?;
                if ids_size > ids_left {
                    report.odd(OddityKind::BadRecord, place, b"event description: more ids than the file can hold");
                }
                ids_left -= bytes.len() as u64;
                let mut fields = Fields::new(&bytes, layout.swap);
                while let Some(id) = fields.u64() {
                    attr.ids.push(id);
                }
                if layout.add_attr(attr).is_none() {
                    report.odd(OddityKind::BadRecord, place, b"event description: too many events");
                    break;
                }
            }
            None => report.odd(OddityKind::BadRecord, place, b"event description"),
        }
    }
    Ok(())
}

fn features<S: Source + ?Sized>(
    file: &S,
    layout: &mut Layout,
    table: u64,
    flags: [u64; 4],
    report: &mut ImportReport,
) -> Result<(), ImportError> {
    let numbers: Vec<u32> = (0..256).filter(|n| flags[*n as usize / 64] >> (n % 64) & 1 == 1).collect();
    let table_bytes = section(file, table, numbers.len() as u64 * 16)?;
    let mut entries = Fields::new(&table_bytes, layout.swap);
    for number in numbers {
        let (Some(at), Some(size)) = (entries.u64(), entries.u64()) else {
            report.truncated = true;
            break;
        };
        report.truncated |= at.saturating_add(size) > report.bytes;
        if feature::READ.contains(&number) {
            let bytes = section(file, at, size)?;
            layout.feature(number, &bytes);
        }
    }
    Ok(())
}

impl Layout {
    /// Parses a feature, from the table or from a record.
    pub fn feature(&mut self, number: u32, bytes: &[u8]) {
        let mut fields = Fields::new(bytes, self.swap);
        match number {
            feature::HOSTNAME => self.about.host = text(&mut fields),
            feature::OS_RELEASE => {
                self.about.kernel = text(&mut fields);
                self.more.kernel.release = self.about.kernel.clone();
            }
            feature::CMDLINE => {
                let count = fields.u32().unwrap_or(0);
                self.about.command_line = (0..count).map_while(|_| text(&mut fields)).collect();
            }
            feature::SAMPLE_TIME => {
                let times = fields.u64().zip(fields.u64());
                self.about.samples = times.filter(|(first, last)| first <= last && *last > 0);
            }
            feature::EVENT_DESC => {
                let _ = self.event_names(fields);
            }
            feature::BUILD_ID => {
                let _ = self.build_id_table(fields);
            }
            feature::CLOCK_DATA => self.clock = clock(fields).or(self.clock),
            _ => {}
        }
    }

    /// In a file written through a pipe, records describe the events: the structure, then its ids.
    pub fn attribute_record(&mut self, mut fields: Fields<'_>) -> Option<()> {
        let mut peek = fields;
        let (_kind, size) = (peek.u32()?, peek.u32()?);
        let mut attr = Attr::parse(Fields::new(fields.bytes(size as usize)?, self.swap))?;
        while let Some(id) = fields.u64() {
            attr.ids.push(id);
        }
        self.add_attr(attr)
    }

    /// `None` if there are too many.
    fn add_attr(&mut self, attr: Attr) -> Option<()> {
        if self.attrs.len() >= MAX_ATTRS {
            return None;
        }
        if let Some(id) = attr.ids.first() {
            self.by_first_id.entry(*id).or_insert(self.attrs.len());
        }
        self.attrs.push(attr);
        Some(())
    }

    fn event_names(&mut self, mut fields: Fields<'_>) -> Option<()> {
        let (count, attr_size) = (fields.u32()?, fields.u32()? as usize);
        for index in 0..count as usize {
            let attr = Attr::parse(Fields::new(fields.bytes(attr_size)?, self.swap));
            let id_count = fields.u32()?;
            let name = String::from_utf8_lossy(fields.counted_string()?).into_owned();
            let mut ids = Vec::new();
            for _ in 0..id_count {
                ids.push(fields.u64()?);
            }
            let same_ids = ids.first().and_then(|id| self.by_first_id.get(id)).copied();
            let at = same_ids.filter(|at| self.attrs[*at].ids == ids).unwrap_or(index);
            match (self.attrs.get_mut(at), attr) {
                (Some(known), _) => {
                    known.name = name;
                    self.renamed.push(at);
                }
                (None, Some(attr)) => self.add_attr(Attr { name, ids, ..attr })?,
                (None, None) => return None,
            }
        }
        Some(())
    }

    /// Records of `struct perf_record_header_build_id`: header, pid, 20 bytes of id followed by its size, path.
    fn build_id_table(&mut self, mut fields: Fields<'_>) -> Option<()> {
        /// `PERF_RECORD_MISC_BUILD_ID_SIZE`: the byte after the id is its length.
        const HAS_SIZE: u16 = 1 << 15;
        loop {
            let _kind = fields.u32()?;
            let (misc, size) = (fields.u16()?, fields.u16()? as usize);
            let mut body = Fields::new(fields.bytes(size.checked_sub(8)?)?, self.swap);
            let _pid = body.u32()?;
            let id = body.bytes(24)?;
            let size = if misc & HAS_SIZE != 0 { usize::from(id[20]).min(20) } else { 20 };
            let path = String::from_utf8_lossy(body.string()).into_owned();
            if path.starts_with("[kernel.kallsyms]") {
                self.more.kernel.build_id = Some(id[..size].to_vec());
            }
            self.more.build_ids.insert(path, id[..size].into());
        }
    }
}

fn text(fields: &mut Fields<'_>) -> Option<String> {
    fields.counted_string().map(|text| String::from_utf8_lossy(text).into_owned())
}

/// A reading of the wall clock and of the recording's clock at the same moment.
fn clock(mut fields: Fields<'_>) -> Option<Clock> {
    let (_version, _clock_id) = (fields.u32()?, fields.u32()?);
    Some(Clock { wall: Wall(fields.u64()?), clock_ns: fields.u64()? })
}
