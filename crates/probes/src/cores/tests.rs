use super::*;
use crate::test_tree::{seen, tree};
use proptest::prelude::*;
use std::fmt::Write;

const STAT_TEXT: &str = "cpu  42950 0 9642 156259 863 0 102 215 0 0\n\
    cpu0 20967 1 3443 80156 308 2 11 91 0 0\n\
    cpu3 21983 0 6198 76103 554 0 90 124 0 0\n\
    intr 307853 0 0\nctxt 387353\nbtime 1794773000\n";

#[test]
fn an_offline_core_is_absent() {
    let dir = tree(&[(STAT, STAT_TEXT)]);
    let evidence = seen(dir.path(), |root, evidence| CoreTimeReader::new(root).look(Time(5), evidence));
    let [times] = evidence.core_times.as_slice() else { panic!("{evidence:?}") };
    assert_eq!(times.at, Time(5));
    assert_eq!(times.cores.iter().map(|c| c.core).collect::<Vec<_>>(), [0, 3]);
    let expected = CoreTicks {
        core: 0,
        user: 20967,
        nice: 1,
        system: 3443,
        idle: 80156,
        iowait: 308,
        irq: 2,
        softirq: 11,
        steal: 91,
    };
    assert_eq!(times.cores[0], expected);
    assert!(evidence.unseen.is_empty());
}

#[test]
fn a_core_that_goes_offline_disappears_and_returns() {
    let dir = tree(&[(STAT, STAT_TEXT)]);
    let mut reader = CoreTimeReader::new(&Root::at(dir.path()));
    let mut evidence = Evidence::default();
    reader.look(Time(1), &mut evidence);
    let without: String = STAT_TEXT.lines().filter(|l| !l.starts_with("cpu3")).map(|l| format!("{l}\n")).collect();
    std::fs::write(dir.path().join("proc/stat"), without).unwrap();
    reader.look(Time(2), &mut evidence);
    std::fs::write(dir.path().join("proc/stat"), STAT_TEXT).unwrap();
    reader.look(Time(3), &mut evidence);
    assert_eq!(evidence.core_times.iter().map(|t| t.cores.len()).collect::<Vec<_>>(), [2, 1, 2]);
    assert!(evidence.unseen.is_empty());
}

#[test]
fn unreadable_files_are_unseen_not_zero() {
    let dir = tempfile::tempdir().unwrap();
    let evidence = seen(dir.path(), |root, evidence| CoreTimeReader::new(root).look(Time(1), evidence));
    assert!(evidence.core_times.is_empty());
    assert!(evidence.why_unseen(probe::CORES).unwrap().why.contains("proc/stat"));

    let (cores, bad) = parse_stat(b"cpu  1 2\ncpu0 1 2 3\ncpu1 1 2 3 4 5 6 7 8\nintr 0\n", 0);
    assert_eq!(cores.len(), 1, "one bad line must not lose the rest");
    assert_eq!(bad, Some(ParseError::new(2, "cpuN and at least eight numbers")));
    assert_eq!(parse_stat(b"", 0).1.unwrap().line, 1);
}

#[test]
fn agrees_with_a_second_parser_on_this_machine() {
    // Like awk: all fields of all core lines.
    let reading = || {
        let text = std::fs::read_to_string("/proc/stat").unwrap();
        let cores: Vec<_> = text.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu ")).collect();
        let fields = cores.iter().flat_map(|l| l.split_whitespace().skip(1).take(3));
        (cores.len(), fields.map(|n| n.parse::<u64>().unwrap()).sum::<u64>())
    };
    let (_, before) = reading();
    let mut evidence = Evidence::default();
    CoreTimeReader::new(&Root::live()).look(Time(1), &mut evidence);
    let (cores, after) = reading();
    let seen: u64 = evidence.core_times[0].cores.iter().map(|c| c.user + c.nice + c.system).sum();
    assert_eq!(evidence.core_times[0].cores.len(), cores);
    // User and system are rounded down separately, so their sum may decrease by a tick each.
    let slack = 3 * cores as u64;
    assert!((before.saturating_sub(slack)..=after + slack).contains(&seen), "{before} {seen} {after}");
    assert!(seen > 0);
}

