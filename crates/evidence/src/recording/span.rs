//! Reads a span of time from a recording, or from a directory of them that may be growing.
//!
//! A directory's files are found by name; each that may have data in the span is opened, never changed, and read as of one
//! moment. Segments of one boot share CLOCK_MONOTONIC, so they are appended in the order of that clock, which does not jump when
//! the wall clock does. Another boot has another clock; it is left out, and reported.

use super::read::{MAX_BYTES, RecordingReader, Room};
use super::segments::{self, Segment};
use super::write::beside;
use super::{NOT_RECORDED, PROBE, Recording, RecordingError, cut};
use crate::order::Order;
use crate::time::{Clocks, Time, Window};
use crate::{Evidence, Unseen, Wall};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which part of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    All,
    /// Up to the newest look at the cores.
    Last(Duration),
    /// On the wall clock, both ends included.
    Between {
        from: Wall,
        to: Wall,
    },
}

/// Without a look at the cores for this long, nothing was recorded: looks come ten times a second, and one segment follows another
/// within a second.
const GAP: Duration = Duration::from_secs(5);

/// Most gaps to report one by one.
const MOST_GAPS: usize = 8;

/// The part of [`MAX_BYTES`] for the streams: plain rows need some, too.
const FOR_STREAMS: usize = MAX_BYTES / 4 * 3;

/// A file that changed this recently may be between two states …
const YOUNG: Duration = Duration::from_secs(10);
/// … for a few of these steps.
const SETTLE_STEP: Duration = Duration::from_millis(20);
const SETTLES_IN: usize = 10;

/// SQLite's largest integer.
const FOR_EVER: Time = Time(i64::MAX as u64);

/// Reads a file, or a directory of segments, even one that is being written: everything in the span from the last boot in it, in
/// order. What is left out or was never recorded is reported as an [`Unseen`] of the probe [`NOT_RECORDED`], what is damaged as
/// one of [`PROBE`].
pub fn read_span(path: &Path, span: &Span) -> Result<Recording, RecordingError> {
    match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(RecordingError::Missing { path: path.to_owned() }),
        Err(source) => Err(RecordingError::Unreadable { path: path.to_owned(), source }),
        Ok(meta) if meta.is_dir() => read_directory(path, span, FOR_STREAMS),
        Ok(_) if *span == Span::All => super::read(path),
        Ok(_) => {
            let part = Part::open(path)?.ok_or_else(|| nothing(path, span, None))?;
            let window = part.window(span, part.looks.to);
            let window = window.filter(|w| part.overlaps(*w)).ok_or_else(|| nothing(path, span, Some(&part)))?;
            let mut recording = part.reader.read(Some(window), &mut Room::of(MAX_BYTES));
            recording.evidence.unseen.extend(gaps(&recording.evidence, edges(span, window)));
            Ok(recording)
        }
    }
}

/// Time of the newest look at the cores; `None` if there is none, or the clocks are unknown.
pub fn newest_wall(path: &Path) -> Result<Option<Wall>, RecordingError> {
    let wall = |part: &Part| part.clocks.map(|clocks| clocks.wall_of(part.looks.to));
    if !path.is_dir() {
        return Ok(Part::open(path)?.as_ref().and_then(wall));
    }
    let (segments, _) =
        segments::list(path).map_err(|source| RecordingError::Unreadable { path: path.to_owned(), source })?;
    let mut parts = Parts::default();
    open_newest(&segments, &mut parts);
    Ok(parts.found.first().and_then(wall))
}

/// An open segment.
struct Part {
    reader: RecordingReader,
    boot: Option<String>,
    clocks: Option<Clocks>,
    /// From the first to the last look at the cores.
    looks: Window,
}

impl Part {
    /// `None` if it has no look at the cores yet.
    fn open(path: &Path) -> Result<Option<Part>, RecordingError> {
        let reader = open_settled(path)?;
        let Some(looks) = reader.looks() else { return Ok(None) };
        Ok(Some(Part { boot: reader.boot_id(), clocks: reader.clocks(), looks, reader }))
    }

    /// The span on this segment's clock. `now` is the time of the last look.
    fn window(&self, span: &Span, now: Time) -> Option<Window> {
        match *span {
            Span::All => Some(Window { from: Time(0), to: FOR_EVER }),
            Span::Last(duration) => Some(Window { from: now - duration, to: now }),
            Span::Between { from, to } => {
                let clocks = self.clocks?;
                let to = clocks.time_of(to)?.min(FOR_EVER);
                Some(Window { from: clocks.time_of(from).unwrap_or_default(), to })
            }
        }
    }

