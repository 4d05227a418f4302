//! Passes on the samples of a recording, or of a directory of them.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::mpsc;

use coroner_evidence::recording::profile::{
    Chunk, FrameRow, PackedChunk, Reader, SampleRow, TaskRow, unpack_samples, unpack_stacks,
};
use coroner_evidence::recording::segments::{self, Segment};

use super::names::{Numbers, Source};
use super::places::Places;
use crate::import::{ImportError, OddityKind, Picked, Report, Take};
use crate::model::{Clock, Dictionary};
use crate::symbols::Symbols;

/// Reads the samples of `range` (all without one) out of the recording at `path`, or out of the segments in a directory, and
/// touches no other chunks. Times are those of the recording's clock; in a directory, where each segment has a clock of its own,
/// they are wall-clock time (nanoseconds since 1970), as the dictionary's clock then says.
///
/// Samples of one chunk come in order of time; chunks of late samples may overlap.
///
/// Frames without a name stay as they are stored, with their places: this is for those who copy a recording.
pub fn read(path: &Path, range: Option<Range<u64>>, take: &mut Take<'_>) -> Result<(Dictionary, Report), ImportError> {
    read_with(path, range, Picked::default(), &mut Places::Kept, take)
}

/// The same for those who look at it: frames that had no name when they were recorded get one from `symbols`, where the file that
/// ran is there.
pub fn read_named(
    path: &Path,
    range: Option<Range<u64>>,
    symbols: &mut Symbols,
    take: &mut Take<'_>,
) -> Result<(Dictionary, Report), ImportError> {
    read_with(path, range, Picked::default(), &mut Places::named_by(symbols), take)
}

/// The same of some segments and chunks, evenly over the time.
pub fn read_picked(
    path: &Path,
    range: Option<Range<u64>>,
    picked: Picked,
    symbols: &mut Symbols,
    take: &mut Take<'_>,
) -> Result<(Dictionary, Report), ImportError> {
    read_with(path, range, picked, &mut Places::named_by(symbols), take)
}

fn read_with(
    path: &Path,
    range: Option<Range<u64>>,
    picked: Picked,
    places: &mut Places<'_>,
    take: &mut Take<'_>,
) -> Result<(Dictionary, Report), ImportError> {
    let one_in = u64::from(picked.one_chunk_in.max(1));
    let seen = one_in * u64::from(picked.turn) / u64::from(picked.turns.max(1));
    let mut thinned = Thinned { one_in, seen, in_any_order: picked.in_any_order };
    let mut names = Dictionary::default();
    let mut report = Report::default();
    if is_directory(path)? {
        let segments = listed(path, &mut report)?;
        let wanted = range.as_ref().map_or(segments.as_slice(), |range| segments::within(&segments, range));
        // Any clock reading that equals the wall clock says that they are the same.
        names.clock = Some(Clock { clock_ns: 0, wall_ns: 0 });
        for segment in segments_of(wanted, picked) {
            let file = match Reader::open(&segment.path) {
                Ok(file) => file,
                Err(error) => {
                    report.odd(OddityKind::BadRecord, segment.start_real_ns, error.to_string().as_bytes());
                    continue;
                }
            };
            let from = (Axis::WallClock, range.as_ref(), &mut thinned);
            if pass(&file, from, (&mut names, places), &mut report, take).is_break() {
                break;
            }
        }
    } else {
        let file = Reader::open(path)?;
        if !file.has_profile() {
            return Err(ImportError::NoSamples { path: path.to_owned() });
        }
        let from = (Axis::Own, range.as_ref(), &mut thinned);
        let _ = pass(&file, from, (&mut names, places), &mut report, take);
    }
    Ok((names, report))
}

/// Those that are picked. The first one is in the middle of those that it stands for.
fn segments_of(segments: &[Segment], picked: Picked) -> impl Iterator<Item = &Segment> {
    let (one_in, turns) = (picked.one_segment_in.max(1) as usize, picked.turns.max(1) as usize);
    let first = (one_in / 2).min(segments.len().saturating_sub(1));
    segments.iter().skip(first).step_by(one_in).skip(picked.turn as usize).step_by(turns)
}

