//! Times in words, for all output.

use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// How long ago something happened: `just now`, `17 min ago`, `about 3 h 20 min ago`.
///
/// The kernel log's clock drifts: if the age may be off by more than a tenth, and at least a second, it says *about*.
pub fn age_words(age: Duration, uncertainty: Duration) -> String {
    let secs = age.as_secs();
    if secs < 2 && uncertainty.as_secs() < 2 {
        return "just now".to_owned();
    }
    let about =
        if uncertainty.as_secs() >= 1 && uncertainty.as_secs().saturating_mul(10) > secs { "about " } else { "" };
    format!("{about}{} ago", long_words(secs))
}

/// A duration: `350 µs`, `83 ms`, `6.6 s`, `17 min`, `3 h 20 min`, `12 days`.
pub fn duration_words(d: Duration) -> String {
    let micros = d.as_micros();
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{} ms", micros / 1_000),
        1_000_000..10_000_000 => format!("{:.1} s", d.as_secs_f64()),
        _ => long_words(d.as_secs()),
    }
}

fn long_words(secs: u64) -> String {
    match secs {
        0..90 => format!("{secs} s"),
        90..5_400 => format!("{} min", (secs + MINUTE / 2) / MINUTE),
        5_400..21_600 => {
            let minutes = secs / MINUTE;
            match minutes % 60 {
                0 => format!("{} h", minutes / 60),
                m => format!("{} h {m} min", minutes / 60),
            }
        }
        21_600..172_800 => format!("{} h", (secs + HOUR / 2) / HOUR),
        _ => format!("{} days", secs / DAY),
    }
}
