//! Softirqs per core (/proc/softirqs).

use coroner_evidence::{Evidence, Source, Time, probe};

use crate::counter_file::{CoreNames, CounterFile, Moved};
use crate::interrupts::Table;
use crate::root::Root;

const SOFTIRQS: &str = "/proc/softirqs";

/// Reads /proc/softirqs, a table of the same shape as /proc/interrupts.
#[derive(Debug)]
pub struct SoftirqReader {
    file: CounterFile,
    table: Table,
    names: CoreNames,
    moved: Moved,
}

impl SoftirqReader {
    pub fn new(root: &Root) -> SoftirqReader {
        SoftirqReader {
            file: CounterFile::new(root, SOFTIRQS),
            table: Table::default(),
            names: CoreNames::default(),
            moved: Moved::new(Source::Softirqs),
        }
    }

    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        const WHAT: &str = "softirqs per core";
        let Some(text) = self.file.look(probe::SOFTIRQS, WHAT, evidence) else { return };
        self.table.read(text);
        if let Some(error) = &self.table.bad {
            evidence.unseen(probe::SOFTIRQS, WHAT, format!("{SOFTIRQS}: {error}"), "please report this file");
        }
        // There is a column for every possible core (fs/proc/softirqs.c), on some clouds many more than exist. A core that ever
        // ran has served a timer, so one without any count does not exist.
        let mut exists = vec![false; self.table.cores.len()];
        for line in &self.table.lines {
            for (exists, &count) in exists.iter_mut().zip(self.table.counts(line)) {
                *exists |= count != 0;
            }
        }
        self.moved.begin();
        for line in &self.table.lines {
            let counts = self.table.counts(line);
            for ((&core, &count), _) in self.table.cores.iter().zip(counts).zip(&exists).filter(|(_, e)| **e) {
                self.moved.note(self.names.get(core), &line.label, at, count, evidence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupts;
    use crate::test_tree::{seen, tree};

    const TEXT: &str = "                    CPU0       CPU1       CPU2       \n          HI:          3          0          0\n\
                        \x20     TIMER:      13882      12137          0\n      NET_RX:       3037       3906          0\n";

    #[test]
    fn cores_that_do_not_exist_are_skipped() {
        let dir = tree(&[("proc/softirqs", TEXT)]);
        let evidence = seen(dir.path(), |root, evidence| SoftirqReader::new(root).look(Time(1), evidence));
        assert_eq!(evidence.counters.subjects(Source::Softirqs), ["cpu0", "cpu1"]);
        assert_eq!(evidence.counters.last(Source::Softirqs, "cpu1", "NET_RX"), Some(3906));
        assert_eq!(evidence.counters.last(Source::Softirqs, "cpu1", "HI"), Some(0));
        assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
    }

    #[test]
    fn only_changes_are_recorded_again() {
        let dir = tree(&[("proc/softirqs", TEXT)]);
        let mut reader = SoftirqReader::new(&Root::at(dir.path()));
        let mut evidence = Evidence::default();
        reader.look(Time(1), &mut evidence);
        std::fs::write(dir.path().join("proc/softirqs"), TEXT.replace("3906", "3999")).unwrap();
        reader.look(Time(2), &mut evidence);
        assert_eq!(evidence.counters.moved(Source::Softirqs, "cpu1", "NET_RX"), Some(93));
        assert_eq!(evidence.counters.points(Source::Softirqs, "cpu0", "NET_RX").len(), 1);
    }

    #[test]
    fn a_missing_file_is_unseen_not_zero() {
        let dir = tempfile::tempdir().unwrap();
        let evidence = seen(dir.path(), |root, evidence| SoftirqReader::new(root).look(Time(1), evidence));
        assert!(evidence.counters.is_empty());
        let unseen = evidence.why_unseen(probe::SOFTIRQS).unwrap();
        assert!(unseen.why.contains("proc/softirqs"), "{unseen:?}");
    }

    /// The counts of this machine lie between two readings by another parser.
    #[test]
    fn agrees_with_a_second_parser_on_this_machine() {
        let reading = || {
            let text = std::fs::read_to_string("/proc/softirqs").unwrap();
            let line = text.lines().find(|l| l.trim_start().starts_with("RCU:")).unwrap().to_owned();
            line.split_whitespace().skip(1).map(|n| n.parse::<u64>().unwrap()).sum::<u64>()
        };
        let before = reading();
        let mut evidence = Evidence::default();
        SoftirqReader::new(&Root::live()).look(Time(1), &mut evidence);
        let after = reading();
        let seen: u64 = evidence
            .counters
            .subjects(Source::Softirqs)
            .iter()
            .filter_map(|core| evidence.counters.last(Source::Softirqs, core, "RCU"))
            .sum();
        assert!((before..=after).contains(&seen), "{before} {seen} {after}");
        assert!(seen > 0);
    }

    #[test]
    fn parses_as_a_table() {
        let table = interrupts::parse(TEXT.as_bytes());
        assert_eq!(table.cores, [0, 1, 2]);
        assert_eq!(table.lines[2].label, "NET_RX");
        assert_eq!(table.counts(&table.lines[2]), [3037, 3906, 0]);
    }
}
