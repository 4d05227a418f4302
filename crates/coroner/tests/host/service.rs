//! deploy/coroner.service under a real systemd: its few privileges suffice, its watchdog works, it stops cleanly, and it leaves no dead
//! memory cgroups. Each test has a node of its own and looks only at it: they share the machine.

use crate::support::*;
use coroner_diagnosis::Code;
use coroner_lab::{HostLock, LiveScenario};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const UNIT: &str = include_str!("../../../../deploy/coroner.service");
const SYSUSERS: &str = include_str!("../../../../deploy/coroner.sysusers");
const CONFIG: &str = include_str!("../../../../deploy/coroner.toml");

/// CAP_DAC_READ_SEARCH, CAP_IPC_LOCK, CAP_SYS_PTRACE, CAP_SYSLOG, CAP_PERFMON, CAP_BPF (include/uapi/linux/capability.h).
const CAPABILITIES: [u32; 6] = [2, 14, 19, 34, 38, 39];

/// CORONER_TEST_RESTARTS overrides it. Less than a second each.
const RESTARTS: u32 = 30;

/// A node with our service installed but not started. Its state is on disk, as in production: pages of a tmpfs cannot be
/// dropped.
struct Node {
    scenario: LiveScenario,
    state: tempfile::TempDir,
}

impl Node {
    fn boot(drop_in: &str) -> Node {
        let scenario =
            LiveScenario::start("agent-configured", &["--seconds", "1800"]).unwrap_or_else(|e| panic!("{e:#}"));
        let beside_the_binary = Path::new(CORONER).parent().unwrap();
        let node = Node { scenario, state: tempfile::tempdir_in(beside_the_binary).unwrap() };
        node.write("/etc/systemd/system/coroner.service", UNIT);
        node.write("/etc/systemd/system/coroner.service.d/test.conf", drop_in);
        node.write("/etc/sysusers.d/coroner.conf", SYSUSERS);
        node.write("/etc/coroner/coroner.toml", CONFIG);
        node.write("/usr/local/bin/coroner", "");
        node.graft(Path::new(CORONER), "/usr/local/bin/coroner");
        fs::create_dir_all(node.path("/var/lib/coroner")).unwrap();
        node.graft(node.state.path(), "/var/lib/coroner");
        // The lab's nodes have no kernel log; real ones do.
        mknodat(CWD, node.path("/dev/kmsg"), FileType::CharacterDevice, Mode::from_raw_mode(0o644), makedev(1, 11))
            .unwrap();
        node.run(&["systemd-sysusers"]);
        node.run(&["systemctl", "daemon-reload"]);
        node
    }

    fn leader(&self) -> u64 {
        self.scenario.truth.facts["leader"].as_u64().unwrap()
    }

    /// On the host; what its own root is laid over.
    fn root(&self) -> &Path {
        Path::new(self.scenario.truth.facts["root"].as_str().unwrap())
    }

    fn path(&self, path: &str) -> PathBuf {
        format!("/proc/{}/root{path}", self.leader()).into()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// Runs it in a thread inside one of the node's namespaces.
    fn inside<T: Send>(&self, kind: &str, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/proc/{}/ns/{kind}", self.leader())).unwrap();
        let kind = if kind == "mnt" { LinkNameSpaceType::Mount } else { LinkNameSpaceType::Network };
        std::thread::scope(|scope| {
            let enter = || {
                // SAFETY: only this thread's view of the file system is unshared, and it ends here.
                unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.unwrap();
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(kind)).unwrap();
                work()
            };
            scope.spawn(enter).join().unwrap()
        })
    }

