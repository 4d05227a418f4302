//! Spans of time from a directory of segments, as a recorder leaves it or is writing it.

use crate::killed::write_and_kill;
use crate::scratch::{second, snapshot};
use coroner_evidence::recording::{NOT_RECORDED, PROBE, RecordingError, Span, Writer, read_span, segments};
use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{Clocks, Evidence, Node, Process, Source, Thread, ThreadKey, Time, Unit, UnitLogLine, Wall};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CORES: u32 = 4;
/// Second 0 of [`second`], on both clocks.
const REAL: u64 = 1_780_000_000_000_000_000;
const MONOTONIC: u64 = 1_000_000_000_000;
const S: u64 = 1_000_000_000;

fn at(i: u64) -> Time {
    Time(MONOTONIC + i * S)
}

fn process(at: Time, pid: u32) -> Process {
    Process { at, pid, started: 5, ppid: 1, comm: format!("comm-{pid}"), ..Process::default() }
}

fn thread(at: Time, tid: u32) -> Thread {
    Thread {
        at,
        key: ThreadKey { tid, started: 5 },
        pid: tid,
        comm: format!("comm-{tid}"),
        class: SchedulingClass::Other,
        ..Thread::default()
    }
}

fn unit(at: Time, restarts: u32) -> Unit {
    let [name, load_state, active_state] = ["ecs.service", "loaded", "active"].map(str::to_owned);
    Unit { at, name, load_state, active_state, restarts: Some(restarts), ..Unit::default() }
}

/// What a segment begins with: everything otherwise described once, and the kernel log as far as the kernel still has it.
fn told_anew(i: u64, boot: &str) -> Evidence {
    let mut seen = second(i, CORES);
    let node = Node { host: Some("node-1".into()), boot_id: Some(boot.to_owned()), ..Node::default() };
    seen.node = Some(node);
    seen.clocks = vec![Clocks { at: at(i), wall: Wall(REAL + i * S), boot_ns: at(i).0 }];
    seen.processes = (1..20).map(|pid| process(at(i), pid)).collect();
    seen.threads = (1..20).map(|tid| thread(at(i), tid)).collect();
    seen.units = vec![unit(at(i), i as u32)];
    seen.counters.push(Source::Vmstat, "", "oom_kill", at(i), 3);
    let again = (0..i).flat_map(|earlier| second(earlier, CORES).log);
    seen.log.splice(
        0..0,
        again.map(|mut line| {
            line.uncertainty_ns = 7;
            line
        }),
    );
    let line =
        |i: u64| UnitLogLine { unit: "ecs.service".into(), at: Wall(REAL + i * S), text: "x".into(), restart: None };
    seen.unit_log = (0..=i).map(line).collect();
    seen
}

/// Seconds `from..to`, as a recorder would store them.
fn write(directory: &Path, from: u64, to: u64, boot: &str) -> PathBuf {
    let path = directory.join(segments::name(Wall(REAL + from * S), 1));
    let mut writer = Writer::create(&path).unwrap();
    for i in from..to {
        let seen = if i == from { told_anew(i, boot) } else { second(i, CORES) };
        writer.append(&seen).unwrap();
    }
    writer.finish(&[]).unwrap();
    path
}

fn between(from: u64, to: u64) -> Span {
    Span::Between { from: Wall(REAL + from * S), to: Wall(REAL + to * S) }
}

fn read(path: &Path, span: Span) -> Evidence {
    read_span(path, &span).unwrap().evidence
}

fn missing(evidence: &Evidence) -> Vec<&str> {
    let of_us = |u: &&coroner_evidence::Unseen| [PROBE, NOT_RECORDED].contains(&u.probe.as_str());
    evidence.unseen.iter().filter(of_us).map(|u| u.what.as_str()).collect()
}

