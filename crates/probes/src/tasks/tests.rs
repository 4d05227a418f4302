use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

use coroner_evidence::tasks::{SchedTimes, SchedulingClass};
use coroner_evidence::{Evidence, ThreadSample, Time, probe};

use super::TaskReader;
use crate::Root;
use crate::root::now;
use crate::test_tree::{Busy, wait_for, write};

/// A small /proc.
struct Tree(tempfile::TempDir);

/// Content of `stat` of a thread in the tree.
#[derive(Clone, Copy)]
struct Said<'a> {
    comm: &'a str,
    state: char,
    flags: u64,
    ticks: u64,
    nice: i32,
    threads: u32,
    started: u64,
    core: u32,
    rt_priority: u32,
    policy: u32,
}

const SAID: Said<'_> = Said {
    comm: "worker",
    state: 'S',
    flags: 0x40_0000,
    ticks: 5,
    nice: 0,
    threads: 1,
    started: 1000,
    core: 1,
    rt_priority: 0,
    policy: 0,
};

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        fs::create_dir(tree.0.path().join("proc")).unwrap();
        tree
    }

    fn reader(&self) -> TaskReader {
        TaskReader::new(Root::at(self.0.path()))
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        write(&self.0.path().join("proc"), path, text);
    }

    fn remove(&self, pid: u32) {
        fs::remove_dir_all(self.0.path().join(format!("proc/{pid}"))).unwrap();
    }

    fn thread(&self, pid: u32, tid: u32, said: Said<'_>, schedstat: &str) {
        let Said { comm, state, flags, ticks, nice, threads, started, core, rt_priority, policy } = said;
        let stat = format!(
            "{tid} ({comm}) {state} 1 1 1 0 -1 {flags} 7 0 2 0 {ticks} 3 0 0 20 {nice} {threads} 0 {started} 1 1 1 1 1 1 1 1 1 1 1 1 0 0 0 17 {core} {rt_priority} {policy} 0 0\n"
        );
        self.write(&format!("{pid}/task/{tid}/stat"), stat);
        self.write(&format!("{pid}/task/{tid}/schedstat"), schedstat);
        self.write(&format!("{pid}/task/{tid}/status"), format!("Tgid:\t{pid}\nCpus_allowed_list:\t0-1\n"));
        if pid == tid {
            // A separate file, unlike in the real /proc.
            self.write(&format!("{pid}/schedstat"), schedstat);
        }
    }
}

fn look_all(reader: &mut TaskReader, seconds: u64) -> Evidence {
    let mut evidence = Evidence::default();
    reader.look_all(Time::from_secs(seconds), &mut evidence);
    evidence
}

fn look_hot(reader: &mut TaskReader, seconds: u64) -> Evidence {
    let mut evidence = Evidence::default();
    reader.look_hot(Time::from_secs(seconds), &mut evidence);
    evidence
}

fn tids(evidence: &Evidence) -> Vec<u32> {
    let mut tids: Vec<u32> = evidence.thread_samples.iter().map(|s| s.key.tid).collect();
    tids.sort_unstable();
    tids
}

