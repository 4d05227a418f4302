//! On the live node, as root: real processes that end in all ways.
//!
//! Other processes end meanwhile: tests look only at their own children, so they share the machine. Only the one that fills the maps would
//! take names from the others.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use coroner_lab::{Child, HostLock};
use rustix::thread::CapabilitySet;

use super::*;

const LONG: Duration = Duration::from_secs(3600);

/// Runs `script` with our own binary as `$0`, waits until it is done, and keeps the shell alive until dropped.
fn shell(script: &str) -> Child {
    let script = format!("{script}\necho done; while :; do sleep 1; done");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(std::env::current_exe().unwrap());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let (child, stdout) = Child::spawn_with_stdout("shell", &mut command).unwrap();
    assert!(BufReader::new(stdout).lines().any(|line| line.unwrap() == "done"));
    child
}

fn times(n: u32, script: &str) -> String {
    format!("i=0; while [ $i -lt {n} ]; do {script}; i=$((i+1)); done")
}

fn start() -> ExitReader {
    let mut reader = ExitReader::start_with(&Root::live(), LONG);
    let mut evidence = Evidence::default();
    reader.look(now(), &mut evidence);
    assert_eq!((reader.sees(), evidence.unseen), (true, vec![]));
    reader
}

fn finish(reader: ExitReader) -> Evidence {
    let mut evidence = Evidence::default();
    reader.finish(now(), &mut evidence);
    evidence
}

fn rows_of(evidence: &Evidence, parent: u32) -> Vec<&ChildExits> {
    evidence.child_exits.iter().filter(|row| row.parent_pid == parent).collect()
}

/// Exits, failures, failures soon after the start.
fn counts(row: &ChildExits) -> [u64; 3] {
    [row.exits, row.failed, row.failed_young]
}

#[test]
fn children_that_fail_are_counted_by_parent_and_name() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let reader = start();
    let shell = shell(&times(20, "sh -c 'exit 7'; sh -c 'exit 0'; sleep 0.05"));
    // Our own child is not counted.
    assert!(!Command::new("false").status().unwrap().success());
    let evidence = finish(reader);

    let rows = rows_of(&evidence, shell.pid());
    assert_eq!(rows.len(), 1, "sleep succeeds: {rows:?}");
    assert_eq!((rows[0].parent_comm.as_str(), rows[0].comm.as_str()), ("sh", "sh"));
    assert_eq!(counts(rows[0]), [40, 20, 20]);
    assert_eq!((rows[0].exit_code, rows[0].signal), (Some(7), None));
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    assert_eq!(rows[0].cgroup, parse_membership(&own).memory);
    assert!(rows[0].to.since(rows[0].from) > Duration::from_secs(1));
    assert_eq!(rows_of(&evidence, std::process::id()), Vec::<&ChildExits>::new());
    assert_eq!(evidence.unseen, []);
}

#[test]
fn each_interval_has_its_own_counts() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let mut reader = ExitReader::start_with(&Root::live(), Duration::ZERO);
    let mut evidence = Evidence::default();
    let shells: Vec<Child> = [5, 3]
        .map(|n| {
            let shell = shell(&times(n, "sh -c 'exit 1'"));
            reader.look(now(), &mut evidence);
            shell
        })
        .into();
    reader.look(now(), &mut evidence);
    let [first, second] = [0, 1].map(|i| rows_of(&evidence, shells[i].pid()));
    assert_eq!((first.len(), counts(first[0])), (1, [5, 5, 5]));
    assert_eq!((second.len(), counts(second[0])), (1, [3, 3, 3]));
    assert_eq!(first[0].to, second[0].from);
}

#[test]
fn a_process_asked_to_end_has_not_failed() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let reader = start();
    let asked = "for s in HUP INT KILL PIPE TERM; do sh -c \"kill -$s \\$\\$\"; done
                 for c in 130 137 141 143; do sh -c \"exit $c\"; done";
    let (well, failing) =
        (shell(asked), shell(&format!("{asked}; sh -c 'exit 129'; ulimit -c 0; sh -c 'kill -SEGV $$'")));
    let evidence = finish(reader);
    assert_eq!(rows_of(&evidence, well.pid()), Vec::<&ChildExits>::new());
    let rows = rows_of(&evidence, failing.pid());
    assert_eq!((rows.len(), counts(rows[0])), (1, [11, 2, 2]), "{rows:?}");
    assert_eq!((rows[0].exit_code, rows[0].signal), (None, Some(11)));
}

const ACT: &str = "CORONER_TEST_EXITS_ACT";

/// Not a test: other tests run it as a process with threads.
#[test]
fn actor() {
    let Some(act) = std::env::var_os(ACT) else { return };
    let threads = (0..8).map(|_| std::thread::spawn(|| std::thread::sleep(LONG)));
    let threads: Vec<_> = threads.collect();
    match act.to_str() {
        Some("exit") => std::process::exit(5),
        Some("exec") => {
            let exec = std::thread::spawn(|| Command::new("sleep").arg("0").exec());
            panic!("{}", exec.join().unwrap());
        }
        Some("watch") => {
            let _reader = start();
            println!("watching");
            std::thread::sleep(LONG);
        }
        Some("fork") => fork_many(),
        _ => panic!("{act:?}"),
    }
    drop(threads);
}

