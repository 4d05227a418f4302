//! Profiles survive a round trip through a recording, whatever happens to the writer and the file.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use coroner_evidence::recording::{RecordingError, Writer, segments};
use coroner_evidence::{CoreTimes, Evidence, Time, Wall};
use proptest::prelude::*;

use super::*;
use crate::import::{self, Format, ImportError, ImportOptions, ImportReport, OddityKind};
use crate::model::{Clock, Dictionary, Frame, FramePlace, Profile, Sample, StackId, Task};
use crate::symbols::Symbols;

const SECOND: u64 = 1_000_000_000;
/// The wall clock when the profiles' clock reads 0.
const BOOT: u64 = 1_780_000_000 * SECOND;

/// A sample without ids, which differ between files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    time: Option<u64>,
    core: Option<u32>,
    task: (Option<u32>, Option<u32>, String, Option<String>),
    event: String,
    period: u64,
    frames: Vec<(String, String, FramePlace, bool)>,
}

fn said(names: &Dictionary, sample: &Sample) -> Said {
    let text = |id| names.strings.get(id).to_owned();
    let task = names.task(sample.task);
    let frames = names.stacks.root_first(sample.stack).into_iter().map(|id| names.frames.get(id));
    Said {
        time: sample.time,
        core: sample.core,
        task: (task.pid, task.tid, text(task.comm), task.cgroup.map(text)),
        event: names.events[usize::from(sample.event.0)].name.clone(),
        period: sample.period,
        frames: frames.map(|f| (text(f.symbol), text(f.module), f.place, f.inlined)).collect(),
    }
}

/// Builds a profile from descriptions, as an importer would.
fn described(all: &[Said]) -> (Dictionary, Vec<Sample>) {
    let mut names = Dictionary::default();
    names.clock = Some(Clock { clock_ns: 0, wall: Wall(BOOT) });
    let samples = all.iter().map(|said| {
        let (pid, tid, comm, cgroup) = &said.task;
        let comm = names.strings.intern(comm);
        let cgroup = cgroup.as_ref().map(|cgroup| names.strings.intern(cgroup));
        let task = names.intern_task(Task { pid: *pid, tid: *tid, comm, cgroup });
        let event = names.intern_event(&said.event);
        let mut stack = StackId::EMPTY;
        for (symbol, module, place, inlined) in &said.frames {
            let (symbol, module) = (names.strings.intern(symbol), names.strings.intern(module));
            let frame = names.frames.intern(Frame { symbol, module, place: *place, inlined: *inlined });
            stack = names.stacks.push(stack, frame);
        }
        Sample { time: said.time, core: said.core, task, event, period: said.period, stack }
    });
    let samples = samples.collect();
    (names, samples)
}

/// Sample `i` of a node with two cores and 100 samples a second.
fn usual(i: u64) -> Said {
    let frame =
        |n: u64, place| (format!("function_{n}"), format!("/usr/lib/module_{}.so", n % 3), place, n.is_multiple_of(5));
    let frames = (0..i % 4).map(|n| frame(i % 7 + n, FramePlace::User)).chain([frame(i % 11, FramePlace::Kernel)]);
    Said {
        time: Some(i * 10_000_000 + i % 3),
        core: Some((i % 2) as u32),
        task: (Some(1), Some((i % 5) as u32), format!("worker {}", i % 5), Some("/kubepods/pod1".to_owned())),
        event: "cpu-clock".to_owned(),
        period: 10_000_000,
        frames: frames.collect(),
    }
}

fn origin() -> Origin {
    Origin { kind: "test".to_owned(), file: Some("x.data".to_owned()), host: Some("node1".to_owned()) }
}

/// Stores `all`; if `finish` is false, leaves the file as a killed writer would.
fn store(path: &Path, all: &[Said], finish: bool) {
    let (names, samples) = described(all);
    let mut file = Writer::create(path).unwrap();
    let report = ImportReport { lost: 7, ..ImportReport::default() };
    file.set_profile_source(&origin().row(names.clock, finish.then_some(&report))).unwrap();
    let mut writer = SampleWriter::default();
    for sample in samples {
        writer.take(&mut file, &names, sample).unwrap();
    }
    if finish {
        writer.commit(&mut file).unwrap();
        file.finish(&[]).unwrap();
    }
}