#[test]
fn the_first_look_reports_all_threads_and_later_ones_only_changes() {
    let tree = Tree::new();
    tree.thread(10, 10, Said { comm: "a) b (c", threads: 2, ..SAID }, "100 20 3\n");
    tree.thread(10, 11, Said { comm: "line\\nbreak", ..SAID }, "9 0 1\n");
    tree.thread(20, 20, Said { flags: 0x20_0000, comm: "kthread", ..SAID }, "1 1 1\n");
    tree.write("10/cgroup", "4:memory:/system.slice/ecs.service\n1:cpu,cpuacct:/\n");
    tree.write("10/cmdline", "/usr/bin/agent\0--token=SECRET\0");
    tree.write("self/stat", "not a process");
    let mut reader = tree.reader();

    let first = look_all(&mut reader, 1_000);
    assert_eq!(tids(&first), [10, 11, 20]);
    assert_eq!(first.unseen, []);
    let names: Vec<&str> = first.threads.iter().map(|t| t.comm.as_str()).collect();
    assert!(names.contains(&"a) b (c") && names.contains(&"line\u{fffd}break"), "{names:?}");
    let process = first.processes.iter().find(|p| p.pid == 10).unwrap();
    assert_eq!(process.command.as_deref(), Some("agent"));
    assert_eq!(process.memory_cgroup.as_deref(), Some("/system.slice/ecs.service"));
    assert_eq!(process.cpu_cgroup.as_deref(), Some("/"));
    assert_eq!(process.owner.unit.as_deref(), Some("ecs.service"));
    let kernel = first.processes.iter().find(|p| p.pid == 20).unwrap();
    assert!(kernel.kernel && kernel.command.is_none());
    let sample = first.thread_samples.iter().find(|s| s.key.tid == 10).unwrap();
    assert_eq!((sample.core, sample.user_ticks, sample.system_ticks), (1, 5, 3));
    assert_eq!(sample.sched, Some(SchedTimes { run_ns: 100, wait_ns: 20, slices: 3 }));
    assert!(!format!("{first:?}").contains("SECRET"));

    let quiet = look_all(&mut reader, 1_001);
    assert_eq!((tids(&quiet), quiet.threads.len(), quiet.processes.len()), (vec![], 0, 0));

    tree.thread(10, 11, Said { comm: "line\\nbreak", ..SAID }, "9 0 2\n");
    let moved = look_all(&mut reader, 1_002);
    assert_eq!((tids(&moved), moved.threads.len()), (vec![11], 0));

    tree.thread(20, 20, Said { flags: 0x20_0000, comm: "kthread", policy: 1, rt_priority: 50, ..SAID }, "1 1 1\n");
    let raised = look_all(&mut reader, 1_003);
    assert_eq!(raised.threads.len(), 1);
    assert_eq!((raised.threads[0].class, raised.threads[0].rt_priority), (SchedulingClass::Fifo, 50));
    assert_eq!(raised.threads[0].affinity.as_ref().unwrap().to_string(), "0-1");
}

/// The kernel counts a wait when it ends, so an ongoing one shows only as state R.
#[test]
fn a_runnable_thread_is_reported_at_each_look() {
    let tree = Tree::new();
    tree.thread(10, 10, Said { state: 'R', ..SAID }, "100 20 3\n");
    tree.thread(11, 11, SAID, "100 20 3\n");
    let mut reader = tree.reader();
    look_all(&mut reader, 1_000);
    for second in 1_001..1_010 {
        assert_eq!(tids(&look_hot(&mut reader, second)), [10]);
    }
    assert_eq!(tids(&look_all(&mut reader, 1_010)), [10]);
    // After a long sleep it is read only by full scans.
    tree.thread(10, 10, SAID, "100 20 3\n");
    assert_eq!(tids(&look_hot(&mut reader, 1_011)), [10]);
    assert_eq!(reader.watched_count(), 1);
    look_hot(&mut reader, 1_020);
    assert_eq!(reader.watched_count(), 0);
}

#[test]
fn network_threads_are_watched_from_the_start() {
    let tree = Tree::new();
    let kernel = Said { flags: 0x20_0000, ..SAID };
    tree.thread(14, 14, Said { comm: "ksoftirqd/0", ..kernel }, "1 1 1\n");
    tree.thread(15, 15, Said { comm: "napi/eth0-8193", ..kernel }, "1 1 1\n");
    tree.thread(16, 16, Said { comm: "kswapd0", ..kernel }, "1 1 1\n");
    tree.thread(17, 17, Said { comm: "ksoftirqd/9", ..SAID }, "1 1 1\n");
    let mut reader = tree.reader();
    let first = look_all(&mut reader, 100_000);
    assert!(first.threads.iter().all(|t| t.affinity.is_some() == (t.key.tid < 16)));
    for tid in 14..=17 {
        tree.thread(tid, tid, Said { comm: "x", ..kernel }, "2 1 2\n");
    }
    assert_eq!(tids(&look_hot(&mut reader, 100_001)), [14, 15]);
}

