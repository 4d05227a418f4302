//! How each core processes received packets (/proc/net/softnet_stat).

use coroner_evidence::{CoreSet, Evidence, Source, Time, probe};

use crate::counter_file::{CoreNames, CounterFile, Moved, Words, lines};
use crate::root::{ParseError, Root};

const SOFTNET: &str = "/proc/net/softnet_stat";
const ONLINE: &str = "/sys/devices/system/cpu/online";

#[derive(Debug)]
pub struct SoftnetReader {
    root: Root,
    file: CounterFile,
    names: CoreNames,
    moved: Moved,
}

/// One line: one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftnetCore {
    /// `None` before Linux 5.10, where only the order of the lines identifies the core.
    pub core: Option<u32>,
    pub processed: u64,
    pub dropped: u64,
    pub time_squeeze: u64,
    /// `None` before Linux 2.6.35.
    pub received_rps: Option<u64>,
    /// `None` before Linux 3.11.
    pub flow_limit: Option<u64>,
}

impl SoftnetReader {
    pub fn new(root: &Root) -> SoftnetReader {
        SoftnetReader {
            root: root.clone(),
            file: CounterFile::new(root, SOFTNET),
            names: CoreNames::default(),
            moved: Moved::new(Source::Softnet),
        }
    }

    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        const WHAT: &str = "packets dropped and network polls cut short on each core";
        let Some(text) = self.file.look(probe::SOFTNET, WHAT, evidence) else { return };
        let rows = match parse(text) {
            Ok(rows) => rows,
            Err(error) => {
                return evidence.unseen(probe::SOFTNET, WHAT, format!("{SOFTNET}: {error}"), "please report this file");
            }
        };
        let online = if rows.iter().all(|row| row.core.is_some()) { None } else { self.online_cores() };
        let mut unnamed = 0;
        self.moved.begin();
        for (position, row) in rows.iter().enumerate() {
            let by_order = || {
                let online = online.as_deref().filter(|online| online.len() == rows.len())?;
                online.get(position).copied()
            };
            let Some(core) = row.core.or_else(by_order) else {
                unnamed += 1;
                continue;
            };
            let subject = self.names.get(core);
            self.moved.note(subject, "processed", at, row.processed, evidence);
            self.moved.note(subject, "dropped", at, row.dropped, evidence);
            self.moved.note(subject, "time_squeeze", at, row.time_squeeze, evidence);
            if let Some(value) = row.received_rps {
                self.moved.note(subject, "received_rps", at, value, evidence);
            }
            if let Some(value) = row.flow_limit {
                self.moved.note(subject, "flow_limit", at, value, evidence);
            }
        }
        if unnamed > 0 {
            evidence.unseen(
                probe::SOFTNET,
                WHAT,
                format!("{SOFTNET} does not name cores here, and {ONLINE} does not match its {} lines", rows.len()),
                "run where the node's /sys is mounted",
            );
        }
    }

    /// Old kernels write lines in this order (softnet_get_online in net/core/net-procfs.c).
    fn online_cores(&self) -> Option<Vec<u32>> {
        Some(CoreSet::parse_list(&self.root.read_line(ONLINE)?)?.iter().collect())
    }
}

