//! The flight recorder: it runs, is killed, meets a full disk, and its directory is always readable. Each test looks at its own directory, so
//! they share the machine, but for the one that measures the recorder's memory during a storm of processes.

use crate::support::recorder::{Recorder, segment_bytes, segments};
use crate::support::*;
use coroner_evidence::{Wall, recording};
use coroner_lab::{Child, HostLock};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_recording_can_be_diagnosed_and_drawn_while_it_is_written() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(dir.path(), &[]);
    let from = dir.path().to_str().unwrap();
    wait_until("there are samples to draw", || coroner(&["flame", from, "--last", "1m", "--json"]).status.success());
    let diagnosis = json_of(&coroner(&["diagnose", "--from", from, "--last", "1m", "--json"]));
    assert!(diagnosis["window"].is_object(), "{diagnosis:#}");
    let cores = json_of(&coroner(&["cores", "--from", from, "--json"]));
    assert!(cores["cores"].as_array().is_some_and(|cores| !cores.is_empty()), "{cores:#}");
    assert_eq!(recorder.stop(), Some(0));
    let [segment] = &segments(dir.path())[..] else { panic!("one segment: {:?}", segments(dir.path())) };
    assert!(recording::read(segment).unwrap().about.sealed);
    assert!(!dir.path().join("control.sock").exists());
}

/// One file holds stacks as a directory does: a spinner is in its flame graph, heatmap and monopolies, the kernel's work in its diagnosis.
#[test]
fn a_recording_in_one_file_shows_where_the_time_went() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.coroner");
    let file = file.to_str().unwrap();
    let scenario = start_scenario("rt-monopoly", &[]);
    let recorded = json_of(&coroner(&["record", "-o", file, "--for", "3s", "--json"]));
    let (comm, core) = (fact(&scenario, "comm").to_owned(), scenario.truth.facts["core"].to_string());
    drop(scenario);
    assert!(recorded["samples"].as_u64().is_some_and(|samples| samples > 0), "{recorded:#}");
    let flame = json_of(&coroner(&["flame", file, "--core", &core, "--json"]));
    let spinner = flame["nodes"].as_array().unwrap().iter().find(|node| node["name"] == *comm);
    let share = spinner.unwrap()["total"].as_f64().unwrap() / flame["total"].as_f64().unwrap();
    assert!(share > 0.5, "{share} of core {core}");
    let monopolies = json_of(&coroner(&["monopolies", file, "--core", &core, "--json"]));
    let found = monopolies["monopolies"].as_array().unwrap();
    assert!(found.iter().any(|one| one["thread"]["comm"] == *comm), "{monopolies:#}");
    let heatmap = json_of(&coroner(&["heatmap", file, "--json"]));
    assert!(heatmap["cores"].as_array().is_some_and(|cores| !cores.is_empty()), "{heatmap:#}");
    let diagnosis = json_of(&coroner(&["diagnose", "--from", file, "--json"]));
    let unseen = diagnosis["unseen"].as_array().unwrap().iter();
    assert_eq!(unseen.filter(|unseen| unseen["probe"] == "kernel-samples").count(), 0, "{diagnosis:#}");
    // Without stacks, the kernel's work is sampled by itself.
    let bare = dir.path().join("bare.coroner");
    let bare = bare.to_str().unwrap();
    let recorded = json_of(&coroner(&["record", "-o", bare, "--for", "1s", "--rate", "0", "--json"]));
    assert_eq!(recorded["samples"], 0);
    assert!(!recording::read(Path::new(bare)).unwrap().evidence.kernel_work.is_empty());
    fails(&["flame", bare], &["no CPU samples"]);
}

#[test]
fn a_second_recorder_of_a_directory_is_refused() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let first = Recorder::start(dir.path(), &[]);
    let second = coroner(&["record", "--dir", dir.path().to_str().unwrap(), "--metrics", "off"]);
    assert_eq!(second.status.code(), Some(2));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains(&format!("another recorder (pid {})", first.child.id())), "{said}");
    assert_eq!(first.stop(), Some(0), "the first one was not disturbed");
    assert_eq!(Recorder::start(dir.path(), &[]).stop(), Some(0), "the directory is free again");
}