/// Between two looks a second apart, only threads kept off a core are read.
#[test]
fn only_threads_waiting_for_a_core_are_read_in_between() {
    let tree = Tree::new();
    let napi = Said { comm: "napi/eth0-8193", flags: 0x20_0000, state: 'R', ..SAID };
    tree.thread(20, 20, napi, "100 100 1\n");
    tree.thread(30, 30, Said { comm: "busy", state: 'R', ..SAID }, "100 100 1\n");
    let mut reader = tree.reader();
    look_all(&mut reader, 1_000);
    let mut between = Evidence::default();
    reader.look_waiting(Time::from_millis(1_000_250), &mut between);
    assert!(tids(&between).is_empty(), "no thread is known to wait yet");

    tree.thread(30, 30, Said { comm: "busy", state: 'R', ticks: 105, ..SAID }, "990000000 100 9\n");
    look_hot(&mut reader, 1_001);
    reader.look_waiting(Time::from_millis(1_001_250), &mut between);
    assert_eq!(tids(&between), [20]);
    // It ran for a moment and may wait again since.
    tree.thread(20, 20, Said { ticks: 6, ..napi }, "50000000 950000100 400\n");
    reader.look_waiting(Time::from_millis(1_001_500), &mut between);
    assert_eq!(tids(&between), [20, 20]);
    // Then both run without waiting.
    for second in 1_002..1_007_u64 {
        let busy = Said { comm: "busy", state: 'R', ticks: second, ..SAID };
        tree.thread(30, 30, busy, &format!("{} 100 9\n", second * 990_000_000));
        tree.thread(20, 20, napi, &format!("{} 950000100 {}\n", second * 900_000_000, second * 400));
        look_hot(&mut reader, second);
    }
    let mut later = Evidence::default();
    reader.look_waiting(Time::from_millis(1_006_250), &mut later);
    assert!(tids(&later).is_empty());
}

#[test]
fn an_active_thread_is_found_by_its_run_time_since_its_start() {
    let tree = Tree::new();
    // Started 10 s after boot; now it is 110 s after boot: 5 s of 100 s.
    tree.thread(10, 10, SAID, "5000000000 0 9\n");
    tree.thread(11, 11, SAID, "5000000 0 9\n");
    tree.thread(12, 12, SAID, "0 5000000000 9\n");
    let mut reader = tree.reader();
    look_all(&mut reader, 110);
    assert_eq!(reader.watched_count(), 2);
    tree.thread(11, 11, SAID, "5000001 0 10\n");
    tree.thread(12, 12, SAID, "1 5000000000 10\n");
    assert_eq!(tids(&look_hot(&mut reader, 111)), [12]);
}

#[test]
fn new_processes_and_reused_pids_are_recognised() {
    let tree = Tree::new();
    tree.thread(10, 10, Said { state: 'R', ..SAID }, "1 1 1\n");
    let mut reader = tree.reader();
    look_all(&mut reader, 1_000);
    tree.thread(30, 30, Said { comm: "newcomer", started: 2_000, ..SAID }, "1 1 1\n");
    let seen = look_hot(&mut reader, 1_001);
    assert_eq!(tids(&seen), [10, 30]);
    assert_eq!(seen.processes.iter().map(|p| p.comm.as_str()).collect::<Vec<_>>(), ["newcomer"]);

    tree.remove(30);
    tree.thread(30, 30, Said { comm: "heir", started: 3_000, ..SAID }, "1 1 1\n");
    let seen = look_all(&mut reader, 1_002);
    assert_eq!(seen.threads.iter().map(|t| (t.comm.as_str(), t.key.started)).collect::<Vec<_>>(), [("heir", 3_000)]);
    assert_eq!(seen.processes.iter().map(|p| p.comm.as_str()).collect::<Vec<_>>(), ["heir"]);

    tree.remove(30);
    assert_eq!(look_all(&mut reader, 1_003).unseen, []);
    assert_eq!(reader.thread_count(), 1);
}

