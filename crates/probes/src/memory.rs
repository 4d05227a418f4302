//! Memory: reclaim and paging activity (/proc/vmstat), and usage (/proc/meminfo).

use coroner_evidence::{Evidence, Source, Time, probe};

use crate::counter_file::{CounterFile, Moved, Words, lines};
use crate::root::{ParseError, Root};

const VMSTAT: &str = "/proc/vmstat";
const MEMINFO: &str = "/proc/meminfo";

/// The /proc/vmstat counters that are kept, by prefix: kernels add zones (`allocstall_normal`), kinds (`pgscan_khugepaged`) and
/// tiers, and drop others; the prefixes have been stable since 4.x. The full list is vmstat_text in mm/vmstat.c.
const VMSTAT_PREFIXES: [&str; 27] = [
    // Reclaim: direct reclaim (allocstall), pages scanned and reclaimed, kswapd, refaults (workingset).
    "allocstall",
    "pgscan",
    "pgsteal",
    "pageoutrun",
    "kswapd_",
    "slabs_scanned",
    "pginodesteal",
    "zone_reclaim_",
    "workingset_",
    "drop_",
    "nr_vmscan_",
    // Page faults and the disk traffic they cause.
    "pgfault",
    "pgmajfault",
    "pgpgin",
    "pgpgout",
    // Swap, including compressed swap.
    "pswp",
    "swp",
    "zswp",
    // Huge pages and compaction.
    "thp_",
    "htlb_",
    "compact_",
    "pgmigrate_",
    // NUMA: remote allocations, hinting faults, promotion and demotion between tiers (pgpromote, pgdemote).
    "numa_",
    "pgpromote",
    "pgdemote",
    // OOM kills.
    "oom_kill",
    // Memory reclaimed by the hypervisor.
    "balloon_",
];

/// Reads /proc/vmstat and /proc/meminfo.
///
/// Meminfo is in bytes, except lines without a unit (`HugePages_Total` and the like), which count huge pages.
#[derive(Debug)]
pub struct MemoryReader {
    vmstat: CounterFile,
    meminfo: CounterFile,
    vmstat_moved: Moved,
    meminfo_moved: Moved,
}

impl MemoryReader {
    pub fn new(root: &Root) -> MemoryReader {
        MemoryReader {
            vmstat: CounterFile::new(root, VMSTAT),
            meminfo: CounterFile::new(root, MEMINFO),
            vmstat_moved: Moved::new(Source::Vmstat),
            meminfo_moved: Moved::new(Source::Meminfo),
        }
    }

    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        look_at(&mut self.vmstat, parse_vmstat_line, &mut self.vmstat_moved, at, evidence);
        look_at(&mut self.meminfo, parse_meminfo_line, &mut self.meminfo_moved, at, evidence);
    }
}

fn look_at(
    file: &mut CounterFile,
    parse: impl Fn(usize, &[u8]) -> Result<Option<(&str, u64)>, ParseError>,
    moved: &mut Moved,
    at: Time,
    evidence: &mut Evidence,
) {
    const WHAT: &str = "reclaim, page faults, swap and free memory of the node";
    let absolute = file.absolute().to_owned();
    let Some(text) = file.look(probe::MEMORY, WHAT, evidence) else { return };
    moved.begin();
    let mut empty = true;
    for (number, line) in lines(text) {
        empty = false;
        match parse(number, line) {
            Ok(Some((name, value))) => moved.note("", name, at, value, evidence),
            Ok(None) => {}
            Err(error) => {
                evidence.unseen(probe::MEMORY, WHAT, format!("{absolute}: {error}"), "please report this file");
            }
        }
    }
    if empty {
        evidence.unseen(probe::MEMORY, WHAT, format!("{absolute} is empty"), "run where /proc is mounted and complete");
    }
}

/// `pgfault 9080185`; `None` if this counter is not kept.
pub fn parse_vmstat_line(number: usize, line: &[u8]) -> Result<Option<(&str, u64)>, ParseError> {
    let expected = || ParseError::new(number, "a name and a number");
    let mut words = Words(line);
    let name = words.word().and_then(|w| std::str::from_utf8(w).ok()).ok_or_else(expected)?;
    if !VMSTAT_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return Ok(None);
    }
    Ok(Some((name, words.number().ok_or_else(expected)?)))
}

