//! Pressure stall information: time stalled on CPU, memory, I/O and interrupts (/proc/pressure).

use std::io;

use coroner_evidence::{Evidence, Source, Time, probe};

use crate::counter_file::{CounterFile, Moved, Words, decimal, lines};
use crate::root::{ParseError, ReadError, Root};

/// `irq` needs Linux 6.1 and CONFIG_IRQ_TIME_ACCOUNTING; most nodes lack it.
const RESOURCES: [&str; 4] = ["cpu", "memory", "io", "irq"];

#[derive(Debug)]
pub struct PressureReader {
    files: Vec<(&'static str, CounterFile)>,
    moved: Moved,
}

/// Total stall times in microseconds. `some`: at least one task was stalled; `full`: all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stall {
    pub some_us: Option<u64>,
    pub full_us: Option<u64>,
}

impl PressureReader {
    pub fn new(root: &Root) -> PressureReader {
        let files = RESOURCES.map(|r| (r, CounterFile::new(root, format!("/proc/pressure/{r}"))));
        PressureReader { files: files.into(), moved: Moved::new(Source::Pressure) }
    }

    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        self.moved.begin();
        for (resource, file) in &mut self.files {
            let what = || format!("{resource} pressure");
            let text = match file.read() {
                Ok(text) => text,
                Err(_) if *resource == "irq" => continue,
                Err(error) => {
                    evidence.unseen(probe::PRESSURE, what(), error.to_string(), how_to_enable(&error));
                    continue;
                }
            };
            let stall = match parse(text) {
                Ok(stall) => stall,
                Err(error) => {
                    let why = format!("{}: {error}", file.absolute());
                    evidence.unseen(probe::PRESSURE, what(), why, "please report this file");
                    continue;
                }
            };
            if let Some(some) = stall.some_us {
                self.moved.note(resource, "some_us", at, some, evidence);
            }
            // For the whole node, `full` of cpu is undefined; kernels since 5.13 print a constant 0 for compatibility
            // (Documentation/accounting/psi.rst), which means nothing.
            if let Some(full) = stall.full_us.filter(|_| *resource != "cpu") {
                self.moved.note(resource, "full_us", at, full, evidence);
            }
        }
    }
}

fn how_to_enable(error: &ReadError) -> &'static str {
    let ReadError::Io { source, .. } = error else { return "please report this file" };
    match source.kind() {
        // Built in but turned off (psi_show in kernel/sched/psi.c returns EOPNOTSUPP).
        io::ErrorKind::Unsupported => "boot with psi=1",
        // Newer kernels do not create the files if it is off.
        io::ErrorKind::NotFound => "boot with psi=1, on a kernel of 4.20 or later built with CONFIG_PSI",
        io::ErrorKind::PermissionDenied => "run as root",
        _ => "check the file",
    }
}

/// Lines such as `some avg10=0.30 avg60=0.10 avg300=0.42 total=6802708`.
pub fn parse(text: &[u8]) -> Result<Stall, ParseError> {
    let mut stall = Stall::default();
    for (number, line) in lines(text) {
        let mut words = Words(line);
        let kind = words.word();
        let mut total = None;
        while let Some(word) = words.word() {
            if let Some(value) = word.strip_prefix(b"total=") {
                total = decimal(value);
            }
        }
        let total = total.ok_or_else(|| ParseError::new(number, "total= and a number"))?;
        match kind {
            Some(b"some") => stall.some_us = Some(total),
            Some(b"full") => stall.full_us = Some(total),
            _ => return Err(ParseError::new(number, "some or full")),
        }
    }
    if stall == Stall::default() {
        return Err(ParseError::new(1, "some or full"));
    }
    Ok(stall)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::{seen, tree};
    use proptest::prelude::*;

    const CPU: &str =
        "some avg10=5.03 avg60=1.93 avg300=1.24 total=27276317\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    const MEMORY: &str =
        "some avg10=0.30 avg60=0.10 avg300=0.42 total=6802708\nfull avg10=0.30 avg60=0.09 avg300=0.35 total=4972902\n";

    #[test]
    fn reads_totals_and_drops_the_undefined_full_of_cpu() {
        let dir = tree(&[
            ("proc/pressure/cpu", CPU),
            ("proc/pressure/memory", MEMORY),
            ("proc/pressure/io", MEMORY),
            ("proc/pressure/irq", "full avg10=0.00 total=7\n"),
        ]);
        let evidence = seen(dir.path(), |root, evidence| PressureReader::new(root).look(Time(1), evidence));
        let last = |subject, name| evidence.counters.last(Source::Pressure, subject, name);
        assert_eq!(last("cpu", "some_us"), Some(27_276_317));
        assert_eq!(last("cpu", "full_us"), None);
        assert_eq!(last("memory", "full_us"), Some(4_972_902));
        assert_eq!((last("irq", "some_us"), last("irq", "full_us")), (None, Some(7)));
        assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
    }

    #[test]
    fn says_how_to_enable_psi() {
        let dir = tempfile::tempdir().unwrap();
        let evidence = seen(dir.path(), |root, evidence| PressureReader::new(root).look(Time(1), evidence));
        assert!(evidence.counters.is_empty());
        assert_eq!(evidence.unseen.len(), 3, "irq is absent nearly everywhere");
        assert!(evidence.unseen.iter().all(|u| u.how_to_see.contains("psi=1")), "{:?}", evidence.unseen);

        const EOPNOTSUPP: i32 = 95;
        let off = ReadError::Io { path: "/proc/pressure/cpu".into(), source: io::Error::from_raw_os_error(EOPNOTSUPP) };
        assert_eq!(how_to_enable(&off), "boot with psi=1");
    }

    #[test]
    fn one_bad_file_does_not_hide_the_others() {
        let dir = tree(&[
            ("proc/pressure/cpu", "some avg10=nonsense\n"),
            ("proc/pressure/memory", MEMORY),
            ("proc/pressure/io", MEMORY),
        ]);
        let evidence = seen(dir.path(), |root, evidence| PressureReader::new(root).look(Time(1), evidence));
        assert_eq!(evidence.counters.subjects(Source::Pressure), ["io", "memory"]);
        let unseen = evidence.why_unseen(probe::PRESSURE).unwrap();
        assert_eq!(unseen.why, "/proc/pressure/cpu: line 1: expected total= and a number");
    }

    #[test]
    fn agrees_with_a_second_parser_on_this_machine() {
        let total = |file: &str| {
            let text = std::fs::read_to_string(file).ok()?;
            text.lines().next()?.rsplit_once("total=")?.1.parse::<u64>().ok()
        };
        let Some(before) = total("/proc/pressure/cpu") else { return };
        let mut evidence = Evidence::default();
        PressureReader::new(&Root::live()).look(Time(1), &mut evidence);
        let after = total("/proc/pressure/cpu").unwrap();
        let seen = evidence.counters.last(Source::Pressure, "cpu", "some_us").unwrap();
        assert!((before..=after).contains(&seen), "{before} {seen} {after}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn totals_survive(some in any::<u64>(), full in any::<u64>()) {
            let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={some}\nfull avg10=0.00 total={full}\n");
            prop_assert_eq!(parse(text.as_bytes()), Ok(Stall { some_us: Some(some), full_us: Some(full) }));
        }
    }
}
