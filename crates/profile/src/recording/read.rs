//! Reads the samples of a recording, or of a directory of them.

use coroner_evidence::Wall;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::mpsc;

use coroner_evidence::recording::profile::{
    Chunk, Names, PackedChunk, ProfileReader, SampleRow, unpack_samples, unpack_stacks,
};
use coroner_evidence::recording::segments::{self, Segment};

use super::names::Numbers;
use super::places::Places;
use crate::import::{ImportError, ImportReport, OddityKind, Picked, ReadResult, Take};
use crate::model::{Clock, Dictionary};
use crate::symbols::Symbols;

/// Reads the samples of `range` (or all) from the recording at `path`, or from the segments in a directory, and reads no other
/// chunks. Times are those of the recording's clock; in a directory, where each segment has its own clock, they are wall-clock
/// time (nanoseconds since 1970), as the dictionary's clock then says.
///
/// Samples of one chunk are in time order; chunks of late samples may overlap.
///
/// Unnamed frames stay as stored, with their offsets: for copying a recording.
pub fn read(path: &Path, range: Option<Range<u64>>, take: &mut Take<'_>) -> ReadResult {
    read_with(path, range, Picked::default(), &mut Places::Kept, take)
}

/// The same for viewing: frames recorded without a name get one from `symbols`, if the file that ran is there.
pub fn read_named(path: &Path, range: Option<Range<u64>>, symbols: &mut Symbols, take: &mut Take<'_>) -> ReadResult {
    read_with(path, range, Picked::default(), &mut Places::named_by(symbols), take)
}

/// The same for some segments and chunks, spread evenly over the time.
pub fn read_picked(
    path: &Path,
    range: Option<Range<u64>>,
    picked: Picked,
    symbols: &mut Symbols,
    take: &mut Take<'_>,
) -> ReadResult {
    read_with(path, range, picked, &mut Places::named_by(symbols), take)
}

fn read_with(
    path: &Path,
    range: Option<Range<u64>>,
    picked: Picked,
    places: &mut Places<'_>,
    take: &mut Take<'_>,
) -> ReadResult {
    let one_in = u64::from(picked.one_chunk_in.max(1));
    let seen = one_in * u64::from(picked.turn) / u64::from(picked.turns.max(1));
    let mut thinned = Thinned { one_in, seen, in_any_order: picked.in_any_order };
    let mut names = Dictionary::default();
    let mut report = ImportReport::default();
    if is_directory(path)? {
        let segments = listed(path, &mut report)?;
        let wanted = range
            .as_ref()
            .map_or(segments.as_slice(), |range| segments::within(&segments, &(Wall(range.start)..Wall(range.end))));
        names.clock = Some(Clock::WALL);
        for segment in segments_of(wanted, picked) {
            let file = match ProfileReader::open(&segment.path) {
                Ok(file) => file,
                Err(error) => {
                    report.odd(OddityKind::BadRecord, segment.start.0, error.to_string().as_bytes());
                    continue;
                }
            };
            let from = (Axis::WallClock, range.as_ref(), &mut thinned);
            if pass(&file, from, (&mut names, places), &mut report, take).is_break() {
                break;
            }
        }
    } else {
        let file = ProfileReader::open(path)?;
        if !file.has_profile() {
            return Err(ImportError::NoSamples { path: path.to_owned() });
        }
        let from = (Axis::Own, range.as_ref(), &mut thinned);
        let _ = pass(&file, from, (&mut names, places), &mut report, take);
    }
    Ok((names, report))
}

/// The picked segments. Each is the middle one of those it represents.
fn segments_of(segments: &[Segment], picked: Picked) -> impl Iterator<Item = &Segment> {
    let (one_in, turns) = (picked.one_segment_in.max(1) as usize, picked.turns.max(1) as usize);
    let first = (one_in / 2).min(segments.len().saturating_sub(1));
    segments.iter().skip(first).step_by(one_in).skip(picked.turn as usize).step_by(turns)
}

/// The times of the first and last sample, on the clock of [`read`].
pub fn span(path: &Path) -> Result<Option<(u64, u64)>, ImportError> {
    if !is_directory(path)? {
        return Ok(ProfileReader::open(path)?.span());
    }
    let segments = listed(path, &mut ImportReport::default())?;
    let of = |segment: &Segment| {
        let file = ProfileReader::open(&segment.path).ok()?;
        let shift = Shift::of(&file)?;
        file.span().map(|(first, last)| (shift.to_wall(first), shift.to_wall(last)))
    };
    let first = segments.iter().find_map(of);
    let last = segments.iter().rev().find_map(of);
    Ok(first.zip(last).map(|((first, _), (_, last))| (first, last)))
}