#[test]
fn a_new_program_in_the_same_process_is_reported() {
    let tree = Tree::new();
    tree.thread(10, 10, Said { comm: "sh", state: 'R', ..SAID }, "1 1 1\n");
    tree.write("10/cmdline", "sh\0-c\0exec python3 train.py\0");
    tree.write("10/cgroup", "0::/a\n");
    let mut reader = tree.reader();
    assert_eq!(look_all(&mut reader, 1_000).processes[0].command.as_deref(), Some("sh -c"));
    tree.thread(10, 10, Said { comm: "python3", state: 'R', ..SAID }, "1 1 1\n");
    tree.write("10/cmdline", "python3\0train.py\0");
    tree.write("10/environ", "RAY_JOB_ID=02000000\0TOKEN=SECRET\0");
    let seen = look_hot(&mut reader, 1_001);
    assert_eq!(seen.processes[0].command.as_deref(), Some("python3 train.py"));
    assert_eq!(seen.processes[0].ray.as_ref().unwrap().job_id.as_deref(), Some("02000000"));
    assert!(!format!("{seen:?}").contains("SECRET"));
    // A busy process moved to another cgroup is noticed, though its threads do not show it.
    tree.write("10/cgroup", "0::/b\n");
    let seen = look_all(&mut reader, 1_002);
    assert_eq!(seen.processes.iter().map(|p| p.memory_cgroup.as_deref()).collect::<Vec<_>>(), [Some("/b")]);
    assert!(look_all(&mut reader, 1_003).processes.is_empty());
}

#[test]
fn a_kworkers_task_is_reported_only_while_it_runs() {
    let tree = Tree::new();
    let kworker = Said { flags: 0x20_0000, comm: "kworker/0:1-events", ..SAID };
    tree.thread(10, 10, kworker, "1 1 1\n");
    let mut reader = tree.reader();
    look_all(&mut reader, 1_000);
    tree.thread(10, 10, Said { comm: "kworker/0:1-mm_percpu_wq", ..kworker }, "2 1 2\n");
    assert_eq!(look_all(&mut reader, 1_001).threads, []);
    tree.thread(10, 10, Said { comm: "kworker/0:1+flush", state: 'R', ..kworker }, "3 1 3\n");
    assert_eq!(look_all(&mut reader, 1_002).threads[0].comm, "kworker/0:1+flush");
}

#[test]
fn waits_that_cannot_be_seen_are_not_zero() {
    let tree = Tree::new();
    tree.thread(10, 10, SAID, "");
    fs::remove_file(tree.0.path().join("proc/10/schedstat")).unwrap();
    let seen = look_all(&mut tree.reader(), 1_000);
    assert_eq!(seen.thread_samples[0].sched, None);
    assert!(seen.why_unseen(probe::RUN_QUEUE).unwrap().why.contains("no /proc/PID/schedstat"));

    // A kernel that does not account waits prints zeros for every thread.
    let tree = Tree::new();
    tree.thread(10, 10, SAID, "0 0 0\n");
    let mut reader = tree.reader();
    let seen = look_all(&mut reader, 1_000);
    assert_eq!(seen.thread_samples[0].sched, None);
    assert!(seen.why_unseen(probe::RUN_QUEUE).unwrap().how_to_see.contains("delayacct"));
    assert_eq!(look_all(&mut reader, 1_001).unseen, [], "reported once");
}

#[test]
fn a_broken_file_is_named_and_the_others_are_read() {
    let tree = Tree::new();
    tree.thread(10, 10, SAID, "1 1 1\n");
    tree.thread(11, 11, SAID, "1 1 1\n");
    tree.write("10/task/10/stat", "10 (broken) R");
    let seen = look_all(&mut tree.reader(), 1_000);
    assert_eq!(tids(&seen), [11]);
    assert_eq!(seen.unseen[0].why, "/proc/10/task/10/stat: line 1: expected field 4 (ppid)");
}

#[test]
fn a_missing_proc_is_reported() {
    let tree = tempfile::tempdir().unwrap();
    let mut reader = TaskReader::new(Root::at(tree.path()));
    let seen = look_all(&mut reader, 1);
    assert!(seen.why_unseen(probe::TASKS).unwrap().why.contains("/proc: No such file"));
    assert!(look_hot(&mut reader, 2).thread_samples.is_empty());
}