/// The time of the first and of the last sample, as [`read`] tells times.
pub fn span(path: &Path) -> Result<Option<(u64, u64)>, ImportError> {
    if !is_directory(path)? {
        return Ok(Reader::open(path)?.span());
    }
    let segments = listed(path, &mut Report::default())?;
    let of = |segment: &Segment| {
        let file = Reader::open(&segment.path).ok()?;
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

fn listed(path: &Path, report: &mut Report) -> Result<Vec<Segment>, ImportError> {
    let of = |why| ImportError::File { path: path.to_owned(), why };
    let (segments, others) = segments::list(path).map_err(of)?;
    if segments.is_empty() {
        return Err(ImportError::NoSegments { path: path.to_owned() });
    }
    for other in others {
        report.odd(OddityKind::Unsupported, 0, format!("{}: not named as a segment", other.display()).as_bytes());
    }
    Ok(segments)
}

/// Which times samples get.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Own,
    WallClock,
}

/// What to add to a file's times to get wall-clock time, modulo 2⁶⁴.
#[derive(Clone, Copy)]
struct Shift(u64);

impl Shift {
    fn of(file: &Reader) -> Option<Shift> {
        file.source()?.clock.map(|(clock_ns, wall_ns)| Shift(wall_ns.wrapping_sub(clock_ns)))
    }

    fn to_wall(self, time: u64) -> u64 {
        time.wrapping_add(self.0)
    }

    /// The range in the file's times. A range that begins before the file's clock did is cut to what there is.
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
    /// Their samples may stay in the order in which they are stored.
    in_any_order: bool,
}

impl Thinned {
    fn takes(&mut self) -> bool {
        self.seen += 1;
        (self.seen - 1).is_multiple_of(self.one_in)
    }
}

fn pass(
    file: &Reader,
    (axis, range, thinned): (Axis, Option<&Range<u64>>, &mut Thinned),
    (names, places): (&mut Dictionary, &mut Places<'_>),
    report: &mut Report,
    take: &mut Take<'_>,
) -> ControlFlow<()> {
    for (what, why) in &file.missing {
        report.odd(OddityKind::BadRecord, 0, format!("{what}: {why}").as_bytes());
    }
    let source = file.source();
    if let Some(source) = &source {
        match source.report_json.as_ref().map(|json| serde_json::from_str::<Report>(json)) {
            // What was imported is told there; here counts what is read now.
            Some(Ok(stored)) => report.append(Report { samples: 0, lines: 0, bytes: 0, ..stored }),
            Some(Err(error)) => {
                report.odd(OddityKind::BadRecord, 0, format!("the import's report: {error}").as_bytes())
            }
            None => report.truncated = true,
        }
    }
    let clock = source.and_then(|source| source.clock);
    let shift = match axis {
        Axis::Own => {
            names.clock = clock.map(|(clock_ns, wall_ns)| Clock { clock_ns, wall_ns });
            Shift(0)
        }
        Axis::WallClock => match Shift::of(file) {
            Some(shift) => shift,
            None => {
                let why = format!("{}: has no samples, or does not say when they were taken", file.path().display());
                report.odd(OddityKind::Unsupported, 0, why.as_bytes());
                return ControlFlow::Continue(());
            }
        },
    };
    let own_range = range.map(|range| shift.to_own(range));
    let mut numbers: Option<Numbers<'_, '_>> = None;
    let mut places = Some(places);
    let mut looked_up = file.names();
    let mut pass_chunk = |chunk: Chunk, report: &mut Report| {
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
    // Unpacking takes as long as all the rest: it is done ahead, on a thread beside.
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

/// How many chunks are unpacked ahead of those that are passed on. Each may take 32 MB.
const AHEAD: usize = 2;

struct Naming<'a, 'p, 's> {
    numbers: &'a mut Numbers<'p, 's>,
    source: &'a mut dyn Source,
    names: &'a mut Dictionary,
    report: &'a mut Report,
}

/// Those without a time only if no time is asked for.
fn keep_within(rows: &mut Vec<SampleRow>, range: Option<&Range<u64>>) {
    if let Some(range) = range {
        rows.retain(|row| row.at.is_some_and(|at| range.contains(&at)));
    }
}

/// In order of time; those without one last.
fn put_in_order(rows: &mut [SampleRow]) {
    rows.sort_by_key(|row| row.at.unwrap_or(u64::MAX));
}

/// Passes rows on with their names.
fn pass_rows(rows: &[SampleRow], shift: Shift, to: &mut Naming<'_, '_, '_>, take: &mut Take<'_>) -> ControlFlow<()> {
    for row in rows {
        let mut sample = to.numbers.sample(to.source, to.names, to.report, row);
        sample.time = sample.time.map(|time| shift.to_wall(time));
        to.report.samples += 1;
        to.names.count(sample.event, sample.period);
        take(to.names, sample)?;
    }
    ControlFlow::Continue(())
}

/// Reads one chunk of stacks and one of samples, unpacked as they are, without any names: what a reader does with any bytes.
pub fn read_unpacked(stacks: &[u8], samples: &[u8], take: &mut Take<'_>) -> (Dictionary, Report) {
    let mut names = Dictionary::default();
    let mut report = Report { bytes: (stacks.len() + samples.len()) as u64, ..Report::default() };
    let mut places = Places::Kept;
    let mut numbers = Numbers::new(&mut places);
    match unpack_stacks(stacks) {
        Ok(stacks) => numbers.add_stacks(&stacks, &mut report),
        Err(why) => report.odd(OddityKind::BadRecord, 0, format!("the chunk of stacks {why}").as_bytes()),
    }
    match unpack_samples(samples) {
        Ok(mut rows) => {
            put_in_order(&mut rows);
            let mut to =
                Naming { numbers: &mut numbers, source: &mut Nameless, names: &mut names, report: &mut report };
            let _ = pass_rows(&rows, Shift(0), &mut to, take);
        }
        Err(why) => report.odd(OddityKind::BadRecord, 0, format!("the chunk of samples {why}").as_bytes()),
    }
    (names, report)
}

/// Knows no names.
struct Nameless;

impl Source for Nameless {
    fn event(&mut self, _: u32) -> Option<String> {
        None
    }
    fn path(&mut self, _: u32) -> Option<String> {
        None
    }
    fn task(&mut self, _: u32) -> Option<TaskRow> {
        None
    }
    fn frame(&mut self, _: u32) -> Option<FrameRow> {
        None
    }
}
