//! Commands that coroner prints, run exactly as printed in the situation for which it prints them.

use crate::support::*;
use coroner_diagnosis::cores::cited::how_to_move;
use coroner_evidence::Evidence;
use coroner_lab::{Cgroup, Child, HostLock};
use coroner_probes::Root;
use coroner_probes::root::now;
use coroner_probes::tasks::TaskReader;
use serde_json::Value;
use std::process::Command;

fn spinner() -> Child {
    Child::spawn("advised", Command::new("sh").args(["-c", "while :; do :; done"])).unwrap()
}

/// The commands between backquotes.
fn commands(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn run(command: &str) -> bool {
    Command::new("sh").args(["-c", command]).output().unwrap().status.success()
}

fn may_run_on(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

#[test]
fn a_thread_in_a_cpuset_can_leave_its_core_after_the_printed_command() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let outer = Cgroup::with_controller("cpuset", "advice-cpuset").unwrap();
    outer.write("cpuset.cpus", "1").unwrap();
    let is_v1 = outer.hierarchy().version == 1;
    if is_v1 {
        // A new v1 cpuset has no memory nodes, and nobody can join it.
        outer.write("cpuset.mems", "0").unwrap();
    } else {
        outer.hierarchy().enable(outer.dir(), "cpuset").unwrap();
    }
    let inner = outer.child("job").unwrap();
    if is_v1 {
        inner.write("cpuset.cpus", "1").unwrap();
        inner.write("cpuset.mems", "0").unwrap();
    }
    let spinner = spinner();
    inner.add(spinner.pid()).unwrap();
    assert_eq!(may_run_on(spinner.pid()), "1");
    assert!(!run(&format!("taskset -pc 0 {}", spinner.pid())), "taskset cannot lead out of a cpuset");

    let mut reader = TaskReader::new(Root::live());
    let mut evidence = Evidence::default();
    let is_seen = |evidence: &Evidence| evidence.cpusets.iter().any(|cpuset| cpuset.threads.contains(&spinner.pid()));
    wait_until("its cpuset is seen", || {
        reader.look_all(now(), &mut evidence);
        is_seen(&evidence)
    });
    let advice = how_to_move(&evidence, spinner.pid(), "0");
    assert!(advice.contains(&format!("its cpuset {} allows only core 1", inner.path())), "{advice}");
    let printed = commands(&advice);
    let [command] = printed.as_slice() else { panic!("{advice}") };
    assert!(run(command), "{command}");
    assert_eq!(may_run_on(spinner.pid()), "0-1", "{command}");
    assert!(run(&format!("taskset -pc 0 {}", spinner.pid())));
}

#[test]
fn a_quota_is_raised_and_removed_by_the_printed_commands() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let cgroup = Cgroup::with_controller("cpu", "advice-quota").unwrap();
    let is_v1 = cgroup.hierarchy().version == 1;
    let (file, quota) = if is_v1 { ("cpu.cfs_quota_us", "2000") } else { ("cpu.max", "2000 100000") };
    cgroup.write(file, quota).unwrap();
    // Two percent of a core: a busy machine leaves it more than that.
    let spinner = spinner();
    cgroup.add(spinner.pid()).unwrap();
    let diagnosis = json_of(&coroner(&["diagnose", "--for", "3s", "--json"]));
    let path = cgroup.path();
    let about = |f: &&Value| f["code"] == "cpu-throttled" && f["subject"]["name"] == path.as_str();
    let found = findings(&diagnosis).iter().find(about).unwrap_or_else(|| panic!("{diagnosis:#}"));
    assert_eq!(found["time"]["ongoing"], true, "{found:#}");
    let remedy = found["remedy"].as_str().unwrap();
    let printed = commands(remedy);
    let [raise, lift] = printed.as_slice() else { panic!("{remedy}") };
    let now = || cgroup.read(file).unwrap().split_whitespace().next().unwrap().to_owned();
    assert!(run(raise), "{raise}");
    let raised: u64 = now().parse().unwrap();
    assert!(raised > 2000 && raise.contains(&raised.to_string()), "{raise}: {raised}");
    assert!(run(lift), "{lift}");
    assert_eq!(now(), if is_v1 { "-1" } else { "max" });
}
