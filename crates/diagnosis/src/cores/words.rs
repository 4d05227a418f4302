//! Numbers as people read them.

use crate::words::nearly_all;

/// `3 %`, `100 %`; one digit below 1 % and above 99 %, so that a small share does not print as 0 % and a nearly whole one not as 100 %.
pub fn percent(share: f64) -> String {
    // An empty sum is -0.0.
    let percent = share * 100.0 + 0.0;
    match percent {
        p if p > 0.0 && p < 1.0 => format!("{p:.1} %"),
        p => nearly_all(p).unwrap_or_else(|| format!("{p:.0} %")),
    }
}

/// `340 ms`, `2.9 s`.
pub fn span(ns: u64) -> String {
    if ns < 1_000_000_000 { format!("{} ms", ns / 1_000_000) } else { format!("{:.1} s", ns as f64 / 1e9) }
}

/// `a`, `a and b`, `a, b and 3 more`.
pub fn listed(items: &[String], most: usize) -> String {
    match items {
        [] => String::new(),
        [only] => only.clone(),
        _ if items.len() > most => {
            format!("{} and {} more", items[..most].join(", "), items.len() - most)
        }
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// A share as a number for evidence: percent with one digit.
pub fn percent_value(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(percent(0.034), "3 %");
        assert_eq!(percent(0.004), "0.4 %");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(
            (percent(0.994), percent(0.997), percent(0.99999)),
            ("99 %".into(), "99.7 %".into(), "99.9 %".into())
        );
        assert_eq!((percent(1.0), percent(1.3)), ("100 %".into(), "130 %".into()));
        assert_eq!(span(340_999_999), "340 ms");
        assert_eq!(span(2_940_000_000), "2.9 s");
        let names: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
        assert_eq!(listed(&names, 3), "a, b and c");
        assert_eq!(listed(&names, 1), "a and 2 more");
        assert_eq!(percent_value(0.98765), 98.8);
    }
}
