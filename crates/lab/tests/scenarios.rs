//! Every scenario for real: its problem is there when it says so, and nothing is left afterwards, however it ends.

use coroner_diagnosis::Code;
use coroner_lab::leftovers::{self, Leftover};
use coroner_lab::scenarios::{ALL, Need, Scenario, systemd_root};
use coroner_lab::truth::Truth;
use coroner_lab::{HostLock, LiveScenario, node, skip};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_coroner-lab");
const MARK: &str = "CORONER_LAB_TEST_MARK";

/// The scenarios that can run here.
fn possible() -> Vec<&'static Scenario> {
    let able = |s: &&Scenario| {
        let unmet = s.needs.iter().find_map(|n| n.check().err().map(|e| e.to_string()));
        let unbuilt = s.needs.contains(&Need::SystemdRoot) && !root_is_built();
        let why = unmet.or_else(|| unbuilt.then(|| "no root file system yet: `coroner-lab root` makes it".to_owned()));
        if let Some(why) = &why {
            skip(&format!("{}: {why}", s.name));
        }
        why.is_none()
    };
    ALL.iter().filter(able).collect()
}

fn root_is_built() -> bool {
    systemd_root::location().is_ok_and(|root| systemd_root::is_built(&root))
}

/// Smaller counts for scenarios that make tens of thousands of something, to be quick.
fn fewer(scenario: &Scenario) -> &'static [&'static str] {
    match scenario.name {
        // Not the-incident: one pass over its dead cgroups must outlast the driver's timeout.
        "zombie-reclaim" => &["--count", "3000"],
        _ => &[],
    }
}

/// A run of the lab, marked so that its processes can be found.
struct Run {
    mark: String,
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Run {
    fn start(args: &[&str], fault: Option<&str>) -> Run {
        let mut command = Command::new(BINARY);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}-", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        command.env(MARK, &mark);
        if let Some(fault) = fault {
            command.env("CORONER_LAB_FAULT", fault);
        }
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Run { mark, child, out }
    }

    fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}")))
    }

    /// The ready line; panics with what it said instead.
    fn ready(&mut self) -> Value {
        match self.line() {
            Some(line) if line["ready"] == true => line,
            other => panic!("not ready but {other:?}: {}", self.complaint()),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn complaint(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    fn end(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// What is on the node now from this run: cgroups, namespaces, mounts, processes.
    fn traces(&self) -> Vec<String> {
        let pid = self.child.id();
        let ours = |l: &Leftover| l.run().is_some_and(|run| run.pid == pid);
        let mut traces: Vec<String> = leftovers::all().into_iter().filter(ours).map(|l| l.to_string()).collect();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let named = format!("coroner-lab-{pid}-");
        traces.extend(mounts.lines().filter(|l| l.contains(&named)).map(|l| format!("mount {l}")));
        let mark = format!("{MARK}={}", self.mark);
        traces.extend(
            node::processes().filter(|&p| p != pid && has_environment(p, &mark)).map(|p| format!("process {p}")),
        );
        traces
    }

    fn assert_nothing_left(&self, context: &str) {
        eventually(&format!("nothing is left after {context}"), || match self.traces() {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:#?}")),
        });
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Only if a test failed: SIGTERM, so that it cleans up.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

fn has_environment(pid: u32, mark: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|env| env.split(|&b| b == 0).any(|v| v.starts_with(mark.as_bytes())))
}

fn eventually(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let limit = Instant::now() + Duration::from_secs(120);
    while let Err(why) = look() {
        assert!(Instant::now() < limit, "gave up waiting until {what}: {why}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What a scenario must not change: shared device nodes and kernel settings.
fn shared_state() -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    // Only these: a disk may be plugged in meanwhile.
    let devices = ["null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "kmsg"];
    let devices = devices.into_iter().filter_map(|name| {
        let m = fs::metadata(format!("/dev/{name}")).ok()?;
        Some(format!("{name} {:o} {}:{}", m.mode(), m.uid(), m.gid()))
    });
    let settings = [
        "kernel/hostname",
        "kernel/core_pattern",
        "kernel/printk",
        "kernel/sched_rt_runtime_us",
        "fs/nr_open",
        "fs/file-max",
    ];
    let settings = settings.into_iter().map(|s| format!("{s} {:?}", fs::read_to_string(format!("/proc/sys/{s}")).ok()));
    let mut state: Vec<String> = devices.chain(settings).collect();
    state.sort();
    state
}

/// How many systemds boot at once.
const BESIDE: usize = 4;

/// Those with a systemd of their own mostly wait, and share nothing: they run beside each other. The others want cores.
#[test]
fn every_scenario_makes_its_problem_and_leaves_nothing_behind() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let apart = |s: &&Scenario| s.needs.contains(&Need::SystemdRoot) && !s.needs.contains(&Need::TwoCores);
    let (apart, alone): (Vec<_>, Vec<_>) = possible().into_iter().partition(apart);
    let shared = shared_state();
    for (i, scenario) in alone.into_iter().enumerate() {
        makes_its_problem(scenario, i % 2 == 1, 1);
        assert_eq!(shared_state(), shared, "{}", scenario.name);
    }
    let next = Mutex::new(apart.into_iter().enumerate());
    std::thread::scope(|scope| {
        for _ in 0..BESIDE {
            scope.spawn(|| {
                let take = || next.lock().unwrap().next();
                while let Some((i, scenario)) = take() {
                    // Longer, as a unit that restarts a few times a second is late when others boot.
                    makes_its_problem(scenario, i % 2 == 1, 3);
                }
            });
        }
    });
    assert_eq!(shared_state(), shared);
}

/// Every other scenario ends by itself, the rest by Ctrl-C: they all share the code that holds the problem.
fn makes_its_problem(scenario: &Scenario, interrupted: bool, seconds: u64) {
    let hold = if interrupted { "600".to_owned() } else { seconds.to_string() };
    let mut run =
        Run::start(&[&["run", scenario.name, "--seconds", &hold, "--seed", "7"], fewer(scenario)].concat(), None);
    let ready = run.ready();
    assert_eq!((&ready["scenario"], &ready["seed"]), (&scenario.name.into(), &7.into()));
    let truth: Truth = serde_json::from_value(ready["truth"].clone()).unwrap();
    let mut expected: Vec<&str> = truth.expect.iter().map(|e| e.code.as_str()).collect();
    // One code may be expected of several culprits.
    expected.dedup();
    assert_eq!(expected, scenario.expects, "{}", scenario.name);
    assert!(truth.forbid.iter().all(|code| Code::parse(code).is_some()), "{}: {:?}", scenario.name, truth.forbid);
    assert!(truth.forbid.iter().all(|code| !scenario.expects.contains(&code.as_str())));
    assert_eq!(truth.max_severity.is_none(), !scenario.expects.is_empty(), "{}", scenario.name);
    assert_eq!(run.traces().is_empty(), scenario.name == "idle", "{}: {:?}", scenario.name, run.traces());
    assert_truth_is_true(scenario.name, &ready["truth"]);

    if interrupted {
        std::thread::sleep(Duration::from_secs(seconds));
        run.signal(Signal::INT);
    }
    let ended = run.line().unwrap_or_else(|| panic!("{}: {}", scenario.name, run.complaint()));
    assert_eq!((&ended["ended"], &ended["interrupted"]), (&true.into(), &interrupted.into()), "{ended}");
    assert_measured(scenario.name, &ended["measured"]);
    assert!(run.end().success(), "{}: {}", scenario.name, run.complaint());
    run.assert_nothing_left(scenario.name);
}

/// Checks independently that the problem is what the truth says.
fn assert_truth_is_true(scenario: &str, truth: &Value) {
    let pid = || truth["pid"].as_u64().unwrap() as u32;
    let stat = || node::task_stat(pid()).unwrap();
    if let Some(comm) = truth["comm"].as_str() {
        assert_eq!(node::comm_of(pid()).as_deref(), Some(comm), "{scenario}");
    }
    match scenario {
        "zombie-reclaim" | "the-incident" => {
            assert_eq!(u64::from(stat().core), truth["core"].as_u64().unwrap());
            let tracked = fs::read_to_string("/proc/cgroups").unwrap();
            let tracked = tracked.lines().find_map(|l| l.strip_prefix("memory\t")?.split('\t').nth(1)?.parse().ok());
            assert!(tracked.is_none_or(|n: u64| n >= truth["count"].as_u64().unwrap()), "{tracked:?} of {truth}");
        }
        "memory-limit-reclaim" => {
            let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", pid())).unwrap();
            assert!(cgroups.lines().any(|l| l.ends_with(truth["cgroup"].as_str().unwrap())), "{cgroups}");
            assert!(truth["file_bytes"].as_u64() > truth["limit_bytes"].as_u64(), "{truth}");
        }
        "two-problems" => {
            assert_truth_is_true("rt-monopoly", &truth["monopoly"]);
            assert_truth_is_true("cpu-throttle", &truth["throttled"]);
        }
        "few-zombies" => assert!(truth["count"].as_u64().is_some_and(|n| (20..=50).contains(&n)), "{truth}"),
        "batch-job-ends" => {
            assert!(node::children_of(pid()).iter().all(|&p| node::task_stat(p).is_none_or(|s| s.policy == 0)));
        }
        "rt-monopoly" => assert_eq!((stat().policy, u64::from(stat().core)), (1, truth["core"].as_u64().unwrap())),
        "cpu-throttle" => {
            let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", pid())).unwrap();
            assert!(cgroups.lines().any(|l| l.ends_with(truth["cgroup"].as_str().unwrap())), "{cgroups}");
        }
        "nic-starved" => {
            let napi = truth["napi"]["tid"].as_u64().unwrap() as u32;
            assert_eq!(node::comm_of(napi).as_deref(), truth["napi"]["comm"].as_str());
            assert!(truth["netns_path"].as_str().is_some_and(|path| fs::exists(path).unwrap()));
        }
        "ksoftirqd-starved" => {
            assert_eq!((stat().policy, u64::from(stat().core)), (1, truth["core"].as_u64().unwrap()));
            let ksoftirqd = truth["ksoftirqd"].as_u64().unwrap() as u32;
            assert_eq!(node::comm_of(ksoftirqd), Some(format!("ksoftirqd/{}", truth["core"])));
        }
        "softirq-storm" => {
            let senders = &truth["senders"];
            for (pid, comm) in senders["pids"].as_array().unwrap().iter().zip(senders["comms"].as_array().unwrap()) {
                assert_eq!(node::comm_of(pid.as_u64().unwrap() as u32).as_deref(), comm.as_str());
            }
        }
        "observer-smaps" => {
            let target = truth["target"]["pid"].as_u64().unwrap();
            let status = fs::read_to_string(format!("/proc/{target}/status")).unwrap();
            let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")).unwrap();
            assert!(resident.parse::<u64>().unwrap() << 10 >= truth["target"]["bytes"].as_u64().unwrap(), "{truth}");
        }
        "cgroup-dir-leak" => {
            let hierarchy = coroner_lab::Hierarchy::with("memory").unwrap();
            let parent = hierarchy.mount_point.join(truth["cgroup"].as_str().unwrap().trim_start_matches('/'));
            assert!(directories_below(&parent) as u64 >= truth["count"].as_u64().unwrap(), "{truth}");
            let example = parent.join(format!("{}0", truth["prefix"].as_str().unwrap()));
            assert_eq!(fs::read_to_string(example.join("cgroup.procs")).unwrap(), "", "nobody is in it");
        }
        "short-spikes" => assert_eq!(stat().policy == 1, truth["real_time"].as_bool().unwrap()),
        "zombies" => {
            if let (Some(before), Some(now)) = (truth["tracked_before"].as_u64(), truth["tracked"].as_u64()) {
                // Others remove cgroups meanwhile, but not hundreds.
                assert!(now > before + truth["count"].as_u64().unwrap() / 2, "{truth}");
            }
        }
        "zombies-pinned" => {
            use std::os::unix::fs::MetadataExt;
            let files = truth["files"].as_array().unwrap();
            let sum = |of: &str| files.iter().map(|f| f[of].as_u64().unwrap()).sum::<u64>();
            let bytes = &truth["bytes"];
            assert_eq!(sum("zombies"), truth["count"].as_u64().unwrap(), "{truth}");
            assert_eq!(sum("bytes"), bytes["file"].as_u64().unwrap() + bytes["shmem"].as_u64().unwrap(), "{truth}");
            for file in files {
                let size = fs::metadata(file["path"].as_str().unwrap()).unwrap().size();
                assert_eq!(Some(size), file["bytes"].as_u64(), "{truth}");
            }
            if let (Some(before), Some(now)) = (truth["tracked_before"].as_u64(), truth["tracked"].as_u64()) {
                assert!(now > before + truth["count"].as_u64().unwrap() / 2, "{truth}");
            }
        }
        "crashloop-leak" | "crashloop-reset" => {
            let left = fs::read_dir(in_root(truth, "var/lib/ecs")).unwrap().count() as u64;
            assert!(truth["leaked"].as_u64().is_some_and(|n| (3..=left).contains(&n)), "{left} of {truth}");
            let status = fs::read_to_string(in_root(truth, "var/lib/dpkg/status")).unwrap();
            assert!(status.contains(&format!("Version: {}", truth["package_version"].as_str().unwrap())));
        }
        "supervised-churn" => {
            let (comm, pid) = truth["supervisor"].as_str().unwrap().trim_end_matches(']').split_once('[').unwrap();
            assert_eq!(node::comm_of(pid.parse().unwrap()).as_deref(), Some(comm));
            let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
            assert!(cgroups.contains(truth["unit_cgroup"].as_str().unwrap()), "{cgroups}");
        }
        "failing-oneshot" => assert_eq!(truth["result"], "exit-code"),
        "agent-unused" | "agent-conflict" | "agent-configured" => {
            assert_eq!(truth["enablement"], "enabled");
            assert_eq!(in_root(truth, "etc/ecs/ecs.config").exists(), scenario != "agent-unused");
            let kubelet = truth["kubelet"]["pid"].as_u64().unwrap();
            assert_eq!(node::comm_of(kubelet as u32).as_deref(), Some("kubelet"));
            assert_eq!(truth["kubelet"]["unit"] == "kubelet.service", scenario == "agent-conflict");
        }
        "many-units" => {
            let started = node::children_of(truth["leader"].as_u64().unwrap() as u32).into_iter();
            let jobs = started.filter(|&p| node::comm_of(p).as_deref() == Some("sleep")).count() as u64;
            assert_eq!((Some(jobs), jobs), (truth["count"].as_u64(), 400));
            assert!(truth["names"].as_u64() > Some(jobs), "{truth}");
        }
        "hanging-bus" | "severed-bus" => {
            for address in truth["buses"].as_object().unwrap().values() {
                let path = address.as_str().unwrap().strip_prefix("unix:path=").unwrap();
                std::os::unix::net::UnixStream::connect(path).unwrap_or_else(|e| panic!("{path}: {e}"));
            }
        }
        "deadline-hog" => assert_eq!(stat().policy, 6),
        "fork-storm" => assert!(!node::children_of(pid()).is_empty()),
        "crowded-cpuset" => {
            let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", pid())).unwrap();
            assert!(cgroups.lines().any(|l| l.ends_with(truth["cgroup"].as_str().unwrap())), "{cgroups}");
            let status = fs::read_to_string(format!("/proc/{}/status", pid())).unwrap();
            let core = truth["core"].to_string();
            assert!(status.lines().any(|l| l.strip_prefix("Cpus_allowed_list:").is_some_and(|c| c.trim() == core)));
        }
        "frozen-fs" => {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid())).unwrap();
            assert!(stat.contains(") D "), "{stat}");
        }
        "busy-healthy" | "one-busy-thread" => assert_eq!(stat().policy, 0),
        _ => {}
    }
}

/// A path in the root directory of the scenario's systemd.
fn in_root(truth: &Value, path: &str) -> std::path::PathBuf {
    std::path::Path::new(truth["root"].as_str().unwrap()).join(path)
}

/// The numbers of one second, with loose bounds because the node may be busy.
fn assert_measured(scenario: &str, measured: &Value) {
    let number = |name: &str| measured[name].as_u64().unwrap_or_else(|| panic!("{scenario}: no {name} in {measured}"));
    match scenario {
        "rt-monopoly" => {
            assert!(number("spinner_ran_ms") >= 300, "{measured}");
            assert!(number("victim_waited_ms") > number("victim_ran_ms"), "{measured}");
        }
        "cpu-throttle" => assert!(number("throttled_periods") >= 1 && number("ran_ms") <= 700, "{measured}"),
        "zombie-reclaim" => assert!(number("pinned") >= 3000 && number("walker_system_ms") >= 10, "{measured}"),
        "the-incident" => {
            assert!(number("walker_system_ms") >= 10 && number("restarts") >= 1, "{measured}");
            // The kernel counts a wait only when it is over: an ongoing one shows as packets not received.
            assert!(number("packets_dropped") > number("packets_received"), "{measured}");
        }
        "memory-limit-reclaim" => assert!(number("limit_hits") >= 10 && number("kills") == 0, "{measured}"),
        "two-problems" => assert!(number("throttled_periods") >= 1 && number("victim_waited_ms") >= 100, "{measured}"),
        "few-zombies" => assert!(number("pinned") >= 20 && number("ran_ms") >= 1, "{measured}"),
        "batch-job-ends" => assert!(number("processes") >= 3, "{measured}"),
        "zombies" => assert!(number("pinned") >= 500, "{measured}"),
        "zombies-pinned" => assert!(number("pinned") >= 300 && number("pages_in_ext4") == 150, "{measured}"),
        "nic-starved" => {
            assert!(number("packets_dropped") > 0, "{measured}");
            assert!(number("napi_waited_ms") >= 100, "{measured}");
        }
        "ksoftirqd-starved" => {
            // An ongoing wait is not counted yet; there was one, or it would not be ready. A sender that others keep from its core sends too
            // little to be dropped.
            assert!(number("packets_dropped") > 0 || number("sender_waited_ms") >= 100, "{measured}");
        }
        "softirq-storm" => assert!(number("softirq_percent") >= 50 && number("packets_received") > 0, "{measured}"),
        "observer-smaps" => {
            assert!(number("agent_system_ticks") > 9 * number("agent_user_ticks"), "{measured}");
            assert!(number("agent_ran_ms") >= 10, "{measured}");
        }
        "cgroup-dir-leak" => assert!(number("grew_by") >= 1, "{measured}"),
        "short-spikes" => assert!(number("spiker_ran_ms") <= 700 && number("victim_ran_ms") >= 1, "{measured}"),
        "crashloop-leak" => {
            assert!(number("restarts") >= 1 && number("memcgs_leaked") >= 1, "{measured}")
        }
        "crashloop-reset" => {
            assert!(number("resets") >= 1 && number("memcgs_leaked") >= 1, "{measured}");
            assert!(number("most_restarts") <= 10, "{measured}");
        }
        "supervised-churn" => assert!(number("restarts") == 0 && number("born") >= 1, "{measured}"),
        "failing-oneshot" => assert!(number("restarts") == 0, "{measured}"),
        "agent-unused" | "agent-conflict" | "agent-configured" => {
            assert!(number("restarts") == 0 && number("failed_units") == 0, "{measured}");
        }
        "admin-restarts" => assert!(number("counted_by_systemd") == 0, "{measured}"),
        "many-units" => assert_eq!(number("failed_units"), 0, "{measured}"),
        "hanging-bus" | "severed-bus" => {
            let came = measured["connections"].as_object().unwrap();
            assert!(came.values().all(|n| n == 1), "each was tried once: {measured}");
        }
        "fork-storm" | "unfair-weight" | "deadline-hog" | "crowded-cpuset" | "frozen-fs" => {
            assert!(number("victim_lost_ms") >= 100, "{measured}");
        }
        "busy-healthy" | "one-busy-thread" => assert!(number("ran_ms") >= 1, "{measured}"),
        _ => assert!(measured["busy_percent"].is_object(), "{measured}"),
    }
}

#[test]
fn ctrl_c_before_it_is_ready_cleans_up_too() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let mut run = Run::start(&["run", "zombies", "--count", "100000"], None);
    eventually("it makes zombies", || if run.traces().len() >= 3 { Ok(()) } else { Err("not yet".to_owned()) });
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), Some(1));
    assert!(run.complaint().contains("interrupted"), "it says why");
    assert!(run.line().is_none(), "it was never ready");
    run.assert_nothing_left("a signal half-way");
}

/// Scenarios that together make everything that can be left behind. That each scenario drops its guards is shown by
/// `every_scenario_makes_its_problem_and_leaves_nothing_behind`; how it comes to that is the same for all.
const KINDS: [&str; 8] = [
    "cpu-throttle",
    "zombies",
    "zombies-pinned",
    "nic-starved",
    "softirq-storm",
    "cgroup-dir-leak",
    "crashloop-leak",
    "hanging-bus",
];

#[test]
fn failure_and_panic_half_way_clean_up() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    for (i, scenario) in possible().into_iter().filter(|s| KINDS.contains(&s.name)).enumerate() {
        let fault = ["error", "panic"][i % 2];
        let mut run = Run::start(&[&["run", scenario.name], fewer(scenario)].concat(), Some(fault));
        assert!(run.line().is_none(), "{} must not call itself ready", scenario.name);
        assert_eq!(run.end().code(), Some(1), "{}", scenario.name);
        assert!(run.complaint().contains("told to"), "{} says why", scenario.name);
        run.assert_nothing_left(&format!("a {fault} of {}", scenario.name));
    }
}

