//! Wall-clock time: what a date says.

use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_MS: u64 = 86_400_000;

/// Nanoseconds since 1970 (CLOCK_REALTIME). Documents have it as RFC 3339 in UTC, to the millisecond: `2026-11-15T20:31:02.123Z`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Wall(pub u64);

impl Wall {
    pub const MAX: Wall = Wall(u64::MAX);

    /// Time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Wall) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub fn abs_diff(self, other: Wall) -> Duration {
        Duration::from_nanos(self.0.abs_diff(other.0))
    }

    /// The beginning of its day, in UTC.
    pub fn midnight(self) -> Wall {
        Wall(self.0 - self.0 % (DAY_MS * 1_000_000))
    }

    /// Reads RFC 3339 with up to nine digits of a fraction and any zone. `None` before 1970, such as for Go's zero time, the year 1.
    pub fn parse(text: &str) -> Option<Wall> {
        let bytes = text.as_bytes();
        let number = |from: usize, to: usize| -> Option<u64> {
            let digits = bytes.get(from..to)?;
            digits.iter().try_fold(0, |sum, b| b.is_ascii_digit().then(|| sum * 10 + u64::from(b - b'0')))
        };
        let is = |at: usize, separators: &[u8]| bytes.get(at).is_some_and(|b| separators.contains(b));
        if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":")) {
            return None;
        }
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        if year < 1970
            || !(1..=12).contains(&month)
            || !(1..=31).contains(&day)
            || hour > 23
            || minute > 59
            || second > 60
        {
            return None;
        }
        let mut at = 19;
        let mut ns = 0;
        if is(at, b".") {
            at += 1;
            let digits = bytes[at..].iter().take_while(|b| b.is_ascii_digit()).count();
            if digits == 0 || digits > 9 {
                return None;
            }
            ns = number(at, at + digits)? * 10u64.pow(9 - digits as u32);
            at += digits;
        }
        let offset_s: i64 = match bytes.get(at)? {
            b'Z' | b'z' if bytes.len() == at + 1 => 0,
            sign @ (b'+' | b'-') if bytes.len() == at + 6 && is(at + 3, b":") => {
                let seconds = (number(at + 1, at + 3)? * 3600 + number(at + 4, at + 6)? * 60) as i64;
                if *sign == b'-' { -seconds } else { seconds }
            }
            _ => return None,
        };
        let seconds = days(year, month, day)? * 86_400 + hour * 3600 + minute * 60 + second;
        let seconds = u64::try_from(i64::try_from(seconds).ok()? - offset_s).ok()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(ns).map(Wall)
    }

    /// For documents that have it as a number of nanoseconds. Either form is read.
    pub fn as_number<S: Serializer>(wall: &(impl Copy + Into<Option<Wall>>), serializer: S) -> Result<S::Ok, S::Error> {
        (*wall).into().map(|wall| wall.0).serialize(serializer)
    }
}

impl From<SystemTime> for Wall {
    fn from(time: SystemTime) -> Wall {
        Wall(0) + time.duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

impl Add<Duration> for Wall {
    type Output = Wall;
    fn add(self, d: Duration) -> Wall {
        Wall(self.0.saturating_add(d.as_nanos().min(u64::MAX.into()) as u64))
    }
}

impl Sub<Duration> for Wall {
    type Output = Wall;
    fn sub(self, d: Duration) -> Wall {
        Wall(self.0.saturating_sub(d.as_nanos().min(u64::MAX.into()) as u64))
    }
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0 / 1_000_000;
        let (year, month, day) = date(ms / DAY_MS);
        let (hour, minute, second) = (ms / 3_600_000 % 24, ms / 60_000 % 60, ms / 1000 % 60);
        f.pad(&format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000))
    }
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({} ns)", self.0)
    }
}

impl From<Wall> for String {
    fn from(wall: Wall) -> String {
        wall.to_string()
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

impl TryFrom<Written> for Wall {
    type Error = String;

    fn try_from(written: Written) -> Result<Wall, String> {
        match written {
            Written::Number(ns) => Ok(Wall(ns)),
            Written::Text(text) => {
                Wall::parse(&text).ok_or_else(|| format!("{text:?} is not a time such as 2026-11-15T20:31:02.123Z"))
            }
        }
    }
}

/// The date of a day counted from 1970. (Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.)
fn date(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, of_year - (153 * shifted + 2) / 5 + 1)
}

/// The day of a date, counted from 1970.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_times() {
        assert_eq!(Wall(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Wall(1_709_164_800_123_000_000).to_string(), "2024-02-29T00:00:00.123Z");
        assert_eq!(Wall::MAX.to_string(), "2554-07-21T23:34:33.709Z");
        assert_eq!(Wall::parse("2026-11-15T20:31:02Z"), Wall::parse("2026-11-15T20:31:02.000Z"));
        for wrong in [
            "",
            "2026-11-15",
            "2026-13-15T20:31:02Z",
            "2026-11-15T20:31:02",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "1969-11-15T20:31:02Z",
        ] {
            assert_eq!(Wall::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Wall::parse("2023-11-14T22:13:20.5Z"), Some(Wall(1_700_000_000_500_000_000)));
        assert_eq!(Wall::parse("2023-11-15T00:13:20.000000001+02:00"), Some(Wall(1_700_000_000_000_000_001)));
    }

    proptest! {
        #[test]
        fn any_text(text in "[0-9TZ:.+ -]{0,40}") {
            let _ = Wall::parse(&text);
        }

        #[test]
        fn milliseconds_come_back(ms in 0..18_000_000_000_000_u64) {
            prop_assert_eq!(Wall::parse(&Wall(ms * 1_000_000).to_string()), Some(Wall(ms * 1_000_000)));
        }
    }
}
