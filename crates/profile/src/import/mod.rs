//! Readers of other tools' formats. Each accepts any bytes, passes samples on one by one, and reports what it could not use in an
//! [`ImportReport`]. Samples are not kept here: memory follows the distinct stacks, whatever the size of the file.

mod detect;
pub mod folded;
pub mod gz;
mod order;
pub mod perf_data;
pub mod perf_script;
mod report;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use coroner_evidence::recording::RecordingError;
pub use detect::Format;
pub use report::{ImportReport, Oddity, OddityKind};

use crate::model::{Dictionary, Profile, Sample};
use crate::recording;
use crate::symbols::Symbols;
use order::Window;

/// Takes samples one by one, in time order if the file is nearly sorted; samples that are too late come late and are counted in
/// [`ImportReport::out_of_order`]. `Break` stops reading.
pub type Take<'a> = dyn FnMut(&Dictionary, Sample) -> ControlFlow<()> + 'a;

pub type ReadResult = Result<(Dictionary, ImportReport), ImportError>;

/// Why a file could not be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("reading failed: {0}")]
    Read(#[from] io::Error),
    #[error("not a {expected} file")]
    NotThisFormat { expected: &'static str },
    #[error("{path}: {why}")]
    File { path: PathBuf, why: io::Error },
    #[error("{path}: the file is empty")]
    Empty { path: PathBuf },
    #[error(
        "{path}: neither perf.data, perf script text, folded stacks nor a coroner recording; it begins with {begins} (--input sets the format)"
    )]
    Unknown { path: PathBuf, begins: String },
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error("{path}: this recording has no CPU samples; `coroner import` creates one from a profile")]
    NoSamples { path: PathBuf },
    #[error("{path}: this directory has no recorder segments (files named like 2026-05-28T20-26-40Z.coroner)")]
    NoSegments { path: PathBuf },
}

/// The result of reading a file.
#[derive(Debug)]
pub struct Imported {
    pub names: Dictionary,
    pub report: ImportReport,
    pub format: Format,
}

/// Which stacks are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stacks {
    #[default]
    All,
    /// Only those of idle tasks: enough to tell busy from idle. A hint: text reads several times as fast, other samples lack stacks.
    OfIdleTasks,
}

#[derive(Default)]
pub struct ImportOptions<'a> {
    /// The format, if known.
    pub format: Option<Format>,
    /// Counts the bytes read, to show progress.
    pub read: Option<&'a AtomicU64>,
    /// Only samples in this range are wanted, in nanoseconds of the profile's clock (of the wall clock for a directory). A hint: of a
    /// recording only this range is read, other files are read whole.
    pub range: Option<Range<u64>>,
    pub stacks: Stacks,
    pub picked: Picked,
}

/// Which samples of a recording are read, if it has too many to read all. Other files are read whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Reads one of this many segments of a directory: the names of each must be looked up anew.
    pub one_segment_in: u32,
    /// Reads one of this many chunks of those segments.
    pub one_chunk_in: u32,
    /// Of these segments, every `turns`th starting at `turn`: several readers may share the work.
    pub turn: u32,
    pub turns: u32,
    /// The order of the samples does not matter.
    pub in_any_order: bool,
}

impl Default for Picked {
    /// Everything, in order.
    fn default() -> Picked {
        Picked { one_segment_in: 1, one_chunk_in: 1, turn: 0, turns: 1, in_any_order: false }
    }
}

impl Picked {
    /// The approximate fraction of samples read.
    pub fn part(&self) -> f64 {
        1.0 / (f64::from(self.one_segment_in.max(1)) * f64::from(self.one_chunk_in.max(1)))
    }
}

/// The format of the file at `path`.
pub fn format_of(path: &Path) -> Result<Format, ImportError> {
    let of = |why: io::Error| ImportError::File { path: path.to_owned(), why };
    if std::fs::metadata(path).map_err(of)?.is_dir() {
        return Ok(Format::Recording);
    }
    let mut head = Vec::new();
    File::open(path).map_err(of)?.take(detect::HEAD as u64).read_to_end(&mut head).map_err(of)?;
    detect::format(&head).ok_or_else(|| ImportError::Unknown { path: path.to_owned(), begins: detect::describe(&head) })
}

