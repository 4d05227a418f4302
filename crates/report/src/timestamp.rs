//! Times in documents: RFC 3339 in UTC, to the millisecond. In memory they are nanoseconds since 1970.

use serde::{Deserialize, Deserializer, Serializer, de};
use std::borrow::Cow;

const DAY_MS: u64 = 86_400_000;

/// `2026-11-15T20:31:02.123Z`
pub fn format(real_ns: u64) -> String {
    let ms = real_ns / 1_000_000;
    let (year, month, day) = date(ms / DAY_MS);
    let (hour, minute, second) = (ms / 3_600_000 % 24, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// Reads what [`format`] writes; the fraction may be absent or longer.
pub fn parse(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
    let mut parts = date.split('-');
    let (year, month, day) = (number(parts.next()?)?, number(parts.next()?)?, number(parts.next()?)?);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut of_day = time.split(':');
    let (hour, minute, second) = (number(of_day.next()?)?, number(of_day.next()?)?, number(of_day.next()?)?);
    let valid = (1970..=2554).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !valid || hour > 23 || minute > 59 || second > 60 || parts.next().is_some() || of_day.next().is_some() {
        return None;
    }
    let nanos = number(&format!("{:0<9.9}", fraction))?;
    let seconds = days(year, month, day)? * 86_400 + hour * 3600 + minute * 60 + second;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
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

pub fn serialize<S: Serializer>(real_ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*real_ns))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = Cow::<str>::deserialize(deserializer)?;
    parse(&text)
        .ok_or_else(|| de::Error::invalid_value(de::Unexpected::Str(&text), &"a time such as 2026-11-15T20:31:02.123Z"))
}

/// The same for times that may be unknown.
pub mod option {
    use super::*;

    pub fn serialize<S: Serializer>(real_ns: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match real_ns {
            Some(real_ns) => serializer.serialize_some(&format(*real_ns)),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        #[derive(Deserialize)]
        struct Time(#[serde(with = "super")] u64);
        Ok(Option::<Time>::deserialize(deserializer)?.map(|Time(real_ns)| real_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_times() {
        assert_eq!(format(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(format(1_709_164_800_123_000_000), "2024-02-29T00:00:00.123Z");
        assert_eq!(format(u64::MAX), "2554-07-21T23:34:33.709Z");
        assert_eq!(parse("2026-11-15T20:31:02Z"), parse("2026-11-15T20:31:02.000Z"));
        for wrong in ["", "2026-11-15", "2026-13-15T20:31:02Z", "2026-11-15T20:31:02+01:00", "1969-11-15T20:31:02Z"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn milliseconds_come_back(ms in 0..18_000_000_000_000_u64) {
            prop_assert_eq!(parse(&format(ms * 1_000_000)), Some(ms * 1_000_000));
        }
    }
}
