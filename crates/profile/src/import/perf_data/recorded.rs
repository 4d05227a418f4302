//! Real recordings of each form (testdata/perf_data), intact and damaged.

use coroner_evidence::Wall;
use proptest::prelude::*;

use super::about;
use crate::import::{ImportReport, OddityKind};
use crate::model::{Clock, FramePlace, Profile};
use crate::symbols::Symbols;

const PLAIN: &[u8] = include_bytes!("../../../testdata/perf_data/plain.data");
const ZSTD: &[u8] = include_bytes!("../../../testdata/perf_data/zstd.data");
const DWARF: &[u8] = include_bytes!("../../../testdata/perf_data/dwarf.data");
const PIPE: &[u8] = include_bytes!("../../../testdata/perf_data/pipe.data");
const EVENTS: &[u8] = include_bytes!("../../../testdata/perf_data/events.data");
const CGROUPS: &[u8] = include_bytes!("../../../testdata/perf_data/cgroups.data");
const FLAT: &[u8] = include_bytes!("../../../testdata/perf_data/flat.data");
const SAMPLES: [u64; 7] = [33, 47, 5, 37, 416, 15, 65];
const ALL: [&[u8]; 7] = [PLAIN, ZSTD, DWARF, PIPE, EVENTS, CGROUPS, FLAT];

fn read(bytes: &[u8]) -> (Profile, ImportReport) {
    Profile::collect(|take| super::read(bytes, &mut Symbols::none(), take)).expect("a recording")
}

#[test]
fn every_form_is_read_completely() {
    // As many as `perf script` prints, except for groups, for which it prints one per member.
    for (bytes, samples) in ALL.iter().zip(SAMPLES) {
        let (_, report) = read(bytes);
        assert_eq!((report.samples, report.truncated, report.count(OddityKind::BadRecord)), (samples, false, 0));
    }
}

#[test]
fn dwarf_stacks_are_reported_as_not_unwound_and_their_kernel_part_is_kept() {
    let (profile, report) = read(DWARF);
    assert_eq!(report.count(OddityKind::Unsupported), report.samples);
    let example = &report.oddities.iter().find(|oddity| oddity.kind == OddityKind::Unsupported).expect("one").example;
    assert!(example.contains("--call-graph dwarf"), "{example}");
    let in_kernel = profile.samples.iter().filter(|sample| {
        let leaf = profile.names.stacks.leaf_first(sample.stack).next();
        leaf.is_some_and(|leaf| profile.names.frames.get(leaf).place == FramePlace::Kernel)
    });
    assert!(in_kernel.count() > 0);
    assert!(profile.samples.iter().all(|sample| profile.names.stacks.leaf_first(sample.stack).next().is_some()));
}

#[test]
fn counts_of_other_group_members_are_reported_as_unread() {
    let (_, report) = read(CGROUPS);
    assert_eq!(report.count(OddityKind::Unsupported), report.samples);
}

#[test]
fn events_and_cgroups_have_their_names() {
    let (profile, _) = read(EVENTS);
    let names: Vec<&str> = profile.names.events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names, ["cpu-clock", "page-faults", "sched:sched_switch"]);
    assert!(profile.names.events.iter().all(|event| event.samples > 0));
    let (profile, _) = read(CGROUPS);
    let cgroups = profile.names.tasks().filter_map(|(_, task)| task.cgroup);
    assert!(cgroups.map(|id| profile.names.strings.get(id)).any(|path| path == "/"));
}

#[test]
fn a_file_tells_where_and_how_it_was_recorded() {
    let told = about(PLAIN).expect("a recording");
    assert_eq!(told.host.as_deref(), Some("node-7"));
    assert_eq!(told.kernel.as_deref(), Some("6.18.44-fc-v445"));
    assert_eq!(told.command_line[1..4], ["record", "-q", "-N"]);
    let (profile, _) = read(PLAIN);
    assert_eq!(told.samples, profile.samples.span());
    assert_eq!(told.clock, None);
    let told = about(EVENTS).expect("a recording");
    assert!(matches!(told.clock, Some(Clock { wall: Wall(1_700_000_000_000_000_000..), .. })), "{:?}", told.clock);
    let told = about(PIPE).expect("a recording");
    assert_eq!(told.host.as_deref(), Some("node-7"));
    assert_eq!(told.events.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(700))]

    /// Any values in the header: sizes and offsets do no harm.
    #[test]
    fn any_header(which in 0..ALL.len(), word in 1usize..13, value in prop_oneof![any::<u64>(), 0u64..100_000, Just(u64::MAX)]) {
        let mut bytes = ALL[which].to_vec();
        bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_ne_bytes());
        let _ = about(bytes.as_slice());
        let _ = Profile::collect(|take| super::read(bytes.as_slice(), &mut Symbols::none(), take));
    }
}
