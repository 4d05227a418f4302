//! A recorder's directory as other commands see it: segments of this node, and a recorder that seems to run.

use crate::support::*;
use coroner_evidence::Wall;
use coroner_evidence::recording::segments;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Records this node for 1.5 s into a segment.
fn record_segment(directory: &Path) {
    let path = directory.join(segments::name(Wall(now_ns()), 1));
    let out = coroner(&["record", "--for", "1500ms", "-o", path.to_str().unwrap()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A directory locked as a recorder locks it, and the place where it is registered.
struct Running {
    _lock: File,
    place: tempfile::TempDir,
}

impl Running {
    fn of(directory: &Path) -> Running {
        let lock = File::create(directory.join("lock")).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("1"), directory.to_str().unwrap()).unwrap();
        Running { _lock: lock, place }
    }

    fn coroner(&self, args: &[&str]) -> Output {
        Command::new(CORONER).args(args).env("CORONER_RUNNING", self.place.path()).output().unwrap()
    }
}

fn text(out: &Output) -> (String, String) {
    (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned())
}

fn window_seconds(diagnosis: &Value) -> f64 {
    let time = |end: &str| diagnosis["window"][end].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    (time("to") - time("from")).total(jiff::Unit::Second).unwrap()
}

#[test]
fn a_directory_is_diagnosed_as_one_recording() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let begun = now_ns();
    record_segment(dir.path());
    record_segment(dir.path());
    let whole = json_of(&coroner(&["diagnose", "--from", path, "--json"]));
    assert!((2.5..600.0).contains(&window_seconds(&whole)), "{:#}", whole["window"]);
    let last = json_of(&coroner(&["diagnose", "--from", path, "--last", "1s", "--json"]));
    assert!(window_seconds(&last) < window_seconds(&whole), "{:#}", last["window"]);
    assert_eq!(last["window"]["to"], whole["window"]["to"]);

    let said = text(&coroner(&["diagnose", "--from", path])).0;
    assert!(said.contains("from the last 10 minutes of"), "{said}");
    for command in ["cores", "zombies", "units"] {
        let out = coroner(&[command, "--from", path]);
        let (said, error) = text(&out);
        assert!(out.status.success() && said.contains("from the last 10 minutes of"), "{command}: {said}{error}");
        let out = coroner(&[command, "--from", path, "--last", "2s", "--json"]);
        assert!(json_of(&out)["schema"].is_string());
    }
    // By wall clock: a full timestamp and a time of day.
    let stamp = |ns: u64| jiff::Timestamp::from_second((ns / 1_000_000_000) as i64).unwrap().to_string();
    let until = stamp(now_ns() + 1_000_000_000);
    let out = coroner(&["diagnose", "--from", path, "--since", &stamp(begun), "--until", &until, "--json"]);
    assert!((2.5..600.0).contains(&window_seconds(&json_of(&out))));
    let of_day = &stamp(begun)[11..19];
    let out = coroner(&["cores", "--from", path, "--since", of_day, "--json"]);
    assert!((2.5..600.0).contains(&window_seconds(&json_of(&out))));
    let old = ["diagnose", "--from", path, "--since", "2020-01-01T00:00:00Z", "--until", "2020-01-02T00:00:00Z"];
    fails(&old, &["nothing was recorded from 2020-01-01T00:00:00Z"]);
    fails(&["diagnose", "--from", path, "--last", "5m", "--since", "05:00:00"], &["--last", "--since"]);
    fails(&["diagnose", "--from", path, "--since", "5m"], &["wall-clock time"]);
    fails(&["diagnose", "--from", path, "--bus", "unix:path=/x"], &["--bus"]);
}

#[test]
fn a_running_recorder_is_found() {
    let dir = tempfile::tempdir().unwrap();
    record_segment(dir.path());
    std::fs::create_dir(dir.path().join("incidents")).unwrap();
    let incident = |number: u64, age_h: u64| {
        let at = now_ns() - age_h * 3_600_000_000_000;
        let incident = json!({
            "schema": "coroner.incident/1", "number": number, "code": "core-saturated", "subject": "core 1", "core": 1,
            "text": "", "triggered_real_ns": at, "from_real_ns": at, "until_real_ns": at, "state": "complete",
            "repeats": 0, "error": null,
        });
        std::fs::write(dir.path().join(format!("incidents/{number}.json")), incident.to_string()).unwrap();
    };
    incident(1, 30);
    incident(2, 3);
    let running = Running::of(dir.path());

    let (said, error) = text(&running.coroner(&[]));
    let from =
        format!("from the recorder in {}, its last 10 minutes; use `coroner --for 5s` to watch", dir.path().display());
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(&from), "{said}{error}");
    assert!(flat.contains("1 incident in the last 24 hours: #2 core-saturated core 1 at"), "{said}");
    let told = json_of(&running.coroner(&["--json"]));
    assert_eq!(told["recorder"]["directory"], dir.path().to_str().unwrap());
    assert_eq!(told["recorder"]["incidents"].as_array().unwrap().len(), 1, "{:#}", told["recorder"]);
    assert_eq!(told["recorder"]["incidents"][0]["number"], 2);
    let told = json_of(&running.coroner(&["cores", "--last", "1s", "--json"]));
    assert_eq!(told["recorder"]["directory"], dir.path().to_str().unwrap());

    // --for and --no-recorder watch.
    for watch in [["--for", "300ms"].as_slice(), &["--no-recorder", "--root", "/"]] {
        let out = running.coroner(&[watch, &["--json"]].concat());
        assert_eq!(json_of(&out)["recorder"], Value::Null);
    }
    // Without the lock, no recorder is running.
    drop(running);
    let nobody = tempfile::tempdir().unwrap();
    std::fs::write(nobody.path().join("1"), dir.path().to_str().unwrap()).unwrap();
    let out = Command::new(CORONER).args(["--last", "5m"]).env("CORONER_RUNNING", nobody.path()).output().unwrap();
    let (_, error) = text(&out);
    assert!(out.status.code() == Some(2) && error.contains("no readable recorder is running"), "{error}");
}

#[test]
fn a_stuck_recorder_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    record_segment(dir.path());
    let running = Running::of(dir.path());
    std::thread::sleep(Duration::from_secs(11));
    let out = running.coroner(&["cores", "--json"]);
    let (_, error) = text(&out);
    assert!(error.contains("has stored nothing for") && error.contains("watching this node instead"), "{error}");
    assert_eq!(json_of(&out)["recorder"], Value::Null);
}
