//! What a recording holds, and each core's times at some moments, without reading all of it: to show a long recording, or a
//! directory of them, at once.

use super::chunk::{self, ChunkError, Streamed};
use super::confine::{MOST_ROWS, is_table};
use super::incident_rows::incident_in;
use super::open::{self, Opened};
use super::profile::SourceRow;
use super::read::{self, RecordingReader};
use super::rows::U64;
use super::{About, IncidentRow, RecordingError};
use crate::order::Order;
use crate::time::{Clocks, Time, Window};
use crate::{CoreTimes, LogLine, Nic, Node, UnitLogLine};
use rusqlite::Connection;
use std::path::Path;
use std::time::Duration;

/// A summary of a file.
#[derive(Debug, Clone)]
pub struct Outline {
    pub about: About,
    pub boot_id: Option<String>,
    pub node: Option<Node>,
    /// The latest clock readings.
    pub clocks: Option<Clocks>,
    /// The first and the last look at the cores.
    pub looks: Option<Window>,
    /// The cores of the first look.
    pub cores: Vec<u32>,
    /// `None` if the file has no CPU samples.
    pub samples: Option<SamplesOutline>,
    pub incident: Option<IncidentRow>,
}

/// The CPU samples of a file.
#[derive(Debug, Clone)]
pub struct SamplesOutline {
    pub count: u64,
    /// Times of the first and the last, on the profile's clock.
    pub span: Option<(u64, u64)>,
    pub source: SourceRow,
    pub events: Vec<String>,
}

