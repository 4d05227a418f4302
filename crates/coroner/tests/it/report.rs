//! `--report` from recordings.

use crate::support::*;
use serde_json::json;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../golden/{name}.coroner"));
    path.to_str().unwrap().to_owned()
}

fn file(dir: &tempfile::TempDir, name: &str) -> (PathBuf, String) {
    let path = dir.path().join(name);
    let text = path.to_str().unwrap().to_owned();
    (path, text)
}

#[test]
fn a_report_is_written_in_addition_to_the_output() {
    let dir = tempfile::tempdir().unwrap();
    let (path, name) = file(&dir, "x.md");
    let recording = golden("rt-monopoly");
    let out = coroner(&["diagnose", "--from", &recording, "--report", &name]);
    assert_eq!(out.status.code(), Some(1), "a report changes no exit code");
    let said = String::from_utf8(out.stdout).unwrap();
    assert!(said.contains("VERDICT") && said.ends_with(&format!("Report: {name}\n")), "{said}");
    let report = std::fs::read_to_string(&path).unwrap();
    assert!(report.starts_with("# vm: ") && report.contains("**Root cause:** spin-661c"), "{report}");
    assert!(report.contains(&format!("coroner diagnose --from {recording} --report {name}")), "{report}");

    std::fs::write(&path, "older").unwrap();
    let out = coroner(&["diagnose", "--json", "--from", &recording, "--report", &name]);
    let verdict = &json_of(&out)["verdicts"][0];
    assert_eq!(verdict["root_cause"]["code"], "core-monopolised");
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("# vm: "), "an older report is replaced");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn a_dash_prints_the_report_alone() {
    let out = coroner(&["diagnose", "--from", &golden("idle"), "--report", "-", "--color", "always"]);
    assert_eq!(out.status.code(), Some(0));
    let report = String::from_utf8(out.stdout).unwrap();
    assert!(report.starts_with("# vm: nothing wrong in what was seen\n"), "{report}");
    assert!(!report.contains('\u{1b}'), "{report}");
}

#[test]
fn an_unwritable_report_fails_before_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let recording = golden("idle");
    let report = |to: &str, words: &[&str]| fails(&["diagnose", "--from", &recording, "--report", to], words);
    report(dir.path().to_str().unwrap(), &["is a directory", "--report x.md"]);
    report(&file(&dir, "no/x.md").1, &["there is no directory"]);
    let (link, name) = file(&dir, "astray.md");
    std::os::unix::fs::symlink("no/x.md", link).unwrap();
    report(&name, &["there is no directory"]);
    fails(&["diagnose", "--from", &recording, "--json", "--report", "-"], &["--json", "--report -", "x.md"]);

    let (copy, name) = file(&dir, "node.coroner");
    std::fs::copy(&recording, &copy).unwrap();
    fails(&["diagnose", "--from", &name, "--report", &name], &["this is the input file"]);
    assert!(std::fs::read(&copy).unwrap() == std::fs::read(&recording).unwrap());
}

#[test]
fn a_link_to_a_new_report_stays_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let (link, name) = file(&dir, "latest.md");
    std::os::unix::fs::symlink("monday.md", &link).unwrap();
    for _ in 0..2 {
        coroner(&["diagnose", "--from", &golden("idle"), "--report", &name]);
        assert!(link.is_symlink());
        assert!(std::fs::read_to_string(dir.path().join("monday.md")).unwrap().starts_with("# vm: "));
    }
}

#[test]
fn a_full_disk_loses_only_the_report() {
    let out = coroner(&["diagnose", "--from", &golden("idle"), "--report", "/dev/full"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stdout).contains("Nothing wrong in what was seen."));
    assert!(String::from_utf8_lossy(&out.stderr).contains("/dev/full: cannot write it"), "{out:?}");
}

#[test]
fn an_incident_has_a_report_too() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("incidents");
    std::fs::create_dir(&place).unwrap();
    let at = 1_800_000_000_000_000_000_u64;
    for number in [1, 2] {
        let incident = json!({
            "schema": "coroner.incident/1", "number": number, "code": "core-monopolised", "subject": "core 1", "core": 1,
            "text": "spin|`661c` <b>", "triggered_real_ns": at, "from_real_ns": at, "until_real_ns": at, "state": "complete",
            "repeats": 0, "error": null,
        });
        std::fs::write(place.join(format!("{number}.json")), incident.to_string()).unwrap();
    }
    std::fs::copy(golden("rt-monopoly"), place.join("1.coroner")).unwrap();
    let from = dir.path().to_str().unwrap();
    let (path, name) = file(&dir, "x.md");
    let said = stdout(&["incidents", "show", "1", "--dir", from, "--report", &name]);
    assert!(said.contains("Incident 1") && said.contains("VERDICT") && said.contains("Report: "), "{said}");
    let report = std::fs::read_to_string(&path).unwrap();
    assert!(report.contains("- Incident 1: core-monopolised, core 1 (complete)\n"), "{report}");
    assert!(report.contains("- spin\\|`661c` \\<b\\>\n") && report.contains("**Root cause:** spin-661c"), "{report}");

    let out = coroner(&["incidents", "show", "2", "--dir", from, "--report", &name]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("no report of incident 2: not frozen"));
}
