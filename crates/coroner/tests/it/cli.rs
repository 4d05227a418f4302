//! The command line. Needs no root.

use crate::support::*;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let help = stdout(&["--help"]);
    for word in ["diagnose", "cores", "record", "--for", "--from", "--json", "--explain", "--strict", "Exit codes"] {
        assert!(help.contains(word), "no {word} in:\n{help}");
    }
    assert!(stdout(&["--version"]).starts_with("coroner "));
}

#[test]
fn every_code_has_a_page() {
    for code in coroner_diagnosis::Code::ALL {
        let page = stdout(&["diagnose", "--explain", code.as_str()]);
        assert!(page.contains(code.as_str()) && page.lines().count() > 10, "the page of {code} is empty:\n{page}");
    }
    fails(&["--explain", "no-such-code"], &["no-such-code", "core-saturated"]);
}

#[test]
fn wrong_arguments_get_a_clear_error() {
    fails(&["diagnose", "--for", "soon"], &["soon", "5s"]);
    fails(&["diagnose", "--for", "0s"], &["200ms"]);
    fails(&["diagnose", "--from", "a", "--for", "5s"], &["--from", "--for"]);
    fails(&["frobnicate"], &["frobnicate"]);
}

#[test]
fn a_file_that_is_no_recording_gets_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    fails(&["diagnose", "--from", "/no/such/file.coroner"], &["/no/such/file.coroner", "no such file"]);
    fails(&["diagnose", "--from", &file("empty.coroner", b"")], &["empty.coroner", "empty"]);
    fails(
        &["diagnose", "--from", &file("foreign.coroner", b"PERFILE2 and so on")],
        &["foreign.coroner", "not a coroner recording"],
    );
    fails(&["diagnose", "--from", dir.path().to_str().unwrap()], &["this directory has no recorder segments"]);
    fails(&["cores", "--from", &file("foreign2.coroner", &[0xff; 9000])], &["not a coroner recording"]);
}

#[test]
fn without_bpf_it_says_what_is_unseen_and_still_samples_the_kernel() {
    let unseen = |args: &[&str]| {
        let seen = json_of(&coroner(args));
        let unseen = seen["unseen"].as_array().cloned().unwrap_or_default();
        let why = |probe: &str| {
            let found = unseen.iter().find(|unseen| unseen["probe"] == probe);
            found.map(|unseen| unseen["why"].as_str().unwrap_or_default().to_owned())
        };
        (why("child-exits"), why("kernel-samples"))
    };
    let (exits, kernel) = unseen(&["diagnose", "--no-bpf", "--for", "1s", "--json"]);
    assert_eq!(exits.as_deref(), Some("BPF is turned off (--no-bpf)"));
    assert_eq!(kernel, unseen(&["diagnose", "--for", "1s", "--json"]).1, "sampling does not need BPF");
    fails(&["diagnose", "--no-bpf", "--last", "5m"], &["--no-bpf", "--last"]);
}

#[test]
fn this_node_is_diagnosed_in_the_documented_shape() {
    let out = coroner(&["--for", "1s", "--json"]);
    let d = json_of(&out);
    assert_eq!(d["schema"], "coroner.diagnosis/1");
    assert!(d["window"]["from"].as_str() < d["window"]["to"].as_str());
    assert!(d["node"]["kernel"].is_string() && d["node"]["cores"].as_u64() > Some(0));
    for finding in findings(&d) {
        for field in ["code", "severity", "title", "detail", "remedy"] {
            assert!(finding[field].is_string(), "{field} in {finding:#}");
        }
        assert!(finding["subject"]["kind"].is_string() && finding["subject"]["name"].is_string());
        for fact in finding["evidence"].as_array().unwrap() {
            assert!(
                fact["what"].is_string()
                    && !fact["value"].is_null()
                    && fact["unit"].is_string()
                    && fact["source"].is_string()
            );
        }
    }
    let seen: Vec<&Value> = d["ruled_out"].as_array().unwrap().iter().map(|r| &r["code"]).collect();
    let answered = findings(&d)
        .iter()
        .map(|f| &f["code"])
        .chain(seen)
        .chain(d["unseen"].as_array().unwrap().iter().map(|u| &u["probe"]));
    let answered: std::collections::BTreeSet<&str> = answered.filter_map(Value::as_str).collect();
    // Drift needs a baseline.
    for code in coroner_diagnosis::Code::ALL.iter().filter(|c| **c != coroner_diagnosis::Code::UnitDrift) {
        assert!(answered.contains(code.as_str()), "{code} is not mentioned");
    }
    let cost = &d["cost"];
    assert!(
        cost["peak_rss_bytes"].as_u64() > Some(1 << 20) && cost["startup_cpu_ms"].is_u64() && cost["cpu_ms"].is_u64()
    );
    let worst = findings(&d).iter().any(|f| f["severity"] != "info");
    assert_eq!(out.status.code(), Some(i32::from(worst)));
}