fn read_back(path: &Path, range: Option<Range<u64>>) -> (Vec<Said>, Dictionary, ImportReport) {
    let mut all = Vec::new();
    let options = ImportOptions { range, ..ImportOptions::default() };
    let imported = import::file(path, &options, &mut Symbols::none(), &mut |names, sample| {
        all.push(said(names, &sample));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(imported.format, Format::Recording);
    (all, imported.names, imported.report)
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.coroner");
    (dir, path)
}

#[test]
fn a_profile_is_read_back_with_its_clock_and_losses() {
    let (_dir, path) = scratch();
    let all: Vec<Said> = (0..5000).map(usual).collect();
    store(&path, &all, true);
    let (read, names, report) = read_back(&path, None);
    assert!(read == all);
    assert_eq!(names.clock, Some(Clock { clock_ns: 0, wall: Wall(BOOT) }));
    assert_eq!((report.samples, report.lost, report.truncated), (5000, 7, false));
    assert_eq!(names.events[0].samples, 5000);
    assert_eq!(span(&path).unwrap(), Some((0, 49_990_000_000 + 4999 % 3)));
}

#[test]
fn only_the_samples_of_the_range_are_read_and_only_the_chunks_around_it() {
    let (_dir, path) = scratch();
    let all: Vec<Said> = (0..10_000).map(usual).collect();
    store(&path, &all, true);
    let whole = read_back(&path, None).2.bytes;
    for from in [0, 9, 10, 55, 99] {
        let range = from * SECOND..(from + 1) * SECOND;
        let wanted: Vec<Said> = all.iter().filter(|s| range.contains(&s.time.unwrap())).cloned().collect();
        let (read, names, report) = read_back(&path, Some(range));
        assert!(read == wanted, "{from}");
        assert!(report.bytes * 4 < whole, "{} of {whole} bytes for one of a hundred seconds", report.bytes);
        assert_eq!(names.events[0].samples, 100);
    }
    assert_eq!(read_back(&path, Some(200 * SECOND..300 * SECOND)).0, []);
    assert_eq!(read_back(&path, Some(5..5)).0, []);
}

#[test]
fn a_killed_writer_leaves_all_complete_chunks_and_the_file_says_so() {
    let (_dir, path) = scratch();
    let all: Vec<Said> = (0..5000).map(usual).collect();
    store(&path, &all, false);
    let (read, _, report) = read_back(&path, None);
    assert!(read.len() >= 4000 && read == all[..read.len()], "{}", read.len());
    assert!(report.truncated);
}

#[test]
fn samples_without_times_or_cores_keep_their_order() {
    let (_dir, path) = scratch();
    let all: Vec<Said> = (0..40_000).map(|i| Said { time: None, core: None, ..usual(i) }).collect();
    store(&path, &all, true);
    assert!(read_back(&path, None).0 == all);
    assert_eq!(read_back(&path, Some(0..u64::MAX)).0, []);
    assert_eq!(span(&path).unwrap(), None);
}

#[test]
fn a_range_across_two_segments_is_read_from_both_in_wall_clock_time() {
    let dir = tempfile::tempdir().unwrap();
    let at_wall = |s: &Said| Said { time: s.time.map(|t| t + BOOT), ..s.clone() };
    let all: Vec<Said> = (0..3 * 60_000).step_by(20).map(usual).collect();
    for (i, part) in all.chunks(all.len() / 3).enumerate() {
        let start = BOOT + i as u64 * 600 * SECOND;
        store(&dir.path().join(segments::name(Wall(start), 1)), part, true);
    }
    std::fs::write(dir.path().join("notes.txt"), "not a recording").unwrap();
    let in_range = |range: &Range<u64>| -> Vec<Said> {
        all.iter().map(at_wall).filter(|s| range.contains(&s.time.unwrap())).collect()
    };
    for (from, until) in [(0, 1), (598, 602), (0, 1800), (1790, 1800), (600, 601)] {
        let range = BOOT + from * SECOND..BOOT + until * SECOND;
        let (read, names, report) = read_back(dir.path(), Some(range.clone()));
        assert!(read == in_range(&range), "{from} to {until}");
        assert_eq!(names.clock, Some(Clock::WALL));
        assert_eq!(report.oddities, []);
    }
    assert!(read_back(dir.path(), None).0 == all.iter().map(at_wall).collect::<Vec<_>>());
    let last = BOOT + all.last().unwrap().time.unwrap();
    assert_eq!(span(dir.path()).unwrap(), Some((BOOT, last)));
}

#[test]
fn other_files_are_reported_and_a_broken_segment_costs_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let empty = read(dir.path(), None, &mut |_, _| ControlFlow::Continue(()));
    assert!(matches!(empty, Err(ImportError::NoSegments { .. })), "{empty:?}");
    let all: Vec<Said> = (0..2000).map(usual).collect();
    store(&dir.path().join(segments::name(Wall(BOOT), 1)), &all, true);
    std::fs::write(dir.path().join(segments::name(Wall(BOOT), 2)), "no database").unwrap();
    std::fs::write(dir.path().join("mine.coroner"), "no database").unwrap();
    let (read, _, report) = read_back(dir.path(), None);
    assert_eq!(read.len(), 2000);
    assert_eq!((report.count(OddityKind::BadRecord), report.count(OddityKind::Unsupported)), (1, 1), "{report:?}");
}

#[test]
fn a_damaged_chunk_is_reported_and_the_others_are_read() {
    let (_dir, path) = scratch();
    let all: Vec<Said> = (0..5000).map(usual).collect();
    store(&path, &all, true);
    sql(&path, "UPDATE profile_sample_chunks SET data = x'28b52ffd00' WHERE id = 2");
    let (read, _, report) = read_back(&path, None);
    assert!((3000..4500).contains(&read.len()), "{}", read.len());
    assert!(read.iter().all(|s| all.contains(s)));
    assert_eq!(report.count(OddityKind::BadRecord), 1);
    assert!(report.oddities[0].example.contains("chunk 2"), "{report:?}");
}

#[test]
fn samples_whose_names_are_lost_are_kept_without_them() {
    let (_dir, path) = scratch();
    let all: Vec<Said> = (0..500).map(usual).collect();
    store(&path, &all, true);
    sql(&path, "DELETE FROM profile_stack_chunks; DELETE FROM profile_tasks WHERE id = 0;");
    let (read, _, report) = read_back(&path, None);
    assert_eq!(read.len(), 500);
    assert!(read.iter().all(|s| s.frames.is_empty()));
    assert!(report.count(OddityKind::StrayStack) == 500 && report.count(OddityKind::BadRecord) == 1, "{report:?}");
}

#[test]
fn a_lost_name_costs_no_other() {
    let (_dir, path) = scratch();
    // In an order in which neighbours are looked up far apart.
    let function = |i: u64| (format!("function_{}", i * 7919 % 1000), "/bin/web".to_owned(), FramePlace::User, false);
    let all: Vec<Said> = (0..3000).map(|i| Said { frames: vec![function(i)], ..usual(i) }).collect();
    store(&path, &all, true);
    assert!(read_back(&path, None).0 == all);
    sql(
        &path,
        "DELETE FROM profile_frames WHERE id IN (0, 63, 64, 700, 999); UPDATE profile_frames SET symbol = x'ff' WHERE id = 65",
    );
    let (read, _, report) = read_back(&path, None);
    // Numbers follow the order of first use.
    let is_lost = |i: usize| [0, 63, 64, 65, 700, 999].contains(&(i % 1000));
    for (i, (read, stored)) in read.iter().zip(&all).enumerate() {
        match is_lost(i) {
            true => assert_eq!(read.frames[0].0, "", "{i}"),
            false => assert_eq!(read, stored, "{i}"),
        }
    }
    assert_eq!((read.len(), report.count(OddityKind::BadRecord)), (3000, 6));
}

#[test]
fn names_are_right_beyond_the_read_ahead() {
    let (_dir, path) = scratch();
    let long = "x".repeat(40_000);
    let function = |i: u64| (format!("function_{}_{long}", i % 500), "/bin/web".to_owned(), FramePlace::User, false);
    let all: Vec<Said> = (0..1000).map(|i| Said { frames: vec![function(i * 7)], ..usual(i) }).collect();
    store(&path, &all, true);
    assert!(read_back(&path, None).0 == all);
}

fn sql(path: &Path, statements: &str) {
    rusqlite::Connection::open(path).unwrap().execute_batch(statements).unwrap();
}

#[test]
fn a_recording_without_samples_says_so() {
    let (_dir, path) = scratch();
    let core_times = vec![CoreTimes { at: Time(1), cores: Vec::new() }];
    let mut file = Writer::create(&path).unwrap();
    file.append(&Evidence { core_times, ..Evidence::default() }).unwrap();
    file.finish(&[]).unwrap();
    let error = read(&path, None, &mut |_, _| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, ImportError::NoSamples { .. }), "{error}");
}

