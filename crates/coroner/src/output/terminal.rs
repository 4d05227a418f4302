//! Width and colour of the terminal, if there is one.

use super::safe::{self, Style};
use crate::args::Color;
use coroner_diagnosis::Severity;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

static COLOUR: AtomicBool = AtomicBool::new(false);

/// Called once at the start.
pub fn set_colour(when: Color) {
    let colour = match when {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            std::io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
                && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
        }
    };
    COLOUR.store(colour, Ordering::Relaxed);
}

pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Columns of standard output; 100 if it is not a terminal.
pub fn width() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|&columns| columns > 0)
        .unwrap_or(100)
        .clamp(40, 160)
}

fn paint(style: Style, text: &str) -> String {
    match COLOUR.load(Ordering::Relaxed) {
        true => format!("{}{text}{}", safe::mark(style), safe::mark(Style::Plain)),
        false => text.to_owned(),
    }
}

pub fn bold(text: &str) -> String {
    paint(Style::Bold, text)
}

pub fn dim(text: &str) -> String {
    paint(Style::Dim, text)
}

pub fn good(text: &str) -> String {
    paint(Style::Green, text)
}

pub fn by_severity(severity: Severity, text: &str) -> String {
    match severity {
        Severity::Critical => paint(Style::BoldRed, text),
        Severity::Warning => paint(Style::BoldYellow, text),
        Severity::Info => paint(Style::Cyan, text),
    }
}

/// Colour for how busy something is, 0 to 1: quiet, busy, full.
pub fn by_load(share: f64, text: &str) -> String {
    match share {
        s if s >= 0.95 => paint(Style::BoldRed, text),
        s if s >= 0.5 => paint(Style::Yellow, text),
        _ => paint(Style::Green, text),
    }
}

/// A letter for the thread that has a core to itself.
pub fn owned(letter: char) -> String {
    paint(Style::BoldRed, &letter.to_string())
}

/// Wraps words to `width` columns and indents every line. A newline in a name does not start a line that
/// could look like ours.
pub fn wrap(text: &str, width: usize, indent: usize) -> String {
    wrap_hanging(text, width, indent, indent)
}

/// As [`wrap`], but indents the first line by `first`.
pub fn wrap_hanging(text: &str, width: usize, first: usize, indent: usize) -> String {
    if text.is_empty() {
        return String::new();
    }
    let room = |indent: usize| width.saturating_sub(indent).max(20);
    let mut out = String::new();
    let (mut used, mut margin) = (0, first);
    for word in words(&safe::one_line(text), room(indent)) {
        let len = safe::columns(&word);
        if used > 0 && used + 1 + len > room(margin) {
            out.push('\n');
            (used, margin) = (0, indent);
        }
        if used == 0 {
            out.push_str(&" ".repeat(margin));
        } else {
            out.push(' ');
            used += 1;
        }
        out.push_str(&word);
        used += len;
    }
    out.push('\n');
    out
}

/// Keeps a command between backticks on one line if it fits, so that it can be copied.
fn words(line: &str, room: usize) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut rest = line.split_whitespace();
    while let Some(word) = rest.next() {
        let mut whole = word.to_owned();
        let mut ahead = rest.clone();
        while whole.matches('`').count() % 2 == 1 && whole.chars().count() < room {
            let Some(next) = ahead.next() else { break };
            whole.push(' ');
            whole.push_str(next);
        }
        if whole.matches('`').count() % 2 == 0 && whole.chars().count() <= room {
            words.push(whole);
            rest = ahead;
        } else {
            words.push(word.to_owned());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapping_keeps_words() {
        assert_eq!(wrap("a bb ccc\nCRITICAL", 22, 2), "  a bb ccc\u{fffd}CRITICAL\n", "no line of its own");
        assert_eq!(wrap("one two three four five six", 24, 4), "    one two three four\n    five six\n");
        assert_eq!(wrap_hanging("one two three four five six", 24, 0, 4), "one two three four five\n    six\n");
    }

    #[test]
    fn a_command_is_wrapped_only_if_it_does_not_fit() {
        assert_eq!(wrap("To do it now: `echo 0 > f`.", 22, 0), "To do it now:\n`echo 0 > f`.\n");
        assert_eq!(wrap("`echo a very long command > f`", 20, 0), "`echo a very long\ncommand > f`\n");
        assert_eq!(wrap("a ` that stands alone", 20, 0), "a ` that stands\nalone\n");
    }
}