#[test]
fn a_process_with_threads_ends_once() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let reader = start();
    let run = |act: &str| format!("{ACT}={act} \"$0\" --exact exits::host_tests::actor --nocapture >/dev/null");
    let shell = shell(&format!("{}; {}", times(20, &run("exit")), times(5, &run("exec"))));
    let evidence = finish(reader);
    let rows = rows_of(&evidence, shell.pid());
    assert_eq!(rows.len(), 1, "execve in a thread ends the other threads, not the process: {rows:?}");
    assert_eq!((counts(rows[0]), rows[0].exit_code), ([20, 20, 20], Some(5)));
    assert!(rows[0].comm.starts_with("coroner_probes"), "the process's name, not a thread's: {rows:?}");
}

#[test]
fn parents_that_are_gone_are_summed() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    // A name that nobody else has.
    let name = format!("fail{}", std::process::id());
    let failing = dir.path().join(&name);
    // By another process: a child of another thread could inherit our write descriptor, and execve would fail (ETXTBSY).
    assert!(Command::new("cp").args([Path::new("/bin/false"), &failing]).status().unwrap().success());
    let reader = start();
    let _shell = shell(&times(10, &format!("sh -c '{}; true'", failing.display())));
    let evidence = finish(reader);
    let rows: Vec<&ChildExits> = evidence.child_exits.iter().filter(|row| row.comm == name).collect();
    assert_eq!((rows.len(), counts(rows[0])), (1, [10, 10, 10]), "{rows:?}");
    assert_eq!((rows[0].parent_comm.as_str(), &rows[0].cgroup), ("sh", &None));
}

const NAMES: u64 = 4500;

/// Forks children with more names than the maps hold.
fn fork_many() {
    for i in 0..NAMES {
        let name = std::ffi::CString::new(format!("many-{i}")).unwrap();
        // SAFETY: the child only makes system calls, as allowed after fork in a multi-threaded process.
        unsafe {
            match libc::fork() {
                0 => {
                    libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                    libc::_exit(1);
                }
                child => assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child),
            }
        }
    }
}

#[test]
fn failures_beyond_the_maps_are_reported_by_number() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let reader = start();
    let many = shell(&format!("{ACT}=fork \"$0\" --exact exits::host_tests::actor >/dev/null"));
    let evidence = finish(reader);
    drop(many);
    assert_eq!(evidence.child_exits.len(), MAX_ROWS);
    let told: u64 = evidence.child_exits.iter().map(|row| row.failed).sum();
    let unseen = evidence.why_unseen(probe::CHILD_EXITS).expect("the loss is reported");
    let unnamed: u64 = unseen.why.split(' ').next().unwrap().parse().unwrap();
    // Others' children may be included.
    assert!(told + unnamed >= NAMES, "{told} {unseen:?}");
}

/// Starts a reader in a thread that keeps only these capabilities.
fn start_with_capabilities(keep: CapabilitySet) -> (bool, Evidence) {
    crate::test_tree::with_capabilities(keep, || {
        let mut evidence = Evidence::default();
        let mut reader = ExitReader::start(&Root::live());
        let sees = reader.sees();
        reader.look(now(), &mut evidence);
        reader.finish(now(), &mut evidence);
        (sees, evidence)
    })
}

#[test]
fn without_privileges_the_reason_is_reported() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let (sees, evidence) = start_with_capabilities(CapabilitySet::empty());
    assert_eq!((sees, evidence.unseen.len()), (false, 1), "{:?}", evidence.unseen);
    let unseen = evidence.why_unseen(probe::CHILD_EXITS).unwrap();
    assert!(unseen.why.contains("lacks CAP_BPF and CAP_PERFMON"), "{unseen:?}");
    assert!(unseen.how_to_see.contains("run as root"), "{unseen:?}");
    assert_eq!(evidence.child_exits, []);
    let (sees, evidence) = start_with_capabilities(CapabilitySet::BPF | CapabilitySet::PERFMON);
    assert!(sees, "{:?}", evidence.unseen);
}

#[test]
fn a_directory_tree_has_no_exits() {
    let dir = tempfile::tempdir().unwrap();
    let evidence = finish(ExitReader::start(&Root::at(dir.path())));
    assert!(evidence.unseen[0].why.contains("not the running node"), "{:?}", evidence.unseen);
}

/// IDs of a process's BPF programs or maps, from its fdinfo.
fn ids_of(pid: u32, field: &str) -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    for file in std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fdinfo")).unwrap().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        ids.extend(text.lines().find_map(|l| l.strip_prefix(field)?.trim().parse::<u32>().ok()));
    }
    ids
}

#[test]
fn nothing_stays_in_the_kernel_after_kill_9() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "exits::host_tests::actor", "--nocapture"]).env(ACT, "watch").stdout(Stdio::piped());
    let (child, stdout) = Child::spawn_with_stdout("watch", &mut command).unwrap();
    assert!(BufReader::new(stdout).lines().any(|line| line.unwrap().contains("watching")));
    let (programs, maps) = (ids_of(child.pid(), "prog_id:"), ids_of(child.pid(), "map_id:"));
    assert!(maps.len() >= 4, "{maps:?}");
    let left = || {
        let programs = aya::programs::loaded_programs().flatten().filter(|p| programs.contains(&p.id())).count();
        programs + aya::maps::loaded_maps().flatten().filter(|m| maps.contains(&m.id())).count()
    };
    assert!(left() >= 4);
    let pid = rustix::process::Pid::from_raw(child.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let started = Instant::now();
    while left() > 0 {
        assert!(started.elapsed() < Duration::from_secs(180), "{} programs and maps are left", left());
        std::thread::sleep(Duration::from_millis(20));
    }
}