    /// Mounts a path of the host in the node.
    fn graft(&self, from: &Path, to: &str) {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, from, flags).unwrap();
        self.inside("mnt", || move_mount(&tree, "", CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)).unwrap();
    }

    fn run(&self, command: &[&str]) -> String {
        let leader = self.leader().to_string();
        let mut nsenter = Command::new("nsenter");
        nsenter
            .args(["--target", &leader, "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--"])
            .args(command);
        let out = nsenter.output().expect("nsenter runs");
        let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{command:?}: {said}\n{}", self.journal());
        said
    }

    fn journal(&self) -> String {
        let leader = self.leader().to_string();
        let args =
            ["--target", &leader, "--mount", "--pid", "--", "journalctl", "-u", "coroner", "-n", "30", "--no-pager"];
        let out = Command::new("nsenter").args(args).output().expect("nsenter runs");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn property(&self, name: &str) -> String {
        self.run(&["systemctl", "show", "--value", "--property", name, "coroner"]).trim().to_owned()
    }

    /// The recorder's PID on the host.
    fn recorder(&self) -> u32 {
        let inner = self.property("MainPID");
        // Nodes of other tests have the same numbers.
        let namespace = |pid: u64| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.leader());
        let is_it = |pid: &u32| {
            if namespace(u64::from(*pid)) != own {
                return false;
            }
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let ids = status.lines().find_map(|l| l.strip_prefix("NSpid:")).unwrap_or("");
            ids.split_whitespace().nth(1) == Some(&inner) && status.starts_with("Name:\tcoroner\n")
        };
        let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.into_iter().find(is_it).unwrap_or_else(|| panic!("no process {inner}\n{}", self.journal()))
    }

    fn metrics(&self) -> String {
        self.inside("net", || {
            let mut stream = TcpStream::connect("127.0.0.1:9478").unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9478\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
            body.to_owned()
        })
    }

    /// The dead memory cgroups that the service left, by group, but for those that only blocks of the file system itself keep: the kernel
    /// charges an inode table or a bitmap to whoever needs it first, and no program can give it back.
    fn zombies(&self) -> Vec<Value> {
        let cgroup = self.scenario.truth.facts["cgroup"].as_str().unwrap();
        let ours = format!("{cgroup}/system.slice/coroner.service");
        let scan = json_of(&coroner(&["zombies", "--json", "--list", "--all"]));
        let groups = scan["groups"].as_array().unwrap_or_else(|| panic!("no groups in {scan:#}"));
        let is_ours = |group: &&Value| group["example"].as_str().is_some_and(|path| path.starts_with(&ours));
        let is_kept_by_blocks = |group: &Value| {
            let files = group["pinned_by"].as_array().unwrap();
            let of_files: u64 = files.iter().map(|file| file["bytes"].as_u64().unwrap()).sum();
            files.iter().all(|file| file["filesystem"] == "bdev") && group["bytes"]["total"].as_u64() == Some(of_files)
        };
        groups.iter().filter(is_ours).filter(|group| !is_kept_by_blocks(group)).cloned().collect()
    }

    fn files(&self, ending: &str) -> Vec<PathBuf> {
        let files = fs::read_dir(self.state.path()).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.to_string_lossy().ends_with(ending)).collect()
    }

    fn segments(&self) -> Vec<PathBuf> {
        let mut segments = self.files(".coroner");
        segments.sort();
        segments
    }
}

/// In the lab's namespaces nobody sees everything, but the service must see all that unrestricted root sees.
fn assert_sees_what_root_sees(node: &Node) {
    node.run(&["/usr/local/bin/coroner", "record", "--for", "3s", "-o", "/var/lib/coroner/as-root"]);
    let unseen = |from: &Path| -> BTreeSet<String> {
        let diagnosis = json_of(&coroner(&["diagnose", "--json", "--from", from.to_str().unwrap()]));
        let unseen = diagnosis["unseen"].as_array().unwrap();
        // What a rule cannot tell depends on what happened, and child exits are only traced where some failed; what other
        // probes cannot see does not.
        let is_rule = |u: &Value| u["probe"].as_str().is_some_and(|probe| Code::parse(probe).is_some());
        let is_probe = |u: &&Value| u["probe"] != "child-exits" && !is_rule(u);
        unseen.iter().filter(is_probe).map(|u| format!("{}: {}", u["probe"], u["what"])).collect()
    };
    let as_root = node.state.path().join("as-root");
    let by_root = unseen(&as_root);
    fs::remove_file(as_root).unwrap();
    let by_service = unseen(&node.segments()[0]);
    let blind: Vec<&String> = by_service.difference(&by_root).collect();
    assert!(blind.is_empty(), "only the service cannot see {blind:#?}");
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {status}"));
    line.trim_start_matches(':').trim().to_owned()
}