pub fn outline(path: &Path) -> Result<Outline, RecordingError> {
    // Opened only once: that costs more than the queries.
    let reader = super::profile::ProfileReader::open(path)?;
    let (about, samples) = (reader.about.clone(), samples(&reader));
    let opened = reader.into_opened();
    let incident = incident_in(&opened.db, path).ok().flatten().map(|(incident, _)| incident);
    let (mut boot_id, mut node, mut clocks, mut looks, mut cores) = (None, None, None, None, Vec::new());
    match RecordingReader::of(opened, path) {
        Ok(reader) => {
            (boot_id, clocks, looks) = (reader.boot_id(), reader.clocks(), reader.looks());
            cores = reader.first_cores();
            node = reader.only_node();
        }
        Err(RecordingError::OnlyProfile { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(Outline { about, boot_id, node, clocks, looks, cores, samples, incident })
}

fn samples(reader: &super::profile::ProfileReader) -> Option<SamplesOutline> {
    reader.has_profile().then(|| SamplesOutline {
        count: reader.count(),
        span: reader.span(),
        source: reader.source().unwrap_or_default(),
        events: reader.events(),
    })
}

/// The network devices, each as last seen.
pub fn nics(path: &Path) -> Result<Vec<Nic>, RecordingError> {
    Ok(RecordingReader::open(path)?.only_nics())
}

/// The logs of the kernel and of units only.
#[derive(Debug, Default)]
pub struct Logs {
    pub log: Vec<LogLine>,
    pub unit_log: Vec<UnitLogLine>,
}

pub fn logs(path: &Path) -> Result<Logs, RecordingError> {
    Ok(RecordingReader::open(path)?.only_logs())
}

/// The cores' times at some moments.
#[derive(Debug, Default)]
pub struct CoreLooks {
    /// Oldest first.
    pub looks: Vec<CoreTimes>,
    /// Times with looks, oldest first.
    pub covered: Vec<Window>,
}

/// A chunk of looks.
struct ChunkAt {
    id: i64,
    from: Time,
    to: Time,
    rows: u64,
}

/// What is known about a file before its looks are read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beside {
    /// Number of cores in its looks.
    pub cores: usize,
    /// Other files have the looks right before its first and right after its last, so these need not be exact.
    pub before: bool,
    pub after: bool,
}

/// The looks at the cores within a window, no closer together than `apart` if that saves unpacking: times are cumulative, so two
/// looks cover all between them. Includes the last look before the window and the first after it. `column` maps a moment to a
/// column of a picture: of several looks in one column, the first and the last are returned.
pub fn core_looks(
    path: &Path,
    window: Window,
    beside: Beside,
    apart: Duration,
    column: &dyn Fn(Time) -> u64,
) -> Result<CoreLooks, RecordingError> {
    let Opened { db, .. } = open::open(path)?;
    read::about(&db, path)?;
    let damaged = |e: rusqlite::Error| RecordingError::Damaged { path: path.to_owned(), why: e.to_string() };
    if is_table(&db, CoreTimes::TABLE).is_err() {
        return Ok(CoreLooks::default());
    }
    let chunks = listed(&db).map_err(damaged)?;
    let wanted = around(&chunks, window);
    let is_end = |chunk: &ChunkAt, end: Option<&ChunkAt>| end.is_some_and(|end| end.id == chunk.id);
    let mut found = CoreLooks::default();
    let mut next = Time(0);
    for (at, chunk) in wanted.iter().enumerate() {
        // The ends of covered time must be exact.
        let follows = match at.checked_sub(1) {
            Some(before) => chunk.from.since(wanted[before].to) <= TOGETHER,
            None => beside.before && is_end(chunk, chunks.first()),
        };
        let is_followed = match wanted.get(at + 1) {
            Some(after) => after.from.since(chunk.to) <= TOGETHER,
            None => beside.after && is_end(chunk, chunks.last()),
        };
        let length = chunk.to.since(chunk.from);
        let is_coarse = apart >= length && !chunk.has_hole(beside.cores);
        if is_coarse && follows && is_followed {
            cover(&mut found.covered, chunk.from, chunk.to);
            if chunk.from >= next {
                found.looks.extend(first(&db, chunk));
                next = chunk.from + apart - length / 2;
            }
            continue;
        }
        let wants = |times: &[Time]| {
            let is_end = |at: usize| at == 0 || at + 1 == times.len();
            let is_edge = |at: usize| {
                let here = column(times[at]);
                here != column(times[at - 1]) || here != column(times[at + 1])
            };
            (0..times.len()).map(|at| is_end(at) || (!is_coarse && is_edge(at))).collect()
        };
        let (times, looks) = chosen(&db, chunk, &wants);
        for at in times {
            cover(&mut found.covered, at, at);
        }
        found.looks.extend(looks);
    }
    found.looks.order_by_key(|look| look.at);
    found.covered.retain(|seen| seen.from <= window.to && seen.to >= window.from);
    for seen in &mut found.covered {
        *seen = Window { from: seen.from.max(window.from), to: seen.to.min(window.to) };
    }
    Ok(found)
}

impl ChunkAt {
    /// Whether it has fewer looks than its length should have: there was a pause.
    fn has_hole(&self, cores: usize) -> bool {
        let looks = self.rows / cores.max(1) as u64;
        self.to.since(self.from) > LOOKS_APART * u32::try_from(looks).unwrap_or(u32::MAX) + TOGETHER / 2
    }
}

/// Adds a time with looks. They come in order.
fn cover(covered: &mut Vec<Window>, from: Time, to: Time) {
    match covered.last_mut() {
        Some(last) if from.since(last.to) <= TOGETHER => last.to = last.to.max(to),
        _ => covered.push(Window { from, to }),
    }
}

/// The time between two looks.
const LOOKS_APART: Duration = Duration::from_millis(100);
/// Chunks no further apart than this are contiguous: looks come ten times a second.
pub const TOGETHER: Duration = Duration::from_secs(5);

fn listed(db: &Connection) -> rusqlite::Result<Vec<ChunkAt>> {
    let mut select = db.prepare("SELECT id, from_ns, to_ns, rows FROM core_time_chunks")?;
    let chunk = |row: &rusqlite::Row<'_>| {
        Ok(ChunkAt { id: row.get(0)?, from: row.get(1)?, to: row.get(2)?, rows: row.get::<_, U64>(3)?.0 })
    };
    let mut chunks: Vec<ChunkAt> = select.query_map([], chunk)?.filter_map(Result::ok).take(MOST_ROWS).collect();
    chunks.order_by_key(|chunk| (chunk.from, chunk.id));
    Ok(chunks)
}

/// Those in the window, and the one before and after it: these may end closer to the window's edges than any look in it.
fn around(chunks: &[ChunkAt], window: Window) -> &[ChunkAt] {
    let from = chunks.partition_point(|chunk| chunk.to < window.from).saturating_sub(1);
    let to = (chunks.partition_point(|chunk| chunk.from <= window.to) + 1).min(chunks.len());
    &chunks[from.min(to)..to]
}

/// A chunk unpacked by `of`; empty if it cannot be read.
fn unpacked<T: Default>(db: &Connection, chunk: &ChunkAt, of: impl Fn(&[u8]) -> Result<T, ChunkError>) -> T {
    let read = || -> rusqlite::Result<T> {
        let mut select = db.prepare_cached("SELECT data FROM core_time_chunks WHERE id = ?")?;
        select.query_row([chunk.id], |row| Ok(of(row.get_ref(0)?.as_blob()?).unwrap_or_default()))
    };
    read().unwrap_or_default()
}

fn first(db: &Connection, chunk: &ChunkAt) -> Option<CoreTimes> {
    unpacked(db, chunk, chunk::first_look)
}

/// The times of all looks of a chunk, and the wanted looks.
fn chosen(db: &Connection, chunk: &ChunkAt, wants: &dyn Fn(&[Time]) -> Vec<bool>) -> (Vec<Time>, Vec<CoreTimes>) {
    unpacked(db, chunk, |data| chunk::chosen_looks(data, chunk.rows, wants))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Writer;
    use crate::{CoreTicks, Evidence, Wall};

    const S: u64 = 1_000_000_000;

    /// 100 s of two cores, ten looks a second, with a gap of 20 s.
    fn recording(path: &Path) {
        let mut writer = Writer::create(path).unwrap();
        let seconds = (1000..1040).chain(1060..1100);
        for second in seconds {
            let look = |tenth: u64| CoreTimes {
                at: Time(second * S + tenth * S / 10),
                cores: (0..2)
                    .map(|core| CoreTicks { core, system: second * 10 + tenth, ..CoreTicks::default() })
                    .collect(),
            };
            let clocks = vec![Clocks { at: Time(second * S), wall: Wall((second + 7) * S), boot_ns: second * S }];
            let seen = Evidence { core_times: (0..10).map(look).collect(), clocks, ..Evidence::default() };
            writer.append(&seen).unwrap();
        }
        writer.finish(&[]).unwrap();
    }

    #[test]
    fn looks_far_apart_agree_with_all_looks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.coroner");
        recording(&path);
        let outline = outline(&path).unwrap();
        assert_eq!(outline.looks, Some(Window { from: Time(1000 * S), to: Time(1099 * S + S / 10 * 9) }));
        assert_eq!(
            (outline.cores.as_slice(), outline.samples.is_none(), outline.about.sealed),
            ([0, 1].as_slice(), true, true)
        );
        let window = Window { from: Time(1010 * S), to: Time(1090 * S) };
        let each = |at: Time| at.0;
        let alone = Beside { cores: 2, before: false, after: false };
        let all = core_looks(&path, window, alone, Duration::ZERO, &each).unwrap();
        // A chunk is closed after ten seconds, at the next append: here it holds 10.9 s.
        let few = core_looks(&path, window, alone, Duration::from_secs(11), &each).unwrap();
        assert_eq!(all.covered, few.covered);
        assert_eq!(all.covered.len(), 2, "{:?}", all.covered);
        assert!(few.looks.len() * 5 < all.looks.len(), "{} of {}", few.looks.len(), all.looks.len());
        for look in &few.looks {
            assert!(all.looks.contains(look), "{look:?}");
        }
        let has = |looks: &[CoreTimes], at: u64| looks.iter().any(|look| look.at.0.abs_diff(at) <= 10 * S);
        assert!((1010..1040).step_by(5).all(|second| has(&few.looks, second * S)));
        // If columns are longer than the time between looks, the looks around their edges are enough.
        let by_second = core_looks(&path, window, alone, Duration::ZERO, &|at| at.0 / S).unwrap();
        assert_eq!(by_second.covered, all.covered);
        assert!(by_second.looks.len() * 3 < all.looks.len(), "{} of {}", by_second.looks.len(), all.looks.len());
        let edges = (1010..1040).map(|second| second * S).flat_map(|edge| [edge - S / 10, edge]);
        for edge in edges {
            let at = |looks: &CoreLooks| looks.looks.iter().find(|look| look.at == Time(edge)).cloned();
            assert!(at(&by_second).is_some() && at(&by_second) == at(&all), "{edge}");
        }
        // The ends of the gap are exact.
        let has_ends = |looks: &[CoreTimes]| {
            [1039 * S + S / 10 * 9, 1060 * S].iter().all(|end| looks.iter().any(|look| look.at == Time(*end)))
        };
        assert!(has_ends(&few.looks));
        // Between other files, the next file's first look stands in for a file's last.
        let everything = Window { from: Time(0), to: Time(2000 * S) };
        let of = |beside| core_looks(&path, everything, beside, Duration::from_secs(11), &each).unwrap();
        let (by_itself, among) = (of(alone), of(Beside { before: true, after: true, ..alone }));
        assert_eq!(by_itself.covered, among.covered);
        let at = |looks: &CoreLooks, at: Time| looks.looks.iter().any(|look| look.at == at);
        let (first, last) = (Time(1000 * S), Time(1099 * S + S / 10 * 9));
        assert!(at(&by_itself, first) && at(&by_itself, last) && at(&among, first) && !at(&among, last));
        assert!(has_ends(&among.looks));
    }
}
