//! Invented cases for real: they are made, judged and cleaned up, whatever coroner answers.

use coroner_lab::leftovers;
use coroner_lab::{HostLock, node};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_coroner-lab");

/// A coroner that says this after a second.
fn coroner(answer: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("coroner");
    fs::write(&path, format!("#!/bin/sh\nsleep 1\necho '{answer}'\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    (dir, path)
}

/// Takes its turn itself, so the test must not hold the lock.
fn invent(args: &[&str], coroner: &std::path::Path) -> Output {
    Command::new(BINARY).arg("invent").args(args).arg("--coroner").arg(coroner).output().unwrap()
}

/// The first seed whose case has these troubles.
fn seed_with(troubles: &[&str]) -> String {
    let out = Command::new(BINARY).args(["invent", "--dry", "--runs", "2000", "--seed", "1"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let cases = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut cases = cases.filter(|case| case["troubles"] == serde_json::json!(troubles));
    cases.next().unwrap_or_else(|| panic!("no case with {troubles:?}"))["seed"].to_string()
}

#[test]
fn who_says_nothing_misses_every_loss_and_nothing_is_left() {
    let Some(lock) = HostLock::share_as_root() else { return };
    drop(lock);
    let (_dir, silent) = coroner(r#"{"findings": [], "verdicts": []}"#);
    for kind in ["block", "leak", "quota"] {
        let seed = seed_with(&[kind]);
        let out = invent(&["--runs", "1", "--seed", &seed, "--json"], &silent);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let document: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{kind}: {e}: {said}"));
        assert_eq!(document["schema"], "coroner-lab.invent/1");
        let lost = &document["cases"][0]["judged"]["lost"];
        if kind == "leak" {
            assert_eq!((&lost[0]["kind"], &lost[0]["found"]), (&kind.into(), &false.into()), "{document}");
            assert_eq!(out.status.code(), Some(1), "{said}");
        }
        // The others depend on how much of a core there was; what they measured is there in any case.
        let measured = &document["cases"][0]["happened"];
        let fate = if kind == "block" { &measured["blocked"] } else { &measured["fates"][0] };
        assert!(kind == "leak" || fate["lost_ms"].as_u64() > Some(0), "{document}");
        for fate in measured["fates"].as_array().unwrap().iter().chain([&measured["blocked"], &measured["leak"]]) {
            let Some(pid) = fate["pid"].as_u64() else { continue };
            let gone = |comm: &str| node::comm_of(pid as u32).as_deref() != Some(comm);
            assert!(gone(fate["comm"].as_str().unwrap()), "{kind}: {fate} is still there");
        }
    }
    // Other tests may be at it, so only what belongs to nobody counts.
    let end = Instant::now() + Duration::from_secs(20);
    while leftovers::all().iter().any(|l| l.run().is_some_and(|run| !run.alive())) {
        assert!(Instant::now() < end, "{:?}", leftovers::all());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_seed_determines_the_case() {
    let draw =
        |seed: &str| Command::new(BINARY).args(["invent", "--dry", "--runs", "3", "--seed", seed]).output().unwrap();
    assert_eq!(draw("5").stdout, draw("5").stdout);
    assert_ne!(draw("5").stdout, draw("6").stdout);
    let text = String::from_utf8(draw("5").stdout).unwrap();
    let seeds: Vec<u64> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["seed"].as_u64().unwrap()).collect();
    assert_eq!((seeds.len(), seeds[0]), (3, 5));
}

#[test]
fn a_coroner_that_is_not_there_is_an_error() {
    if !rustix::process::geteuid().is_root() {
        return coroner_lab::skip("needs root");
    }
    let out = invent(&["--runs", "1"], std::path::Path::new("/no/such/coroner"));
    assert_eq!(out.status.code(), Some(2));
}