// The real node.

/// A child that is terminated and reaped even if the test fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Not SIGKILL: `timeout` forwards SIGTERM to its child.
        if let Ok(pid) = i32::try_from(self.0.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

fn samples_of(evidence: &Evidence, tid: u32) -> Vec<ThreadSample> {
    evidence.thread_samples.iter().filter(|s| s.key.tid == tid).copied().collect()
}

#[test]
fn a_spinning_thread_is_seen_on_its_core() {
    let mut reader = TaskReader::new(Root::live());
    let mut evidence = Evidence::default();
    reader.look_all(now(), &mut evidence);
    // Created after the scan: found by a hot look, or by the next scan if thousands are created at once.
    let spinner = Busy::start("spin) here", std::hint::spin_loop);
    let core = spinner.core as usize;
    let mut looks = 0;
    wait_for("the spinner's 50 ms of run time", || {
        looks += 1;
        match looks % 50 {
            0 => reader.look_all(now(), &mut evidence),
            _ => reader.look_hot(now(), &mut evidence),
        }
        let samples = samples_of(&evidence, spinner.tid);
        let run = |s: &ThreadSample| s.sched.map_or(0, |sched| sched.run_ns);
        samples.last().zip(samples.first()).is_some_and(|(last, first)| run(last) >= run(first) + 50_000_000)
    });
    let samples = samples_of(&evidence, spinner.tid);
    assert!(samples.iter().skip(1).all(|s| s.core as usize == core && s.state == 'R'), "{samples:?}");
    assert!(samples.windows(2).all(|pair| pair[0].at < pair[1].at));
    let thread = evidence.threads.iter().rfind(|t| t.key.tid == spinner.tid).unwrap();
    assert_eq!((thread.comm.as_str(), thread.pid), ("spin) here", std::process::id()));
    assert_eq!(thread.affinity.as_ref().and_then(|a| a.single()), Some(core as u32));
    assert!(evidence.processes.iter().any(|p| p.pid == std::process::id() && p.command.is_some()));
}

#[test]
fn a_thread_kept_off_its_core_is_seen_waiting() {
    let Some(_host) = coroner_lab::HostLock::take_as_root() else { return };
    let victim = Busy::start("victim", std::hint::spin_loop);
    let core = victim.core as usize;
    if core == 0 {
        return coroner_lab::skip("needs two cores");
    }
    let mut reader = TaskReader::new(Root::live());
    let mut evidence = Evidence::default();
    reader.look_all(now(), &mut evidence);
    // Ends after 5 s whatever happens to us: `timeout` itself has neither the real-time class nor the affinity.
    let monopolist = Command::new("timeout")
        .args(["5", "taskset", "-c", &core.to_string(), "chrt", "-f", "50", "sh", "-c", "while :; do :; done"])
        .spawn();
    let Ok(monopolist) = monopolist else {
        return coroner_lab::skip("no timeout, taskset or chrt here");
    };
    let monopolist = Ended(monopolist);
    // It runs on that core before all others; meanwhile the victim is runnable, but its times do not change.
    let is_monopolist = |evidence: &Evidence| {
        let rt = evidence.threads.iter().filter(|t| t.comm == "sh" && t.class == SchedulingClass::Fifo);
        rt.filter(|t| t.affinity.as_ref().and_then(|a| a.single()) == Some(core as u32)).count() > 0
    };
    let longest_wait = |evidence: &Evidence| {
        let samples = samples_of(evidence, victim.tid);
        let stretches = samples.chunk_by(|a, b| a.state == 'R' && b.state == 'R' && a.sched == b.sched);
        let length = |s: &[ThreadSample]| s.last().zip(s.first()).map_or(Duration::ZERO, |(b, a)| b.at.since(a.at));
        stretches.map(length).max().unwrap_or_default()
    };
    wait_for("a visible wait of the victim", || {
        reader.look_hot(now(), &mut evidence);
        is_monopolist(&evidence) && longest_wait(&evidence) >= Duration::from_millis(200)
    });
    assert!(samples_of(&evidence, victim.tid).iter().all(|s| s.sched.is_some()));
    drop(monopolist);
}

#[test]
fn a_new_process_is_described_by_the_next_hot_look() {
    let mut reader = TaskReader::new(Root::live());
    let mut evidence = Evidence::default();
    reader.look_all(now(), &mut evidence);
    let sleeper = Ended(Command::new("sleep").arg("60").spawn().unwrap());
    let pid = sleeper.0.id();
    // During execve it has its new name, but no command line yet.
    wait_for("its command line", || fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()));
    // If hundreds of others were created too, it takes several looks.
    wait_for("the new process", || {
        reader.look_hot(now(), &mut evidence);
        evidence.processes.iter().any(|p| p.pid == pid)
    });
    let process = evidence.processes.iter().find(|p| p.pid == pid).unwrap();
    assert_eq!((process.comm.as_str(), process.command.as_deref()), ("sleep", Some("sleep")));
    assert_eq!((process.ppid, process.kernel), (std::process::id(), false));
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(own.contains(process.memory_cgroup.as_deref().unwrap()), "{own}");
    drop(sleeper);
    reader.look_all(now(), &mut evidence);
    assert!(!reader.has_process(pid), "forgotten once it is gone");
}

