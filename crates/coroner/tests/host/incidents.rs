//! Incidents: something happens, the minutes around it are frozen, shown, and exported. The test with log lines and marks looks for its own,
//! so it shares the machine.

use crate::support::recorder::Recorder;
use crate::support::*;
use coroner_evidence::recording;
use coroner_lab::HostLock;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// With these settings, an incident is complete after some seconds.
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

/// No core is stuck, no real-time thread runs and each wait is short: the ledger tells that a service starves, and the verdict who forks.
#[test]
fn a_service_that_a_fork_storm_starves_is_an_incident() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path(), "", &[]);
    let scenario = start_scenario("fork-storm", &[]);
    let comm = fact(&scenario, "comm").to_owned();
    let is_it = |i: &Value| i["code"] == "fork-storm" && i["by"] == *comm;
    await_incident(&recorder, "the storm begins an incident", is_it);
    scenario.stop().unwrap();
    let done = await_incident(&recorder, "it is complete, and over", |i| {
        is_it(i) && i["state"] == "complete" && i["over"].is_string()
    });
    let (number, from) = (done["number"].to_string(), recorder.dir.to_str().unwrap());
    let report = json_of(&coroner(&["incidents", "show", &number, "--dir", from, "--json"]));
    let first = &report["diagnosis"]["verdicts"][0]["root_cause"];
    assert_eq!(first["code"], "fork-storm", "{report:#}");
    assert!(first["subject"]["name"].as_str().unwrap().starts_with(&comm), "{first:#}");
    assert_eq!(recorder.stop(), Some(0));
}

#[test]
fn a_real_time_spinner_is_frozen_named_and_diagnosed_elsewhere() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path(), "[diagnosis]\nevery = \"10s\"\nmax_cpu = 100\n", &[]);
    let from = recorder.dir.to_str().unwrap().to_owned();
    // Something to compare with.
    std::thread::sleep(Duration::from_secs(4));
    let scenario = start_scenario("rt-monopoly", &[]);
    let truth = scenario.truth.clone();
    let (comm, core) = (truth.facts["comm"].as_str().unwrap().to_owned(), truth.facts["core"].as_u64().unwrap());
    let is_it = |i: &Value| i["code"] == "core-monopolised" && i["core"] == core;
    let found = await_incident(&recorder, "the spinner begins an incident", is_it);
    assert!(found["text"].as_str().unwrap().contains(&comm), "{found:#}");
    wait_until("the minutes before are frozen", || incident(&recorder, is_it).is_some_and(|i| i["frozen"].is_string()));
    // A recorder samples threads once a second: keep going until it has seen who waits.
    wait_until("the recorder has seen who waits", || {
        untrue(&truth, &json_of(&coroner(&["diagnose", "--from", &from, "--last", "1m", "--json"]))).is_none()
    });
    // The recorder's own diagnoses report it while it goes on, and when it ended.
    let episode = |state: &str| {
        let history = json_of(&coroner(&["history", "--from", &from, "--json"]));
        let told = |problem: &Value| problem["title"].as_str().unwrap().contains(&comm) && problem["state"] == state;
        history["problems"].as_array().unwrap().iter().any(told)
    };
    wait_until("the history says that it goes on", || episode("goes on"));
    scenario.stop().unwrap();
    wait_until("the history says that it ended", || episode("ended"));
    let done = await_incident(&recorder, "the incident is complete", |i| is_it(i) && i["state"] == "complete");
    let took = seconds_between(&done["triggered"], &done["frozen"]);
    println!("frozen {took:.2} s after the trigger");

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

