//! Plans from recordings: on any machine, as any user, changing nothing.

use crate::support::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(format!("{name}.coroner"))
}

fn plan(name: &str, more: &[&str]) -> Value {
    let file = golden(name);
    let mut args = vec!["fix", "--from", file.to_str().unwrap(), "--json"];
    args.extend(more);
    let out = coroner(&args);
    assert_eq!(out.status.code(), Some(0), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    json_of(&out)
}

fn ids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|step| step["id"].as_str().unwrap()).collect()
}

#[test]
fn the_incident_is_planned_from_its_recording() {
    let plan = plan("the-incident", &[]);
    // First aid for what hurts, then the cause.
    let wanted = ["pause-process:memwatch-26c7[21314]", "disable-unit:ecs.service", "mask-unit:ecs.service"];
    assert_eq!(ids(&plan["steps"])[..3], wanted, "{plan:#}");
    assert_eq!(plan["steps"][0]["commands"][0], "kill -STOP 21314");
    assert!(plan["steps"][0]["dangerous"].is_string(), "{:#}", plan["steps"][0]);
    let off = &plan["steps"][1];
    assert_eq!(off["commands"][0], "systemctl disable --now ecs.service");
    for field in ["reason", "risk_words", "undo", "not_fixed", "title"] {
        assert!(!off[field].as_str().unwrap().is_empty(), "{field} of {off:#}");
    }
    assert!(off["measures"][0]["now"].as_f64() > Some(1000.0), "how success is measured, with the value now: {off:#}");
    assert!(plan["files"].as_array().unwrap().len() > 50, "every file is listed");
    assert!(plan["reboot"]["why"].as_str().unwrap().contains("tmpfs"), "{:#}", plan["reboot"]);
    assert!(!ids(&plan["steps"]).iter().any(|id| id.starts_with("delete-files")), "only named files are deleted");
}

#[test]
fn each_recording_has_a_plan_or_says_what_to_do() {
    for (name, wanted) in [
        ("crashloop", "disable-unit:"),
        ("nic-starved", "lower-priority:"),
        ("rt-monopoly", "spin"),
        ("two-problems", "lower-priority:"),
    ] {
        let plan = plan(name, &[]);
        assert!(ids(&plan["steps"]).iter().any(|id| id.contains(wanted)), "{name}: no {wanted} in {:#}", plan["steps"]);
    }
    for name in
        ["cgroup-dir-leak", "cpu-throttle", "observer-smaps", "memory-limit-reclaim", "softirq-storm", "zombies"]
    {
        let plan = plan(name, &[]);
        let told = ["steps", "alternatives", "refused", "by_hand"]
            .iter()
            .any(|list| !plan[*list].as_array().unwrap().is_empty());
        assert!(told || plan["causes"].as_array().unwrap().is_empty(), "{name}: {plan:#}");
    }
    for name in ["idle", "busy-healthy", "one-busy-thread"] {
        let plan = plan(name, &[]);
        assert_eq!(
            (plan["steps"].as_array().unwrap().len(), plan["causes"].as_array().unwrap().len()),
            (0, 0),
            "{name}: {plan:#}"
        );
        let file = golden(name);
        assert!(stdout(&["fix", "--from", file.to_str().unwrap()]).contains("nothing to fix"), "{name}");
    }
}

#[test]
fn asking_for_what_does_not_exist_is_an_error() {
    let file = golden("the-incident");
    let file = file.to_str().unwrap();
    fails(
        &["fix", "unit-crashloop", "other.service", "--from", file],
        &["no finding unit-crashloop about other.service", "ecs.service"],
    );
    fails(&["fix", "no-such-code", "--from", file], &["no such finding"]);
    fails(&["fix", "--from", file, "--step", "reboot"], &["no step reboot", "disable-unit:ecs.service"]);
    fails(&["fix", "--from", file, "--delete-file", "/etc/passwd"], &["keeps no dead cgroup of this plan"]);
    fails(&["fix", "--from", file, "--isolate", "--limit", "ExecStart=/bin/sh"], &["no such limit"]);
    fails(&["fix", "--from", "/nowhere.coroner"], &["/nowhere.coroner"]);
    let isolated =
        plan("the-incident", &["unit-crashloop", "ecs", "--isolate", "--persistent", "--limit", "CPUQuota=5%"]);
    assert_eq!(ids(&isolated["steps"])[1], "isolate-unit:ecs.service");
    let command = isolated["steps"][1]["commands"][1].as_str().unwrap();
    assert!(command.contains("/etc/systemd/system/ecs.service.d/") && command.contains("CPUQuota=5%"), "{command}");
}

