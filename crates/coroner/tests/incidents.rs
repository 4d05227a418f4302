//! Incidents as users meet them: something happens, the minutes around are frozen, told, and handed to a colleague.

mod support;

use coroner_evidence::recording;
use coroner_lab::HostLock;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::recorder::Recorder;
use support::*;

/// Settings under which an incident is complete after some seconds.
fn settings(dir: &Path, more: &str) -> PathBuf {
    let path = dir.join("coroner.toml");
    std::fs::write(&path, format!("[incidents]\nbefore = \"60s\"\nafter = \"5s\"\n{more}")).unwrap();
    path
}

fn recorder(dir: &Path, more: &str, args: &[&str]) -> Recorder {
    let settings = settings(dir, more);
    let mut all = vec!["--config", settings.to_str().unwrap(), "--max-size", "64MiB"];
    all.extend(args);
    Recorder::start(&dir.join("d"), &all)
}

fn incident(recorder: &Recorder, is_it: impl Fn(&Value) -> bool) -> Option<Value> {
    recorder.incidents().into_iter().find(|incident| is_it(incident))
}

fn await_incident(recorder: &Recorder, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    wait_until(what, || incident(recorder, &is_it).is_some());
    incident(recorder, &is_it).unwrap()
}

fn seconds_between(earlier: &Value, later: &Value) -> f64 {
    let time = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    time(later).duration_since(time(earlier)).as_secs_f64()
}

#[test]
fn a_real_time_spinner_is_frozen_named_and_diagnosed_elsewhere() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path(), "", &[]);
    let from = recorder.dir.to_str().unwrap().to_owned();
    // Something to compare with.
    std::thread::sleep(Duration::from_secs(10));
    let scenario = start_scenario("rt-monopoly", &[]);
    let truth = scenario.truth.clone();
    let (comm, core) = (truth.facts["comm"].as_str().unwrap().to_owned(), truth.facts["core"].as_u64().unwrap());
    let is_it = |i: &Value| i["code"] == "core-monopolised" && i["core"] == core;
    let found = await_incident(&recorder, "the spinner begins an incident", is_it);
    assert!(found["text"].as_str().unwrap().contains(&comm), "{found:#}");
    wait_until("the minutes before are frozen", || incident(&recorder, is_it).is_some_and(|i| i["frozen"].is_string()));
    // A recorder looks at the threads each second: the trouble goes on until it has seen who waits.
    wait_until("the recorder has seen who waits", || {
        untrue(&truth, &json_of(&coroner(&["diagnose", "--from", &from, "--last", "1m", "--json"]))).is_none()
    });
    scenario.stop().unwrap();
    let done = await_incident(&recorder, "the incident is complete", |i| is_it(i) && i["state"] == "complete");
    let took = seconds_between(&done["triggered"], &done["frozen"]);
    println!("frozen {took:.2} s after the trigger");
    assert!(took < 10.0, "frozen {took} s after the trigger");

    let number = done["number"].to_string();
    let text = stdout(&["incidents", "show", &number, "--dir", &from]);
    assert!(text.contains(&comm) && text.contains("core-monopolised"), "{text}");
    let report = json_of(&coroner(&["incidents", "show", &number, "--dir", &from, "--json"]));
    assert_truth(&truth, &report["diagnosis"]);
    let rose = |r: &Value| r["what"] == "command" && r["name"] == comm.as_str();
    assert!(report["risers"].as_array().unwrap().iter().any(rose), "{:#}", report["risers"]);

    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("x.coroner");
    let copy = copy.to_str().unwrap();
    stdout(&["export", "--incident", &number, "--dir", &from, "-o", copy]);
    assert_eq!(recorder.stop(), Some(0));
    std::fs::remove_dir_all(&from).unwrap();
    assert_truth(&truth, &json_of(&coroner(&["diagnose", "--from", copy, "--json"])));
    assert!(json_of(&coroner(&["cores", "--from", copy, "--json"]))["cores"].is_array());
    let flame = stdout(&["flame", copy, "--core", &core.to_string()]);
    assert!(flame.contains(&comm), "{flame}");
    fails(
        &["export", "--incident", &number, "--dir", elsewhere.path().to_str().unwrap(), "-o", "y.coroner"],
        &["there is no incident"],
    );
}