#[test]
fn the_service_has_what_it_needs_and_nothing_more() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let node = Node::boot("[Service]\nWatchdogSec=10\nRestartSec=1\nTimeoutAbortSec=1\n");
    node.run(&["systemctl", "start", "coroner"]);
    assert_eq!(node.property("ActiveState"), "active");
    assert!(node.property("StatusText").contains("/var/lib/coroner"), "{}", node.property("StatusText"));

    // Its user and capabilities.
    let pid = node.recorder();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = CAPABILITIES.iter().fold(0_u64, |mask, capability| mask | 1 << capability);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&field(&status, set), 16), Ok(mask), "{set}\n{status}");
    }
    assert!(!field(&status, "Uid").split_whitespace().any(|uid| uid == "0"), "{status}");
    assert_eq!((field(&status, "NoNewPrivs"), field(&status, "Seccomp")), ("1".to_owned(), "2".to_owned()), "{status}");
    let nice = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert_eq!(nice.rsplit_once(')').unwrap().1.split_whitespace().nth(16), Some("-5"), "{nice}");

    // What it sees nevertheless.
    let series = ["coroner_memcgs{state=\"dead\"}", "coroner_worst_core ", "coroner_process_resident_memory_bytes "];
    let samples = |metrics: &str| metrics.lines().find_map(|l| l.strip_prefix("coroner_samples_total ")?.parse().ok());
    let mut metrics = String::new();
    wait_until("the first looks and samples are in the metrics", || {
        metrics = node.metrics();
        samples(&metrics) > Some(0_u64) && series.iter().all(|series| metrics.contains(series))
    });
    check_with_promtool(&metrics);
    assert_sees_what_root_sees(&node);

    // If its main loop hangs, systemd restarts it.
    let restarts = node.property("NRestarts");
    assert_eq!(restarts, "0", "{}", node.journal());
    let process = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let stopped = rustix::process::kill_process(process, rustix::process::Signal::STOP);
    stopped.unwrap_or_else(|error| panic!("the recorder is gone: {error}\n{}", node.journal()));
    wait_until("the watchdog restarted it", || node.property("NRestarts") != restarts);
    wait_until("it runs again", || node.property("ActiveState") == "active");
    assert_ne!(node.recorder(), pid);
    assert!(node.journal().contains("Watchdog timeout"), "{}", node.journal());

    // It stops cleanly, and its files are complete.
    node.run(&["systemctl", "stop", "coroner"]);
    assert_eq!((node.property("ActiveState"), node.property("Result")), ("inactive".to_owned(), "success".to_owned()));
    assert!(node.files("-wal").is_empty(), "the last segment was not sealed\n{}", node.journal());
    let segments = node.segments();
    assert!(segments.len() >= 2, "one before the watchdog and one after it: {segments:?}");
    for segment in segments {
        json_of(&coroner(&["diagnose", "--json", "--from", segment.to_str().unwrap()]));
    }
    node.scenario.stop().unwrap();
}

fn check_with_promtool(metrics: &str) {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        coroner_lab::host_lock::skip("needs promtool: install prometheus");
        return;
    };
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let out = promtool.wait_with_output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.trim().is_empty(), "{said}\n{metrics}");
}

/// Locks the pages of one of the node's files in memory, charged to the test.
struct InUse {
    at: *mut std::ffi::c_void,
    length: usize,
}

impl InUse {
    fn file(node: &Node, name: &Path) -> InUse {
        use rustix::mm::{MapFlags, ProtFlags, mlock, mmap};
        let file = File::open(node.root().join(name)).unwrap();
        let length = file.metadata().unwrap().len() as usize;
        // SAFETY: a new mapping that nobody reads.
        let at = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
        unsafe { mlock(at, length) }.unwrap();
        InUse { at, length }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // SAFETY: mapped above with this length.
        let _ = unsafe { rustix::mm::munmap(self.at, self.length) };
    }
}

/// The shell, and the libraries that this program and coroner load, below the node's root.
fn shared_files(node: &Node) -> Vec<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libraries: BTreeSet<&str> =
        maps.lines().filter_map(|line| line.split_once(" /")?.1.into()).filter(|path| path.contains(".so")).collect();
    let files = libraries.into_iter().chain(["bin/sh"]).map(PathBuf::from);
    files.filter(|file| node.root().join(file).exists()).collect()
}

#[test]
fn restarts_leave_no_dead_memory_cgroups() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let restarts = std::env::var("CORONER_TEST_RESTARTS").map_or(RESTARTS, |n| n.parse().unwrap());
    let node = Node::boot("[Unit]\nStartLimitIntervalSec=0\n");
    // On a real node others use the shell and the libraries too, so their pages are not charged to us.
    let _in_use: Vec<InUse> = shared_files(&node).iter().map(|file| InUse::file(&node, file)).collect();
    node.run(&["/bin/sh", "-c", "while read -r line; do :; done </proc/self/cgroup"]);
    for _ in 0..restarts {
        node.run(&["systemctl", "restart", "coroner"]);
    }
    node.run(&["systemctl", "stop", "coroner"]);
    // Some may just be on their way out: look again.
    let mut left = node.zombies();
    for _ in 0..120 {
        if left.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        left = node.zombies();
    }
    assert!(left.is_empty(), "after {restarts} restarts dead cgroups are left: {left:#?}");
    node.scenario.stop().unwrap();
}
