use super::*;
use crate::test_tree::{seen, tree};
use proptest::prelude::*;
use std::fmt::Write;

const TEXT: &str = "           CPU0       CPU2       \n\
    \x2024:          1          0  IO-APIC   5-edge      ACPI:Ged, other\n\
    \x2038:          0       4217 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\n\
    TLB:      10250       9469   TLB shootdowns\n\
    ERR:          7\nMIS:          0\n";

/// As kernels before 6.x write it: with the blank after each count, not before it.
const OLD_TEXT: &str = "            CPU0       CPU1       \n\
    \x20 0:         44          0   IO-APIC-edge      timer\n\
    \x2027:          0     123456   PCI-MSI-edge      eth0-Tx-Rx-5\n\
    LOC:      81700      84480   Local timer interrupts\n";

fn points(evidence: &Evidence, core: &str, name: &str) -> Vec<(u64, u64)> {
    evidence.counters.points(Source::Interrupts, core, name).iter().map(|p| (p.at.0, p.value)).collect()
}

#[test]
fn parses_core_interrupt_and_handler() {
    let table = parse(TEXT.as_bytes());
    assert_eq!(table.bad, None);
    assert_eq!(table.cores, [0, 2]);
    let line = table.irq(38).unwrap();
    assert_eq!(table.counts(line), [0, 4217]);
    assert_eq!(line.handlers().collect::<Vec<_>>(), ["virtio2-input.0"]);
    assert_eq!(table.irq(24).unwrap().handlers().collect::<Vec<_>>(), ["ACPI:Ged", "other"]);
    assert_eq!(table.lines.iter().map(|l| l.label.as_str()).collect::<Vec<_>>(), ["24", "38", "TLB", "ERR", "MIS"]);
    assert!(table.irq(39).is_none());
}

#[test]
fn old_kernels_pad_differently() {
    let table = parse(OLD_TEXT.as_bytes());
    assert_eq!(table.counts(table.irq(27).unwrap()), [0, 123_456]);
    assert_eq!(table.counts(table.irq(0).unwrap()), [44, 0]);
    assert_eq!(table.irq(27).unwrap().handlers().collect::<Vec<_>>(), ["eth0-Tx-Rx-5"]);
    assert_eq!(table.lines[2].about, "Local timer interrupts");
}

#[test]
fn a_machine_wide_count_is_attributed_to_no_core() {
    let dir = tree(&[("proc/interrupts", TEXT)]);
    let mut evidence = Evidence::default();
    let mut reader = InterruptReader::new(&Root::at(dir.path()));
    reader.look(Time(1), &mut evidence);
    assert!(evidence.counters.is_empty(), "nothing changed yet");
    let moved = TEXT.replace("4217", "4218").replace("10250", "10251").replace("9469", "9470");
    let moved = moved
        .lines()
        .map(|l| if l.trim_start().starts_with("ERR") { "ERR: 7" } else { l })
        .collect::<Vec<_>>()
        .join("\n");
    std::fs::write(dir.path().join("proc/interrupts"), moved).unwrap();
    reader.look(Time(2), &mut evidence);
    assert_eq!(evidence.counters.names(Source::Interrupts, "cpu0"), ["TLB"], "neither ERR nor unchanged counts");
    assert_eq!(evidence.counters.names(Source::Interrupts, "cpu2"), ["38", "TLB"]);
    assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
}

#[test]
fn a_count_that_changes_is_preceded_by_its_previous_value() {
    let dir = tree(&[("proc/interrupts", TEXT)]);
    let mut reader = InterruptReader::new(&Root::at(dir.path()));
    let mut evidence = Evidence::default();
    for at in 1..=2 {
        reader.look(Time(at), &mut evidence);
    }
    let moved = TEXT.replace("          0       4217", "          5       4300");
    std::fs::write(dir.path().join("proc/interrupts"), moved).unwrap();
    reader.look(Time(3), &mut evidence);
    reader.look(Time(4), &mut evidence);
    assert_eq!(points(&evidence, "cpu0", "38"), [(2, 0), (3, 5)]);
    assert_eq!(points(&evidence, "cpu2", "38"), [(2, 4217), (3, 4300)]);
    assert_eq!(points(&evidence, "cpu0", "TLB"), []);
    assert_eq!(evidence.counters.moved(Source::Interrupts, "cpu0", "38"), Some(5));
    assert_eq!(reader.table().unwrap().cores, [0, 2]);
}