#[test]
fn after_sigkill_the_children_die_and_clean_removes_the_rest() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    for scenario in possible().into_iter().filter(|s| KINDS.contains(&s.name)) {
        let mut run = Run::start(&["run", scenario.name, "--seconds", "600"], None);
        run.ready();
        // While the runner lives, clean removes nothing of it.
        let before = leftovers_of(&run);
        assert!(!before.is_empty());
        assert!(Command::new(BINARY).arg("clean").status().unwrap().success());
        assert_eq!(leftovers_of(&run), before, "{}", scenario.name);

        run.signal(Signal::KILL);
        run.end();
        eventually("its children die with it", || match run.traces().into_iter().find(|t| t.starts_with("process")) {
            Some(alive) => Err(alive),
            None => Ok(()),
        });
        let clean = Command::new(BINARY).arg("clean").output().unwrap();
        let said = String::from_utf8_lossy(&clean.stderr);
        assert!(clean.status.success() && said.contains(&format!("coroner-lab-{}-", run.child.id())), "{said}");
        run.assert_nothing_left(&format!("SIGKILL of {} and clean", scenario.name));
    }
}

fn leftovers_of(run: &Run) -> Vec<String> {
    run.traces().into_iter().filter(|t| !t.starts_with("process")).collect()
}

#[test]
fn other_tests_can_hold_a_scenario() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let live = LiveScenario::start("zombies", &["--seconds", "600", "--count", "20"]).unwrap();
    assert_eq!(live.truth.facts["count"], 20);
    let measured = live.stop().unwrap();
    assert!(measured["pinned"].as_u64() >= Some(20), "{measured}");
    let dropped = LiveScenario::start("one-busy-thread", &["--seconds", "600"]).unwrap();
    let pid = dropped.truth.facts["pid"].as_u64().unwrap() as u32;
    drop(dropped);
    assert_eq!(node::start_time(pid), None, "the spinner is still there");
    assert!(LiveScenario::start("no-such", &[]).is_err());
}