    fn overlaps(&self, window: Window) -> bool {
        self.looks.from <= window.to && self.looks.to >= window.from
    }

    /// When it begins and ends, for people.
    fn begins(&self) -> String {
        self.clocks.map_or("an unknown time".to_owned(), |clocks| date(clocks.wall_of(self.looks.from)))
    }

    fn ends(&self) -> String {
        self.clocks.map_or("an unknown time".to_owned(), |clocks| date(clocks.wall_of(self.looks.to)))
    }
}

/// Opens a segment that its writer may be creating or sealing just now: for some milliseconds it is then half with and half without
/// a log, and looks damaged.
fn open_settled(path: &Path) -> Result<RecordingReader, RecordingError> {
    let mut opened = RecordingReader::open(path);
    for _ in 0..SETTLES_IN {
        let age = std::fs::metadata(path).and_then(|meta| meta.modified()).map(|changed| changed.elapsed());
        let is_young = age.is_ok_and(|age| age.is_ok_and(|age| age < YOUNG));
        if !is_young || opened.as_ref().is_ok_and(RecordingReader::is_whole) {
            break;
        }
        std::thread::sleep(SETTLE_STEP);
        opened = RecordingReader::open(path);
    }
    opened
}

/// Open segments, and what to report about those that could not be opened.
#[derive(Default)]
struct Parts {
    found: Vec<Part>,
    unseen: Vec<Unseen>,
    opened: Vec<PathBuf>,
    /// Why a segment could not be read.
    error: Option<RecordingError>,
}

impl Parts {
    /// Opens a segment once. `None` if it is empty or cannot be read.
    fn open(&mut self, segment: &Segment) -> Option<&Part> {
        if self.opened.contains(&segment.path) {
            return self.found.iter().find(|part| part.reader.path() == segment.path);
        }
        self.opened.push(segment.path.clone());
        match Part::open(&segment.path) {
            Ok(Some(part)) => {
                self.found.push(part);
                self.found.last()
            }
            // It has just begun, or was evicted after it was listed.
            Ok(None) | Err(RecordingError::Missing { .. } | RecordingError::Empty { .. }) => None,
            Err(RecordingError::OnlyProfile { .. }) => None,
            Err(error) => {
                let what = format!("the segment that begins at {}", date(segment.start));
                let told = unseen(what, error.to_string(), "copy the directory again if this is a copy");
                self.unseen.push(Unseen { probe: PROBE.to_owned(), ..told });
                self.error = Some(error);
                None
            }
        }
    }
}

fn read_directory(path: &Path, span: &Span, streams: usize) -> Result<Recording, RecordingError> {
    let list = segments::list(path);
    let (segments, _) = list.map_err(|source| RecordingError::Unreadable { path: path.to_owned(), source })?;
    if segments.is_empty() {
        let name = segments::name(Wall(1_780_000_000_000_000_000), 1);
        let why = format!("this directory has no recorder segments (they are named like {name})");
        return Err(RecordingError::Other { path: path.to_owned(), why });
    }
    let mut parts = Parts::default();
    let (boot, now) = match span {
        Span::Between { from, to } => {
            let range = *from..*to + Duration::from_nanos(1);
            for segment in segments::within(&segments, &range) {
                parts.open(segment);
            }
            let in_span = |part: &&Part| part.window(span, Time(0)).is_some_and(|window| part.overlaps(window));
            let last = parts.found.iter().rev().find(in_span);
            let Some(last) = last else {
                return Err(parts.error.unwrap_or_else(|| nothing(path, span, newest(&segments).as_ref())));
            };
            (last.boot.clone(), last.looks.to)
        }
        Span::All | Span::Last(_) => {
            open_latest(&segments, span, &mut parts);
            let Some(last) = parts.found.first() else {
                return Err(parts.error.unwrap_or_else(|| nothing(path, span, None)));
            };
            (last.boot.clone(), last.looks.to)
        }
    };
    let Parts { found, unseen, .. } = parts;
    let mut found: Vec<(Part, Window)> = found
        .into_iter()
        .filter_map(|part| part.window(span, now).filter(|window| part.overlaps(*window)).map(|window| (part, window)))
        .collect();
    found.order_by_key(|(part, _)| part.looks.from);
    let (of_boot, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|(part, _)| same_boot(&part.boot, &boot));
    // Another boot's clock cannot tell where a span of the last seconds begins.
    let others: Vec<Part> =
        others.into_iter().map(|(part, _)| part).filter(|part| is_before(part, &of_boot, span)).collect();
    let mut recording = read_parts(path, of_boot, span, streams)?;
    recording.evidence.unseen.splice(0..0, unseen);
    recording.evidence.unseen.extend(other_boots(&others));
    Ok(recording)
}