#[test]
fn an_interrupt_that_appears_was_at_zero_before() {
    let dir = tree(&[("proc/interrupts", TEXT)]);
    let mut reader = InterruptReader::new(&Root::at(dir.path()));
    let mut evidence = Evidence::default();
    reader.look(Time(1), &mut evidence);
    let new = "TLB:      10250       9469   TLB shootdowns\n";
    let moved = TEXT.replace(new, &format!(" 40:          0         12  PCI-MSI 40-edge      eth1\n{new}"));
    let moved = moved.replace("9469", "9470");
    std::fs::write(dir.path().join("proc/interrupts"), moved).unwrap();
    reader.look(Time(2), &mut evidence);
    assert_eq!(points(&evidence, "cpu2", "40"), [(1, 0), (2, 12)]);
    assert_eq!(points(&evidence, "cpu2", "TLB"), [(1, 9469), (2, 9470)], "the lines after it are still found");
    assert_eq!(points(&evidence, "cpu2", "38"), []);
    // And it disappears again.
    std::fs::write(dir.path().join("proc/interrupts"), TEXT.replace("9469", "9471")).unwrap();
    reader.look(Time(3), &mut evidence);
    assert_eq!(points(&evidence, "cpu2", "TLB"), [(1, 9469), (2, 9470), (3, 9471)]);
}

#[test]
fn a_core_that_comes_online_starts_with_its_current_count() {
    let dir = tree(&[("proc/interrupts", TEXT)]);
    let mut reader = InterruptReader::new(&Root::at(dir.path()));
    let mut evidence = Evidence::default();
    reader.look(Time(1), &mut evidence);
    let three = "  CPU0  CPU1  CPU2\n 24: 1 77 0 x\n 38: 0 0 4218 y\n";
    std::fs::write(dir.path().join("proc/interrupts"), three).unwrap();
    reader.look(Time(2), &mut evidence);
    assert_eq!(points(&evidence, "cpu1", "24"), [(2, 77)], "its previous count is unknown");
    assert_eq!(points(&evidence, "cpu2", "38"), [(1, 4217), (2, 4218)]);
    assert_eq!(points(&evidence, "cpu0", "24"), []);
}

#[test]
fn more_counts_than_columns_are_ignored() {
    let table = parse(b"  CPU0 CPU1\n 5: 1 2 3  chip  handler\n 6: 1 2  chip  handler\n");
    assert_eq!(table.counts(table.irq(5).unwrap()), [0u64; 0]);
    assert_eq!(table.counts(table.irq(6).unwrap()), [1, 2]);
}

#[test]
fn parse_errors_are_reported() {
    let dir = tree(&[(INTERRUPTS, "nothing here\n")]);
    let evidence = seen(dir.path(), |root, evidence| InterruptReader::new(root).look(Time(1), evidence));
    assert!(evidence.counters.is_empty());
    assert!(evidence.why_unseen(probe::INTERRUPTS).unwrap().why.contains("line 1"));

    let table = parse(b" CPU0\n 1: 5 a\nno colon\n\n 2: 6 b\n");
    assert_eq!(table.bad, Some(ParseError::new(3, "a label and a colon")));
    assert_eq!(table.counts(table.irq(2).unwrap()), [6]);
}

#[test]
fn agrees_with_a_second_parser_on_this_machine() {
    let reading = |label: &str| {
        let text = std::fs::read_to_string("/proc/interrupts").unwrap();
        let cores = text.lines().next().unwrap().split_whitespace().count();
        let line = text.lines().find(|l| l.trim_start().starts_with(label)).unwrap().to_owned();
        line.split_whitespace().skip(1).take(cores).map(|n| n.parse::<u64>().unwrap()).collect::<Vec<_>>()
    };
    let before = reading("LOC:");
    let mut evidence = Evidence::default();
    let mut reader = InterruptReader::new(&Root::live());
    reader.look(Time(1), &mut evidence);
    let after = reading("LOC:");
    let table = reader.table().unwrap();
    assert_eq!(table.bad, None);
    let loc = table.lines.iter().find(|l| l.label == "LOC").unwrap();
    for ((core, seen), (before, after)) in table.cores.iter().zip(table.counts(loc)).zip(before.iter().zip(&after)) {
        assert!((before..=after).contains(&seen), "core {core}: {before} {seen} {after}");
    }
    // Every line of the file is in the table.
    let lines = std::fs::read_to_string("/proc/interrupts").unwrap().lines().count();
    assert_eq!(table.lines.len() + 1, lines);
}

