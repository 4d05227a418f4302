//! Real problems made on this machine by the lab, and what coroner says about them.

use crate::support::*;
use coroner_lab::score::judge::Asking;
use coroner_lab::truth::Truth;
use coroner_lab::{Child, HostLock};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// Runs the scenario, diagnoses the node, and compares the diagnosis with the scenario's truth. On an otherwise idle machine nothing
/// else may be found.
fn diagnosed(name: &str) {
    let earlier = json_of(&coroner(&["diagnose", "--for", "500ms", "--json"]));
    let mut on_any_machine = others_are_busy();
    let scenario = start_scenario(name, &[]);
    let mut args = vec!["diagnose", "--for", "3s", "--json"];
    let bus = scenario.truth.facts.get("bus").and_then(Value::as_str).map(str::to_owned);
    if let Some(bus) = &bus {
        args.extend(["--bus", bus]);
    }
    let mut diagnosis = json_of(&coroner(&args));
    let truth = scenario.truth.clone();
    drop(scenario);
    on_any_machine |= others_are_busy();
    without_the_past(&mut diagnosis, &earlier);
    if let Some(why) = faults(&truth, &diagnosis, Asking { on_any_machine, ..Asking::default() }) {
        panic!("{why}");
    }
}

#[test]
fn a_real_time_spinner_is_named_as_the_owner_of_its_core() {
    let Some(_host) = HostLock::take_as_root() else { return };
    diagnosed("rt-monopoly");
}

#[test]
fn a_starved_napi_thread_is_named_with_its_core() {
    let Some(_host) = HostLock::take_as_root() else { return };
    diagnosed("nic-starved");
}

#[test]
fn an_exhausted_quota_is_throttling_and_nothing_else() {
    let Some(_host) = HostLock::take_as_root() else { return };
    diagnosed("cpu-throttle");
}

#[test]
fn zombies_are_counted_as_the_kernel_counts_them() {
    let Some(_host) = HostLock::take_as_root() else { return };
    diagnosed("zombies");
}

#[test]
fn a_crashlooping_unit_is_found_on_its_own_bus() {
    let Some(_host) = HostLock::take_as_root() else { return };
    diagnosed("crashloop-leak");
}

#[test]
fn healthy_nodes_get_no_warning() {
    let Some(_host) = HostLock::take_as_root() else { return };
    for name in ["idle", "one-busy-thread", "busy-healthy"] {
        // The scenario is only as healthy as the machine; a neighbour's burst is not a rule's fault. Try twice.
        if std::panic::catch_unwind(|| diagnosed(name)).is_err() {
            eprintln!("{name}: trying again");
            diagnosed(name);
        }
    }
}

#[test]
fn a_node_under_stress_ng_gets_no_warning() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let earlier = json_of(&coroner(&["diagnose", "--for", "500ms", "--json"]));
    for workers in ["1", "2"] {
        let mut on_any_machine = others_are_busy();
        let stress = Child::spawn("stress-ng", Command::new("stress-ng").args(["--cpu", workers, "--quiet"]))
            .expect("stress-ng");
        let out = coroner(&["diagnose", "--for", "3s", "--json"]);
        drop(stress);
        on_any_machine |= others_are_busy();
        let mut diagnosis = json_of(&out);
        without_the_past(&mut diagnosis, &earlier);
        let quiet = Truth::new(json!({"comm": "stress-ng-cpu"})).at_most("info");
        let faults = faults(&quiet, &diagnosis, Asking { on_any_machine, ..Asking::default() });
        assert_eq!(faults, None, "stress-ng --cpu {workers}");
    }
}

