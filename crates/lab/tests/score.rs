//! The program `coroner-lab score`, with a fake coroner that always gives the same answer.

use coroner_lab::{leftovers, node};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One of these tests keeps the machine busy; the others would wait for it to become idle.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory with a fake coroner; removed on drop.
struct Fake {
    dir: PathBuf,
}

impl Fake {
    /// `script` comes before the answer.
    fn new(name: &str, script: &str, answer: &Value, code: i32) -> Fake {
        let dir = std::env::temp_dir().join(format!("coroner-lab-score-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("answer"), answer.to_string()).unwrap();
        let program =
            format!("#!/bin/sh\necho \"$@\" >> {0}/asked\n{script}\ncat {0}/answer\nexit {code}\n", dir.display());
        fs::write(dir.join("coroner"), program).unwrap();
        fs::set_permissions(dir.join("coroner"), fs::Permissions::from_mode(0o755)).unwrap();
        Fake { dir }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coroner-lab"));
        command.args(["score", "--seed", "3", "--runs", "2", "--only", "one-busy-thread"]).args(args);
        command.arg("--coroner").arg(self.dir.join("coroner"));
        command
    }

    fn score(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn asked(&self) -> Vec<String> {
        fs::read_to_string(self.dir.join("asked")).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn quiet() -> Value {
    json!({"findings": [], "verdicts": []})
}

fn alarmed() -> Value {
    let subject = json!({"kind": "core", "name": "1"});
    let finding =
        json!({"code": "core-saturated", "severity": "warning", "subject": subject, "title": "core 1 was full"});
    let verdict = json!({"root_cause": finding, "certainty": "proven", "severity": "warning", "chain": [], "because": "so",
                         "remedy": "end it", "story": "core 1 was full"});
    json!({"findings": [finding], "verdicts": [verdict]})
}

#[test]
fn a_quiet_answer_to_a_control_reaches_the_bars() {
    let _turn = turn();
    let fake = Fake::new("quiet", "", &quiet(), 0);
    let out = fake.score(&["--for", "8s", "--no-bpf"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&out.stderr));
    for words in ["seed 3", "one-busy-thread 1 (seed ", "one-busy-thread 2 (seed ", "quiet", "0 of 2"] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    assert!(text.trim_end().ends_with("PASS"), "{text}");
    let asked = fake.asked();
    assert_eq!(asked.len(), 4, "before and during each run: {asked:?}");
    assert_eq!(asked[1], "diagnose --json --for 8s --no-bpf");
    assert!(asked.iter().all(|a| !a.contains("train-")), "blind: {asked:?}");
}

#[test]
fn a_warning_in_a_control_is_below_the_bar_and_is_kept() {
    let _turn = turn();
    let fake = Fake::new("alarmed", "", &alarmed(), 1);
    let keep = fake.dir.join("kept");
    let out = fake.score(&["--json", "--keep", keep.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1));
    let score: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&score["schema"], &score["seed"], &score["pass"]),
        (&"coroner-lab.score/1".into(), &3.into(), &false.into())
    );
    assert_eq!(score["runs"].as_array().unwrap().len(), 2);
    let held: Vec<Option<bool>> = score["bars"].as_array().unwrap().iter().map(|bar| bar["pass"].as_bool()).collect();
    assert_eq!(
        held,
        [None, Some(false), Some(false), Some(true)],
        "a control has no root cause, so any proven culprit is wrong"
    );
    let stem = format!("one-busy-thread-{}", score["runs"][0]["seed"]);
    let kept = |what: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(keep.join(format!("{stem}.{what}.json"))).unwrap()).unwrap()
    };
    assert_eq!(kept("answer"), alarmed());
    assert!(kept("truth")["truth"]["comm"].as_str().unwrap().starts_with("train-"));
}

/// Keeps every core busy at nice 19; ended on drop.
struct Others(Vec<Child>);

impl Others {
    fn start() -> Others {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let burn = || Command::new("nice").args(["-n", "19", "sh", "-c", "while :; do :; done"]).spawn().unwrap();
        Others((0..cores).map(|_| burn()).collect())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_busy_machine_is_reported_but_excuses_nothing() {
    let _turn = turn();
    let fake = Fake::new("busy", "", &alarmed(), 1);
    let _others = Others::start();
    let out = fake.score(&[]);
    let (text, said) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(1), "{text}{said}");
    assert!(said.contains("waiting up to"), "{said}");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("one-busy-thread ")).collect();
    let told = |row: &&&str| row.contains("(the machine was busy: ") && row.contains(" % by others before this run)");
    assert_eq!(rows.iter().filter(told).count(), 2, "{text}");
    let end: Vec<&str> = text.trim_end().lines().rev().take(2).collect();
    assert_eq!(end[0], "FAIL", "{text}");
    assert!(end[1].contains("% by others before 2 of 2 runs, 2 of them with faults"), "{text}");
}

#[test]
fn a_failed_run_does_not_reach_the_bars() {
    let _turn = turn();
    let fails = Fake::new("fails", "", &quiet(), 2);
    let out = fails.score(&[]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("could not be run") && text.trim_end().ends_with("FAIL"), "{text}");
    let no_json = Fake::new("no-json", "echo hello", &quiet(), 0);
    assert_eq!(no_json.score(&[]).status.code(), Some(2));
    let none = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_coroner-lab")).arg("score").args(args).output().unwrap().status.code()
    };
    assert_eq!(none(&["--only", "no-such-scenario"]), Some(2));
    assert_eq!(none(&["--only", "idle", "--coroner", "/no/such/coroner"]), Some(2));
    assert_eq!(none(&["--runs", "0"]), Some(2));
}

#[test]
fn ctrl_c_ends_coroner_and_the_scenario() {
    let _turn = turn();
    // The diagnosis before the scenario answers at once; the one during it never ends.
    let hang = "case \"$*\" in *500ms*) ;; *) touch $(dirname $0)/hangs; exec sleep 600 ;; esac";
    let fake = Fake::new("hangs", hang, &quiet(), 0);
    let mut score = fake.command(&[]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&fake.dir.join("hangs"), &mut score);
    let (runner, coroner) = children(&score);
    kill_process(Pid::from_child(&score), Signal::INT).unwrap();
    assert_eq!(score.wait().unwrap().code(), Some(2));
    for pid in [runner, coroner] {
        assert_eq!(node::start_time(pid), None, "{pid} is still there");
    }
    assert!(leftovers::all().iter().all(|l| l.run().is_none_or(|run| run.pid != runner)));
}

fn wait_for(file: &Path, score: &mut Child) {
    let limit = Instant::now() + Duration::from_secs(300);
    while !file.exists() {
        assert!(score.try_wait().unwrap().is_none() && Instant::now() < limit, "it never asked");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The scenario's runner, and the hanging coroner.
fn children(score: &Child) -> (u32, u32) {
    let children = node::children_of(score.id());
    let (lab, other): (Vec<u32>, Vec<u32>) =
        children.into_iter().partition(|&p| node::comm_of(p).as_deref() == Some("coroner-lab"));
    (lab[0], other[0])
}