#[test]
fn a_span_crosses_segments_as_if_they_were_one() {
    let dir = tempfile::tempdir().unwrap();
    for part in 0..4 {
        write(dir.path(), part * 30, part * 30 + 30, "b00t");
    }
    let before = snapshot(dir.path());
    let seen = read(dir.path(), Span::Last(Duration::from_secs(50)));
    assert_eq!(snapshot(dir.path()), before, "reading changed something");
    assert_eq!(missing(&seen), [""; 0]);

    // Second 119 is the last; the last look is at its end. The look at the threads before that is of the same second.
    let window = seen.window().unwrap();
    assert_eq!((window.from, window.to), (at(69), at(119) + Duration::from_millis(900)));
    assert_eq!(seen.core_times.len(), 51 * 10);
    assert!(seen.core_times.is_sorted_by_key(|look| look.at));
    // Each thread's state at the start, then one sample per second, and no more.
    assert_eq!(seen.thread_samples.len(), 19 * 51);
    assert_eq!(seen.thread_samples.iter().map(|s| s.at).min(), Some(at(69)));
    let first = seen.thread_samples.iter().find(|s| s.key.tid == 7).unwrap();
    assert_eq!(first.user_ticks, 69 * 7);
    let moved = seen.counters.delta(Source::Softnet, "cpu3", "processed").unwrap();
    assert_eq!((moved.from.value, moved.to.value, moved.from.at), (69_000, 119_000, at(69)));

    // What each segment repeats comes once, and of repeated lines the one with the most precise time stays.
    assert_eq!((seen.processes.len(), seen.threads.len(), seen.cgroup_mounts.len()), (19, 19, 0));
    assert_eq!(seen.log.len(), 120);
    assert!(seen.log[60..].iter().all(|line| line.uncertainty_ns == 0), "{:?}", &seen.log[60..62]);
    assert_eq!(seen.unit_log.len(), 91);
    // One look at the unit from before the span, one in it.
    assert_eq!(seen.units.iter().map(|u| u.restarts.unwrap()).collect::<Vec<_>>(), [60, 90]);
    assert_eq!(seen.zombie_scans.iter().map(|s| s.dead.unwrap()).collect::<Vec<_>>(), [280, 300]);
    // Those of seconds 80 and 100.
    assert_eq!((seen.cgroup_churn.len(), seen.kernel_work.len()), (2, 2));
    assert_eq!(seen.clocks.last().unwrap().at, at(90));
    assert!(seen.node.is_some());
}

#[test]
fn nothing_later_than_the_span_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    for part in 0..3 {
        write(dir.path(), part * 30, part * 30 + 30, "b00t");
    }
    let seen = read(dir.path(), between(40, 50));
    let window = seen.window().unwrap();
    // A span begins with a look at the threads: the last one before it is in second 39.
    assert_eq!((window.from, window.to), (at(39), at(50)));
    assert_eq!(seen.log.iter().map(|l| l.at).max(), Some(at(50)));
    assert_eq!(seen.unit_log.len(), 31);
    assert_eq!(seen.units.len(), 1);
    assert!(seen.thread_samples.iter().all(|s| s.at <= at(50)));
    assert!(seen.counters.iter().all(|(_, points)| points.iter().all(|p| p.at <= at(50))));
    // A counter that never moves is still known.
    assert_eq!(seen.counters.last(Source::Vmstat, "", "oom_kill"), Some(3));
    assert_eq!(seen.zombie_scans.iter().map(|s| s.dead.unwrap()).collect::<Vec<_>>(), [240]);
    assert_eq!(missing(&seen), [""; 0]);

    // The same from one file.
    let one = read(&dir.path().join(segments::name(Wall(REAL + 30 * S), 1)), between(40, 50));
    assert_eq!((one.core_times, one.thread_samples), (seen.core_times, seen.thread_samples));
    assert_eq!(one.counters, seen.counters);
}

#[test]
fn a_gap_while_the_recorder_was_down_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0, 30, "b00t");
    write(dir.path(), 90, 120, "b00t");
    let seen = read(dir.path(), Span::Last(Duration::from_secs(600)));
    assert_eq!(missing(&seen), ["60 seconds, 2026-05-28T20:27:09Z to 2026-05-28T20:28:10Z"]);
    assert_eq!(seen.core_times.len(), 600);
    // Also if the span begins or ends without data.
    let seen = read(dir.path(), between(20, 60));
    assert_eq!(missing(&seen), ["30 seconds, 2026-05-28T20:27:09Z to 2026-05-28T20:27:40Z"]);
    let seen = read(dir.path(), between(60, 100));
    assert_eq!(missing(&seen), ["30 seconds, 2026-05-28T20:27:40Z to 2026-05-28T20:28:10Z"]);
    // Without any data it is an error.
    let error = read_span(dir.path(), &between(40, 60)).unwrap_err().to_string();
    assert!(error.contains("nothing was recorded from 2026-05-28T20:27:20Z to 2026-05-28T20:27:40Z"), "{error}");
    assert!(error.contains("the newest data is from 2026-05-28T20:28:10Z to 2026-05-28T20:28:39Z"), "{error}");
}

#[test]
fn of_several_boots_the_newest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0, 30, "first");
    write(dir.path(), 30, 60, "first");
    write(dir.path(), 60, 90, "second");
    for span in [Span::All, Span::Last(Duration::from_secs(80)), between(0, 90)] {
        let seen = read(dir.path(), span);
        assert_eq!(seen.core_times.len(), 300, "{span:?}");
        assert!(missing(&seen).contains(&"what was recorded until 2026-05-28T20:27:39Z"), "{:?}", seen.unseen);
    }
    let seen = read(dir.path(), Span::Last(Duration::from_secs(20)));
    assert_eq!(missing(&seen), [""; 0]);
    let seen = read(dir.path(), between(10, 50));
    assert_eq!((seen.core_times.len(), missing(&seen)), (411, vec![]));
}