/// `MemFree:  8415292 kB`, in bytes.
pub fn parse_meminfo_line(number: usize, line: &[u8]) -> Result<Option<(&str, u64)>, ParseError> {
    let expected = || ParseError::new(number, "a name, a colon, a number and optionally kB");
    let mut words = Words(line);
    let name = words.word().and_then(|w| w.strip_suffix(b":")).ok_or_else(expected)?;
    let name = std::str::from_utf8(name).map_err(|_| expected())?;
    let value = words.number().ok_or_else(expected)?;
    match words.word() {
        None => Ok(Some((name, value))),
        Some(b"kB") => Ok(Some((name, value.checked_mul(1024).ok_or_else(expected)?))),
        Some(_) => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::{seen, tree};
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn old_and_new_kernels() {
        // 4.x has one allocstall, 6.x one per zone.
        let dir = tree(&[
            ("proc/vmstat", "allocstall 5\nallocstall_normal 6\nnr_free_pages 7\npgfault 8\n"),
            ("proc/meminfo", "MemFree: 2 kB\nPercpu: 1968 kB\nHugePages_Total: 3\n"),
        ]);
        let evidence = seen(dir.path(), |root, evidence| MemoryReader::new(root).look(Time(1), evidence));
        assert_eq!(evidence.counters.names(Source::Vmstat, ""), ["allocstall", "allocstall_normal", "pgfault"]);
        assert_eq!(evidence.counters.last(Source::Meminfo, "", "MemFree"), Some(2048));
        assert_eq!(evidence.counters.last(Source::Meminfo, "", "Percpu"), Some(1968 * 1024));
        assert_eq!(evidence.counters.last(Source::Meminfo, "", "HugePages_Total"), Some(3));
        assert!(evidence.unseen.is_empty());
    }

    #[test]
    fn one_bad_line_does_not_hide_the_rest() {
        let dir = tree(&[
            ("proc/vmstat", "pgfault many\npgmajfault 3\n"),
            ("proc/meminfo", "MemFree 2 kB\nMemTotal: 9 kB\n"),
        ]);
        let evidence = seen(dir.path(), |root, evidence| MemoryReader::new(root).look(Time(1), evidence));
        assert_eq!(evidence.counters.last(Source::Vmstat, "", "pgmajfault"), Some(3));
        assert_eq!(evidence.counters.last(Source::Vmstat, "", "pgfault"), None);
        assert_eq!(evidence.counters.last(Source::Meminfo, "", "MemTotal"), Some(9 * 1024));
        assert_eq!(evidence.unseen.len(), 2);
        assert_eq!(evidence.unseen[0].why, "/proc/vmstat: line 1: expected a name and a number");
    }

    #[test]
    fn agrees_with_a_second_parser_on_this_machine() {
        let reading = |path| {
            let text = std::fs::read_to_string(path).unwrap();
            let pairs = text.lines().filter_map(|l| {
                let mut words = l.split_whitespace();
                Some((words.next()?.trim_end_matches(':').to_owned(), words.next()?.parse::<u64>().ok()?))
            });
            pairs.collect::<HashMap<_, _>>()
        };
        let before = reading("/proc/vmstat");
        let mut evidence = Evidence::default();
        MemoryReader::new(&Root::live()).look(Time(1), &mut evidence);
        let after = reading("/proc/vmstat");
        for name in ["pgfault", "pgmajfault", "pgpgin", "oom_kill", "numa_hit"] {
            let Some(seen) = evidence.counters.last(Source::Vmstat, "", name) else { continue };
            assert!((before[name]..=after[name]).contains(&seen), "{name}: {} {seen} {}", before[name], after[name]);
        }
        assert!(evidence.counters.last(Source::Vmstat, "", "pgfault").unwrap() > 0);
        let meminfo = reading("/proc/meminfo");
        assert_eq!(evidence.counters.last(Source::Meminfo, "", "MemTotal"), Some(meminfo["MemTotal"] * 1024));
        assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
    }

    proptest! {
        #[test]
        fn any_line_is_parsed_or_refused(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse_vmstat_line(1, &line);
            let _ = parse_meminfo_line(1, &line);
        }

        #[test]
        fn kilobytes_become_bytes_or_are_refused(value in any::<u64>()) {
            let text = format!("MemFree:  {value} kB");
            let parsed = parse_meminfo_line(1, text.as_bytes());
            match value.checked_mul(1024) {
                Some(bytes) => prop_assert_eq!(parsed, Ok(Some(("MemFree", bytes)))),
                None => prop_assert!(parsed.is_err()),
            }
        }
    }
}
