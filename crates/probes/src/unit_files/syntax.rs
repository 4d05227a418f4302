//! The syntax of unit files (systemd.syntax(7)).

use std::io;

/// LONG_LINE_MAX of systemd: the longest line, continued or not.
const MAX_LINE: usize = 1 << 20;

/// One `Key=value` below its `[Section]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    pub section: String,
    pub key: String,
    pub value: String,
}

/// All assignments in order. Lines that systemd would skip with a warning are skipped. It is an error where systemd would reject
/// the file: an unclosed section header, an overlong line.
pub fn parse(bytes: &[u8]) -> io::Result<Vec<Assignment>> {
    let mut assignments = Vec::new();
    let mut section = String::new();
    let mut continued: Option<Vec<u8>> = None;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    // systemd's read_line ends lines at \n, \r, \0 and their pairs.
    for raw in bytes.split(|b| matches!(b, b'\n' | b'\r' | 0)) {
        if raw.len() > MAX_LINE {
            return Err(refused("a line is longer than 1 MiB"));
        }
        let first = raw.iter().find(|b| !b" \t\n\r".contains(b));
        if matches!(first, Some(b'#' | b';')) {
            continue;
        }
        let line: Vec<u8> = match continued.take() {
            Some(mut before) => {
                if before.len() + raw.len() > MAX_LINE {
                    return Err(refused("a continued line is longer than 1 MiB"));
                }
                before.extend_from_slice(raw);
                before
            }
            None => raw.to_vec(),
        };
        if ends_escaped(&line) {
            let mut line = line;
            if let Some(last) = line.last_mut() {
                *last = b' ';
            }
            continued = Some(line);
            continue;
        }
        assignment(&line, &mut section, &mut assignments)?;
    }
    if let Some(line) = continued {
        assignment(&line, &mut section, &mut assignments)?;
    }
    Ok(assignments)
}

/// Whether the line ends in a backslash that is not itself escaped.
fn ends_escaped(line: &[u8]) -> bool {
    line.iter().rev().take_while(|b| **b == b'\\').count() % 2 == 1
}

fn assignment(line: &[u8], section: &mut String, assignments: &mut Vec<Assignment>) -> io::Result<()> {
    // Not UTF-8: systemd warns and continues.
    let Ok(line) = std::str::from_utf8(line) else { return Ok(()) };
    let line = line.trim_matches([' ', '\t', '\n', '\r']);
    if let Some(header) = line.strip_prefix('[') {
        let Some(name) = header.strip_suffix(']') else { return Err(refused("a section header is not closed")) };
        if name.chars().any(|c| c.is_control() || "\"\\'".contains(c)) {
            return Err(refused("a section header contains invalid characters"));
        }
        name.clone_into(section);
        return Ok(());
    }
    let Some((key, value)) = line.split_once('=') else { return Ok(()) };
    let (key, value) = (key.trim(), value.trim_matches([' ', '\t', '\n', '\r']));
    if !key.is_empty() && !section.is_empty() {
        assignments.push(Assignment { section: section.clone(), key: key.to_owned(), value: value.to_owned() });
    }
    Ok(())
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Words of a value, unquoted. An unclosed quote extends to the end of the value.
pub fn words(value: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut in_word = false;
    let mut quote: Option<char> = None;
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                in_word = true;
            }
            (None, ' ' | '\t' | '\n' | '\r') => {
                if in_word {
                    words.push(std::mem::take(&mut word));
                    in_word = false;
                }
            }
            (_, '\\') => {
                word.extend(chars.next());
                in_word = true;
            }
            (_, c) => {
                word.push(c);
                in_word = true;
            }
        }
    }
    if in_word {
        words.push(word);
    }
    words
}