#[test]
fn a_recording_gives_the_same_findings_elsewhere() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.coroner");
    let scenario = start_scenario("rt-monopoly", &[]);
    let recorded = coroner(&["record", "--for", "3s", "--json", "-o", file.to_str().unwrap()]);
    let summary = json_of(&recorded);
    drop(scenario);
    let diagnosis = json_of(&coroner(&["diagnose", "--json", "--from", file.to_str().unwrap()]));
    let list = |d: &Value| -> Vec<String> {
        d["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| format!("{} {} {}", f["code"], f["severity"], f["title"]))
            .collect()
    };
    assert_eq!(list(&summary), list(&diagnosis));
    assert!(list(&diagnosis).iter().any(|f| f.contains("core-saturated")), "{:?}", list(&diagnosis));
    let tables = Command::new("sqlite3").arg(&file).arg(".tables").output().expect("sqlite3");
    let tables = String::from_utf8_lossy(&tables.stdout).into_owned();
    for table in ["kernel_log", "processes", "findings", "units"] {
        assert!(tables.split_whitespace().any(|t| t == table), "no table {table} in: {tables}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a sealed recording is one file");
}

#[test]
fn a_recording_survives_kill_9() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("killed.coroner");
    let scenario = start_scenario("rt-monopoly", &[]);
    let mut recorder = Command::new(CORONER)
        .args(["record", "--for", "60s", "-o", file.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Long enough that the problem itself is in the file.
    let committed = || {
        let out = coroner(&["cores", "--json", "--from", file.to_str().unwrap()]);
        let cores: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        cores["cores"][0]["strip"].as_array().is_some_and(|strip| strip.len() >= 20)
    };
    wait_until("two seconds are in the file", committed);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let diagnosis = json_of(&coroner(&["diagnose", "--json", "--from", file.to_str().unwrap()]));
    assert_truth(&scenario.truth, &diagnosis);
}

// The following look at one log line or at what is unseen, whatever else happens: they share the machine.

#[test]
fn a_kernel_log_line_counts_only_if_the_kernel_wrote_it() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let line = "ena 0000:20:03.0 eth8: TX q 5 is paused for too long (threshold 5000000). Time since last napi 6596000 usec. napi scheduled: 1\n";
    std::fs::write("/dev/kmsg", line).unwrap();
    let about_eth8 = |d: &Value| d["findings"].as_array().unwrap().iter().any(|f| f["subject"]["name"] == "eth8");
    let honest = json_of(&coroner(&["diagnose", "--for", "1s", "--json"]));
    assert!(!about_eth8(&honest), "a line written by user space was believed");
    let trusting = json_of(&coroner(&["diagnose", "--for", "1s", "--json", "--trust-user-log"]));
    assert!(about_eth8(&trusting), "{trusting:#}");
}

#[test]
fn without_root_it_runs_and_says_what_it_cannot_see() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let out = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"])
        .arg(readable_copy().path())
        .args(["diagnose", "--for", "1s", "--json"])
        .output()
        .unwrap();
    let diagnosis = json_of(&out);
    assert!(!diagnosis["unseen"].as_array().unwrap().is_empty());
    for unseen in diagnosis["unseen"].as_array().unwrap() {
        for field in ["what", "why", "how_to_see"] {
            assert!(!unseen[field].as_str().unwrap().is_empty(), "{unseen}");
        }
    }
}

#[test]
fn hidepid_and_a_container_are_reported_as_unseen() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let hidden = in_namespaces(
        &["--mount", "--propagation", "private"],
        "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all \"$0\" diagnose --for 1s --json",
    );
    assert_unseen(&hidden, "tasks");
    let container = in_namespaces(
        &["--mount", "--pid", "--fork", "--cgroup", "--propagation", "private"],
        "mount -t proc proc /proc && exec \"$0\" diagnose --for 1s --json",
    );
    assert!(container["node"]["in_container"].is_string(), "{:#}", container["node"]);
    assert_unseen(&container, "tasks");
    let without_cgroups = in_namespaces(
        &["--mount", "--propagation", "private"],
        "umount -l /sys/fs/cgroup && exec \"$0\" diagnose --for 1s --json",
    );
    assert_unseen(&without_cgroups, "cgroups");
    let census = without_cgroups["findings"].to_string();
    assert!(!census.contains("zombie-memcgs"), "{census}");
}