/// Its directory is moved and replaced by a link: nothing is written there, and the recorder ends and says why.
#[test]
fn a_recorder_whose_directory_is_replaced_ends() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let place = tempfile::tempdir().unwrap();
    let (dir, away, other) = (place.path().join("dir"), place.path().join("away"), place.path().join("other"));
    std::fs::create_dir(&other).unwrap();
    let mut recorder = Recorder::start(&dir, &[]);
    let has_seconds = || segments(&dir).first().is_some_and(|segment| recording::read(segment).is_ok());
    wait_until("seconds were recorded", has_seconds);
    std::fs::rename(&dir, &away).unwrap();
    std::os::unix::fs::symlink(&other, &dir).unwrap();
    wait_until("it ends", || recorder.child.try_wait().unwrap().is_some());
    let said = recorder.said();
    assert_eq!(recorder.child.wait().unwrap().code(), Some(2), "{said}");
    assert_eq!(said.matches("was removed, moved or replaced").count(), 1, "{said}");
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0, "nothing is written through the link");
    assert!(recording::read(&segments(&away)[0]).is_ok());
}

/// Starts and kills a recorder over and over; after each kill every file can be read.
fn kill_again_and_again(dir: &Path, mut random: u64, times: usize) {
    for round in 0..times {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Sometimes while it starts, mostly after that.
        let recorder = Recorder::spawn(dir, &[]);
        std::thread::sleep(Duration::from_millis(random % 1500));
        let before = segments(dir);
        recorder.kill();
        let mut empty = Vec::new();
        for segment in &before {
            match recording::read(segment) {
                Ok(recording) => {
                    let damage = recording.evidence.unseen.iter().find(|u| u.probe == recording::PROBE);
                    assert_eq!(damage, None, "round {round}: {}", segment.display());
                }
                // Killed before its first commit.
                Err(recording::RecordingError::Empty { .. }) => empty.push(segment),
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        assert!(empty.len() <= 1, "round {round}: a recorder removes empty files of the previous one: {empty:?}");
    }
}

#[test]
fn a_hundred_kills_lose_no_file() {
    let Some(_host) = HostLock::share_as_root() else { return };
    // Four at once, as they mostly sleep.
    let dirs = [(); 4].map(|()| tempfile::tempdir().unwrap());
    std::thread::scope(|scope| {
        for (dir, seed) in dirs.iter().zip(1u64..) {
            scope.spawn(move || kill_again_and_again(dir.path(), seed * 0x2545_f491_4f6c_dd1d, 25));
        }
    });
    let [dir, ..] = &dirs;
    // The last one runs for a while: what it committed is kept.
    let recorder = Recorder::start(dir.path(), &[]);
    let newest = || segments(dir.path()).last().cloned().expect("a segment");
    let last_look = |path: &Path| recording::read(path).ok().and_then(|r| Some(r.evidence.window()?.to));
    wait_until("three seconds are recorded", || {
        recording::read(&newest()).is_ok_and(|r| r.evidence.window().is_some_and(|w| w.length().as_secs() >= 3))
    });
    // Whatever was readable before the kill is readable after it.
    let committed = last_look(&newest()).expect("a window");
    let killed = coroner_probes::root::now();
    recorder.kill();
    let last = last_look(&newest()).expect("a window");
    println!("{:?} were lost", killed.since(last));
    assert!(last >= committed, "{:?} of committed time are lost", committed.since(last));
    // The next recorder checkpoints the logs.
    assert_eq!(Recorder::start(dir.path(), &[]).stop(), Some(0));
    let logs = std::fs::read_dir(dir.path()).unwrap().flatten();
    let logs: Vec<_> = logs.filter(|entry| entry.file_name().to_string_lossy().contains("-wal")).collect();
    assert!(logs.is_empty(), "{logs:?}");
}

/// A small file system, unmounted on drop.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(size: &str) -> Tmpfs {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("size={size},mode=755");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(directory.path()).status();
        assert!(mounted.expect("mount").success());
        Tmpfs(directory)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_loses_only_new_seconds_and_it_recovers() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let tmpfs = Tmpfs::mount("24m");
    let dir = tmpfs.0.path().join("d");
    let recorder = Recorder::start(&dir, &["--max-size", "64MiB"]);
    let looks = || {
        segments(&dir).iter().filter_map(|s| Some(recording::read(s).ok()?.evidence.core_times.len())).sum::<usize>()
    };
    wait_until("something is recorded", || looks() > 20);
    let ballast = tmpfs.0.path().join("ballast");
    // To the last byte: fails when nothing more fits.
    assert!(std::fs::write(&ballast, vec![7; 24 << 20]).is_err());
    wait_until("it says that the disk is full", || recorder.said().contains("the disk is full"));
    let before = looks();
    std::fs::remove_file(&ballast).unwrap();
    wait_until("it goes on", || looks() > before + 20);
    assert!(recorder.said().contains("can be written again"), "{}", recorder.said());
    assert_eq!(recorder.stop(), Some(0));
    for segment in segments(&dir) {
        recording::read(&segment).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn the_size_limit_is_kept_and_the_oldest_go_first() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let limit = 16 << 20;
    // Segments of an earlier run, more than the limit.
    for i in 0..40u64 {
        let name = recording::segments::name(Wall((1_700_000_000 + i * 600) * 1_000_000_000), 1);
        let writer = recording::Writer::create(&dir.path().join(&name)).unwrap();
        writer.finish(&[]).unwrap();
        let file = std::fs::File::options().append(true).open(dir.path().join(name)).unwrap();
        file.set_len(1 << 20).unwrap();
    }
    let first = segments(dir.path())[0].clone();
    let last = segments(dir.path())[39].clone();
    let mut stress = Command::new("stress-ng");
    let stress = Child::spawn("stress-ng", stress.args(["--fork", "1", "--cpu", "1", "--quiet"])).expect("stress-ng");
    let recorder = Recorder::start(dir.path(), &["--max-size", "16MiB", "--rate", "999"]);
    wait_until("the old ones are let go", || segment_bytes(dir.path()) <= limit);
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
        // One second may be in flight.
        assert!(segment_bytes(dir.path()) < limit + (2 << 20), "{}", segment_bytes(dir.path()));
    }
    drop(stress);
    assert!(!first.exists(), "the oldest went");
    assert!(last.exists(), "the newest of them stays");
    assert_eq!(recorder.stop(), Some(0));
    assert!(segment_bytes(dir.path()) <= limit, "{}", segment_bytes(dir.path()));
}

#[test]
fn a_storm_of_processes_is_survived_and_losses_are_counted() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(dir.path(), &[]);
    let stress = Command::new("stress-ng").args(["--fork", "2", "--timeout", "6s", "--quiet"]).status();
    assert!(stress.expect("stress-ng").success());
    let pid = recorder.child.id();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    assert!(peak.unwrap() < 96 << 10, "{peak:?} KiB at most");
    assert_eq!(recorder.stop(), Some(0));
    let evidence = recording::read_span(dir.path(), &recording::Span::All).unwrap().evidence;
    assert!(
        evidence.counters.has(coroner_evidence::Source::Sampler),
        "the number of lost samples is reported, even if it is 0"
    );
    let samples = json_of(&coroner(&["flame", dir.path().to_str().unwrap(), "--json"]));
    assert!(samples["source"]["samples"].as_u64().is_some_and(|n| n > 100), "{samples:#}");
}

#[test]
fn bad_settings_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    fails(&["record", "--dir", dir, "--max-size", "1MiB"], &["max_size"]);
    fails(&["record", "--max-size", "1GiB"], &["--dir"]);
    fails(&["record", "--dir", dir, "--metrics", "0.0.0.0:9478"], &["loopback"]);
    fails(&["record", "--dir", "/proc/nowhere"], &["/proc/nowhere"]);
    fails(&["record", "--config", "/nowhere/coroner.toml"], &["/nowhere/coroner.toml"]);
}