#[test]
fn a_crowd_is_real_and_cleans_up() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let mut run =
        Run::start(&["crowd", "--processes", "60", "--cgroups", "450", "--threads", "3", "--seed", "9"], None);
    let ready = run.ready();
    let comm = ready["truth"]["comm"].as_str().unwrap().to_owned();
    let members = || node::processes().filter(|&p| node::comm_of(p).as_deref() == Some(&comm)).collect::<Vec<_>>();
    let crowd = members();
    assert_eq!(crowd.len(), 60);
    assert!(crowd.iter().all(|p| fs::read_dir(format!("/proc/{p}/task")).unwrap().count() == 3));
    let root = leftovers::all().into_iter().find(|l| l.run().is_some_and(|r| r.pid == run.child.id())).unwrap();
    let Leftover::Cgroup(dir) = root else { panic!("{root}") };
    assert_eq!(directories_below(&dir), 450);
    let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", crowd[0])).unwrap();
    assert!(cgroups.contains(dir.file_name().unwrap().to_str().unwrap()), "{cgroups}");
    run.signal(Signal::TERM);
    assert!(run.line().is_some_and(|l| l["ended"] == true));
    assert!(run.end().success());
    run.assert_nothing_left("the crowd");
    assert_eq!(members(), [0u32; 0]);
}

