//! Finds flaky tests: `cargo xtask steady` runs them repeatedly, also on a loaded machine, and counts failures.

use crate::child::ends_with_us;
use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process_group, test_kill_process_group};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LOAD: [&str; 6] = ["--cpu", "2", "--fork", "1", "--hdd", "1"];
/// The programs with tests that run on the real host.
const HOST: [&str; 8] =
    ["coroner/host", "lab", "lab/guards", "lab/scenarios", "lab/score", "probes", "recorder", "profile/perf"];
/// Tests that took less are not listed with their time.
const LONG: f64 = 5.0;
/// A test program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(45 * 60);
/// How long a process that we end may take to clean up.
const GRACE: Duration = Duration::from_secs(15);

/// Runs the host and browser tests, or `all`, `runs` times. True if nothing failed.
pub fn run(runs: u32, load: bool, all: bool, filters: &[String]) -> anyhow::Result<bool> {
    stop_on_signals();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let kept = top.join("target/steady");
    if kept.exists() {
        std::fs::remove_dir_all(&kept).with_context(|| format!("{}", kept.display()))?;
    }
    std::fs::create_dir_all(&kept)?;
    let (skipped, times) = (kept.join("skipped-tests.txt"), kept.join("times.txt"));
    let mut programs = build(&top)?;
    programs.retain(|program| all || HOST.contains(&program.name.as_str()));
    programs.extend(browser_tests(&top, filters)?);
    let _events = KernelEvents::show()?;
    let mut seen = Seen::default();
    for run in 1..=runs {
        let stress = if load { Some(start_load(&kept)?) } else { None };
        let began = Instant::now();
        for program in &programs {
            if STOP.load(Ordering::Relaxed) {
                break;
            }
            let output = kept.join(format!("{}-run{run}.txt", program.name.replace(['/', ' '], "-")));
            let (ended, took) = program.run(&output, &skipped, &times, filters)?;
            if STOP.load(Ordering::Relaxed) {
                break;
            }
            let text = String::from_utf8_lossy(&std::fs::read(&output)?).into_owned();
            if !seen.add(program, run, &text, &ended, &output) {
                std::fs::remove_file(&output)?;
            }
            seen.add_times(program, took, &std::fs::read_to_string(&times).unwrap_or_default());
        }
        drop(stress);
        if STOP.load(Ordering::Relaxed) {
            break;
        }
        eprintln!("run {run} of {runs}: {} s, {} failures so far", began.elapsed().as_secs(), seen.failures());
    }
    print!("{}", seen.table(load));
    let mut skipped: Vec<String> =
        std::fs::read_to_string(&skipped).unwrap_or_default().lines().map(str::to_owned).collect();
    skipped.sort();
    skipped.dedup();
    if !skipped.is_empty() {
        println!("\nSkipped:\n- {}", skipped.join("\n- "));
    }
    if STOP.load(Ordering::Relaxed) {
        bail!("interrupted: the table shows what ran before");
    }
    Ok(seen.failures() == 0)
}

/// A program that runs tests and prints their results.
struct Program {
    name: String,
    command: PathBuf,
    arguments: Vec<String>,
    dir: PathBuf,
    read: fn(&str) -> Vec<Outcome>,
    /// Test programs of `cargo test` take filters as arguments.
    takes_filters: bool,
}

#[derive(Debug, PartialEq)]
struct Outcome {
    test: String,
    failed: bool,
    /// `None`: the program does not tell.
    seconds: Option<f64>,
}

/// How a program ended.
enum Ended {
    Itself(ExitStatus),
    /// We ended it because it took too long.
    Late,
}