fn is_directory(path: &Path) -> Result<bool, ImportError> {
    let of = |why| ImportError::File { path: path.to_owned(), why };
    Ok(std::fs::metadata(path).map_err(of)?.is_dir())
}

fn listed(path: &Path, report: &mut ImportReport) -> Result<Vec<Segment>, ImportError> {
    let of = |why| ImportError::File { path: path.to_owned(), why };
    let (segments, others) = segments::list(path).map_err(of)?;
    if segments.is_empty() {
        return Err(ImportError::NoSegments { path: path.to_owned() });
    }
    for other in others {
        report.odd(OddityKind::Unsupported, 0, format!("{}: not the name of a segment", other.display()).as_bytes());
    }
    Ok(segments)
}

/// The clock of the samples' times.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Own,
    WallClock,
}

/// The offset from a file's times to wall-clock time, modulo 2⁶⁴.
#[derive(Clone, Copy)]
struct Shift(u64);

impl Shift {
    fn of(file: &ProfileReader) -> Option<Shift> {
        file.source()?.clock.map(|clock| Shift(clock.wall.0.wrapping_sub(clock.clock_ns)))
    }

    fn to_wall(self, time: u64) -> u64 {
        time.wrapping_add(self.0)
    }

    /// The range in the file's times, cut to the start of the file's clock.
    fn to_own(self, range: &Range<u64>) -> Range<u64> {
        let shift = self.0 as i64;
        let back = |time: u64| (i128::from(time) - i128::from(shift)).clamp(0, i128::from(u64::MAX)) as u64;
        back(range.start)..back(range.end)
    }
}

/// Which chunks are read, counted over all files.
struct Thinned {
    one_in: u64,
    seen: u64,
    /// Samples may stay in stored order.
    in_any_order: bool,
}

impl Thinned {
    fn takes(&mut self) -> bool {
        self.seen += 1;
        (self.seen - 1).is_multiple_of(self.one_in)
    }
}