/// Opens the newest segment, which becomes the first in `parts`, and returns its place in `segments`. It is the last by name,
/// unless the wall clock was set back: then it is one that is being written.
fn open_newest(segments: &[Segment], parts: &mut Parts) -> Option<usize> {
    let mut newest = segments.iter().rposition(|segment| parts.open(segment).is_some())?;
    let being_written = |segment: &Segment| beside(&segment.path, "-wal").exists();
    let last_by_name = newest;
    for (i, segment) in segments[..last_by_name].iter().enumerate() {
        if !being_written(segment) || parts.open(segment).is_none() {
            continue;
        }
        let last = parts.found.len() - 1;
        if same_boot(&parts.found[last].boot, &parts.found[0].boot)
            && parts.found[last].looks.to > parts.found[0].looks.to
        {
            parts.found.swap(0, last);
            newest = i;
        }
    }
    Some(newest)
}

/// Opens the newest segment, and earlier ones as long as they reach into the span.
fn open_latest(segments: &[Segment], span: &Span, parts: &mut Parts) {
    let Some(newest) = open_newest(segments, parts) else { return };
    let (boot, now) = (parts.found[0].boot.clone(), parts.found[0].looks.to);
    let reaches = |part: &Part| {
        !same_boot(&part.boot, &boot) || part.window(span, now).is_some_and(|window| part.overlaps(window))
    };
    // Those before it by name and, if the clock was set back, the last ones by name.
    for earlier in [&segments[..newest], &segments[newest + 1..]] {
        for segment in earlier.iter().rev() {
            if parts
                .open(segment)
                .is_some_and(|part| !reaches(part) || (!same_boot(&part.boot, &boot) && *span != Span::All))
            {
                break;
            }
        }
    }
}

fn newest(segments: &[Segment]) -> Option<Part> {
    segments.iter().rev().find_map(|segment| Part::open(&segment.path).ok().flatten())
}

/// A segment whose writer was killed before it stored its boot counts as its neighbours' boot.
fn same_boot(one: &Option<String>, other: &Option<String>) -> bool {
    one == other || one.is_none() || other.is_none()
}

/// Whether a segment of another boot is in the span by the wall clock.
fn is_before(part: &Part, of_boot: &[(Part, Window)], span: &Span) -> bool {
    let Span::Last(_) = span else { return true };
    let Some((first, window)) = of_boot.first() else { return true };
    let (Some(theirs), Some(ours)) = (part.clocks, first.clocks) else { return false };
    theirs.wall_of(part.looks.to) >= ours.wall_of(window.from)
}

fn read_parts(
    path: &Path,
    parts: Vec<(Part, Window)>,
    span: &Span,
    streams: usize,
) -> Result<Recording, RecordingError> {
    let (mut bytes, mut fitting, mut left_out) = (0usize, Vec::new(), Vec::new());
    // Newest first: if not all fit into memory, the oldest are left out.
    for (part, window) in parts.into_iter().rev() {
        bytes = bytes.saturating_add(part.reader.bytes_of(window));
        if bytes > streams && !fitting.is_empty() {
            left_out.push(part);
        } else {
            fitting.push((part, window));
        }
    }
    fitting.reverse();
    let Some((_, first_window)) = fitting.first() else { return Err(nothing(path, span, None)) };
    let (from, mut room) = (first_window.from, Room::of(MAX_BYTES));
    let (mut whole, mut to) = (Recording::default_of(&fitting[0].0), from);
    for (part, window) in fitting {
        let Recording { evidence, about } = part.reader.read(Some(window), &mut room);
        whole.evidence.append(evidence);
        (whole.about, to) = (about, window.to);
    }
    let evidence = &mut whole.evidence;
    evidence.clocks.order_by_key(|c| c.at);
    cut::told_once(evidence, Window { from, to });
    let edges = if left_out.is_empty() { edges(span, Window { from, to }) } else { Edges::default() };
    let gaps = gaps(evidence, edges);
    evidence.unseen.extend(gaps);
    if let (Some(first), Some(last)) = (left_out.last(), left_out.first()) {
        evidence.unseen.push(unseen(
            format!("the beginning of the span, {} to {}", first.begins(), last.ends()),
            format!("all of it would take more than {} MB of memory", streams >> 20),
            "choose a shorter time: --last, --since, --until",
        ));
    }
    Ok(whole)
}

impl Recording {
    fn default_of(part: &Part) -> Recording {
        Recording { evidence: Evidence::default(), about: part.reader.about().clone() }
    }
}

