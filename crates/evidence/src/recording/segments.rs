//! A recorder's directory of recordings: one file for at most ten minutes, each complete in itself.
//!
//! A file is named by its first moment, in UTC: `2026-05-28T20-26-40Z.coroner`, with `-2`, `-3` … before the dot if there is one
//! of that second already. So files are found by time without opening any, names sort by time, and people see what they hold.
//! Within a segment, its clock has one offset to the wall clock: when the wall clock is set, a new segment begins.

use crate::Wall;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, fmt::strtime};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest time a segment lasts.
pub const LONGEST: Duration = Duration::from_secs(600);
/// How far a segment's samples may lie outside the time in its name: they wait in rings before they are stored, and the wall clock
/// is slewed.
const SLACK: Duration = Duration::from_secs(5);

const SUFFIX: &str = ".coroner";
const TIME: &str = "%Y-%m-%dT%H-%M-%SZ";

/// A recording in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// Whole seconds.
    pub start: Wall,
    /// Its place among those of the same second, from 1.
    pub place: u32,
    pub path: PathBuf,
}

/// The name of the segment that begins now, where `place` - 1 others began in the same second.
pub fn name(start: Wall, place: u32) -> String {
    let seconds = i64::try_from(start.0 / 1_000_000_000).unwrap_or(0);
    let time = Timestamp::from_second(seconds).unwrap_or_default().strftime(TIME).to_string();
    if place > 1 { format!("{time}-{place}{SUFFIX}") } else { time + SUFFIX }
}

fn parse(name: &str) -> Option<(Wall, u32)> {
    let name = name.strip_suffix(SUFFIX)?;
    let (time, place) = name.split_once("Z-").map_or((name, Some(1)), |(time, place)| (time, place.parse().ok()));
    let time: DateTime = strtime::parse(TIME, format!("{}Z", time.trim_end_matches('Z'))).ok()?.to_datetime().ok()?;
    let seconds = time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
    Some((Wall(u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?), place?))
}

/// When the segment at this path begins, by its name.
pub fn start_of(path: &Path) -> Option<Wall> {
    Some(parse(path.file_name()?.to_str()?)?.0)
}

/// The segments in a directory, oldest first, and the recordings that are not named like one.
pub fn list(directory: &Path) -> io::Result<(Vec<Segment>, Vec<PathBuf>)> {
    let (mut segments, mut others) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let Some(text) = name.to_str().filter(|name| name.ends_with(SUFFIX)) else { continue };
        let path = directory.join(text);
        match parse(text) {
            Some((start, place)) => segments.push(Segment { start, place, path }),
            None => others.push(path),
        }
    }
    segments.sort();
    others.sort();
    Ok((segments, others))
}

/// Those of `segments` (oldest first) that may have data in `range`.
pub fn within<'a>(segments: &'a [Segment], range: &Range<Wall>) -> &'a [Segment] {
    let until = segments.partition_point(|segment| segment.start < range.end + SLACK);
    let from = segments.partition_point(|segment| segment.start < range.start - (LONGEST + SLACK));
    &segments[from.min(until)..until]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_name_says_when_the_segment_begins() {
        assert_eq!(name(Wall(1_780_000_000 * SECOND + 7), 1), "2026-05-28T20-26-40Z.coroner");
        for (start, place) in [(0, 1), (1_780_000_000, 1), (1_780_000_000, 2), (4_102_444_799, 31)] {
            assert_eq!(parse(&name(Wall(start * SECOND), place)), Some((Wall(start * SECOND), place)));
        }
        for other in ["incident-1.coroner", "2026-05-28T20-26-40Z.coroner-wal", "2026-13-28T20-26-40Z.coroner", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_second_is_in_one_file_or_at_a_boundary_in_two() {
        let at = |second: u64| Wall((1_780_000_000 + second) * SECOND);
        let day: Vec<Segment> =
            (0..144).map(|i| Segment { start: at(i * 600), place: 1, path: PathBuf::new() }).collect();
        let found = |second: u64| within(&day, &(at(second)..at(second + 1)));
        assert_eq!(found(300), &day[..1]);
        assert_eq!(found(86_100), &day[143..]);
        assert_eq!(found(600), &day[..2]);
        assert_eq!(found(90_000), &[]);
        assert_eq!(within(&day, &(Wall(0)..Wall::MAX)), day);
        assert_eq!(within(&day, &(Wall(0)..Wall(1))), &[]);
    }
}
