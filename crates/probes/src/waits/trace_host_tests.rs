//! The ledger against an independent witness: the kernel's trace of the same seconds.

use super::*;
use coroner_evidence::Window;
use std::path::PathBuf;

/// What ledger and trace may differ by: this share, and what the trace's microseconds and the edges of the window are worth.
const TOLERANCE: f64 = 0.02;
const EDGES_NS: f64 = 5e6;

/// A tracefs and an instance of our own, which see nothing but the switches and wake-ups of some threads. Drop removes both.
struct Trace {
    dir: tempfile::TempDir,
}

impl Trace {
    fn start(pids: &[u32]) -> Option<Trace> {
        let trace = Trace { dir: tempfile::tempdir().unwrap() };
        let mounted = Command::new("mount").args(["-t", "tracefs", "nodev"]).arg(trace.dir.path()).status().unwrap();
        if !mounted.success() || std::fs::create_dir(trace.instance()).is_err() {
            return None;
        }
        let write = |file: &str, text: &str| std::fs::write(trace.instance().join(file), text).unwrap();
        let any = |of: &dyn Fn(&u32) -> String| pids.iter().map(of).collect::<Vec<_>>().join(" || ");
        let woken = any(&|pid| format!("pid == {pid}"));
        write("trace_clock", "mono");
        write("buffer_size_kb", "8192");
        write("events/sched/sched_switch/filter", &any(&|pid| format!("prev_pid == {pid} || next_pid == {pid}")));
        write("events/sched/sched_wakeup/filter", &woken);
        write("events/sched/sched_wakeup_new/filter", &woken);
        for event in ["sched_wakeup", "sched_wakeup_new", "sched_switch"] {
            write(&format!("events/sched/{event}/enable"), "1");
        }
        Some(trace)
    }

    fn instance(&self) -> PathBuf {
        self.dir.path().join("instances").join(format!("coroner-test-{}", std::process::id()))
    }

    fn stop(&self) -> String {
        std::fs::write(self.instance().join("tracing_on"), "0").unwrap();
        std::fs::read_to_string(self.instance().join("trace")).unwrap()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(self.instance());
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}

/// How long a thread ran, and how long it could have, within a window. One that the trace does not show at all was ready to run all along: a
/// light cgroup's turn may come less than once in a window, and none of our threads sleeps that long.
fn traced(trace: &str, pid: u32, window: Window) -> (f64, f64) {
    #[derive(Clone, Copy, PartialEq)]
    enum Now {
        Unknown,
        Runs,
        Waits,
        Sleeps,
    }
    let (mut now, mut since, mut ran, mut waited) = (Now::Unknown, window.from.0, 0, 0);
    let mut to = |next: Now, at: u64, if_unknown: Now| {
        let was = if now == Now::Unknown { if_unknown } else { now };
        let ns = at.min(window.to.0).saturating_sub(since.max(window.from.0));
        match was {
            Now::Runs => ran += ns,
            Now::Waits => waited += ns,
            Now::Unknown | Now::Sleeps => {}
        }
        (now, since) = (next, at);
    };
    let mut is_runnable = false;
    for line in trace.lines() {
        let Some((head, event)) = line.split_once(": sched_") else { continue };
        let field = |name: &str| event.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let is = |name: &str| field(name) == Some(pid.to_string().as_str());
        let seconds: f64 = head.split_whitespace().next_back().and_then(|time| time.parse().ok()).unwrap();
        let at = (seconds * 1e9) as u64;
        if event.starts_with("wakeup") {
            // One that was not asleep stays as it is.
            if is("pid") && !is_runnable {
                to(Now::Waits, at, Now::Sleeps);
                is_runnable = true;
            }
        } else if is("next_pid") {
            to(Now::Runs, at, Now::Waits);
            is_runnable = true;
        } else if is("prev_pid") {
            is_runnable = field("prev_state").is_some_and(|state| state.starts_with('R'));
            to(if is_runnable { Now::Waits } else { Now::Sleeps }, at, Now::Runs);
        }
    }
    to(Now::Unknown, window.to.0, Now::Waits);
    (ran as f64, waited as f64)
}

/// Watches both ways at once and compares.
fn compare(case: &str, children: &[&Child]) {
    sleep(GROWN);
    let pids: Vec<u32> = children.iter().map(|child| child.pid()).collect();
    let Some(trace) = Trace::start(&pids) else { return coroner_lab::skip("no tracefs") };
    let mut reader = WaitReader::start(&Root::live(), PACE);
    let mut ledgers = watch_with(&mut reader, WINDOW);
    ledgers.extend(reader.close(true));
    let trace = trace.stop();
    let window = Window { from: ledgers[0].from, to: ledgers[ledgers.len() - 1].to };
    for pid in pids {
        let loss = loss_of(&ledgers, pid);
        let (ran, waited) = traced(&trace, pid, window);
        // The trace does not know why a thread that is ready to run does not.
        let ours = (loss.sum(|a| a.ran_ns) as f64, loss.sum(|a| a.waited_ns + a.throttled_ns) as f64);
        println!(
            "{case}: ran {:.1} of {:.1} ms, waited {:.1} of {:.1} ms",
            ours.0 / 1e6,
            ran / 1e6,
            ours.1 / 1e6,
            waited / 1e6
        );
        for (ours, traced) in [(ours.0, ran), (ours.1, waited)] {
            assert!((ours - traced).abs() <= TOLERANCE * traced + EDGES_NS, "{case} {pid}: {ours} {traced} {loss:?}");
        }
        let all: u64 = loss.accounts.iter().map(Account::total_ns).sum();
        // Attaching takes a moment: the programs do not all begin at once.
        assert!(all.abs_diff(watched(&ledgers)) as f64 <= EDGES_NS, "{case} {pid}: {loss:?}");
    }
}

#[test]
fn spinners_that_take_turns() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let [a, b, c] = [(); 3].map(|()| spinner());
    compare("three on one core", &[&a, &b, &c]);
}

#[test]
fn a_real_time_thread_and_its_victim() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let victim = spinner();
    let hog = on_core_1(
        &["chrt", "-f", "10"],
        "while :; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; sleep 0.05; done",
    );
    compare("real time", &[&victim, &hog]);
}

#[test]
fn a_light_cgroup_beside_a_heavy_one() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let small = Cgroup::with_controller("cpu", "coroner-trace-small").unwrap();
    if small.write("cpu.shares", "2").is_err() {
        small.write("cpu.weight", "1").unwrap();
    }
    let (victim, hogs) = (spinner(), [(); 2].map(|()| spinner()));
    small.add(victim.pid()).unwrap();
    compare("weights", &[&victim, &hogs[0], &hogs[1]]);
    drop(victim);
}