/// Two problems of the same kind, one after the other: each is reported with its own culprit and length, and as over.
#[test]
fn consecutive_problems_are_told_apart() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    // Long enough for the whole problem.
    let settings = dir.path().join("coroner.toml");
    std::fs::write(&settings, "[incidents]\nafter = \"10s\"\n").unwrap();
    let recorder = Recorder::start(
        &dir.path().join("d"),
        &["--config", settings.to_str().unwrap(), "--max-size", "64MiB", "--metrics", "127.0.0.1:0"],
    );
    let from = recorder.dir.to_str().unwrap().to_owned();
    let mut told = Vec::new();
    for seed in ["11", "12"] {
        let began = std::time::Instant::now();
        let scenario = start_scenario("nic-starved", &["--seed", seed]);
        let comm = scenario.truth.facts["comm"].as_str().unwrap().to_owned();
        let is_it = |i: &Value| i["by"] == comm.as_str();
        let found = await_incident(&recorder, "the spinner begins an incident", is_it);
        assert_eq!(found["over"], Value::Null, "it goes on: {found:#}");
        std::thread::sleep(Duration::from_secs(5));
        let measured = scenario.stop().unwrap();
        let lasted = began.elapsed().as_secs_f64();
        let done = await_incident(&recorder, "it is over and complete", |i| {
            is_it(i) && i["over"].is_string() && i["state"] == "complete"
        });
        let seconds = done["lasted_seconds"].as_f64().unwrap();
        // A delayed recorder sees start and end late. But the length is that of this problem, not of both.
        assert!((2.5..lasted + 4.0).contains(&seconds), "{seconds} of at most {lasted}");
        told.push((done["number"].to_string(), comm, measured["napi_waited_ms"].as_f64().unwrap()));
    }

    let said = recorder.said();
    let (_, address) = said.split_once("metrics at http://").unwrap_or_else(|| panic!("no metrics: {said}"));
    let metrics = metrics(address.split_once('/').unwrap().0);
    let value = |name: &str| -> f64 {
        metrics.lines().filter_map(|line| line.strip_prefix(name)?.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    assert!(value("coroner_core_saturated_seconds_total") >= 5.0, "{metrics}");
    assert!(value("coroner_starved_nic_queues") >= 1.0, "{metrics}");

    // Each incident starts with what triggered it, though the second one's minutes contain both.
    for (number, comm, waited_ms) in &told {
        let report = json_of(&coroner(&["incidents", "show", number, "--dir", &from, "--json"]));
        let verdict = &report["diagnosis"]["verdicts"][0];
        let root = verdict["root_cause"]["subject"]["name"].as_str().unwrap_or_default();
        assert!(root.starts_with(&format!("{comm}[")), "incident {number} leads with {root}, not {comm}");
        // Only long waits are reported, as a lower bound. If the kernel let the thread run now and then, there are few.
        if *waited_ms < 4_000.0 {
            continue;
        }
        let chain = verdict["chain"].as_array().unwrap();
        let waits = chain.iter().filter(|link| link["to"]["code"] == "nic-core-starved").flat_map(|link| {
            let evidence = link["evidence"].as_array().cloned().unwrap_or_default();
            evidence.into_iter().filter(|fact| fact["what"].as_str().unwrap().starts_with("napi/"))
        });
        let told_ms = waits.filter_map(|fact| fact["value"].as_f64()).fold(0.0, f64::max);
        assert!(told_ms >= 0.2 * waited_ms, "incident {number}: {told_ms} ms of {waited_ms}");
    }
    // Later, both are reported as over.
    wait_until("both are over for ten seconds", || {
        let diagnosis = json_of(&coroner(&["diagnose", "--from", &from, "--json"]));
        let over = |comm: &str| {
            diagnosis["verdicts"].as_array().unwrap().iter().any(|verdict| {
                let root = verdict["root_cause"]["subject"]["name"].as_str().unwrap_or_default();
                root.starts_with(&format!("{comm}[")) && verdict["over"].is_string()
            })
        };
        told.iter().all(|(_, comm, _)| over(comm))
    });
    let text = coroner(&["diagnose", "--from", &from]).stdout;
    let text = String::from_utf8_lossy(&text);
    // In a list of their own if something else goes on.
    assert!(text.contains("Ended ") || text.contains("\nOver\n"), "{text}");
    assert_eq!(recorder.stop(), Some(0));
}

fn metrics(address: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream
        .write_all(format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn log_lines_and_marks_are_incidents_and_a_killed_recorders_ones_are_completed() {
    let Some(_host) = HostLock::share_as_root() else { return };
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
    fails(&["mark", "too late", "--dir", &from], &["no recorder is running here", "coroner record --dir"]);
    // The next recorder completes it, reuses no number, and ignores old log lines.
    let second = recorder(dir.path(), "", &["--trust-user-log"]);
    let done = await_incident(&second, "the mark's incident is complete", |i| marked(i) && i["state"] == "complete");
    assert_eq!(done["number"], mark["number"]);
    let numbers = |r: &Recorder| r.incidents().iter().map(|i| i["number"].as_u64().unwrap()).max().unwrap();
    assert_eq!(second.incidents().iter().filter(|i| is_it(i)).count(), 1);
    let before = numbers(&second);
    stdout(&["mark", "again", "--dir", &from]);
    await_incident(&second, "another mark", |i| i["text"] == "again");
    assert!(numbers(&second) > before);
    // On exit it freezes what is open.
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
    fails(&["incidents", "show", "1", "--dir", here], &["there is no incident 1; there are none at all"]);
    fails(&["incidents", "--dir", "/no/such/directory"], &["there is no directory /no/such/directory", "--dir DIR"]);
    fails(&["export", "--incident", "1", "--dir", here, "-o", "x.coroner"], &["there is no incident 1"]);
    fails(&["export", "-o", "x.svg"], &["<FILE>"]);
    fails(&["mark", "x", "--dir", here], &["no recorder is running here"]);
}