#[test]
fn a_damaged_segment_does_not_hide_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..3).map(|part| write(dir.path(), part * 30, part * 30 + 30, "b00t")).collect();
    std::fs::write(&paths[1], vec![b'x'; 5000]).unwrap();
    let seen = read(dir.path(), Span::All);
    assert_eq!(seen.core_times.len(), 600);
    let told = missing(&seen);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0], "the segment that begins at 2026-05-28T20:27:10Z");
    assert!(told[1].starts_with("30 seconds"), "{told:?}");
    // Damage may hide something from a rule; what was never recorded is no damage.
    assert_eq!(seen.unseen.iter().map(|u| u.probe.as_str()).collect::<Vec<_>>(), [PROBE, NOT_RECORDED]);
    // If all are damaged, that is the error.
    for path in [&paths[0], &paths[2]] {
        std::fs::write(path, vec![b'x'; 5000]).unwrap();
    }
    assert!(matches!(read_span(dir.path(), &Span::All), Err(RecordingError::NotSqlite { .. })));
}

#[test]
fn a_wall_clock_that_was_set_back_does_not_hide_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    // Named as if they had begun an hour later.
    let name = |i: u64| dir.path().join(segments::name(Wall(REAL + i * S), 1));
    for from in [0, 30] {
        std::fs::rename(write(dir.path(), from, from + 30, "b00t"), name(3600 + from)).unwrap();
    }
    let mut writer = Writer::create(&name(60)).unwrap();
    for i in 60..80 {
        writer.append(&if i == 60 { told_anew(i, "b00t") } else { second(i, CORES) }).unwrap();
    }
    let seen = read(dir.path(), Span::Last(Duration::from_secs(40)));
    let window = seen.window().unwrap();
    assert_eq!((window.from, window.to), (at(39), at(79) + Duration::from_millis(900)));
    assert_eq!(missing(&seen), [""; 0]);
    drop(writer);
}

#[test]
fn a_directory_is_read_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for part in 0..10 {
                let path = dir.path().join(segments::name(Wall(REAL + part * 30 * S), 1));
                let mut writer = Writer::create(&path).unwrap().sync_every(Duration::from_millis(5));
                for i in part * 30..part * 30 + 30 {
                    let seen = if i == part * 30 { told_anew(i, "b00t") } else { second(i, CORES) };
                    // Would fail if a reader were in its way: it waits for nobody for long.
                    writer.append(&seen).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
                // A reader may keep the log in place just now; it is read from there.
                if let Err(error) = writer.finish(&[]) {
                    assert!(matches!(error, RecordingError::NotAlone { .. }), "{error}");
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let (mut reads, mut last) = (0, Time(0));
        while !done.load(Ordering::Relaxed) {
            match read_span(dir.path(), &Span::Last(Duration::from_secs(20))) {
                Ok(recording) => {
                    let seen = recording.evidence;
                    let window = seen.window().unwrap();
                    assert!(window.to >= last, "time went back from {last:?} to {:?}", window.to);
                    assert!(window.length() <= Duration::from_secs(21));
                    assert_eq!(seen.core_times.len() as u128, window.length().as_millis() / 100 + 1);
                    assert_eq!(missing(&seen), [""; 0], "{:?}", seen.unseen);
                    last = window.to;
                    reads += 1;
                }
                // Nothing is there yet.
                Err(RecordingError::Other { .. } | RecordingError::Empty { .. }) if reads == 0 => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(reads > 0);
        writer.join().unwrap();
    });
    assert_eq!(read(dir.path(), Span::All).core_times.len(), 3000);
}

#[test]
fn segments_of_a_killed_recorder_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(segments::name(Wall(REAL), 1));
    let appended = write_and_kill(&path, Duration::from_millis(40));
    assert!(dir.path().join(segments::name(Wall(REAL), 1) + "-wal").exists());
    let log = std::fs::read(dir.path().join(segments::name(Wall(REAL), 1) + "-wal")).unwrap();
    let seen = read(dir.path(), Span::Last(Duration::from_secs(3)));
    let window = seen.window().unwrap();
    assert!(window.to >= at(appended - 1) && window.length() <= Duration::from_secs(4), "{window:?}");
    assert_eq!(missing(&seen), [""; 0]);
    // A new recorder continues beside it.
    let next = appended + 10;
    write(dir.path(), next, next + 5, "b00t");
    let seen = read(dir.path(), Span::Last(Duration::from_secs(30)));
    assert_eq!(missing(&seen).len(), 1, "{:?}", seen.unseen);
    assert_eq!(std::fs::read(dir.path().join(segments::name(Wall(REAL), 1) + "-wal")).unwrap(), log);
}

#[test]
fn a_directory_without_segments_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let error = read_span(dir.path(), &Span::All).unwrap_err().to_string();
    assert!(error.contains("this directory has no recorder segments"), "{error}");
    let gone = read_span(&dir.path().join("gone"), &Span::All).unwrap_err();
    assert!(matches!(gone, RecordingError::Missing { .. }));
}