#[test]
fn an_observer_is_known_by_its_pid_and_program_not_by_its_name() {
    // Another program with our name.
    let dir = tempfile::tempdir().unwrap();
    let own = fs::read_to_string("/proc/self/comm").unwrap();
    let own = own.trim_end();
    let sleep = ["/usr/bin/sleep", "/bin/sleep"].into_iter().find(|path| fs::metadata(path).is_ok()).expect("sleep");
    let program = dir.path().join(own);
    std::os::unix::fs::symlink(sleep, &program).unwrap();
    let impostor = coroner_lab::Child::spawn("impostor", Command::new(&program).arg("600")).unwrap();
    let mut reader = TaskReader::new(Root::live());
    let mut seen = Evidence::default();
    wait_for("the impostor has our name", || {
        seen = Evidence::default();
        reader.tell_anew();
        reader.look_all(now(), &mut seen);
        seen.processes.iter().any(|p| p.pid == impostor.pid() && p.comm == own)
    });
    let pids: Vec<u32> = seen.observers.iter().map(|observer| observer.pid).collect();
    assert!(pids.contains(&std::process::id()), "{pids:?}");
    assert!(!pids.contains(&impostor.pid()), "{pids:?}");
}

#[test]
fn the_largest_processes_are_reported_at_first_and_when_they_change() {
    let tree = Tree::new();
    let page = rustix::param::page_size() as u64;
    let sized = |pid: u32, pages: u64| {
        tree.thread(pid, pid, SAID, "1 1 1\n");
        let stat = fs::read_to_string(tree.0.path().join(format!("proc/{pid}/task/{pid}/stat"))).unwrap();
        let mut fields: Vec<String> = stat.split(' ').map(str::to_owned).collect();
        fields[23] = pages.to_string();
        tree.write(&format!("{pid}/task/{pid}/stat"), fields.join(" "));
    };
    for pid in 10..20 {
        sized(pid, u64::from(pid) * 1000);
    }
    let mut reader = tree.reader();
    let told =
        |seen: &Evidence| seen.memory_holders.iter().map(|h| (h.pid, h.resident_bytes / page)).collect::<Vec<_>>();
    let largest = [(19, 19_000), (18, 18_000), (17, 17_000), (16, 16_000), (15, 15_000)];
    assert_eq!(told(&look_all(&mut reader, 1)), largest);
    assert!(told(&look_all(&mut reader, 2)).is_empty(), "nothing changed");
    sized(12, (1 << 30) / page);
    assert_eq!(told(&look_all(&mut reader, 3))[0], (12, (1 << 30) / page));
    assert_eq!(told(&look_all(&mut reader, 64)).len(), 5, "once a minute anyway");
}