#[test]
fn strict_fails_if_anything_is_unseen() {
    // A tree with cores only: much is unseen.
    let dir = bare_node();
    let args = |strict: bool| {
        let mut args = vec!["diagnose", "--for", "300ms", "--json", "--root", dir.path().to_str().unwrap()];
        args.extend(strict.then_some("--strict"));
        args
    };
    let lenient = coroner(&args(false));
    assert!(!json_of(&lenient)["unseen"].as_array().unwrap().is_empty());
    assert_eq!(lenient.status.code(), Some(0));
    assert_eq!(coroner(&args(true)).status.code(), Some(2));
}

#[test]
fn nothing_to_examine_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fails(&["diagnose", "--for", "300ms", "--root", dir.path().to_str().unwrap()], &["cores"]);
}

#[test]
fn unknown_is_not_printed_as_zero() {
    let dir = bare_node();
    let d = json_of(&coroner(&["diagnose", "--for", "300ms", "--json", "--root", dir.path().to_str().unwrap()]));
    assert!(findings(&d).is_empty(), "{d:#}");
    assert!(d["node"]["kernel"].is_null() && d["node"]["memory_bytes"].is_null());
    let unseen: Vec<&str> = d["unseen"].as_array().unwrap().iter().filter_map(|u| u["probe"].as_str()).collect();
    for probe in ["tasks", "cgroups", "pressure", "kernel-log", "units", "interrupts"] {
        assert!(unseen.contains(&probe), "{probe} is not listed as unseen: {unseen:?}");
    }
    for ruled_out in d["ruled_out"].as_array().unwrap() {
        let code = ruled_out["code"].as_str().unwrap();
        assert!(
            !["zombie-memcgs", "oom-kill", "cpu-throttled", "unit-crashloop", "slow-memcg-stat"].contains(&code),
            "ruled out unseen: {ruled_out}"
        );
    }
}

#[test]
fn a_recording_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.coroner");
    std::fs::write(&path, "precious").unwrap();
    fails(&["record", "--for", "300ms", "-o", path.to_str().unwrap()], &["mine.coroner", "exists"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    fails(&["record", "--for", "300ms", "-o", "/no/such/dir/x.coroner"], &["/no/such/dir"]);
}

#[test]
fn ctrl_c_seals_a_recording() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("early.coroner");
    let mut child =
        Command::new(CORONER).args(["record", "--for", "1h", "-o", path.to_str().unwrap()]).spawn().unwrap();
    wait_until("the file is there", || path.exists());
    end(&mut child);
    let out = coroner(&["diagnose", "--json", "--from", path.to_str().unwrap()]);
    assert!(!String::from_utf8_lossy(&out.stderr).contains("before it could close"));
    json_of(&out);
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let out = Command::new("sh")
        .args(["-c", "\"$0\" diagnose --for 300ms -v | head -1; \"$0\" --explain core-saturated | head -1"])
        .arg(CORONER)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
}

#[test]
fn the_reader_does_not_change_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    // Only the cores can be seen, so --strict fails.
    let node = bare_node();
    let code = |to: &str| {
        let script = format!("( \"$0\" diagnose --strict --json --for 300ms --root \"$1\"; echo $? >\"$2\" ) {to}");
        let file = dir.path().join("code");
        let done = Command::new("sh").args(["-c", &script, CORONER]).arg(node.path()).arg(&file).output().unwrap();
        (std::fs::read_to_string(file).unwrap().trim().to_owned(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    assert_eq!(code("| true"), ("2".to_owned(), String::new()));
    let (full, said) = code(">/dev/full");
    assert_eq!(full, "2");
    assert!(said.contains("No space left"), "{said}");
}

#[test]
fn a_recording_without_core_times_fails() {
    let (node, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (root, file) = (node.path().to_str().unwrap(), dir.path().join("a.coroner"));
    let args = ["record", "--for", "300ms", "--root", root, "-o", file.to_str().unwrap()];
    fails(&args, &["a.coroner", "no core times were recorded"]);
}

/// A node where only the cores can be seen.
fn bare_node() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "proc/stat",
        "cpu  1 0 1 100 0 0 0 0 0 0\ncpu0 1 0 1 100 0 0 0 0 0 0\ncpu1 1 0 1 100 0 0 0 0 0 0\n",
    );
    dir
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}
