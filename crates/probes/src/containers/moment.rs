//! Timestamps as Go programs write them: RFC 3339 with up to nine fractional digits.

/// ns since 1970; `None` if it is malformed or before 1970 (Go's zero time is the year 1).
pub fn parse_rfc3339(text: &str) -> Option<u64> {
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
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60
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
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    let seconds = u64::try_from(i64::try_from(seconds).ok()? - offset_s).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(ns)
}

/// In the Gregorian calendar, from 1970 on.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    // Years begin in March, so that the leap day comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    days - 719_468
}

/// The time of the first line of a container's log: `2016-10-06T00:17:09.669794202Z stdout F …` in CRI format
/// (kubernetes/design-proposals-archive, cri-logging), or docker's `{"log":…,"time":"…"}`.
pub fn first_entry(bytes: &[u8]) -> Option<u64> {
    let line = bytes.split(|b| *b == b'\n').next()?;
    if line.first() == Some(&b'{') {
        let json: serde_json::Value = serde_json::from_slice(line).ok()?;
        return parse_rfc3339(json.get("time")?.as_str()?);
    }
    let word = line.split(|b| *b == b' ').next()?;
    parse_rfc3339(std::str::from_utf8(word).ok()?)
}

pub fn statx_ns(seconds: i64, ns: u32) -> Option<u64> {
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(u64::from(ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn timestamps() {
        assert_eq!(parse_rfc3339("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_rfc3339("2023-11-14T22:13:20.5Z"), Some(1_700_000_000_500_000_000));
        assert_eq!(parse_rfc3339("2023-11-15T00:13:20.000000001+02:00"), Some(1_700_000_000_000_000_001));
        assert_eq!(parse_rfc3339("2024-02-29T00:00:00Z"), Some(1_709_164_800_000_000_000));
        assert_eq!(parse_rfc3339("2000-03-01T00:00:00Z"), Some(951_868_800_000_000_000));
        assert_eq!(parse_rfc3339("0001-01-01T00:00:00Z"), None, "Go's zero time");
        assert_eq!(parse_rfc3339("2023-11-14T22:13:20"), None);
        assert_eq!(parse_rfc3339("9999-12-31T23:59:59Z"), None, "does not fit in u64 ns");
        assert_eq!(first_entry(b"2023-11-14T22:13:20.5Z stderr F hello\nmore"), Some(1_700_000_000_500_000_000));
        let json = br#"{"log":"a\n","stream":"stdout","time":"2023-11-14T22:13:20Z"}"#;
        assert_eq!(first_entry(json), Some(1_700_000_000_000_000_000));
        assert_eq!(first_entry(b""), None);
    }

    proptest! {
        #[test]
        fn any_text(bytes in prop::collection::vec(any::<u8>(), 0..80), text in "[0-9TZ:.+ -]{0,40}") {
            let _ = first_entry(&bytes);
            let _ = parse_rfc3339(&text);
        }

        #[test]
        fn one_day_later_is_a_day_more(days in 0u64..100_000) {
            // Walks through months and leap years by counting days.
            let (mut year, mut left) = (1970, days);
            let length = |y: u64| if y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400)) { 366 } else { 365 };
            while left >= length(year) {
                left -= length(year);
                year += 1;
            }
            let february = if length(year) == 366 { 29 } else { 28 };
            let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            let mut month = 0;
            while left >= months[month] {
                left -= months[month];
                month += 1;
            }
            prop_assert_eq!(days_since_1970(year, month as u64 + 1, left + 1), days);
        }
    }
}
