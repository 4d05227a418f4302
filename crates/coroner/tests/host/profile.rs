//! Profiles by the real perf.

use crate::support::*;
use coroner_lab::HostLock;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Bursts of a real-time thread on core 1, recorded by the real perf.
#[test]
fn real_bursts_are_found_in_perf_data_and_nothing_else_of_that_thread() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // A unique name, to tell it apart from whatever else runs here.
    let hog = path("burst-hog");
    // Copied by another process: a child that another thread forks meanwhile would inherit our write fd, and exec would fail (ETXTBSY).
    assert!(Command::new("cp").args(["/bin/sh", &hog]).status().expect("cp").success());
    let data = path("perf.data");
    let burst = format!("chrt -r 20 taskset -c 1 timeout 0.35 {hog} -c 'while :; do :; done'");
    let script = format!("for i in 1 2 3; do sleep 0.6; {burst}; done; true");
    let record = || {
        let before = stolen_ticks(1);
        let perf = Command::new("perf")
            .args(["record", "-q", "-F", "999", "-a", "-g", "-o", &data, "--", "sh", "-c", &script])
            .stdin(Stdio::null())
            .status();
        assert!(perf.expect("perf (Debian: linux-perf)").success());
        stolen_ticks(1) - before
    };
    // A hypervisor that stops the core for tens of milliseconds cuts a burst in two: there are no samples meanwhile.
    if !(0..20).any(|_| record() <= 1) {
        return println!("not judged: the hypervisor took core 1 away in each of 20 recordings");
    }
    let document = json_of(&coroner(&["monopolies", &data, "--json"]));
    let all = document["monopolies"].as_array().expect("a list");
    let runs: Vec<&Value> = all.iter().filter(|run| run["thread"]["comm"] == "burst-hog").collect();
    assert_eq!(runs.len(), 3, "{all:?}");
    let text = path("script.txt");
    let script =
        Command::new("perf").args(["script", "-i", &data]).stdout(fs::File::create(&text).expect("a file")).status();
    assert!(script.expect("perf script").success());
    // Compare with what perf saw: on a loaded machine `timeout` itself is late.
    let script = fs::read_to_string(&text).expect("perf's text");
    for run in &runs {
        let length = run["length_ms"].as_f64().expect("a length");
        let seen = seconds_between_first_and_last(&script, &run["thread"]["tid"].to_string()) * 1000.0;
        let uncertainty = run["uncertainty_ms"].as_f64().expect("an uncertainty");
        assert!(seen > 300.0 && (seen - length).abs() < 5.0 + uncertainty, "perf saw {seen} ms: {run:?}");
        assert_eq!(run["core"], 1);
    }
    // The same through the text of perf script.
    let of_text = json_of(&coroner(&["monopolies", &text, "--json"]));
    assert_eq!(of_text["monopolies"].as_array().expect("a list").len(), all.len());
    assert!(Path::new(&data).exists());
}

/// Time that the hypervisor took from this core since boot.
fn stolen_ticks(core: u32) -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let line = stat.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} "))).unwrap();
    line.split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// Between the samples of `burst-hog` with this TID in perf script's text.
fn seconds_between_first_and_last(script: &str, tid: &str) -> f64 {
    let times = script.lines().filter_map(|line| {
        let mut words = line.strip_prefix("burst-hog")?.split_whitespace();
        let of_thread = words.next()? == tid;
        let time = words.find_map(|word| word.strip_suffix(':')?.parse::<f64>().ok())?;
        of_thread.then_some(time)
    });
    let times: Vec<f64> = times.collect();
    times.last().expect("samples") - times.first().expect("samples")
}
