use super::*;
use coroner_evidence::LogLine;
use coroner_evidence::recording::{self, segments};
use coroner_probes::Root;
use coroner_probes::watch::{Watch, WatchOptions};
use coroner_profile::import::ImportReport;
use coroner_profile::model::{Dictionary, Frame, FramePlace, Sample, StackId, Strings, Task};
use coroner_profile::views::risers::RiserKind;
use coroner_source::incident::{IncidentState, SCHEMA};

const SECOND: u64 = 1_000_000_000;

/// Real evidence of this node, and samples of the minutes before: `busy` had core 1 until ten seconds before the end, then `spin`.
fn recorded(directory: &Path) -> (Evidence, Clocks, Writer) {
    let mut evidence = Evidence::default();
    // Like the recorder, which has stacks instead.
    let options = WatchOptions { kernel_work: false, ..WatchOptions::default() };
    let mut watch = Watch::start(Root::live(), options, Duration::from_millis(1500));
    while let Some(fragment) = watch.next_turn() {
        evidence.append(fragment);
    }
    let clocks = *evidence.clocks.last().unwrap();
    let start = clocks.wall - Duration::from_secs(600);
    let mut file = Writer::create(&directory.join(segments::name(start, 1))).unwrap();
    file.append(&evidence).unwrap();

    let mut names = Dictionary::default();
    let event = names.intern_event("cpu-clock");
    let mut samples = SampleWriter::default();
    let mut frame = |symbol: &str, place| {
        let symbol = names.strings.intern(symbol);
        names.frames.intern(Frame { symbol, module: Strings::EMPTY, place, inlined: false })
    };
    let (user, kernel) = (frame("main", FramePlace::User), frame("do_spin", FramePlace::Kernel));
    let work = names.stacks.push(StackId::EMPTY, user);
    let spins = names.stacks.push(work, kernel);
    for n in 0..100 * 10 {
        let time = clocks.at.0 - 100 * SECOND + n * SECOND / 10;
        let spinning = n >= 90 * 10;
        for core in 0..2 {
            let comm = names.strings.intern(if spinning && core == 1 { "spin" } else { "busy" });
            let pid = Some(if spinning { 77 } else { 7 });
            let task = names.intern_task(Task { pid, tid: pid, comm, cgroup: None });
            let stack = if spinning && core == 1 { spins } else { work };
            let sample = Sample { time: Some(time), core: Some(core), task, event, period: SECOND / 10, stack };
            samples.take(&mut file, &names, sample).unwrap();
        }
    }
    samples.commit(&mut file).unwrap();
    let clock = Clock { clock_ns: clocks.at.0, wall: clocks.wall };
    let origin = Origin { kind: "coroner record".into(), ..Origin::default() };
    file.set_profile_source(&origin.row(Some(clock), Some(&ImportReport::default()))).unwrap();
    // Not sealed, as if the recorder were running.
    (evidence, clocks, file)
}

fn incident(triggered: Wall) -> Incident {
    Incident {
        schema: SCHEMA.into(),
        number: 1,
        code: "core-monopolised".into(),
        key: None,
        by: None,
        subject: "core 1".into(),
        core: Some(1),
        text: "spin had core 1".into(),
        triggered,
        lasting: None,
        from: triggered - Duration::from_secs(120),
        until: triggered + Duration::from_secs(30),
        state: IncidentState::Open,
        frozen: None,
        repeats: 0,
        last_repeat: None,
        last_repeat_text: None,
        also: Vec::new(),
        also_more: 0,
        error: None,
    }
}

#[test]
fn the_window_is_copied_from_a_directory_that_is_being_written() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("incidents")).unwrap();
    let (evidence, clocks, _at_work) = recorded(directory.path());
    let incident = incident(clocks.wall - Duration::from_secs(5));
    files::write(directory.path(), &incident).unwrap();
    // Left behind by an earlier try.
    std::fs::write(files::part(directory.path(), 1), "half").unwrap();
    for whole in [false, true] {
        freeze(directory.path(), 1, whole).unwrap();
        let path = files::recording(directory.path(), 1);
        let frozen = recording::read(&path).unwrap();
        assert!(frozen.about.sealed);
        assert_eq!(frozen.evidence.core_times, evidence.core_times);
        assert_eq!(frozen.evidence.node, evidence.node);
        let before = |line: &LogLine| line.at < clocks.at - Duration::from_secs(130) && line.uncertainty_ns < SECOND;
        assert!(!frozen.evidence.log.iter().any(before), "lines from long before are not part of this incident");
        let mut told = Evidence { kernel_work: Vec::new(), ..frozen.evidence.clone() };
        // The samples begin before the evidence does, and end with it, however long ago the cores were last read.
        told.core_times[0].at = clocks.at - Duration::from_secs(100);
        told.core_times.last_mut().unwrap().at = clocks.at;
        kernel_work::add(&path, &mut told);
        let rows: Vec<_> = told.kernel_work.iter().flat_map(|second| &second.rows).collect();
        assert!(rows.iter().all(|row| (row.core, row.tid, row.comm.as_str()) == (1, 77, "spin")), "{rows:?}");
        assert_eq!(rows.iter().map(|row| row.samples).sum::<u64>(), 100, "ten seconds at 10 Hz: {rows:?}");
        let mut count = 0;
        let (names, _) = coroner_profile::recording::read(&path, None, &mut |_, sample| {
            // On the evidence's clock.
            assert!(sample.time.unwrap() >= clocks.at.0 - 125 * SECOND && sample.time.unwrap() <= clocks.at.0);
            count += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(names.clock.map(|c| c.wall.0 - c.clock_ns), Some(clocks.wall.0 - clocks.at.0));
        assert_eq!(count, 2000);
    }
    assert!(!files::part(directory.path(), 1).exists());
    let risers = risers::find(directory.path(), &incident).unwrap();
    let named: Vec<_> = risers.risers.iter().map(|r| (r.what, r.name.as_str())).collect();
    assert_eq!(named, [(RiserKind::Command, "spin"), (RiserKind::KernelSymbol, "do_spin")]);
    assert!(risers.baseline_samples > 900 && risers.burst_samples > 30);
    let (row, stored) = recording::incident(&files::recording(directory.path(), 1)).unwrap().unwrap();
    assert_eq!((row.number, row.subject.as_str()), (1, "core 1"));
    assert_eq!(stored, risers.risers);
    let calm = Incident { core: Some(0), ..incident };
    assert_eq!(risers::find(directory.path(), &calm).unwrap().risers, []);
}

#[test]
fn a_failed_freeze_says_why_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("incidents")).unwrap();
    assert!(freeze(directory.path(), 1, false).unwrap_err().to_string().contains("1.json"));
    files::write(directory.path(), &incident(Wall(1_780_000_000 * SECOND))).unwrap();
    assert!(freeze(directory.path(), 1, false).is_err());
    assert_eq!(files::numbers(directory.path()).unwrap(), [1]);
    assert_eq!(std::fs::read_dir(directory.path().join("incidents")).unwrap().count(), 1);
}
