//! `coroner zombies` on real dead cgroups. Tests that look only at the group of their own parent share the machine; the diagnosis names only the
//! largest groups of the node.

use crate::support::*;
use coroner_lab::{Cgroup, HostLock, LiveScenario};
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// The group below the scenario's parent.
fn group<'z>(zombies: &'z Value, truth: &Value) -> &'z Value {
    let groups = zombies["groups"].as_array().unwrap_or_else(|| panic!("no groups in {zombies:#}"));
    groups
        .iter()
        .find(|g| g["parent"] == truth["parent"])
        .unwrap_or_else(|| panic!("no group of {} in {zombies:#}", truth["parent"]))
}

fn has_its_bytes(zombies: &Value, truth: &Value) -> bool {
    let bytes = &group(zombies, truth)["bytes"];
    ["file", "shmem"].iter().all(|kind| bytes[kind] == truth["bytes"][kind])
}

/// A page under reclaim is on no list for a moment, so look again.
fn settled(truth: &Value, look: impl Fn() -> Value) -> Value {
    let mut zombies = look();
    for _ in 0..5 {
        if has_its_bytes(&zombies, truth) {
            break;
        }
        zombies = look();
    }
    zombies
}

fn truth_of(scenario: &LiveScenario) -> Value {
    serde_json::to_value(&scenario.truth.facts).unwrap()
}

fn assert_named(zombies: &Value, truth: &Value) {
    assert_eq!(zombies["schema"], "coroner.zombies/1");
    let group = group(zombies, truth);
    assert_eq!(group["dead"], truth["count"], "{group:#}");
    assert_eq!(group["pattern"], truth["pattern"]);
    assert_eq!(group["bytes"]["file"], truth["bytes"]["file"]);
    assert_eq!(group["bytes"]["shmem"], truth["bytes"]["shmem"]);
    assert_eq!(group["unit"], Value::Null);
    assert!(group["oldest"].as_str() <= group["newest"].as_str(), "{group:#}");
    let pinned = group["pinned_by"].as_array().unwrap();
    for file in truth["files"].as_array().unwrap() {
        let found = pinned.iter().find(|p| p["path"] == file["path"]);
        let Some(found) = found else { panic!("{file:#} is not in {pinned:#?}") };
        assert_eq!((&found["bytes"], &found["dead"]), (&file["bytes"], &file["zombies"]));
        assert_eq!(found["filesystem"], file["filesystem"]);
    }
    let sizes: Vec<u64> = pinned.iter().map(|p| p["bytes"].as_u64().unwrap()).collect();
    assert!(sizes.is_sorted_by(|a, b| a >= b), "largest first: {sizes:?}");
}

#[test]
fn dead_cgroups_and_the_files_that_keep_them_are_named_live_and_recorded() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let scenario = start_scenario("zombies-pinned", &[]);
    let truth = truth_of(&scenario);
    for way in [&["--method", "test-run"][..], &["--method", "page-faults"], &[]] {
        let mut args = vec!["zombies", "--json"];
        args.extend(way);
        let zombies = settled(&truth, || json_of(&coroner(&args)));
        let method = zombies["method"].as_str().unwrap();
        assert_eq!(method, if way.contains(&"page-faults") { "bpf-page-faults" } else { "bpf-test-run" });
        assert_named(&zombies, &truth);
        assert_eq!(zombies["zombies"], Value::Null, "each one only with --list");
    }
    let listed = json_of(&coroner(&["zombies", "--json", "--list"]));
    let below = format!("{}/", truth["parent"].as_str().unwrap());
    let names = listed["zombies"].as_array().unwrap().iter().filter_map(|z| z["path"].as_str()?.strip_prefix(&below));
    let names: std::collections::BTreeSet<&str> = names.collect();
    assert_eq!(names.len() as u64, truth["count"].as_u64().unwrap());
    assert!(names.contains(truth["first"].as_str().unwrap()) && names.contains(truth["last"].as_str().unwrap()));

    let text = String::from_utf8(coroner(&["zombies"]).stdout).unwrap();
    for part in [&truth["parent"], &truth["pattern"], &truth["files"][0]["path"]] {
        assert!(text.contains(part.as_str().unwrap()), "{part} is not in\n{text}");
    }

    let recorded = settled(&truth, || {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("z.coroner");
        json_of(&coroner(&["record", "--for", "1s", "--json", "-o", file.to_str().unwrap()]));
        json_of(&coroner(&["zombies", "--json", "--from", file.to_str().unwrap()]))
    });
    assert_named(&recorded, &truth);

    let diagnosis = json_of(&coroner(&["diagnose", "--for", "1s", "--json"]));
    let finding = findings(&diagnosis).iter().find(|f| f["code"] == "zombie-memcgs").expect("zombie-memcgs");
    for part in [&truth["parent"], &truth["pattern"], &truth["files"][0]["path"]] {
        assert!(finding.to_string().contains(part.as_str().unwrap()), "{part} is not in {finding:#}");
    }
}