fn other_boots(parts: &[Part]) -> Option<Unseen> {
    let last = parts.iter().max_by_key(|part| part.clocks.map(|clocks| clocks.wall_of(part.looks.to)))?;
    Some(unseen(
        format!("what was recorded until {}", last.ends()),
        "the node was rebooted after that; only one boot is shown at a time".to_owned(),
        &format!("choose it with --until {}", last.ends()),
    ))
}

/// The ends that the span should reach.
#[derive(Clone, Copy, Default)]
struct Edges {
    from: Option<Time>,
    to: Option<Time>,
}

fn edges(span: &Span, window: Window) -> Edges {
    match span {
        Span::Between { .. } => Edges {
            from: Some(window.from).filter(|from| *from > Time(0)),
            to: Some(window.to).filter(|to| *to < FOR_EVER),
        },
        // Whatever there is was asked for.
        Span::All | Span::Last(_) => Edges::default(),
    }
}

/// Times without a look at the cores.
fn gaps(evidence: &Evidence, edges: Edges) -> Vec<Unseen> {
    let clocks = evidence.clocks.last();
    let (mut before, mut holes) = (edges.from, Vec::new());
    for at in evidence.core_times.iter().map(|look| look.at).chain(edges.to) {
        if let Some(before) = before.filter(|before| at.since(*before) > GAP) {
            holes.push((before, at));
        }
        before = Some(at.max(before.unwrap_or_default()));
    }
    let told = |(from, to): (Time, Time)| {
        let when = clocks.map_or(String::new(), |c| format!(", {} to {}", date(c.wall_of(from)), date(c.wall_of(to))));
        unseen(
            format!("{:.0} seconds{when}", to.since(from).as_secs_f64()),
            "nothing was recorded: the recorder was not running, could not write, or the segment is gone".to_owned(),
            "",
        )
    };
    let more = holes.len().saturating_sub(MOST_GAPS);
    let mut gaps: Vec<Unseen> = holes.into_iter().take(MOST_GAPS).map(told).collect();
    if more > 0 {
        gaps.push(unseen(format!("{more} more gaps of some seconds"), "nothing was recorded then".to_owned(), ""));
    }
    gaps
}

fn unseen(what: String, why: String, how_to_see: &str) -> Unseen {
    Unseen { probe: NOT_RECORDED.to_owned(), about: None, what, why, how_to_see: how_to_see.to_owned() }
}

fn nothing(path: &Path, span: &Span, newest: Option<&Part>) -> RecordingError {
    let why = match (span, newest) {
        (Span::Between { from, to }, newest) => {
            let there = newest.map_or(String::new(), |part| {
                format!("; the newest data is from {} to {}", part.begins(), part.ends())
            });
            format!("nothing was recorded from {} to {}{there}", date(*from), date(*to))
        }
        _ => "the recording has no core times; no diagnosis is possible".to_owned(),
    };
    RecordingError::Other { path: path.to_owned(), why }
}

fn date(wall: Wall) -> String {
    let time = jiff::Timestamp::from_nanosecond(wall.0.into()).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Writer;
    use crate::{CoreTicks, CoreTimes};

    #[test]
    fn the_newest_part_is_read_of_a_span_that_does_not_fit_into_memory() {
        let dir = tempfile::tempdir().unwrap();
        let start = Wall(1_780_000_000_000_000_000);
        for i in 0..3u64 {
            let wall = start + Duration::from_secs(i * 10);
            let mut writer = Writer::create(&dir.path().join(segments::name(wall, 1))).unwrap();
            let look =
                |s: u64| CoreTimes { at: Time::from_secs(1000 + i * 10 + s), cores: vec![CoreTicks::default(); 1000] };
            let clocks = vec![Clocks { at: Time::from_secs(1000 + i * 10), wall, boot_ns: 0 }];
            let seen = Evidence { clocks, core_times: (0..10).map(look).collect(), ..Evidence::default() };
            writer.append(&seen).unwrap();
            writer.finish(&[]).unwrap();
        }
        let all = read_directory(dir.path(), &Span::All, FOR_STREAMS).unwrap().evidence;
        assert_eq!((all.core_times.len(), all.unseen.as_slice()), (30, [].as_slice()));
        let part = read_directory(dir.path(), &Span::All, 1_500_000).unwrap().evidence;
        assert_eq!(part.core_times.len(), 20);
        let [told] = part.unseen.as_slice() else { panic!("{:?}", part.unseen) };
        assert_eq!(told.what, "the beginning of the span, 2026-05-28T20:26:40Z to 2026-05-28T20:26:49Z");
    }
}