#[test]
fn a_line_of_the_log_and_a_mark_are_incidents_and_a_killed_recorder_leaves_none_open() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let said = dir.path().join("said");
    let hook = format!(
        "hook = [\"/bin/sh\", \"-c\", \"echo $CORONER_INCIDENT_NUMBER $CORONER_INCIDENT_CODE >> {}\"]\n",
        said.display()
    );
    let first = recorder(dir.path(), &hook, &["--trust-user-log"]);
    let from = first.dir.to_str().unwrap().to_owned();
    std::thread::sleep(Duration::from_secs(3));
    let line = "<3>ena 0000:20:03.0 eth9: TX q 5 is paused for too long (threshold 5000000). Time since last napi 6596000 usec. napi scheduled: 1\n";
    std::fs::write("/dev/kmsg", line).unwrap();
    let is_it = |i: &Value| i["code"] == "nic-reset" && i["subject"] == "eth9";
    let done = await_incident(&first, "the line's incident is complete", |i| is_it(i) && i["state"] == "complete");
    let path = done["file"].as_str().unwrap();
    let frozen = recording::read(Path::new(path)).unwrap();
    assert!(frozen.about.sealed);
    assert!(frozen.evidence.log.iter().any(|l| l.text.contains("eth9")));
    assert!(frozen.evidence.window().unwrap().length() >= Duration::from_secs(5), "{:?}", frozen.evidence.window());
    wait_until("the hook ran", || std::fs::read_to_string(&said).is_ok_and(|said| said.ends_with("nic-reset\n")));

    stdout(&["mark", "deploy 7 begins", "--dir", &from]);
    let marked = |i: &Value| i["code"] == "mark" && i["text"] == "deploy 7 begins";
    let mark = await_incident(&first, "the mark is an incident", marked);
    first.kill();
    fails(&["mark", "too late", "--dir", &from], &["no recorder runs here", "coroner record --dir"]);
    // The next one finishes it, begins no number again, and does not take up lines of old.
    let second = recorder(dir.path(), "", &["--trust-user-log"]);
    let done = await_incident(&second, "the mark's incident is complete", |i| marked(i) && i["state"] == "complete");
    assert_eq!(done["number"], mark["number"]);
    let numbers = |r: &Recorder| r.incidents().iter().map(|i| i["number"].as_u64().unwrap()).max().unwrap();
    assert_eq!(second.incidents().iter().filter(|i| is_it(i)).count(), 1);
    let before = numbers(&second);
    stdout(&["mark", "again", "--dir", &from]);
    await_incident(&second, "another mark", |i| i["text"] == "again");
    assert!(numbers(&second) > before);
    // Its end freezes what is open.
    assert_eq!(second.stop(), Some(0));
    let listed = json_of(&coroner(&["incidents", "--dir", &from, "--json"]));
    let states: Vec<&str> =
        listed["incidents"].as_array().unwrap().iter().map(|i| i["state"].as_str().unwrap()).collect();
    assert!(states.iter().all(|state| *state == "complete"), "{listed:#}");
    assert!(stdout(&["incidents", "--dir", &from]).contains("deploy 7 begins"));
    fails(&["incidents", "show", "999", "--dir", &from], &["there is no incident 999", "there are 1 to"]);
}

#[test]
fn without_a_recorder_the_commands_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().to_str().unwrap();
    assert!(stdout(&["incidents", "--dir", here]).contains("no incidents in"));
    fails(&["incidents", "show", "1", "--dir", here], &["there is no incident 1, nor any other"]);
    fails(&["incidents", "--dir", "/no/such/directory"], &["there is no directory /no/such/directory", "--dir DIR"]);
    fails(&["export", "--incident", "1", "--dir", here, "-o", "x.coroner"], &["there is no incident 1"]);
    fails(&["export", "-o", "x.svg"], &["<FILE>"]);
    fails(&["mark", "x", "--dir", here], &["no recorder runs here"]);
}
