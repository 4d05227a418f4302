//! Kernel files with counters: kept open, read as bytes, and recorded only when they change.

use std::collections::HashMap;

use coroner_evidence::{Evidence, Source, Time};

use crate::root::{ReadError, ReusedFile, Root};

/// A file that is read repeatedly and may appear later (a module is loaded, a file system mounted).
#[derive(Debug)]
pub(crate) struct CounterFile {
    root: Root,
    absolute: String,
    open: Option<ReusedFile>,
}

impl CounterFile {
    pub fn new(root: &Root, absolute: impl Into<String>) -> CounterFile {
        CounterFile { root: root.clone(), absolute: absolute.into(), open: None }
    }

    pub fn absolute(&self) -> &str {
        &self.absolute
    }

    pub fn read(&mut self) -> Result<&[u8], ReadError> {
        let file = match self.open {
            Some(ref mut file) => file,
            None => self.open.insert(ReusedFile::open(&self.root, &self.absolute)?),
        };
        file.read()
    }
}

impl CounterFile {
    /// The same; if it cannot be read, `what` is noted as unseen.
    pub fn look(&mut self, probe: &str, what: &str, evidence: &mut Evidence) -> Option<&[u8]> {
        self.read().map_err(|error| evidence.unseen(probe, what, error.to_string(), how_to_read(&error))).ok()
    }
}

/// How to make an unreadable file readable.
pub(crate) fn how_to_read(error: &ReadError) -> &'static str {
    if error.is_denied() {
        "run as root"
    } else if error.is_not_found() {
        "run where /proc is mounted and complete (in a container: the node's /proc)"
    } else {
        "check the file; if it looks fine, please report this"
    }
}

/// One line, parsed from the left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'a>(pub &'a [u8]);

impl<'a> Words<'a> {
    fn skip_blanks(&mut self) {
        let blanks = self.0.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        self.0 = &self.0[blanks..];
    }

    /// The next word; `None` at the end of the line.
    pub fn word(&mut self) -> Option<&'a [u8]> {
        self.skip_blanks();
        let length = self.0.iter().take_while(|b| !matches!(b, b' ' | b'\t')).count();
        let (word, rest) = self.0.split_at(length);
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    /// The next word as a decimal number; `None`, without advancing, if it is not one.
    pub fn number(&mut self) -> Option<u64> {
        let mut ahead = *self;
        let value = decimal(ahead.word()?)?;
        *self = ahead;
        Some(value)
    }

    /// As [`Words::number`], in hexadecimal.
    pub fn hex(&mut self) -> Option<u64> {
        let mut ahead = *self;
        let value = hexadecimal(ahead.word()?)?;
        *self = ahead;
        Some(value)
    }
}

/// `None` unless all bytes are digits and the number fits.
pub(crate) fn decimal(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    word.iter().try_fold(0u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

fn hexadecimal(word: &[u8]) -> Option<u64> {
    if word.is_empty() || word.len() > 16 {
        return None;
    }
    word.iter().try_fold(0u64, |value, &byte| {
        let digit = char::from(byte).to_digit(16)?;
        Some(value << 4 | u64::from(digit))
    })
}

/// The nonempty lines of a text, numbered from 1.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    text.split(|&b| b == b'\n').enumerate().map(|(i, line)| (i + 1, line)).filter(|(_, line)| !line.is_empty())
}

/// `17` from `cpu17`.
pub(crate) fn core_number(word: &[u8]) -> Option<u32> {
    let digits = word.strip_prefix(b"cpu").or_else(|| word.strip_prefix(b"CPU"))?;
    u32::try_from(decimal(digits)?).ok()
}

/// The last value of each series of one source, so that only changes are recorded.
///
/// Kernel files keep their order between looks. So a series is first sought at its last position, and by name only if the order
/// changed.
#[derive(Debug)]
pub(crate) struct Moved {
    source: Source,
    series: Vec<KnownCounter>,
    index: HashMap<String, HashMap<String, usize>>,
    next: usize,
}

#[derive(Debug)]
struct KnownCounter {
    subject: String,
    name: String,
    value: u64,
}

impl Moved {
    pub fn new(source: Source) -> Moved {
        Moved { source, series: Vec::new(), index: HashMap::new(), next: 0 }
    }

    /// Must be called before the first [`Moved::note`] of a look.
    pub fn begin(&mut self) {
        self.next = 0;
    }

    /// Records the value if it is new or has changed.
    pub fn note(&mut self, subject: &str, name: &str, at: Time, value: u64, evidence: &mut Evidence) {
        let at_hint = self.series.get(self.next).is_some_and(|k| k.name == name && k.subject == subject);
        let known = if at_hint { Some(self.next) } else { self.find(subject, name) };
        let i = match known {
            Some(i) => {
                self.next = i + 1;
                if self.series[i].value == value {
                    return;
                }
                i
            }
            None => {
                let i = self.series.len();
                self.series.push(KnownCounter { subject: subject.to_owned(), name: name.to_owned(), value });
                self.index.entry(subject.to_owned()).or_default().insert(name.to_owned(), i);
                self.next = i + 1;
                i
            }
        };
        self.series[i].value = value;
        evidence.counters.push(self.source, subject, name, at, value);
    }

    fn find(&self, subject: &str, name: &str) -> Option<usize> {
        self.index.get(subject)?.get(name).copied()
    }
}

/// `cpu0`, `cpu1` …, formatted once.
#[derive(Debug, Default)]
pub(crate) struct CoreNames(HashMap<u32, String>);

impl CoreNames {
    pub fn get(&mut self, core: u32) -> &str {
        self.0.entry(core).or_insert_with(|| format!("cpu{core}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_changes_are_recorded_again() {
        let mut moved = Moved::new(Source::Vmstat);
        let mut evidence = Evidence::default();
        let looks: [&[(&str, u64)]; 4] =
            [&[("a", 0), ("b", 1)], &[("a", 0), ("b", 2)], &[("b", 2), ("a", 0)], &[("new", 5), ("b", 3), ("a", 0)]];
        for (i, look) in looks.iter().enumerate() {
            moved.begin();
            for (name, value) in *look {
                moved.note("", name, Time(i as u64), *value, &mut evidence);
            }
        }
        let values =
            |name| evidence.counters.points(Source::Vmstat, "", name).iter().map(|p| p.value).collect::<Vec<_>>();
        assert_eq!(values("a"), [0]);
        assert_eq!(values("b"), [1, 2, 3]);
        assert_eq!(values("new"), [5]);
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"18446744073709551616"), None);
        assert_eq!(decimal(b""), None);
        assert_eq!(decimal(b"-1"), None);
        assert_eq!(hexadecimal(b"ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(hexadecimal(b"10000000000000000"), None);
        assert_eq!(core_number(b"cpu17"), Some(17));
        assert_eq!(core_number(b"cpu"), None);
        assert_eq!(core_number(b"cpu4294967296"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for (_, line) in lines(&bytes) {
                let mut words = Words(line);
                while words.number().is_some() || words.hex().is_some() || words.word().is_some() {}
            }
        }

        #[test]
        fn words_agree_with_the_standard_library(numbers in proptest::collection::vec(any::<u64>(), 0..20)) {
            let text = numbers.iter().map(|n| format!("  {n}")).collect::<String>();
            let mut words = Words(text.as_bytes());
            for number in numbers {
                prop_assert_eq!(words.number(), Some(number));
            }
            prop_assert_eq!(words.word(), None);
        }
    }
}