impl Program {
    fn run(
        &self,
        output: &Path,
        skipped: &Path,
        times: &Path,
        filters: &[String],
    ) -> anyhow::Result<(Ended, Duration)> {
        let file = File::create(output)?;
        File::create(times)?;
        let mut command = Command::new(&self.command);
        command.args(&self.arguments).current_dir(&self.dir).env("CORONER_SKIPPED_TESTS", skipped);
        command.env("CORONER_TEST_TIMES", times);
        command.env("CARGO_MANIFEST_DIR", &self.dir).env("CARGO", env!("CARGO"));
        if self.takes_filters {
            command.args(filters);
        }
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut group = Group::start(&mut command).with_context(|| self.name.clone())?;
        let began = Instant::now();
        loop {
            if let Some(status) = group.leader.try_wait()? {
                return Ok((Ended::Itself(status), began.elapsed()));
            }
            if began.elapsed() > LIMIT || STOP.load(Ordering::Relaxed) {
                return Ok((Ended::Late, began.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Builds every test program of the workspace, as `cargo test` does.
fn build(top: &Path) -> anyhow::Result<Vec<Program>> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--release", "--workspace", "--no-run", "--message-format=json", "--quiet"]);
    let built = command.current_dir(top).stderr(Stdio::inherit()).output().context("cargo test")?;
    if !built.status.success() {
        bail!("the tests do not compile");
    }
    let messages = String::from_utf8_lossy(&built.stdout);
    let programs: Vec<Program> = messages.lines().filter_map(program).collect();
    if programs.is_empty() {
        bail!("cargo built no tests");
    }
    // The root file system of scenarios with a real systemd; built once.
    let lab = top.join("target/release/coroner-lab");
    if geteuid().is_root() && lab.exists() {
        let made = Command::new(&lab).arg("root").stdout(Stdio::null()).status().context("coroner-lab root")?;
        if !made.success() {
            eprintln!("no root file system for the lab: tests that boot systemd will be skipped");
        }
    }
    Ok(programs)
}

/// The test program in a message of cargo, if it is one.
fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    let command = PathBuf::from(message["executable"].as_str()?);
    if message["profile"]["test"] != true {
        return None;
    }
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = dir.file_name()?.to_string_lossy().into_owned();
    let (target, kind) = (message["target"]["name"].as_str()?, message["target"]["kind"][0].as_str()?);
    let name = if kind == "lib" { package } else { format!("{package}/{target}") };
    Some(Program { name, command, arguments: Vec::new(), dir, read: cargo_outcomes, takes_filters: true })
}

fn browser_tests(top: &Path, filters: &[String]) -> anyhow::Result<Option<Program>> {
    let dir = top.join("browser-tests");
    let runs = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
    if !["node", "npm", "chromium"].into_iter().all(runs) {
        eprintln!("no node, npm or chromium: skipping the browser tests");
        return Ok(None);
    }
    if !dir.join("node_modules").exists() {
        let mut npm = Command::new("npm");
        let installed = npm.args(["ci", "--silent", "--no-audit", "--no-fund"]).current_dir(&dir).status()?;
        if !installed.success() {
            bail!("npm ci failed in browser-tests");
        }
    }
    let mut arguments = vec!["--test".to_owned(), "--test-reporter=tap".to_owned()];
    arguments.extend(filters.iter().map(|filter| format!("--test-name-pattern={}", literally(filter))));
    let read = browser_outcomes;
    let name = "browser-tests".to_owned();
    Ok(Some(Program { name, command: "node".into(), arguments, dir, read, takes_filters: false }))
}

/// A JavaScript regular expression that matches exactly this text.
fn literally(text: &str) -> String {
    let escaped = |letter: char| if letter.is_alphanumeric() { format!("{letter}") } else { format!("\\{letter}") };
    text.chars()
        .map(|letter| if letter == ' ' || letter == '_' { letter.to_string() } else { escaped(letter) })
        .collect()
}

/// The results in the output of a `cargo test` program.
fn cargo_outcomes(output: &str) -> Vec<Outcome> {
    let outcome = |line: &str| {
        let (test, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        let failed = match result {
            "ok" => false,
            "FAILED" => true,
            _ => return None,
        };
        Some(Outcome { test: test.trim_end_matches(" - should panic").to_owned(), failed, seconds: None })
    };
    output.lines().filter_map(outcome).collect()
}

/// The same for `node --test`, which prints TAP. A file counts as a test if it failed before its tests ran.
fn browser_outcomes(output: &str) -> Vec<Outcome> {
    let outcome = |line: &str| {
        let (failed, rest) = match line.strip_prefix("not ok ") {
            Some(rest) => (true, rest),
            None => (false, line.strip_prefix("ok ")?),
        };
        let (number, test) = rest.split_once(" - ")?;
        number.parse::<u32>().ok()?;
        Some(Outcome { test: test.to_owned(), failed, seconds: None })
    };
    let mut outcomes: Vec<Outcome> = Vec::new();
    for line in output.lines().map(str::trim_start) {
        let ms = line.strip_prefix("duration_ms: ").and_then(|ms| ms.parse::<f64>().ok());
        match (ms, outcomes.last_mut()) {
            (Some(ms), Some(last)) => last.seconds = last.seconds.or(Some(ms / 1000.0)),
            _ => outcomes.extend(outcome(line)),
        }
    }
    outcomes.retain(|outcome| !outcome.test.contains(" # SKIP"));
    let (files, tests): (Vec<Outcome>, Vec<Outcome>) =
        outcomes.into_iter().partition(|outcome| outcome.test.ends_with(".mjs"));
    if tests.iter().any(|outcome| outcome.failed) {
        return tests;
    }
    tests.into_iter().chain(files.into_iter().filter(|file| file.failed)).collect()
}

/// The results of each test so far.
#[derive(Default)]
struct Seen {
    tests: BTreeMap<(String, String), Runs>,
    /// The longest run of each program, in seconds.
    programs: BTreeMap<String, f64>,
}

#[derive(Default)]
struct Runs {
    runs: u32,
    /// The output of each run in which it failed.
    failures: Vec<String>,
    /// The longest run, in seconds; without the wait for its turn.
    longest: f64,
}

impl Seen {
    /// Adds what `program` printed. True if something failed.
    fn add(&mut self, program: &Program, run: u32, text: &str, ended: &Ended, output: &Path) -> bool {
        let mut outcomes = (program.read)(text);
        let failed = outcomes.iter().any(|outcome| outcome.failed);
        match ended {
            Ended::Late => {
                let test = format!("(ended by us after {} min)", LIMIT.as_secs() / 60);
                outcomes.push(Outcome { test, failed: true, seconds: None });
            }
            Ended::Itself(status) if !status.success() && (!failed || status.signal().is_some()) => {
                let test = format!("(the whole program: {status})");
                outcomes.push(Outcome { test, failed: true, seconds: None });
            }
            Ended::Itself(_) => {}
        }
        let mut any = false;
        for outcome in outcomes {
            let runs = self.tests.entry((program.name.clone(), outcome.test.clone())).or_default();
            runs.runs += 1;
            runs.longest = runs.longest.max(outcome.seconds.unwrap_or(0.0));
            if outcome.failed {
                any = true;
                eprintln!("run {run}: {} failed: {}", program.name, outcome.test);
                runs.failures.push(output.file_name().unwrap_or_default().to_string_lossy().into_owned());
            }
        }
        any
    }

    /// Adds what the tests themselves wrote: seconds, and the test's name.
    fn add_times(&mut self, program: &Program, took: Duration, times: &str) {
        let longest = self.programs.entry(program.name.clone()).or_default();
        *longest = longest.max(took.as_secs_f64());
        for (seconds, test) in times.lines().filter_map(|line| line.split_once(' ')) {
            let test = self.tests.get_mut(&(program.name.clone(), test.to_owned()));
            if let (Some(test), Ok(seconds)) = (test, seconds.parse::<f64>()) {
                test.longest = test.longest.max(seconds);
            }
        }
    }

    fn failures(&self) -> usize {
        self.tests.values().map(|runs| runs.failures.len()).sum()
    }

    /// Which tests failed how often, and the longest times, as Markdown.
    fn table(&self, load: bool) -> String {
        let most = self.tests.values().map(|runs| runs.runs).max().unwrap_or(0);
        let beside = if load { format!(" beside `stress-ng {}`", LOAD.join(" ")) } else { String::new() };
        let mut text = format!("{} tests, {most} runs{beside}: {} failures\n", self.tests.len(), self.failures());
        let failed = self.tests.iter().filter(|(_, runs)| !runs.failures.is_empty());
        for (at, ((program, test), runs)) in failed.enumerate() {
            if at == 0 {
                text += "\n| test | runs | failures | output in target/steady |\n|---|---|---|---|\n";
            }
            let (failures, files) = (runs.failures.len(), runs.failures.join(", "));
            text += &format!("| {program}: `{test}` | {} | {failures} | {files} |\n", runs.runs);
        }
        let programs = self.programs.iter().map(|(program, seconds)| (program.clone(), *seconds));
        let long = self.tests.iter().filter(|(_, runs)| runs.longest >= LONG);
        let long = long.map(|((program, test), runs)| (format!("{program}: `{test}`"), runs.longest));
        for (what, times) in [("program", Vec::from_iter(programs)), ("test", Vec::from_iter(long))] {
            text += &longest_first(what, times);
        }
        text
    }
}

fn longest_first(what: &str, mut times: Vec<(String, f64)>) -> String {
    times.sort_by(|a, b| b.1.total_cmp(&a.1));
    let rows: String = times.iter().map(|(name, seconds)| format!("| {name} | {seconds:.0} s |\n")).collect();
    if rows.is_empty() { rows } else { format!("\n| {what} | longest |\n|---|---|\n{rows}") }
}

/// A process and everything it starts; ended on drop.
struct Group {
    leader: Child,
}

impl Group {
    fn start(command: &mut Command) -> std::io::Result<Group> {
        Ok(Group { leader: ends_with_us(command.process_group(0)).spawn()? })
    }

    /// The group's number is that of our own child: it is not given to anybody else while the child is not waited for or a process of
    /// the group is left.
    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(Pid::from_child(&self.leader), signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let began = Instant::now();
        self.signal(Signal::TERM);
        // A stopped process does not handle SIGTERM.
        self.signal(Signal::CONT);
        while began.elapsed() < GRACE {
            let _ = self.leader.try_wait();
            if test_kill_process_group(Pid::from_child(&self.leader)).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.signal(Signal::KILL);
        let _ = self.leader.wait();
    }
}

fn start_load(dir: &Path) -> anyhow::Result<Group> {
    let mut command = Command::new("stress-ng");
    command.args(LOAD).arg("--temp-path").arg(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Group::start(&mut command).context("stress-ng (apt install stress-ng)")
}

/// Mounts tracefs, which some tests read, if it is not mounted; unmounts it on drop.
struct KernelEvents;

impl KernelEvents {
    const DIR: &str = "/sys/kernel/tracing";

    fn show() -> anyhow::Result<Option<KernelEvents>> {
        let dir = Path::new(KernelEvents::DIR);
        if !geteuid().is_root() || !dir.exists() || dir.join("events").exists() {
            return Ok(None);
        }
        let mounted = Command::new("mount").args(["-t", "tracefs", "nodev", KernelEvents::DIR]).status()?;
        Ok(mounted.success().then_some(KernelEvents))
    }
}

impl Drop for KernelEvents {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(KernelEvents::DIR).status();
    }
}

/// Set by an end signal.
static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

fn stop_on_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores into an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, note as *const () as libc::sighandler_t) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(read: fn(&str) -> Vec<Outcome>, output: &str) -> Vec<(String, bool)> {
        read(output).into_iter().map(|outcome| (outcome.test, outcome.failed)).collect()
    }

    #[test]
    fn cargo_test_output_is_parsed() {
        let output = "\nrunning 4 tests\ntest a::quick ... ok\ntest b ... FAILED\ntest c - should panic ... ok\n\
                      test slow ... ignored, takes long\n\nfailures:\n\n---- b stdout ----\ntest of mine ... not this\n\n\
                      test result: FAILED. 2 passed; 1 failed; 1 ignored\n";
        let expected = [("a::quick".to_owned(), false), ("b".to_owned(), true), ("c".to_owned(), false)];
        assert_eq!(outcomes(cargo_outcomes, output), expected);
    }

    #[test]
    fn node_output_is_parsed() {
        let output = "TAP version 13\n# Subtest: zoom - and back\nok 1 - zoom - and back\n  ---\n  duration_ms: 3\n  ...\n\
                      # Subtest: /x/page.test.mjs\n    not ok 1 - search\n    ok 2 - other # SKIP test name does not match\n\
                      not ok 2 - /x/page.test.mjs\n1..2\n# fail 1\n";
        let expected = [("zoom - and back".to_owned(), false), ("search".to_owned(), true)];
        assert_eq!(outcomes(browser_outcomes, output), expected);
        assert_eq!(browser_outcomes(output)[0].seconds, Some(0.003));
        let broken = "ok 1 - zoom\nnot ok 2 - /x/page.test.mjs\n";
        assert_eq!(outcomes(browser_outcomes, broken)[1], ("/x/page.test.mjs".to_owned(), true));
    }

    #[test]
    fn test_programs_are_told_from_others() {
        let message = |test: bool, kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/lab/Cargo.toml","executable":"/t/lab-1",
                "target":{{"name":"guards","kind":["{kind}"]}},"profile":{{"test":{test}}}}}"#
            )
        };
        let named = |text: &str| program(text).map(|program| (program.name, program.dir));
        assert_eq!(named(&message(true, "test")), Some(("lab/guards".to_owned(), "/w/crates/lab".into())));
        assert_eq!(named(&message(true, "lib")), Some(("lab".to_owned(), "/w/crates/lab".into())));
        assert_eq!(named(&message(false, "bin")), None);
        assert_eq!(named(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn failures_are_counted_per_test_and_a_crash_is_one() {
        let arguments = Vec::new();
        let program = Program {
            name: "lab/guards".to_owned(),
            command: "x".into(),
            arguments,
            dir: "/".into(),
            read: cargo_outcomes,
            takes_filters: true,
        };
        let mut seen = Seen::default();
        let (fine, failed, killed) = (ExitStatus::from_raw(0), ExitStatus::from_raw(101 << 8), ExitStatus::from_raw(9));
        assert!(!seen.add(&program, 1, "test a ... ok\n", &Ended::Itself(fine), Path::new("/s/r1.txt")));
        assert_eq!(seen.table(false), "1 tests, 1 runs: 0 failures\n");
        seen.add_times(&program, Duration::from_secs(9), "4.2 a\n7.4 a\n3.0 unknown\n");
        let times = "\n| program | longest |\n|---|---|\n| lab/guards | 9 s |\n\n| test | longest |\n|---|---|\n| lab/guards: `a` | 7 s |\n";
        assert!(seen.table(false).ends_with(times), "{}", seen.table(false));
        assert!(seen.add(&program, 2, "test a ... FAILED\n", &Ended::Itself(failed), Path::new("/s/r2.txt")));
        assert!(seen.add(&program, 3, "test a ... ok\n", &Ended::Itself(killed), Path::new("/s/r3.txt")));
        assert!(seen.add(&program, 4, "", &Ended::Late, Path::new("/s/r4.txt")));
        let table = seen.table(true);
        assert!(table.contains("| lab/guards: `a` | 3 | 1 | r2.txt |\n"), "{table}");
        assert!(table.contains("signal: 9") && table.contains("ended by us"), "{table}");
        assert_eq!(seen.failures(), 3);
    }

    #[test]
    fn a_group_ends_with_its_children() {
        let dir = tempfile::tempdir().expect("a directory");
        let pid_file = dir.path().join("pid");
        let script = format!("sleep 600 & echo $! > {0}.part; mv {0}.part {0}; wait", pid_file.display());
        let group = Group::start(Command::new("sh").args(["-c", &script])).expect("a shell");
        let began = Instant::now();
        while !pid_file.exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "the shell did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        let child = std::fs::read_to_string(&pid_file).expect("a number").trim().to_owned();
        drop(group);
        let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }

    #[test]
    fn filters_are_taken_literally_by_node() {
        assert_eq!(literally("zoom_in (twice)"), r"zoom_in \(twice\)");
    }
}
