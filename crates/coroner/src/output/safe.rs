//! The one gate through which all text leaves: the terminal, pipes, and reports.
//!
//! Names of processes, units and files, lines of logs, and everything in somebody else's recording may hold anything:
//! escape sequences that drive the terminal, marks that turn the direction of writing, characters that nobody sees.
//! [`text`] lets none of them through, whoever wrote the line. Our own colours get through because they are no escape
//! sequences before the gate, but characters that this process picked at random when it started ([`mark`]): what a
//! recording holds cannot pretend to be one.

use coroner_web::documents::safe::is_unsafe;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// What our own text may ask for.
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
    /// A space without width: keeps Markdown from reading `@name` as somebody to notify.
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

/// Marks are characters for private use (plane 16), from here on.
fn first_mark() -> u32 {
    static FIRST: OnceLock<u32> = OnceLock::new();
    *FIRST.get_or_init(|| 0x10_0000 + (RandomState::new().hash_one(0) % 0xff00) as u32)
}

/// The character that stands for a style until the gate.
pub fn mark(style: Style) -> char {
    char::from_u32(first_mark() + style as u32).unwrap_or('\u{fffd}')
}

fn marked(c: char) -> Option<&'static str> {
    let at = u32::from(c).checked_sub(first_mark())?;
    STYLES.get(at as usize).map(|(_, code)| *code)
}

/// Columns that a text takes.
pub fn columns(text: &str) -> usize {
    text.chars().filter(|c| marked(*c).is_none()).count()
}

/// Text for people: lines and our own styles; everything unsafe becomes U+FFFD.
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

/// A name within a line that is not wrapped: a newline in it must not begin a line that looks like ours.
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
    fn only_our_own_styles_get_through() {
        let ours = format!("{}x{}", mark(Style::BoldRed), mark(Style::Plain));
        assert_eq!(text(&ours), "\x1b[1;31mx\x1b[0m");
        assert_eq!(columns(&ours), 1);
        for (at, (style, _)) in STYLES.iter().enumerate() {
            assert_eq!(*style as usize, at);
        }
    }
}