#[test]
fn without_bpf_parents_and_bytes_are_known_and_the_reason_is_given() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let scenario = start_scenario("zombies-pinned", &[]);
    let truth = truth_of(&scenario);
    let assert_fallback = |look: &dyn Fn() -> Value, why: &str| {
        // The kernel sums these counters every two seconds.
        let mut zombies = Value::Null;
        wait_until("the bytes are exact", || {
            zombies = look();
            has_its_bytes(&zombies, &truth)
        });
        assert_eq!(zombies["method"], "memory-stat", "{zombies:#}");
        let reasons = zombies["instead_of"].to_string();
        assert!(reasons.contains(why), "{why} is not in {reasons}");
        assert!(zombies["dead"].as_u64().unwrap() >= truth["count"].as_u64().unwrap());
        let unseen = zombies["unseen"].as_array().unwrap();
        assert!(unseen.iter().any(|u| u["probe"] == "zombies"), "{unseen:#?}");
    };
    assert_fallback(&|| json_of(&coroner(&["zombies", "--json", "--no-bpf"])), "--no-bpf");
    let run = |drop: &[&str]| {
        let copy = readable_copy();
        let out = Command::new("setpriv").args(drop).arg("--").arg(copy.path()).args(["zombies", "--json"]).output();
        json_of(&out.expect("setpriv"))
    };
    // By number: setpriv of older distributions does not know these names.
    let no_bpf = ["--bounding-set", "-cap_39,-cap_38,-sys_admin", "--inh-caps", "-cap_39,-cap_38,-sys_admin"];
    assert_fallback(&|| run(&no_bpf), "CAP_BPF");
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all"];
    assert_fallback(&|| run(&nobody), "CAP_BPF");
}

struct Loop(Child);

impl Drop for Loop {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

#[test]
fn watch_names_who_creates_and_removes_cgroups() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let parent = Cgroup::with_controller("memory", "coroner-test-watch").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("made");
    let script =
        "i=0; while :; do i=$((i+1)); mkdir \"$1/agent-$i\"; rmdir \"$1/agent-$i\"; echo $i >\"$2\"; sleep 0.01; done";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(parent.dir()).arg(&made).stdin(Stdio::null());
    coroner_lab::die_with_parent(&mut shell);
    let shell = Loop(shell.spawn().unwrap());
    let pid = u64::from(shell.0.id());
    for way in [&[][..], &["--no-bpf"]] {
        let mut args = vec!["zombies", "--watch", "3s", "--json"];
        args.extend(way);
        let zombies = json_of(&coroner(&args));
        let makers = zombies["makers"].as_array().unwrap();
        let maker = makers.iter().find(|m| m["parent"] == parent.path());
        let maker = maker.unwrap_or_else(|| panic!("nobody below {} in {makers:#?}", parent.path()));
        assert_eq!((maker["pid"].as_u64(), &maker["comm"]), (Some(pid), &Value::from("sh")), "{way:?}: {maker:#}");
        assert_eq!(maker["pattern"], "agent-*");
        assert!(maker["via"].as_str().unwrap().contains("mkdir"), "{maker:#}");
        assert!(maker["born"].as_u64() >= Some(10) && maker["removed"].as_u64() >= Some(10), "{maker:#}");
        assert!(maker["per_minute"].as_f64() >= Some(100.0), "{maker:#}");
    }
    // Ctrl-C prints what was seen so far.
    let watch = Command::new(CORONER)
        .args(["zombies", "--watch", "10m"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut watch = Loop(watch);
    let threads = format!("/proc/{}/task", watch.0.id());
    let is_watching = || {
        let threads = std::fs::read_dir(&threads).unwrap().flatten();
        threads
            .into_iter()
            .any(|t| std::fs::read_to_string(t.path().join("comm")).is_ok_and(|name| name == "coroner-churn\n"))
    };
    wait_until("it watches", is_watching);
    let made = || std::fs::read_to_string(&made).ok().and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0);
    let before = made();
    wait_until("some cgroups came and went", || made() > before + 20);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(watch.0.id() as i32).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut watch.0.stdout.take().unwrap(), &mut text).unwrap();
    assert!(watch.0.wait().unwrap().success());
    assert!(text.contains(&format!("sh[{pid}] through mkdir")), "{text}");
}

#[test]
fn wrong_arguments_and_files_get_a_clear_error() {
    for (args, says) in [
        (&["zombies", "--no-bpf", "--method", "test-run"][..], "cannot be used with"),
        (&["zombies", "--from", "/nonexistent.coroner"], "/nonexistent.coroner"),
        (&["zombies", "--from", "/dev/null"], "/dev/null"),
        (&["zombies", "--watch", "never"], "expected a duration"),
        (&["zombies", "--method", "magic"], "test-run"),
    ] {
        let out = coroner(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(error.contains(says), "{args:?}: {error}");
        assert!(out.stdout.is_empty());
    }
}
