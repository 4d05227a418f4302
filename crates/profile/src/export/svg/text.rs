//! Formats names and numbers.

/// `1,234,567`.
pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A share, with more digits the smaller it is.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        _ if percent == 0.0 => "0 %".to_owned(),
        _ if percent < 0.001 => "< 0.001 %".to_owned(),
        _ if percent < 0.1 => format!("{percent:.3} %"),
        _ => format!("{percent:.2} %"),
    }
}

/// A difference of shares.
pub(super) fn points(share: f64) -> String {
    format!("{:.2} points", share * 100.0)
}

/// A weight with its unit; nanoseconds as time.
pub(super) fn amount(weight: u64, unit: &str) -> String {
    if unit != "ns" {
        return format!("{} {unit}", thousands(weight));
    }
    let ns = weight as f64;
    match weight {
        0..1_000 => format!("{weight} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// An invisible or reordering character, which a name may contain to deceive.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}')
}

/// A name as it is shown: hidden characters as `\u{…}`.
pub(super) fn shown(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if is_hidden(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// Escaped for XML text and attributes; hidden characters as above.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in shown(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// A JSON string without characters special in XML; hidden characters as above.
pub(super) fn json(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in shown(text).chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '<' | '>' | '&' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// At most `letters` letters.
pub(super) fn shorten(name: &str, letters: usize) -> String {
    if name.chars().count() <= letters {
        return name.to_owned();
    }
    name.chars().take(letters.saturating_sub(1)).chain(['…']).collect()
}
