//! Recordings of real incidents with a known cause (golden/, made by golden/make): every command on every recording.

mod support;

use coroner_lab::truth::Truth;
use serde_json::Value;
use std::path::{Path, PathBuf};
use support::*;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden")
}

fn recordings() -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = std::fs::read_dir(golden())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "coroner"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    found.sort();
    assert!(found.len() >= 8, "golden recordings are missing: {found:?}");
    found
}

#[test]
fn each_recording_is_diagnosed_as_its_scenario_says() {
    for (name, path) in recordings() {
        let told = std::fs::read_to_string(golden().join(format!("{name}.truth.json"))).unwrap();
        let told: Value = serde_json::from_str(&told).unwrap();
        let truth: Truth = serde_json::from_value(told["truth"].clone()).unwrap();
        let out = coroner(&["diagnose", "--json", "--from", path.to_str().unwrap()]);
        let diagnosis = json_of(&out);
        assert_truth(&truth, &diagnosis);
        let expected = i32::from(!severities_from(&diagnosis, "warning").is_empty());
        assert_eq!(out.status.code(), Some(expected), "{name}");
    }
}

#[test]
fn each_recording_reads_as_people_saw_it() {
    for (name, path) in recordings() {
        let path = path.to_str().unwrap();
        for (command, args) in [
            ("verdict", vec!["diagnose", "--from", path]),
            ("diagnose", vec!["diagnose", "-v", "--from", path]),
            ("cores", vec!["cores", "--from", path]),
        ] {
            let out = coroner(&args);
            assert_eq!(String::from_utf8_lossy(&out.stderr), "", "{name} {command}");
            let text = String::from_utf8(out.stdout).unwrap().replace(env!("CARGO_PKG_VERSION"), "VERSION");
            insta::assert_snapshot!(format!("{name}-{command}"), text);
        }
    }
}

#[test]
fn reading_a_recording_changes_nothing() {
    for (name, path) in recordings() {
        let before = std::fs::read(&path).unwrap();
        coroner(&["diagnose", "--from", path.to_str().unwrap()]);
        assert!(std::fs::read(&path).unwrap() == before, "{name} was changed by reading it");
        assert!(!path.with_extension("coroner-wal").exists() && !path.with_extension("coroner-shm").exists());
    }
}
