//! Shared by the tests of the command.

#![allow(dead_code)] // each of the two test binaries uses a part of it

pub mod recorder;

use coroner_lab::LiveScenario;
use coroner_lab::node::CoreTimes;
use coroner_lab::score::BUSY;
use coroner_lab::score::judge::{Asking, judge};
use coroner_lab::truth::Truth;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

pub const CORONER: &str = env!("CARGO_BIN_EXE_coroner");

pub fn coroner(args: &[&str]) -> Output {
    Command::new(CORONER).args(args).output().expect("coroner runs")
}

/// The output of a command that must succeed.
pub fn stdout(args: &[&str]) -> String {
    let out = coroner(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The command must exit with 2 and print all of these words to standard error.
pub fn fails(args: &[&str], words: &[&str]) {
    let out = coroner(args);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?} does not say {word:?}: {said}");
    }
    assert!(out.stdout.is_empty(), "{args:?} printed something although it failed");
}

pub fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
        panic!(
            "not JSON ({e})\nstdout: {}\nstderr: {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

pub fn start_scenario(name: &str, extra: &[&str]) -> LiveScenario {
    // Longer than any test takes.
    let mut args = vec!["--seconds", "1800"];
    args.extend(extra);
    LiveScenario::start(name, &args).unwrap_or_else(|e| panic!("{name}: {e:#}"))
}

pub fn fact<'s>(scenario: &'s LiveScenario, name: &str) -> &'s str {
    scenario.truth.facts[name].as_str().unwrap_or_else(|| panic!("{name} of {:?}", scenario.truth.facts))
}

/// Writes a file of a tree, and its directories.
pub fn put(dir: &Path, path: &str, text: &str) {
    let path = dir.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// The project's directory.
pub fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

const SEVERITIES: [&str; 3] = ["info", "warning", "critical"];

fn rank(severity: &str) -> usize {
    SEVERITIES.iter().position(|s| *s == severity).unwrap_or_else(|| panic!("no such severity: {severity}"))
}

/// Codes of findings at least this bad.
pub fn severities_from(diagnosis: &Value, at_least: &str) -> Vec<String> {
    findings(diagnosis)
        .iter()
        .filter(|f| rank(f["severity"].as_str().unwrap()) >= rank(at_least))
        .map(|f| format!("{} {}", f["code"].as_str().unwrap(), f["title"].as_str().unwrap()))
        .collect()
}

pub fn findings(diagnosis: &Value) -> &Vec<Value> {
    diagnosis["findings"].as_array().unwrap_or_else(|| panic!("no findings in {diagnosis:#}"))
}

/// Findings from the last day's kernel log: this machine may have a past that is not the test's fault.
const CODES_WITH_A_PAST: [&str; 5] = ["oom-kill", "nic-reset", "kernel-stall", "gpu-xid", "conntrack-full"];

/// Removes old findings that an earlier diagnosis had as well.
pub fn without_the_past(diagnosis: &mut Value, earlier: &Value) {
    let told = |f: &Value| findings(earlier).iter().any(|e| e["code"] == f["code"]);
    let is_past = |f: &Value| CODES_WITH_A_PAST.iter().any(|c| f["code"] == *c) && told(f);
    for (list, finding_of) in [("findings", ""), ("verdicts", "/root_cause")] {
        if let Some(list) = diagnosis[list].as_array_mut() {
            list.retain(|entry| !is_past(entry.pointer(finding_of).unwrap()));
        }
    }
}

/// Everything the scenario expects is found with its culprit, and nothing that it forbids.
pub fn assert_truth(truth: &Truth, diagnosis: &Value) {
    if let Some(why) = untrue(truth, diagnosis) {
        panic!("{why}");
    }
}

/// Where a diagnosis differs from the scenario's truth: findings, and verdicts if the truth has any. Findings about other things on this
/// machine do not matter.
pub fn untrue(truth: &Truth, diagnosis: &Value) -> Option<String> {
    faults(truth, diagnosis, Asking { on_any_machine: true, ..Asking::default() })
}

/// The same; `asking` says whether the machine is otherwise idle.
pub fn faults(truth: &Truth, diagnosis: &Value, asking: Asking<'_>) -> Option<String> {
    let mut truth = truth.clone();
    // The audit has findings but no verdicts.
    if diagnosis["schema"] == "coroner.units/1" {
        truth.verdicts = None;
    }
    let judgement = judge(&truth, diagnosis, asking).unwrap_or_else(|e| panic!("{e:#}\n{diagnosis:#}"));
    (!judgement.faults.is_empty()).then(|| format!("{}\nin {diagnosis:#}", judgement.faults.join("\n")))
}

/// Whether others keep this machine so busy that it has problems of its own.
pub fn others_are_busy() -> bool {
    let before = CoreTimes::now().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let busy = CoreTimes::now().unwrap().busy_percent_since(&before);
    busy.values().sum::<u64>() / busy.len().max(1) as u64 >= BUSY
}

pub fn assert_unseen(diagnosis: &Value, probe: &str) {
    let unseen = diagnosis["unseen"].as_array().unwrap();
    assert!(unseen.iter().any(|u| u["probe"] == probe), "{probe} is not listed as unseen: {unseen:#?}");
}

/// Ends a child that the test started.
pub fn end(child: &mut Child) {
    let _ = rustix::process::Pid::from_raw(child.id() as i32)
        .map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
    let _ = child.wait();
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(180);
    while !condition() {
        assert!(Instant::now() < limit, "gave up waiting until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A copy of the binary that any user may run; the checkout may be private.
pub struct ReadableCopy {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl ReadableCopy {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

pub fn readable_copy() -> ReadableCopy {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("coroner");
    // Copied by another process: a child that another thread forks meanwhile would inherit our write fd, and exec would fail (ETXTBSY).
    assert!(Command::new("cp").arg(CORONER).arg(&path).status().unwrap().success());
    for readable in [dir.path(), &path] {
        std::fs::set_permissions(readable, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    ReadableCopy { _dir: dir, path }
}

/// Runs a shell script in new namespaces, with the binary as `$0`, and parses what it prints.
pub fn in_namespaces(unshare: &[&str], script: &str) -> Value {
    let output = Command::new("unshare")
        .args(unshare)
        .args(["sh", "-c", script])
        .arg(readable_copy().path())
        .output()
        .expect("unshare");
    json_of(&output)
}