fn directories_below(dir: &std::path::Path) -> usize {
    let dirs = fs::read_dir(dir).unwrap().flatten().filter(|e| e.file_type().unwrap().is_dir());
    dirs.map(|e| 1 + directories_below(&e.path())).sum()
}

#[test]
fn a_crowd_dies_with_its_runner() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let mut run = Run::start(&["crowd", "--processes", "60", "--cgroups", "50", "--seed", "10"], None);
    let comm = run.ready()["truth"]["comm"].as_str().unwrap().to_owned();
    run.signal(Signal::KILL);
    run.end();
    eventually("nobody of it is left", || {
        match node::processes().find(|&p| node::comm_of(p).as_deref() == Some(&comm)) {
            Some(pid) => Err(pid.to_string()),
            None => Ok(()),
        }
    });
    assert!(Command::new(BINARY).arg("clean").stderr(Stdio::null()).status().unwrap().success());
    run.assert_nothing_left("SIGKILL of a crowd and clean");
}

#[test]
fn the_seed_determines_the_run() {
    let _lock = HostLock::take().unwrap();
    let draw = |seed: &str| {
        let out =
            Command::new(BINARY).args(["run", "one-busy-thread", "--seconds", "0", "--seed", seed]).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let ready: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        (ready["truth"]["comm"].clone(), ready["truth"]["core"].clone())
    };
    assert_eq!(draw("1"), draw("1"));
    assert_ne!(draw("1"), draw("2"));
}

