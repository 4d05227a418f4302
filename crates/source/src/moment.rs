//! Parses moments, durations and cores as people write them: on the command line, and in the page's addresses.

use coroner_evidence::Wall;
use std::time::Duration;

/// A moment as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A plain number, in nanoseconds: since the first sample; or a reading of the recording's clock, if not before that sample.
    Number(u64),
    /// With a unit: since the first sample.
    FromStart(u64),
    Wall(Wall),
    /// A time of the day on which the first sample was taken (UTC), in nanoseconds.
    TimeOfDay(u64),
    /// A reading of a file's own clock, whatever it says.
    Clock(u64),
}

pub fn parse_moment(text: &str) -> Result<Moment, String> {
    let wrong = || {
        "expected seconds from the first sample (12.5, 300ms, 2m), a time as printed by perf script (24915.802750) or a UTC \
         wall-clock time (2026-11-16T05:51:42Z, 05:51:42)"
            .to_owned()
    };
    if let Some(ns) = seconds(text) {
        return Ok(Moment::Number(ns));
    }
    // Before durations, which may look the same: people paste times of day.
    if text.contains(':')
        && !text.contains('-')
        && let Ok(time) = text.parse::<jiff::civil::Time>()
    {
        let ns = time.duration_since(jiff::civil::Time::midnight()).as_nanos();
        return u64::try_from(ns).map(Moment::TimeOfDay).map_err(|_| wrong());
    }
    if let Ok(duration) = text.trim_start_matches('+').parse::<jiff::SignedDuration>() {
        return u64::try_from(duration.as_nanos()).map(Moment::FromStart).map_err(|_| wrong());
    }
    let wall: jiff::Timestamp = match text.parse() {
        Ok(wall) => wall,
        // Without a zone it is UTC, like everything here.
        Err(_) => {
            let civil: jiff::civil::DateTime = text.parse().map_err(|_| wrong())?;
            civil.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| wrong())?.timestamp()
        }
    };
    u64::try_from(wall.as_nanosecond()).map(|ns| Moment::Wall(Wall(ns))).map_err(|_| wrong())
}

/// Exact nanoseconds of `12` or `12.5`.
fn seconds(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 9 {
        return None;
    }
    let nanoseconds: u64 = format!("{part:0<9}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

pub fn parse_moments(text: &str) -> Result<(Moment, Moment), String> {
    let (from, to) = text.split_once("..").ok_or("expected FROM..TO, e.g. 10..12.5")?;
    Ok((parse_moment(from)?, parse_moment(to)?))
}

pub fn parse_band(text: &str) -> Result<(u64, u64), String> {
    let expected = "expected a part of a second, e.g. 300ms..400ms or 0.3..0.4";
    let (from, to) = text.split_once("..").ok_or(expected)?;
    let offset = |text: &str| match parse_moment(text) {
        Ok(Moment::Number(ns) | Moment::FromStart(ns)) if ns <= 1_000_000_000 => Ok(ns),
        _ => Err(expected.to_owned()),
    };
    let (from, to) = (offset(from)?, offset(to)?);
    // 900 to 100 ms wraps around the end of the second.
    if from != to { Ok((from, to)) } else { Err(format!("{expected}: it must not be empty")) }
}

pub fn parse_cores(text: &str) -> Result<Vec<u32>, String> {
    let expected = || "expected cores such as 1 or 0-3,7".to_owned();
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().map_err(|_| expected())?, to.parse().map_err(|_| expected())?);
        if from > to || to > 65_535 {
            return Err(expected());
        }
        cores.extend(from..=to);
    }
    Ok(cores)
}

/// A duration from a microsecond to a day.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let ns = match parse_moment(text) {
        Ok(Moment::Number(ns) | Moment::FromStart(ns)) => ns,
        _ => return Err("expected a duration such as 100ms or 1s".to_owned()),
    };
    let duration = Duration::from_nanos(ns);
    if duration < Duration::from_micros(1) || duration > Duration::from_secs(24 * 3600) {
        return Err("must be between 1us and 24h".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_what_people_write() {
        assert_eq!(parse_moment("12.5"), Ok(Moment::Number(12_500_000_000)));
        assert_eq!(parse_moment("24915.802750"), Ok(Moment::Number(24_915_802_750_000)));
        assert_eq!(parse_moment("300ms"), Ok(Moment::FromStart(300_000_000)));
        assert_eq!(parse_moment("2m"), Ok(Moment::FromStart(120_000_000_000)));
        assert_eq!(parse_moment("1970-01-01T00:00:01Z"), Ok(Moment::Wall(Wall(1_000_000_000))));
        assert_eq!(parse_moment("1970-01-01 00:00:01"), Ok(Moment::Wall(Wall(1_000_000_000))));
        assert_eq!(parse_moment("00:01:00.5"), Ok(Moment::TimeOfDay(60_500_000_000)));
        for wrong in ["", "-1", "-5s", "soon", "1.2.3", "99999999999999999999", "12.0000000001"] {
            assert!(parse_moment(wrong).is_err(), "{wrong:?} was accepted");
        }
        assert_eq!(parse_moments("1..2.5"), Ok((Moment::Number(1_000_000_000), Moment::Number(2_500_000_000))));
    }

    #[test]
    fn bands_and_cores() {
        assert_eq!(parse_band("0.3..0.4"), Ok((300_000_000, 400_000_000)));
        assert_eq!(parse_band("900ms..1s"), Ok((900_000_000, 1_000_000_000)));
        assert_eq!(parse_band("0.9..0.1"), Ok((900_000_000, 100_000_000)));
        assert!(parse_band("0.4..0.4").is_err() && parse_band("0..2").is_err());
        assert_eq!(parse_cores("0-2,7"), Ok(vec![0, 1, 2, 7]));
        assert!(parse_cores("3-1").is_err() && parse_cores("0-99999999").is_err() && parse_cores("a").is_err());
    }
}