/// /proc/stat as a machine with many cores and interrupts writes it.
fn generated_stat(cores: u32) -> String {
    let mut text = String::from("cpu  900719925 1234 90071992 9007199254 8639 0 102000 215000 0 0\n");
    for core in 0..cores {
        let user = 9_007_199 + u64::from(core);
        writeln!(text, "cpu{core} {user} 12 900719 90071992 863 0 10200 21500 0 0").unwrap();
    }
    text.push_str("intr 30785300000");
    for irq in 0..4000 {
        write!(text, " {}", if irq % 7 == 0 { irq * 997 } else { 0 }).unwrap();
    }
    text.push_str("\nctxt 38735300000\nbtime 1794773000\nprocesses 12345\n");
    text
}

#[test]
fn takes_192_cores() {
    let text = generated_stat(192);
    let (cores, bad) = parse_stat(text.as_bytes(), 192);
    assert_eq!(bad, None);
    assert_eq!(cores.len(), 192);
    assert_eq!((cores[191].core, cores[191].user), (191, 9_007_199 + 191));
}

const SCHEDSTAT_15: &str = "version 15\ntimestamp 4294937376\n\
    cpu0 1 0 3 4 5 6 700 800 9\ndomain0 00000003 1 2 3\ncpu1 1 0 3 4 5 6 701 801 10\ndomain0 00000003 1 2 3\n";

#[test]
fn schedstat_of_versions_15_to_17() {
    let v17 = SCHEDSTAT_15.replace("version 15", "version 17").replace("domain0 ", "domain0 MC ");
    for text in [SCHEDSTAT_15, &SCHEDSTAT_15.replace("version 15", "version 16"), &v17] {
        let dir = tree(&[(SCHEDSTAT, text)]);
        let evidence = seen(dir.path(), |root, evidence| SchedstatReader::new(root).look(Time(1), evidence));
        let last = |core, name| evidence.counters.last(Source::Schedstat, core, name);
        assert_eq!(last("cpu0", "run_ns"), Some(700));
        assert_eq!(last("cpu1", "wait_ns"), Some(801));
        assert_eq!(last("cpu1", "slices"), Some(10));
        assert!(evidence.unseen.is_empty());
    }
}

#[test]
fn missing_schedstat_is_not_noted_but_a_malformed_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let evidence = seen(dir.path(), |root, evidence| SchedstatReader::new(root).look(Time(1), evidence));
    assert_eq!(evidence, Evidence::default());

    let dir = tree(&[(SCHEDSTAT, "version 14\ncpu0 1 2 3 4 5 6 7 8 9 10 11 12\n")]);
    let evidence = seen(dir.path(), |root, evidence| SchedstatReader::new(root).look(Time(1), evidence));
    assert!(evidence.counters.is_empty());
    assert!(evidence.why_unseen(probe::RUN_QUEUE).unwrap().why.contains("version 15"));
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse_stat(&bytes, usize::MAX);
        let _ = parse_schedstat(&bytes);
    }

    #[test]
    fn anything_like_the_files_is_parsed_or_refused(
        text in "((cpu|version|domain)[0-9]{0,12}|[0-9]{0,22}|[ \n]){0,80}"
    ) {
        let _ = parse_stat(text.as_bytes(), 0);
        let _ = parse_schedstat(text.as_bytes());
        let _ = parse_schedstat(format!("version 15\n{text}").as_bytes());
    }

    #[test]
    fn kernel_output_round_trips(fields in proptest::collection::vec(any::<[u64; 10]>(), 1..20)) {
        let mut text = "cpu  1 2 3 4 5 6 7 8 9 10\n".to_owned();
        for (core, f) in fields.iter().enumerate() {
            let numbers = f.map(|n| n.to_string()).join(" ");
            writeln!(text, "cpu{core} {numbers}").unwrap();
        }
        let (cores, bad) = parse_stat(text.as_bytes(), 0);
        prop_assert_eq!(bad, None);
        for (core, f) in cores.iter().zip(&fields) {
            let read = [core.user, core.nice, core.system, core.idle, core.iowait, core.irq, core.softirq, core.steal];
            prop_assert_eq!(&read[..], &f[..8]);
        }
        prop_assert_eq!(cores.len(), fields.len());
    }
}
