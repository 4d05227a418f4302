//! Numbers and times in words, for all output.

pub use coroner_report::words::{age_words, duration_words};
use std::time::Duration;

/// `68,680`
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 line`, `2,000 lines`
pub fn plural(n: u64, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{} {many}", count(n)) }
}

/// `once`, `twice`, `12 times`
pub fn times(n: u64) -> String {
    match n {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        n => format!("{} times", count(n)),
    }
}

/// `4.0 KiB`, `1.9 GiB`
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} bytes");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value >= 100.0 { format!("{value:.0} {}", UNITS[unit]) } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `a, b, c and 4 more`
pub fn list<S: AsRef<str>>(items: &[S], at_most: usize) -> String {
    let shown: Vec<&str> = items.iter().take(at_most).map(AsRef::as_ref).collect();
    let rest = items.len() - shown.len();
    match (rest, shown.split_last()) {
        (0, Some((last, []))) => (*last).to_owned(),
        (0, Some((last, first))) => format!("{} and {last}", first.join(", ")),
        (0, None) => String::new(),
        (rest, _) => format!("{} and {rest} more", shown.join(", ")),
    }
}

/// A share in percent, one decimal below ten: `6.5 %`, `43 %`.
pub fn percent(share: f64) -> String {
    // An empty sum is -0.0.
    let p = share * 100.0 + 0.0;
    if p < 9.95 { format!("{p:.1} %") } else { nearly_all(p).unwrap_or_else(|| format!("{p:.0} %")) }
}

/// `99.7 %` for what would round to 100 % although something is missing.
pub(crate) fn nearly_all(percent: f64) -> Option<String> {
    (99.5..100.0).contains(&percent).then(|| format!("{:.1} %", (percent * 10.0).floor() / 10.0))
}

/// How often, in the unit that reads best: `12 per minute`, `3.5 per hour`.
pub fn rate(n: f64, over: Duration) -> String {
    let secs = over.as_secs_f64();
    if secs <= 0.0 || !n.is_finite() {
        return "an unknown rate".to_owned();
    }
    let per_second = n / secs;
    let (value, unit) = if per_second >= 1.0 {
        (per_second, "second")
    } else if per_second * 60.0 >= 1.0 {
        (per_second * 60.0, "minute")
    } else if per_second * 3600.0 >= 1.0 {
        (per_second * 3600.0, "hour")
    } else {
        (per_second * 86_400.0, "day")
    };
    if value < 10.0 { format!("{value:.1} per {unit}") } else { format!("{} per {unit}", count(value.round() as u64)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn ages_read_like_speech() {
        let exact = |n| age_words(secs(n), Duration::ZERO);
        assert_eq!(exact(0), "just now");
        assert_eq!(exact(45), "45 s ago");
        assert_eq!(exact(17 * 60 + 5), "17 min ago");
        assert_eq!(exact(3 * 3600 + 20 * 60), "3 h 20 min ago");
        assert_eq!(exact(2 * 3600), "2 h ago");
        assert_eq!(exact(23 * 3600 + 1800), "24 h ago");
        assert_eq!(exact(10 * 86_400), "10 days ago");
    }

    #[test]
    fn an_uncertain_age_says_so_only_where_it_matters() {
        assert_eq!(age_words(secs(60), secs(7)), "about 60 s ago");
        assert_eq!(age_words(secs(7200), secs(7)), "2 h ago");
        assert_eq!(age_words(secs(0), secs(30)), "about 0 s ago");
    }

    #[test]
    fn durations_counts_and_rates() {
        assert_eq!(duration_words(Duration::from_micros(6_596_000)), "6.6 s");
        assert_eq!(duration_words(Duration::from_millis(83)), "83 ms");
        assert_eq!(duration_words(Duration::from_micros(142)), "142 µs");
        assert_eq!(count(68_680), "68,680");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000_000), "1,000,000");
        assert_eq!(list(&["a", "b", "c"], 3), "a, b and c");
        assert_eq!(list(&["a", "b", "c"], 2), "a, b and 1 more");
        assert_eq!(rate(24.0, secs(6)), "4.0 per second");
        assert_eq!(rate(1.0, secs(15)), "4.0 per minute");
        assert_eq!(rate(68_680.0, secs(12 * 86_400)), "4.0 per minute");
        assert_eq!(rate(1.0, Duration::ZERO), "an unknown rate");
        assert_eq!(bytes(28 * 1024 * 68_680), "1.8 GiB");
    }

    proptest! {
        #[test]
        fn any_number_has_words(n in any::<u64>(), m in any::<u64>()) {
            age_words(Duration::from_nanos(n), Duration::from_secs(m));
            duration_words(Duration::from_secs(n));
            prop_assert_eq!(count(n).replace(',', ""), n.to_string());
            bytes(n);
            rate(n as f64, Duration::from_nanos(m));
        }
    }
}