/// Hexadecimal columns (softnet_seq_show): processed, dropped, time_squeeze, six that are always 0, received_rps, flow_limit,
/// backlog, core, and more in newer kernels. Old kernels have fewer.
pub fn parse(text: &[u8]) -> Result<Vec<SoftnetCore>, ParseError> {
    let mut rows = Vec::new();
    for (number, line) in lines(text) {
        let mut columns = [0u64; 13];
        let mut words = Words(line);
        let mut count = 0;
        while let (Some(column), Some(value)) = (columns.get_mut(count), words.hex()) {
            *column = value;
            count += 1;
        }
        if count < 9 || (count < 13 && words.word().is_some()) {
            return Err(ParseError::new(number, "at least nine hexadecimal columns"));
        }
        let core = if count > 12 {
            let core = u32::try_from(columns[12]);
            Some(core.map_err(|_| ParseError::new(number, "a core number in column 13"))?)
        } else {
            None
        };
        rows.push(SoftnetCore {
            core,
            processed: columns[0],
            dropped: columns[1],
            time_squeeze: columns[2],
            received_rps: (count > 9).then_some(columns[9]),
            flow_limit: (count > 10).then_some(columns[10]),
        });
    }
    if rows.is_empty() {
        return Err(ParseError::new(1, "a line for each core"));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::seen;
    use proptest::prelude::*;
    use std::fmt::Write;

    fn tree(softnet: &str, online: Option<&str>) -> tempfile::TempDir {
        let online = online.map(|online| (ONLINE, online));
        crate::test_tree::tree(&[(SOFTNET, softnet)].into_iter().chain(online).collect::<Vec<_>>())
    }

    fn look(dir: &tempfile::TempDir) -> Evidence {
        seen(dir.path(), |root, evidence| SoftnetReader::new(root).look(Time(1), evidence))
    }

    fn columns(columns: &[u64]) -> String {
        columns.iter().map(|c| format!("{c:08x}")).collect::<Vec<_>>().join(" ") + "\n"
    }

    #[test]
    fn new_kernels_name_the_core() {
        let dir = tree(
            &(columns(&[0x1ebf, 2, 3, 0, 0, 0, 0, 0, 0, 9, 10, 11, 5, 0, 0])
                + &columns(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0])),
            None,
        );
        let evidence = look(&dir);
        assert_eq!(evidence.counters.subjects(Source::Softnet), ["cpu5", "cpu7"]);
        let names = ["processed", "dropped", "time_squeeze", "received_rps", "flow_limit"];
        let values = names.map(|name| evidence.counters.last(Source::Softnet, "cpu5", name));
        assert_eq!(values, [Some(0x1ebf), Some(2), Some(3), Some(9), Some(10)]);
        assert!(evidence.unseen.is_empty());
    }

    #[test]
    fn old_kernels_need_the_list_of_online_cores() {
        let text = columns(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]) + &columns(&[3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let evidence = look(&tree(&text, Some("0,2\n")));
        assert_eq!(evidence.counters.last(Source::Softnet, "cpu2", "dropped"), Some(4));
        for wrong in [None, Some("0-3\n")] {
            let evidence = look(&tree(&text, wrong));
            assert!(evidence.counters.is_empty(), "a count must not be attributed to the wrong core");
            assert!(evidence.why_unseen(probe::SOFTNET).is_some());
        }
    }

    #[test]
    fn the_oldest_kernels_have_no_rps() {
        let rows = parse(columns(&[1, 2, 3, 0, 0, 0, 0, 0, 0]).as_bytes()).unwrap();
        assert_eq!((rows[0].received_rps, rows[0].flow_limit), (None, None));
        assert_eq!(parse(b"00000001 00000002\n").unwrap_err().line, 1);
    }

    #[test]
    fn agrees_with_a_second_parser_on_this_machine() {
        let reading = || {
            let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
            text.lines().map(|l| u64::from_str_radix(l.split(' ').next().unwrap(), 16).unwrap()).sum::<u64>()
        };
        let before = reading();
        let mut evidence = Evidence::default();
        SoftnetReader::new(&Root::live()).look(Time(1), &mut evidence);
        let after = reading();
        let cores = evidence.counters.subjects(Source::Softnet);
        let seen: u64 =
            cores.iter().filter_map(|core| evidence.counters.last(Source::Softnet, core, "processed")).sum();
        assert!((before..=after).contains(&seen), "{before} {seen} {after}");
    }

    #[test]
    fn takes_192_cores() {
        let mut text = String::new();
        for core in 0..192u64 {
            write!(text, "{}", columns(&[core * 1_000_003, 0, core, 0, 0, 0, 0, 0, 0, 0, 0, 0, core, 0, 0])).unwrap();
        }
        let rows = parse(text.as_bytes()).unwrap();
        assert_eq!(rows.len(), 192);
        assert_eq!((rows[191].core, rows[191].processed), (Some(191), 191 * 1_000_003));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn any_text_of_hexadecimals_is_parsed_or_refused(text in "([0-9a-f]{0,20}[ \n]){0,60}") {
            let _ = parse(text.as_bytes());
        }
    }
}