/// A systemd time span (systemd.time(7)) in microseconds: `100ms`, `5min 20s`, `90`, `infinity`. `None` if it is malformed.
pub fn time_span_us(text: &str) -> Option<u64> {
    let text = text.trim();
    if text == "infinity" {
        return Some(u64::MAX);
    }
    let mut total: f64 = 0.0;
    let mut rest = text;
    let mut any = false;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "" | "s" | "sec" | "second" | "seconds" => 1e6,
            "us" | "usec" | "µs" | "μs" => 1.0,
            "ms" | "msec" => 1e3,
            "m" | "min" | "minute" | "minutes" => 60e6,
            "h" | "hr" | "hour" | "hours" => 3600e6,
            "d" | "day" | "days" => 86_400e6,
            "w" | "week" | "weeks" => 604_800e6,
            "M" | "month" | "months" => 2_629_800e6,
            "y" | "year" | "years" => 31_557_600e6,
            _ => return None,
        };
        rest = rest[letters..].trim_start();
        total += number * unit;
        any = true;
    }
    // Float-to-integer casts saturate.
    any.then_some(total as u64)
}

/// `yes`, `true`, `1`, `on` …
pub fn is_true(value: &str) -> bool {
    ["1", "yes", "y", "true", "t", "on"].iter().any(|w| w.eq_ignore_ascii_case(value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(text: &str) -> Vec<(String, String)> {
        parse(text.as_bytes()).unwrap().into_iter().map(|a| (format!("{}.{}", a.section, a.key), a.value)).collect()
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn lines_continue_over_comments() {
        let text =
            "[Service]\nExecStart=/usr/bin/a \\\n  --one \\\n# not part\n; nor this\n  --two\nRestart = always \n";
        assert_eq!(
            values(text),
            [pair("Service.ExecStart", "/usr/bin/a    --one    --two"), pair("Service.Restart", "always")]
        );
    }

    #[test]
    fn junk_is_skipped_and_specifiers_stay() {
        let text = "Early=1\n.include /etc/passwd\n[Unit]\nno equals\n=no key\nDescription=%i of %H\n[X-Other]\nA=b\n";
        assert_eq!(values(text), [pair("Unit.Description", "%i of %H"), pair("X-Other.A", "b")]);
        let bytes = b"[Unit]\nA=\xff\xfe\nB=1\n\0[Install]\0WantedBy=x.target\0";
        let parsed = parse(bytes).unwrap();
        assert_eq!(parsed.iter().map(|a| a.key.as_str()).collect::<Vec<_>>(), ["B", "WantedBy"]);
        assert!(parse(b"[Unit\nA=1").is_err());
    }

    #[test]
    fn an_escaped_backslash_does_not_continue() {
        assert_eq!(values("[A]\nb=c\\\\\nd=e"), [pair("A.b", "c\\\\"), pair("A.d", "e")]);
        assert_eq!(values("[A]\nb=c\\"), [pair("A.b", "c")]);
    }

    #[test]
    fn time_spans() {
        for (text, us) in [
            ("100ms", Some(100_000)),
            ("5min 20s", Some(320_000_000)),
            ("1h30min", Some(5_400_000_000)),
            ("90", Some(90_000_000)),
            ("0.5", Some(500_000)),
            ("infinity", Some(u64::MAX)),
            ("0", Some(0)),
            ("", None),
            ("soon", None),
            ("5 parsecs", None),
            ("99999999999999999999999y", Some(u64::MAX)),
        ] {
            assert_eq!(time_span_us(text), us, "{text}");
        }
    }

    #[test]
    fn words_are_unquoted() {
        assert_eq!(words("a  \"b c\" 'd'e \"\""), ["a", "b c", "de", ""]);
        assert_eq!(words("a\\ b"), ["a b"]);
        assert!(words("  ").is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(assignments) = parse(&bytes) {
                prop_assert!(assignments.iter().all(|a| !a.key.is_empty() && !a.section.is_empty()));
            }
        }

        #[test]
        fn any_text(text in "([\\[\\]=\\\\#; \na-zA-Z0-9%\"'.]){0,200}") {
            let _ = parse(text.as_bytes());
            words(&text);
            time_span_us(&text);
        }

        #[test]
        fn assignments_round_trip(key in "[A-Za-z]{1,12}", value in "[a-zA-Z0-9/%=. -]{0,40}") {
            let parsed = parse(format!("[S]\n{key}={value}\n").as_bytes()).unwrap();
            prop_assert_eq!(parsed.len(), 1);
            prop_assert_eq!(&parsed[0].key, &key);
            prop_assert_eq!(parsed[0].value.as_str(), value.trim());
        }
    }
}
