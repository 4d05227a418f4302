//! Every command on every recording of a real incident with a known cause (golden/, made by golden/make).

use crate::support::*;
use coroner_lab::truth::Truth;
use serde_json::Value;
use std::path::{Path, PathBuf};

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
fn the_text_of_each_recording_is_unchanged() {
    for (name, _) in recordings() {
        // Relative, because the text names it.
        let path = &format!("../../golden/{name}.coroner");
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
fn verdicts_have_the_documented_shape() {
    let names_a_finding = |told: &Value, diagnosis: &Value| {
        let of =
            |f: &Value| f["code"] == told["code"] && f["subject"] == told["subject"] && f["title"] == told["title"];
        findings(diagnosis).iter().any(of)
    };
    let mut verdicts = 0;
    for (name, path) in recordings() {
        let out = coroner(&["diagnose", "--json", "--from", path.to_str().unwrap()]);
        let diagnosis = json_of(&out);
        let all = diagnosis["verdicts"].as_array().unwrap();
        let conclusion = match (out.status.code(), all.is_empty()) {
            (Some(0), true) => "nothing wrong",
            (Some(1), true) => "no cause found",
            (Some(1), false) => "cause found",
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(diagnosis["conclusion"], conclusion, "{name}");
        for verdict in all {
            verdicts += 1;
            let mut named = vec![&verdict["root_cause"]];
            named.extend(verdict["context"].as_array().unwrap());
            for link in verdict["chain"].as_array().unwrap() {
                named.extend([&link["from"], &link["to"]]);
                assert!(link["because"].is_string() && link["evidence"].is_array(), "{name}: {link:#}");
                for proof in ["identity", "order", "size"] {
                    let proof = &link["proofs"][proof];
                    assert!(proof["shown"].is_string() || proof["not_seen"].is_string(), "{name}: {link:#}");
                }
            }
            assert!(named.into_iter().all(|told| names_a_finding(told, &diagnosis)), "{name}: {verdict:#}");
            assert!(["proven", "likely", "possible"].iter().any(|c| verdict["certainty"] == *c), "{name}: {verdict:#}");
            for field in ["because", "remedy", "not_fixed", "story", "severity"] {
                assert!(verdict[field].is_string(), "{name}, {field}: {verdict:#}");
            }
            for moment in verdict["timeline"].as_array().unwrap() {
                moment["at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
                assert!(moment["uncertainty_ms"].is_u64() && moment["what"].is_string(), "{name}: {moment}");
            }
        }
    }
    assert!(verdicts >= 4, "only {verdicts} verdicts in all recordings");
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

/// A part's rates include neither a burst before it nor the time after the last sample of the units.
#[test]
fn a_part_of_a_recording_has_the_rates_of_the_whole() {
    let path = golden().join("the-incident.coroner");
    let path = path.to_str().unwrap();
    let per_hour = |diagnosis: &Value, what: &str| {
        let found = findings(diagnosis).iter().find(|f| f["code"] == "unit-crashloop").unwrap();
        let facts = found["evidence"].as_array().unwrap();
        let fact = facts.iter().find(|f| f["what"].as_str().unwrap().starts_with(what));
        fact.unwrap_or_else(|| panic!("no {what:?} in {found:#}"))["value"].as_f64().unwrap()
    };
    let of = |window: &[&str]| json_of(&coroner(&[&["diagnose", "--json", "--from", path], window].concat()));
    let whole = of(&[]);
    for window in [["--until", "19:06:06"], ["--since", "19:06:08"], ["--last", "5s"]] {
        let part = of(&window);
        for what in ["restarts per hour", "new ones per hour"] {
            let ratio = per_hour(&part, what) / per_hour(&whole, what);
            assert!((0.75..=1.33).contains(&ratio), "{window:?}: {what} is {ratio} of the whole recording's");
        }
    }
}
