//! All text leaves through here: to the terminal, pipes and reports.
//!
//! Names of processes, units and files, log lines, and anything in somebody else's recording may contain escape sequences,
//! direction marks or invisible characters. [`text`] lets none of them through. Our own colours pass because, up to here,
//! they are not escape sequences but characters that this process picked at random when it started ([`mark`]): no
//! recording can contain them on purpose.

use coroner_web::documents::safe::is_unsafe;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Bold,
    Dim,
    Green,
    Yellow,
    Cyan,
    BoldRed,
    BoldYellow,
    /// A zero-width space: keeps Markdown from reading `@name` as a mention.
    Apart,
}

const STYLES: [(Style, &str); 9] = [
    (Style::Plain, "\x1b[0m"),
    (Style::Bold, "\x1b[1m"),
    (Style::Dim, "\x1b[2m"),
    (Style::Green, "\x1b[32m"),
    (Style::Yellow, "\x1b[33m"),
    (Style::Cyan, "\x1b[36m"),
    (Style::BoldRed, "\x1b[1;31m"),
    (Style::BoldYellow, "\x1b[1;33m"),
    (Style::Apart, "\u{200b}"),
];

/// Marks are private-use characters (plane 16) starting here.
fn first_mark() -> u32 {
    static FIRST: OnceLock<u32> = OnceLock::new();
    *FIRST.get_or_init(|| 0x10_0000 + (RandomState::new().hash_one(0) % 0xff00) as u32)
}

/// The character that stands for a style until [`text`] replaces it.
pub fn mark(style: Style) -> char {
    char::from_u32(first_mark() + style as u32).unwrap_or('\u{fffd}')
}

fn marked(c: char) -> Option<&'static str> {
    let at = u32::from(c).checked_sub(first_mark())?;
    STYLES.get(at as usize).map(|(_, code)| *code)
}

/// The width of a text.
pub fn columns(text: &str) -> usize {
    text.chars().filter(|c| marked(*c).is_none()).count()
}

/// Keeps newlines and our own styles; everything unsafe becomes U+FFFD.
pub fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match marked(c) {
            Some(code) => out.push_str(code),
            None if c != '\n' && is_unsafe(c) => out.push('\u{fffd}'),
            None => out.push(c),
        }
    }
    out
}

/// For a name in an unwrapped line: a newline in it must not start a line that looks like ours.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if is_unsafe(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_drive_the_terminal() {
        assert_eq!(text("a\x1b[31mb\r\u{9b}1m\x07"), "a\u{fffd}[31mb\u{fffd}\u{fffd}1m\u{fffd}");
        assert_eq!(text("a\u{202e}b\u{2066}c\u{200f}\u{61c}\u{200b}\u{2028}\n"), "a�b�c����\n");
        assert_eq!(text("grüße 日本 ▇ – ✓"), "grüße 日本 ▇ – ✓");
        assert_eq!(one_line("a\nCRITICAL  core-saturated"), "a\u{fffd}CRITICAL  core-saturated");
    }

    #[test]
    fn only_our_own_styles_pass() {
        let ours = format!("{}x{}", mark(Style::BoldRed), mark(Style::Plain));
        assert_eq!(text(&ours), "\x1b[1;31mx\x1b[0m");
        assert_eq!(columns(&ours), 1);
        for (at, (style, _)) in STYLES.iter().enumerate() {
            assert_eq!(*style as usize, at);
        }
    }
}