/// Reads the file at `path` (`-` is standard input) and passes its samples on.
pub fn file(
    path: &Path,
    options: &ImportOptions<'_>,
    symbols: &mut Symbols,
    take: &mut Take<'_>,
) -> Result<Imported, ImportError> {
    let of = |why: io::Error| ImportError::File { path: path.to_owned(), why };
    let mut input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        if std::fs::metadata(path).map_err(of)?.is_dir() {
            return ours(path, options, symbols, take);
        }
        Box::new(File::open(path).map_err(of)?)
    };
    let mut head = Vec::new();
    input.by_ref().take(detect::HEAD as u64).read_to_end(&mut head).map_err(of)?;
    if head.is_empty() {
        return Err(ImportError::Empty { path: path.to_owned() });
    }
    let packed = gz::is_gz(&head);
    let format = match options.format {
        Some(format) => format,
        None => detect::format(&head)
            .ok_or_else(|| ImportError::Unknown { path: path.to_owned(), begins: detect::describe(&head) })?,
    };
    if format == Format::Recording {
        if packed || !std::fs::metadata(path).is_ok_and(|about| about.is_file()) {
            return Err(of(io::Error::other("a recording must be an uncompressed file: unpack or save it first")));
        }
        // Not while it is open: closing it drops locks (see `coroner_evidence`'s open).
        drop(input);
        return ours(path, options, symbols, take);
    }
    let nobody = AtomicU64::new(0);
    let read = options.read.unwrap_or(&nobody);
    let most = if format == Format::PerfData { order::HELD_OF_ORDERED } else { order::HELD };
    let mut window = Window::new(take, most);
    let (names, mut report) = match format {
        Format::PerfData => {
            let regular = std::fs::metadata(path).is_ok_and(|about| about.is_file());
            let (file, cut) = if packed || !regular {
                spool(head.as_slice().chain(input)).map_err(of)?
            } else {
                (File::open(path).map_err(of)?, false)
            };
            let counted = CountedFile { file: &file, read };
            let (names, mut report) =
                perf_data::read(&counted, symbols, &mut |names, sample| window.take(names, sample))?;
            report.truncated |= cut;
            (names, report)
        }
        Format::PerfScript => {
            let input = Counted { from: head.as_slice().chain(input), read };
            perf_script::samples::read_with(input, options.stacks, &mut |names, sample| window.take(names, sample))?
        }
        Format::Folded => {
            let input = Counted { from: head.as_slice().chain(input), read };
            folded::read(input, &mut |names, sample| window.take(names, sample))?
        }
        Format::Recording => return Err(ImportError::NotThisFormat { expected: "recording" }),
    };
    window.finish(&names);
    report.out_of_order += window.late;
    Ok(Imported { names, report, format })
}

/// Reads a recording or a directory of them.
fn ours(
    path: &Path,
    options: &ImportOptions<'_>,
    symbols: &mut Symbols,
    take: &mut Take<'_>,
) -> Result<Imported, ImportError> {
    let (picked, range) = (options.picked, options.range.clone());
    let (names, report) = if picked.in_any_order {
        recording::read_picked(path, range, picked, symbols, take)?
    } else {
        let mut window = Window::new(take, order::HELD);
        let read =
            recording::read_picked(path, range, picked, symbols, &mut |names, sample| window.take(names, sample))?;
        window.finish(&read.0);
        read
    };
    // The file has the number that were out of order when recorded or imported. Overlapping chunks are our own doing.
    if let Some(read) = options.read {
        read.fetch_add(report.bytes, Ordering::Relaxed);
    }
    Ok(Imported { names, report, format: Format::Recording })
}

/// What can be told about a file without reading all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Times of the first and the last sample.
    pub first: u64,
    pub last: u64,
    /// The number of cores, or a lower bound.
    pub cores: Option<usize>,
}

/// Reads the index or the ends of the file at `path`.
pub fn outline(path: &Path) -> Result<Option<Outline>, ImportError> {
    let of = |why: io::Error| ImportError::File { path: path.to_owned(), why };
    match format_of(path)? {
        Format::PerfScript => perf_script::outline(&File::open(path).map_err(of)?).map_err(of),
        Format::PerfData => {
            let file = File::open(path).map_err(of)?;
            // A compressed file has no random access.
            let about = perf_data::about(&file).ok();
            let span = about.and_then(|about| about.samples);
            Ok(span.filter(|(first, last)| first <= last).map(|(first, last)| Outline { first, last, cores: None }))
        }
        Format::Recording => Ok(recording::span(path)?.map(|(first, last)| Outline { first, last, cores: None })),
        _ => Ok(None),
    }
}

/// The host that the file at `path` was recorded on, if it tells.
pub fn host(path: &Path) -> Option<String> {
    match format_of(path).ok()? {
        Format::PerfData => perf_data::about(&File::open(path).ok()?).ok()?.host,
        _ => None,
    }
}

/// Reads the file at `path` and keeps its samples, in time order.
pub fn profile(
    path: &Path,
    options: &ImportOptions<'_>,
    symbols: &mut Symbols,
) -> Result<(Profile, ImportReport), ImportError> {
    Profile::collect(|take| {
        let imported = file(path, options, symbols, take)?;
        Ok((imported.names, imported.report))
    })
}

/// Limit for how much a compressed perf.data grows on disk. Measured: 2 to 16 times; gzip could reach a thousand.
const MOST_UNPACKED: u64 = 200;
const ALWAYS_UNPACKED: u64 = 64 << 20;

/// Unpacks `from` into an unnamed file, as perf.data needs random access. Returns whether it is truncated.
fn spool(from: impl Read) -> io::Result<(File, bool)> {
    let packed = AtomicU64::new(0);
    let mut from = gz::Unpacked::new(Counted { from, read: &packed })?;
    let mut file = tempfile::tempfile()?;
    let mut unpacked = 0;
    loop {
        let n = io::copy(&mut from.by_ref().take(1 << 20), &mut file)?;
        unpacked += n;
        let most = packed.load(Ordering::Relaxed).saturating_mul(MOST_UNPACKED).saturating_add(ALWAYS_UNPACKED);
        if n == 0 || unpacked > most {
            file.rewind()?;
            return Ok((file, from.cut() || n > 0));
        }
    }
}

/// Counts what is read.
struct Counted<'a, R> {
    from: R,
    read: &'a AtomicU64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(buffer)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

struct CountedFile<'a> {
    file: &'a File,
    read: &'a AtomicU64,
}

impl perf_data::Source for CountedFile<'_> {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let n = perf_data::Source::read_at(self.file, buffer, at)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn length(&self) -> io::Result<u64> {
        perf_data::Source::length(self.file)
    }
}