#[test]
fn a_plan_for_another_node_is_not_applied_here() {
    let file = golden("the-incident");
    let journal = tempfile::tempdir().unwrap();
    let mut args = vec!["fix", "--from", file.to_str().unwrap(), "--apply", "--yes"];
    args.extend(["--journal", journal.path().to_str().unwrap()]);
    let root = rustix::process::geteuid().is_root();
    fails(&args, &[if root { "refused" } else { "needs root" }]);
    assert_eq!(journal.path().read_dir().unwrap().count(), 0);
    fails(
        &["undo", "7", "--journal", journal.path().to_str().unwrap()],
        &[if root { "no run 7" } else { "needs root" }],
    );
    let out = coroner(&["undo", "--list", "--json", "--journal", journal.path().to_str().unwrap()]);
    assert_eq!((out.status.code(), &json_of(&out)["runs"]), (Some(0), &Value::Array(vec![])));
}

/// Any finding of a verdict is fixed at the verdict's root cause.
#[test]
fn a_finding_of_a_chain_has_the_plan_of_its_verdict() {
    for name in ["the-incident", "nic-starved", "ksoftirqd-starved", "rt-monopoly", "zombie-reclaim", "crashloop"] {
        let whole = plan(name, &[]);
        let steps = ids(&whole["steps"]);
        let file = golden(name);
        let diagnosis = json_of(&coroner(&["diagnose", "--json", "--from", file.to_str().unwrap()]));
        let [verdict] = diagnosis["verdicts"].as_array().unwrap().as_slice() else { panic!("{name}: not one verdict") };
        let links = verdict["chain"].as_array().unwrap().iter().map(|link| &link["to"]);
        for finding in links.chain([&verdict["root_cause"]]) {
            let (code, subject) = (finding["code"].as_str().unwrap(), finding["subject"]["name"].as_str().unwrap());
            let asked = plan(name, &[code, subject]);
            for step in &steps {
                assert!(ids(&asked["steps"]).contains(step), "{name}: fix {code} {subject} has no {step}: {asked:#}");
            }
        }
    }
}

/// Both say the same about where the thread may go, and the plan mentions every dead cgroup.
#[test]
fn diagnosis_and_plan_of_the_incident_agree() {
    let file = golden("the-incident");
    let file = file.to_str().unwrap();
    let told = String::from_utf8(coroner(&["diagnose", "-v", "--from", file]).stdout).unwrap();
    let planned = stdout(&["fix", "--from", file]);
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [one_line(&told), one_line(&planned)] {
        assert!(text.contains("core 0 serves "), "{text}");
        assert!(!text.contains("taskset -pc CORES"), "{text}");
    }
    assert!(one_line(&planned).contains("40 dead cgroups (mostly /"), "{planned}");
    let other = &plan("the-incident", &[])["other_dead"];
    assert!(other.as_str().is_some_and(|words| words.contains("What would free them")), "{other}");
}

#[test]
fn undo_says_what_it_looked_for_and_what_exists() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().to_str().unwrap();
    let undo = |run: Option<&'static str>| {
        let mut args = vec!["undo", "--dry-run", "--journal", journal];
        args.extend(run);
        args
    };
    fails(&undo(Some("7")), &["no run 7", journal, "has no runs", "--journal DIR"]);
    let out = coroner(&undo(None));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("Nothing to undo") && said.contains("undo --list"), "{said}");

    std::fs::write(dir.path().join("run-000003.jsonl"), "not what we wrote\n").unwrap();
    fails(&undo(Some("7")), &["no run 7", "only has run 3", "undo --list"]);
    fails(&undo(Some("3")), &["run 3 cannot be undone", "run-000003.jsonl", "damaged", "by hand"]);
    let said = stdout(&undo(None));
    assert!(said.contains("unreadable") && said.contains("run-000003.jsonl"), "{said}");
}