/// /proc/interrupts of a large machine: each device interrupt on one core, the architecture's own on all.
fn generated(cores: usize, devices: usize, round: u64) -> String {
    let mut text = " ".repeat(11);
    for core in 0..cores {
        write!(text, "CPU{core:<8}").unwrap();
    }
    text.push('\n');
    for device in 0..devices {
        write!(text, "{device:4}: ").unwrap();
        for core in 0..cores {
            let count = if device % cores == core { 1_000_000 + round * 100 + device as u64 } else { 0 };
            write!(text, "{count:10} ").unwrap();
        }
        writeln!(text, " IR-PCI-MSI {}-edge      ena0-Tx-Rx-{device}", 524_288 + device).unwrap();
    }
    for label in ["NMI", "LOC", "SPU", "PMI", "IWI", "RES", "CAL", "TLB", "MCP"] {
        write!(text, " {label}: ").unwrap();
        for core in 0..cores as u64 {
            write!(text, "{:10} ", 90_000_000 + core + round * 250).unwrap();
        }
        text.push_str("  Something of the machine\n");
    }
    text.push_str(" ERR:          0\n MIS:          0\n");
    text
}

#[test]
fn takes_192_cores_and_600_lines() {
    let dir = tree(&[(INTERRUPTS, &generated(192, 600, 0))]);
    let mut reader = InterruptReader::new(&Root::at(dir.path()));
    let mut evidence = Evidence::default();
    for round in 0..4u64 {
        std::fs::write(dir.path().join("proc/interrupts"), generated(192, 600, round)).unwrap();
        reader.look(Time(round), &mut evidence);
    }
    let table = reader.table().unwrap();
    assert_eq!(table.bad, None);
    assert_eq!(table.cores.len(), 192);
    assert_eq!(table.counts(table.irq(599).unwrap())[599 % 192], 1_000_000 + 300 + 599);
    let series = evidence.counters.iter().count();
    assert_eq!(series, 600 + 9 * 192, "zeros are not recorded");
    assert_eq!(evidence.counters.moved(Source::Interrupts, "cpu7", "TLB"), Some(750));
}

proptest! {
    #[test]
    fn any_bytes_are_parsed(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut table = parse(&bytes);
        table.read(b"  CPU0\n 1: 2 x\n");
        prop_assert_eq!(table.lines.len(), 1);
    }

    #[test]
    fn anything_like_the_file_is_parsed(text in "( *CPU[0-9]{1,3}){1,4}\n([ A-Z0-9:]{0,12}( {0,11}[0-9]{1,3}){0,6}[ a-z]{0,9}\n?){0,9}") {
        let table = parse(text.as_bytes());
        for line in &table.lines {
            let counts = table.counts(line).len();
            prop_assert!(counts == 0 || counts == table.cores.len());
        }
    }

    #[test]
    fn kernel_output_round_trips(
        rows in proptest::collection::vec(proptest::collection::vec(prop_oneof![Just(0u32), any::<u32>()], 3), 1..30),
        old in any::<bool>(),
    ) {
        let mut text = "           CPU0       CPU1       CPU9       \n".to_owned();
        for (irq, row) in rows.iter().enumerate() {
            write!(text, "{irq:3}:").unwrap();
            for count in row {
                if old { write!(text, "{count:10} ").unwrap() } else { write!(text, " {count:10}").unwrap() }
            }
            text.push_str("  PCI-MSI 5-edge      eth0\n");
        }
        let table = parse(text.as_bytes());
        prop_assert_eq!(&table.bad, &None);
        prop_assert_eq!(table.lines.len(), rows.len());
        for (irq, row) in rows.iter().enumerate() {
            let counts: Vec<u32> = table.counts(table.irq(irq as u32).unwrap()).iter().map(|c| *c as u32).collect();
            prop_assert_eq!(&counts, row);
        }
    }
}
