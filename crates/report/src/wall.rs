//! Wall-clock time: what a date says.

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
        Wall(self.0 - self.0 % 86_400_000_000_000)
    }

    /// Reads RFC 3339. `None` before 1970, such as for Go's zero time, the year 1.
    pub fn parse(text: &str) -> Option<Wall> {
        u64::try_from(text.parse::<Timestamp>().ok()?.as_nanosecond()).ok().map(Wall)
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
        // All of u64 are within its years.
        f.pad(&format!("{:.3}", Timestamp::from_nanosecond(self.0.into()).unwrap_or_default()))
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