#[test]
fn a_recording_with_only_a_profile_is_not_taken_for_a_node() {
    let (_dir, path) = scratch();
    store(&path, &[usual(1)], true);
    let error = coroner_evidence::recording::read(&path).unwrap_err();
    assert!(matches!(error, RecordingError::OnlyProfile { .. }), "{error}");
    assert!(
        error.to_string().contains("holds only a CPU profile, no evidence of a node; try: coroner flame"),
        "{error}"
    );
}

#[test]
fn evidence_and_samples_share_a_file() {
    let (_dir, path) = scratch();
    let (names, samples) = described(&(0..3000).map(usual).collect::<Vec<_>>());
    let mut file = Writer::create(&path).unwrap();
    file.set_profile_source(&origin().row(names.clock, None)).unwrap();
    let mut writer = SampleWriter::default();
    // A second each, as a recorder commits.
    for (second, samples) in samples.chunks(100).enumerate() {
        for sample in samples {
            writer.take(&mut file, &names, *sample).unwrap();
        }
        writer.commit(&mut file).unwrap();
        let core_times = vec![CoreTimes { at: Time::from_secs(second as u64), cores: Vec::new() }];
        file.append(&Evidence { core_times, ..Evidence::default() }).unwrap();
        // Read while the writer is open.
        if second == 15 {
            assert_eq!(read_back(&path, None).0.len(), 1600);
        }
    }
    file.finish(&[]).unwrap();
    assert_eq!(coroner_evidence::recording::read(&path).unwrap().evidence.core_times.len(), 30);
    assert_eq!(read_back(&path, None).0.len(), 3000);
    let chunks: i64 = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM profile_sample_chunks", [], |row| row.get(0))
        .unwrap();
    assert!(chunks <= 4, "{chunks} chunks of a second were not packed");
}

