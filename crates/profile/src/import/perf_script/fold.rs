//! From text to folded stacks, without keeping samples. Memory follows the number of distinct stacks.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use super::frame::FrameText;
use super::header::{self, Header};
use super::read::feed;
use super::scan::{Scanner, Sink};
use crate::import::gz::{Unpacked, is_gz};
use crate::import::{ImportError, ImportReport};
use crate::model::folded::{Batch, root_label};
use crate::model::{FoldedStacks, label};

#[derive(Clone, Debug)]
pub struct FoldOptions {
    /// Mark kernel, JIT and inlined code with `_[k]`, `_[j]`, `_[i]`.
    pub suffixes: bool,
    /// How many parts of a file are read in parallel. A stream or compressed file is read by one thread.
    pub threads: usize,
}

impl Default for FoldOptions {
    fn default() -> FoldOptions {
        FoldOptions { suffixes: true, threads: 1 }
    }
}

/// Folds a stream, compressed or not.
pub fn read(from: impl Read, options: &FoldOptions) -> Result<(FoldedStacks, ImportReport), ImportError> {
    let mut from = Unpacked::new(from)?;
    let mut scanner = Scanner::new(Folder::new(options.suffixes));
    feed(&mut from, &mut scanner)?;
    scanner.report.truncated |= from.cut();
    Ok((scanner.sink.finish(), scanner.report))
}

/// Folds a file, compressed or not.
pub fn file(file: &File, options: &FoldOptions) -> Result<(FoldedStacks, ImportReport), ImportError> {
    let mut magic = [0; 2];
    let seekable = file.metadata()?.is_file();
    if !seekable || (file.read_at(&mut magic, 0)? == 2 && is_gz(&magic)) {
        return read(file, options);
    }
    let length = file.metadata()?.len();
    let parts = parts(file, length, options.threads)?;
    let fold_part = |(at, end): (u64, u64)| -> io::Result<(FoldedStacks, ImportReport)> {
        let mut scanner = Scanner::new(Folder::new(options.suffixes));
        feed(Part { file, at, end }, &mut scanner)?;
        Ok((scanner.sink.finish(), scanner.report))
    };
    let results: Vec<io::Result<(FoldedStacks, ImportReport)>> = std::thread::scope(|scope| {
        let (first, others) = parts.split_first().expect("at least one part");
        let running: Vec<_> = others.iter().map(|part| scope.spawn(|| fold_part(*part))).collect();
        let mut results = vec![fold_part(*first)];
        for thread in running {
            results.push(thread.join().unwrap_or_else(|_| Err(io::Error::other("a reader thread panicked"))));
        }
        results
    });
    let mut results = results.into_iter();
    let (mut folded, mut report) = results.next().expect("at least one part")?;
    for part in results {
        let (more, more_report) = part?;
        folded.append(&more);
        report.append(more_report);
    }
    Ok((folded, report))
}

/// Below this a second thread costs more than it gains.
const MIN_PART: u64 = 1 << 20;
/// How far a boundary between events is searched for.
const BOUNDARY_WINDOW: usize = 1 << 20;

/// Splits a file into parts that begin with an event.
fn parts(file: &File, length: u64, wanted: usize) -> io::Result<Vec<(u64, u64)>> {
    let wanted = (wanted.max(1) as u64).min(length / MIN_PART + 1);
    let mut starts = vec![0];
    let mut window = Vec::new();
    for part in 1..wanted {
        let from = length / wanted * part;
        if from <= *starts.last().expect("not empty") {
            continue;
        }
        window.resize(BOUNDARY_WINDOW.min((length - from) as usize), 0);
        let n = file.read_at(&mut window, from)?;
        if let Some(at) = boundary(&window[..n]) {
            starts.push(from + at as u64);
        }
    }
    let ends = starts.iter().skip(1).copied().chain([length]);
    Ok(starts.iter().copied().zip(ends).collect())
}

/// The start of the first certain event: a header line after an empty line, or else any header line.
fn boundary(text: &[u8]) -> Option<usize> {
    if let Some(at) = memchr::memmem::find(text, b"\n\n") {
        return Some(at + 2);
    }
    let mut at = memchr::memchr(b'\n', text)? + 1;
    while let Some(length) = memchr::memchr(b'\n', &text[at..]) {
        let line = &text[at..at + length];
        if !line.starts_with(b"\t") && header::parse(line).is_some() {
            return Some(at);
        }
        at += length + 1;
    }
    None
}

/// A part of a file, read without moving the file's own position.
struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let n = self.file.read_at(&mut buffer[..room], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// Turns samples into folded stacks.
struct Folder {
    folded: FoldedStacks,
    suffixes: bool,
    batch: Batch,
    /// Of the current sample.
    event: u32,
    task: u32,
    weight: u64,
}

impl Folder {
    fn new(suffixes: bool) -> Folder {
        let folded = FoldedStacks::default();
        Folder { folded, suffixes, batch: Batch::default(), event: 0, task: 0, weight: 0 }
    }

    fn finish(mut self) -> FoldedStacks {
        self.folded.add_batch(&mut self.batch);
        self.folded
    }
}

impl Sink for Folder {
    fn frame(&mut self, frame: FrameText<'_>) -> u32 {
        let symbol = String::from_utf8_lossy(frame.symbol);
        let module = String::from_utf8_lossy(frame.module);
        let place = label::place_of(&module, frame.high);
        self.folded.labels.intern(&label::label(&symbol, &module, place, self.suffixes)).0
    }

    fn task(&mut self, header: &Header<'_>) -> u32 {
        let comm = String::from_utf8_lossy(header.comm);
        self.folded.labels.intern(&root_label(if comm.is_empty() { "[unknown]" } else { &comm })).0
    }

    fn event(&mut self, name: &[u8]) -> u32 {
        self.folded.event(&String::from_utf8_lossy(name))
    }

    #[inline(always)]
    fn begin(&mut self, task: u32, event: u32, header: &Header<'_>) -> bool {
        self.weight = header.period.unwrap_or(1);
        self.event = event;
        self.task = task;
        true
    }

    #[inline(always)]
    fn end(&mut self, leaf_first: &[u32]) {
        self.batch.push(self.event, self.task, leaf_first, self.weight);
        if self.batch.is_full() {
            self.folded.add_batch(&mut self.batch);
        }
    }
}