fn pass(
    file: &ProfileReader,
    (axis, range, thinned): (Axis, Option<&Range<u64>>, &mut Thinned),
    (names, places): (&mut Dictionary, &mut Places<'_>),
    report: &mut ImportReport,
    take: &mut Take<'_>,
) -> ControlFlow<()> {
    for (what, why) in &file.missing {
        report.odd(OddityKind::BadRecord, 0, format!("{what}: {why}").as_bytes());
    }
    let source = file.source();
    if let Some(source) = &source {
        match source.report_json.as_ref().map(|json| serde_json::from_str::<ImportReport>(json)) {
            // That report is about the import; this one counts what is read now.
            Some(Ok(stored)) => report.append(ImportReport { samples: 0, lines: 0, bytes: 0, ..stored }),
            Some(Err(error)) => {
                report.odd(OddityKind::BadRecord, 0, format!("the import's report: {error}").as_bytes())
            }
            None => report.truncated = true,
        }
    }
    let clock = source.and_then(|source| source.clock);
    let shift = match axis {
        Axis::Own => {
            names.clock = clock;
            Shift(0)
        }
        Axis::WallClock => match Shift::of(file) {
            Some(shift) => shift,
            None => {
                let why = format!("{}: no samples, or no wall-clock time for them", file.path().display());
                report.odd(OddityKind::Unsupported, 0, why.as_bytes());
                return ControlFlow::Continue(());
            }
        },
    };
    let own_range = range.map(|range| shift.to_own(range));
    let mut numbers: Option<Numbers<'_, '_>> = None;
    let mut places = Some(places);
    let mut looked_up = Some(file.names());
    let mut pass_chunk = |chunk: Chunk, report: &mut ImportReport| {
        report.bytes += chunk.bytes;
        let rows = match chunk.samples {
            Ok(rows) => rows,
            Err(why) => {
                report.odd(OddityKind::BadRecord, chunk.id as u64, format!("chunk {} {why}", chunk.id).as_bytes());
                return ControlFlow::Continue(());
            }
        };
        if let Some(places) = places.take() {
            numbers = Some(Numbers::of(file, places, report));
        }
        let Some(numbers) = &mut numbers else { return ControlFlow::Break(()) };
        pass_rows(&rows, shift, &mut Naming { numbers, source: &mut looked_up, names, report }, take)
    };
    // Unpacking takes as long as all the rest: it is done ahead, on another thread.
    std::thread::scope(|scope| {
        let (packed, to_unpack) = mpsc::channel::<PackedChunk>();
        let (unpacked, ready) = mpsc::channel::<Chunk>();
        let (own_range, in_any_order) = (own_range.as_ref(), thinned.in_any_order);
        scope.spawn(move || {
            for chunk in to_unpack {
                let mut chunk = chunk.unpack();
                if let Ok(rows) = &mut chunk.samples {
                    keep_within(rows, own_range);
                    if !in_any_order {
                        put_in_order(rows);
                    }
                }
                if unpacked.send(chunk).is_err() {
                    return;
                }
            }
        });
        let (mut ahead, mut flow) = (0, ControlFlow::Continue(()));
        let ended = file.chunks(own_range, &mut || thinned.takes(), &mut |chunk| {
            if packed.send(chunk).is_err() {
                return ControlFlow::Break(());
            }
            ahead += 1;
            if ahead > AHEAD {
                ahead -= 1;
                flow = ready.recv().map_or(ControlFlow::Break(()), |chunk| pass_chunk(chunk, report));
            }
            flow
        });
        drop(packed);
        while flow.is_continue()
            && let Ok(chunk) = ready.recv()
        {
            flow = pass_chunk(chunk, report);
        }
        if let Err(why) = ended {
            report.odd(OddityKind::BadRecord, 0, why.as_bytes());
        }
        flow
    })
}

/// How many chunks are unpacked ahead. Each may take 32 MB.
const AHEAD: usize = 2;

struct Naming<'a, 'n, 'p, 's> {
    numbers: &'a mut Numbers<'p, 's>,
    source: &'a mut Option<Names<'n>>,
    names: &'a mut Dictionary,
    report: &'a mut ImportReport,
}

/// Keeps rows without a time only if there is no range.
fn keep_within(rows: &mut Vec<SampleRow>, range: Option<&Range<u64>>) {
    if let Some(range) = range {
        rows.retain(|row| row.at.is_some_and(|at| range.contains(&at)));
    }
}

/// Sorts by time; rows without one last.
fn put_in_order(rows: &mut [SampleRow]) {
    rows.sort_by_key(|row| row.at.unwrap_or(u64::MAX));
}

/// Passes rows on with their names.
fn pass_rows(
    rows: &[SampleRow],
    shift: Shift,
    to: &mut Naming<'_, '_, '_, '_>,
    take: &mut Take<'_>,
) -> ControlFlow<()> {
    for row in rows {
        let mut sample = to.numbers.sample(to.source, to.names, to.report, row);
        sample.time = sample.time.map(|time| shift.to_wall(time));
        to.report.samples += 1;
        to.names.count(sample.event, sample.period);
        take(to.names, sample)?;
    }
    ControlFlow::Continue(())
}

/// Reads one unpacked chunk of stacks and one of samples, without names: for testing any bytes.
pub fn read_unpacked(stacks: &[u8], samples: &[u8], take: &mut Take<'_>) -> (Dictionary, ImportReport) {
    let mut names = Dictionary::default();
    let mut report = ImportReport { bytes: (stacks.len() + samples.len()) as u64, ..ImportReport::default() };
    let mut places = Places::Kept;
    let mut numbers = Numbers::new(&mut places);
    match unpack_stacks(stacks) {
        Ok(stacks) => numbers.add_stacks(&stacks, &mut report),
        Err(why) => report.odd(OddityKind::BadRecord, 0, format!("chunk of stacks {why}").as_bytes()),
    }
    match unpack_samples(samples) {
        Ok(mut rows) => {
            put_in_order(&mut rows);
            let mut to = Naming { numbers: &mut numbers, source: &mut None, names: &mut names, report: &mut report };
            let _ = pass_rows(&rows, Shift(0), &mut to, take);
        }
        Err(why) => report.odd(OddityKind::BadRecord, 0, format!("chunk of samples {why}").as_bytes()),
    }
    (names, report)
}