/// Reads a profile into a new recording, as `coroner import` does.
fn imported(from: &Path, to: &Path) -> Result<import::Imported, ImportError> {
    let mut recording = NewRecording::create(to, from)?;
    let read = import::file(from, &ImportOptions::default(), &mut Symbols::none(), &mut |names, sample| {
        recording.take(names, sample).expect("room on the disk");
        ControlFlow::Continue(())
    });
    match read {
        Ok(read) => {
            recording.finish(&read.names, &read.report, read.format, None)?;
            Ok(read)
        }
        Err(error) => {
            recording.discard();
            Err(error)
        }
    }
}

#[test]
fn import_stores_any_profile_and_leaves_nothing_if_it_fails() {
    let (dir, path) = scratch();
    let folded = dir.path().join("x.folded");
    std::fs::write(&folded, "a;b;c 3\na;b 2\nnonsense\n").unwrap();
    let first = imported(&folded, &path).unwrap();
    assert_eq!(first.format, Format::Folded);
    let (read, _, report) = read_back(&path, None);
    assert_eq!(read.iter().map(|s| s.period).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(report.count(OddityKind::UnparsedLine), 1);
    let row = coroner_evidence::recording::profile::ProfileReader::open(&path).unwrap().source().unwrap();
    assert_eq!((row.kind.as_str(), row.file.as_deref()), ("folded stacks", Some("x.folded")));

    let again = imported(&folded, &path);
    assert!(matches!(again, Err(ImportError::Recording(RecordingError::Exists { .. }))), "{again:?}");
    let other = dir.path().join("b.coroner");
    std::fs::write(&folded, [0u8; 100]).unwrap();
    imported(&folded, &other).unwrap_err();
    assert!(!other.exists());
}

fn any_said() -> impl Strategy<Value = Said> {
    let word = || prop::sample::select(vec!["", "a", "main", "tcp_v4_rcv", "std::vec<int>::push", "ö;x"]);
    let place = prop::sample::select(vec![FramePlace::User, FramePlace::Jit, FramePlace::Kernel]);
    let frame = (word(), word(), place, any::<bool>())
        .prop_map(|(symbol, module, place, inlined)| (symbol.to_owned(), module.to_owned(), place, inlined));
    (
        prop::option::weighted(0.9, prop_oneof![0..40 * SECOND, Just(0), Just(i64::MAX as u64)]),
        prop::option::weighted(0.9, prop_oneof![0..4u32, Just(65_534)]),
        (prop::option::of(0..9u32), prop::option::of(0..9u32), word(), prop::option::of(word())),
        word(),
        prop_oneof![Just(1u64), any::<u64>()],
        prop::collection::vec(frame, 0..6),
    )
        .prop_map(|(time, core, (pid, tid, comm, cgroup), event, period, frames)| Said {
            time,
            core,
            task: (pid, tid, comm.to_owned(), cgroup.map(str::to_owned)),
            event: event.to_owned(),
            period,
            frames,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_profile_comes_back(mut all in prop::collection::vec(any_said(), 0..200)) {
        let (_dir, path) = scratch();
        store(&path, &all, true);
        let (mut read, _, report) = read_back(&path, None);
        prop_assert_eq!(report.samples, all.len() as u64);
        all.sort_by_key(|s| format!("{s:?}"));
        read.sort_by_key(|s| format!("{s:?}"));
        prop_assert_eq!(read, all);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(stacks in prop::collection::vec(any::<u8>(), 0..60), samples in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = read_unpacked(&stacks, &samples, &mut |_, _| ControlFlow::Continue(()));
    }

    #[test]
    fn any_changed_byte_of_a_file_is_survived(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let (_dir, path) = scratch();
        store(&path, &(0..1500).map(usual).collect::<Vec<_>>(), true);
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        std::fs::write(&path, bytes).unwrap();
        let read = Profile::collect(|take| read(&path, None, take));
        if let Ok((profile, report)) = read {
            prop_assert_eq!(profile.samples.len() as u64, report.samples);
        }
    }
}