#[test]
fn usage_and_the_list() {
    let status = |args: &[&str]| Command::new(BINARY).args(args).stderr(Stdio::null()).status().unwrap().code();
    assert_eq!(status(&["run", "no-such-scenario"]), Some(2));
    assert_eq!(status(&["run", "idle", "--seconds", "soon"]), Some(2));
    assert_eq!(status(&[]), Some(2));
    let table = String::from_utf8(Command::new(BINARY).arg("list").output().unwrap().stdout).unwrap();
    assert_eq!(table.lines().count(), ALL.len() + 1, "{table}");
    let listed: Value =
        serde_json::from_slice(&Command::new(BINARY).args(["list", "--json"]).output().unwrap().stdout).unwrap();
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), ALL.len());
    for (entry, scenario) in listed.iter().zip(ALL) {
        assert_eq!(entry["name"], scenario.name);
        assert!(table.contains(scenario.name));
        assert!(scenario.expects.iter().all(|code| Code::parse(code).is_some()), "{}", scenario.name);
    }
}

#[test]
fn without_root_it_says_so() {
    if !geteuid().is_root() {
        skip("needs root to become someone else");
        return;
    }
    // In a public place: the checkout may be in a private home.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = dir.path().join("coroner-lab");
    // Copied by another process: a child that another thread forks meanwhile would inherit our write fd, and exec would fail (ETXTBSY).
    assert!(Command::new("cp").arg(BINARY).arg(&binary).status().unwrap().success());
    let nobody = |args: &[&str]| Command::new(&binary).args(args).uid(65534).gid(65534).output();
    match nobody(&["run", "idle", "--seconds", "0"]) {
        Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr)),
        Err(error) => return skip(&format!("others may not run the binary: {error}")),
    }
    for name in
        ["rt-monopoly", "zombies", "zombies-pinned", "cpu-throttle", "nic-starved", "crashloop-leak", "hanging-bus"]
    {
        let out = nobody(&["run", name]).unwrap();
        assert_eq!(out.status.code(), Some(1), "{name}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("needs root"), "{name}");
        assert!(out.stdout.is_empty(), "{name}");
    }
}
