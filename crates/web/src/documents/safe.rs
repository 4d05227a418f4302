//! Characters that must not reach a terminal unescaped.

use std::fmt::Write;

/// Whether a character could control a terminal, reorder or hide its neighbours, or break a line: control characters, Unicode
/// categories Cf, Zl and Zp, and the blank fillers.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{8e2}' | '\u{115f}'
            | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// A JSON document with unsafe characters escaped as `\uXXXX`; its meaning is unchanged.
pub(super) fn json(document: &str) -> String {
    let mut out = String::with_capacity(document.len());
    for c in document.chars() {
        // serde escapes those below; newlines occur only between values.
        if c < '\u{7f}' || !is_unsafe(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_means_the_same() {
        let value = serde_json::json!({ "a\u{7f}": "\u{1b}[31m\u{9b}\u{202e}\u{2028}\u{e0041}ü\n" });
        let safe = json(&format!("{value:#}"));
        assert!(!safe.chars().any(|c| c != '\n' && is_unsafe(c)), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }
}
