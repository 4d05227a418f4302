//! On the live node, as root: real zombies, real throttling, tens of thousands of real directories.
//!
//! Tests that read node-wide counts take turns and compare before with after; those that look at their own cgroup share the machine.

use super::*;
use crate::test_tree::wait_for;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

/// The host lock and the mounts. `take` returns `None`, after printing why, if the node does not allow the test.
struct Host {
    memory: Hierarchy,
    cpu: Hierarchy,
    _lock: coroner_lab::HostLock,
}

impl Host {
    /// For node-wide counts.
    fn take() -> Option<Host> {
        Host::with(coroner_lab::HostLock::take_as_root()?)
    }

    fn share() -> Option<Host> {
        Host::with(coroner_lab::HostLock::share_as_root()?)
    }

    fn with(lock: coroner_lab::HostLock) -> Option<Host> {
        let skip = |why: &str| {
            coroner_lab::skip(why);
            None
        };
        let mut cgroups = Cgroups::new(Root::live());
        cgroups.find(&mut Evidence::default());
        let found = cgroups.found.unwrap();
        let (Some(memory), Some(cpu)) = (found.memory, found.cpu) else { return skip("needs memory and cpu cgroups") };
        let probe = Path::new(&memory.mount_point).join(format!("coroner-test-probe-{}", rustix::thread::gettid()));
        if std::fs::create_dir(&probe).is_err() {
            return skip("needs a writable cgroup mount");
        }
        std::fs::remove_dir(&probe).unwrap();
        Some(Host { memory, cpu, _lock: lock })
    }
}

/// A cgroup, removed with everything below it on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(hierarchy: &Hierarchy, what: &str) -> Scratch {
        let path = Path::new(&hierarchy.mount_point).join(format!("coroner-test-{what}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fn remove(path: &Path) {
            for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    remove(&entry.path());
                }
            }
            // A cgroup stays busy for a moment after its last process ends.
            let started = Instant::now();
            while std::fs::remove_dir(path).is_err_and(|e| e.raw_os_error() == Some(16))
                && started.elapsed() < Duration::from_secs(5)
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        remove(&self.0);
    }
}

struct Tmpfs(Option<tempfile::TempDir>);

impl Tmpfs {
    fn mount() -> Tmpfs {
        let dir = tempfile::Builder::new().prefix("coroner-test-").tempdir().unwrap();
        let status = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(dir.path()).status().unwrap();
        assert!(status.success());
        Tmpfs(Some(dir))
    }

    fn path(&self) -> &Path {
        self.0.as_ref().expect("mounted").path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
        self.0 = None;
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A fresh first look.
fn census() -> CgroupCensus {
    let mut evidence = Evidence::default();
    Cgroups::new(Root::live()).look(now(), None, &mut evidence);
    evidence.cgroup_censuses.pop().expect("the node has memory cgroups")
}

/// Allowance for other cgroups created meanwhile: far fewer than we make.
const OTHERS: i64 = 60;

#[test]
fn three_hundred_zombies_are_counted_and_freed_when_nothing_pins_them() {
    let Some(host) = Host::take() else { return };
    let scratch = Scratch::new(&host.memory, "zombies");
    let home = Scratch::new(&host.memory, "home");
    let tmpfs = Tmpfs::mount();
    let before = census();

    // A shell joins a new memory cgroup, writes a page that outlives it, leaves and removes the directory.
    let script = "i=0; while [ $i -lt 300 ]; do mkdir $0/z$i && echo $$ > $0/z$i/cgroup.procs && echo x > $1/f$i \
        && echo $$ > $2/cgroup.procs || exit 1; n=0; until rmdir $0/z$i 2>/dev/null; do n=$((n+1)); [ $n -lt 1000 ] || exit 2; \
        done; i=$((i+1)); done";
    let status = Command::new("sh").arg("-c").arg(script).args([&scratch.0, tmpfs.path(), &home.0]).status().unwrap();
    assert!(status.success(), "{status}");

    let dying = |census: &CgroupCensus| census.dying.expect("seen on a whole node") as i64;
    let risen = || dying(&census()) - dying(&before);
    wait_for("300 zombies are counted", || (risen() - 300).abs() <= OTHERS);
    let with = census();
    let live = with.live as i64 - before.live as i64;
    assert!(live.abs() <= OTHERS, "zombies have no directory, but there are {live} more");
    let find = Command::new("find").arg(&host.memory.mount_point).args(["-type", "d"]).output().unwrap();
    let find = String::from_utf8_lossy(&find.stdout).lines().count() as i64;
    assert!((find - with.live as i64).abs() <= OTHERS, "find counts {find}, we {}", with.live);
    eprintln!("before {before:?}\nwith   {with:?}");

    drop(tmpfs);
    wait_for("they are freed with their pages", || risen().abs() <= OTHERS);
}

#[test]
fn a_spinner_in_a_quota_is_seen_throttled() {
    let Some(host) = Host::share() else { return };
    let scratch = Scratch::new(&host.cpu, "quota");
    let inner = scratch.0.join("inner");
    std::fs::create_dir(&inner).unwrap();
    if host.cpu.version == 1 {
        std::fs::write(scratch.0.join("cpu.cfs_quota_us"), "10000").unwrap();
    } else if std::fs::write(scratch.0.join("cpu.max"), "10000 100000").is_err() {
        return coroner_lab::skip("the root does not delegate cpu");
    }
    let spinner = Process(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    std::fs::write(inner.join("cgroup.procs"), spinner.0.id().to_string()).unwrap();

    // The quota is the parent's, the process is in the child.
    let below = |path: &Path| host.cpu.full_path(path.strip_prefix(&host.cpu.mount_point).unwrap().to_str().unwrap());
    let (subject, processes) = (below(&scratch.0), HashSet::from([below(&inner)]));
    let mut cgroups = Cgroups::new(Root::live());
    let mut evidence = Evidence::default();
    let moved = |evidence: &Evidence, name| evidence.counters.moved(Source::CgroupCpu, &subject, name).unwrap_or(0);
    wait_for("it is throttled again and again", || {
        cgroups.look_control(now(), &processes, &HashSet::new(), Reread::Affordable, &mut evidence);
        moved(&evidence, "nr_throttled") >= 5
    });
    assert_eq!(evidence.counters.last(Source::CgroupCpu, &subject, "quota_us"), Some(10_000));
    assert_eq!(evidence.counters.last(Source::CgroupCpu, &subject, "period_us"), Some(100_000));
    assert!(moved(&evidence, "nr_periods") >= moved(&evidence, "nr_throttled"));
    // With a tenth of a core it waits about nine tenths of the time.
    assert!(moved(&evidence, "throttled_us") >= 5 * 20_000, "{}", moved(&evidence, "throttled_us"));
    assert_eq!(evidence.counters.subjects(Source::CgroupCpu), [subject.as_str()], "the child has no quota");
}

#[test]
fn a_memory_limit_that_is_hit_is_seen() {
    let Some(host) = Host::share() else { return };
    let scratch = Scratch::new(&host.memory, "limit");
    let limit = if host.memory.version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
    std::fs::write(scratch.0.join(limit), "4194304").unwrap();
    let path = host.memory.full_path(scratch.0.strip_prefix(&host.memory.mount_point).unwrap().to_str().unwrap());
    let processes = HashSet::from([path.clone()]);
    let mut cgroups = Cgroups::new(Root::live());
    let mut evidence = Evidence::default();
    cgroups.look_control(now(), &HashSet::new(), &processes, Reread::Everything, &mut evidence);
    // Joins, then fills the page cache beyond the limit, so that the kernel reclaims within the cgroup. An OOM kill would stay in
    // the kernel log and show in every diagnosis of this machine for a day.
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let script = "echo $$ > $0/cgroup.procs; exec dd if=/dev/zero of=\"$1\" bs=64k count=512 status=none";
    let status = Command::new("sh").arg("-c").arg(script).args([&scratch.0, file.path()]).status().unwrap();
    assert!(status.success(), "{status}");
    cgroups.look_control(now(), &HashSet::new(), &processes, Reread::Everything, &mut evidence);
    let moved = |name| evidence.counters.moved(Source::CgroupMemory, &path, name);
    assert_eq!(evidence.counters.last(Source::CgroupMemory, &path, "limit_bytes"), Some(4_194_304));
    assert!(moved("limit_hits") > Some(0), "{:?}", moved("limit_hits"));
    assert_eq!(moved("oom_kill"), Some(0));
}

/// Cost of a census over `n` directories in one parent.
fn crowd(host: &Host, n: usize) {
    let scratch = Scratch::new(&host.memory, "crowd");
    let before = census();
    for i in 0..n {
        std::fs::create_dir(scratch.0.join(format!("session-{i}.scope"))).unwrap();
    }
    let mut cgroups = Cgroups::new(Root::live());
    let mut evidence = Evidence::default();
    let populated = HashSet::from([format!("/{}/session-7.scope", scratch.0.file_name().unwrap().to_str().unwrap())]);
    for _ in 0..3 {
        cgroups.last_walk = None;
        cgroups.look(now(), Some(&populated), &mut evidence);
        let cpu = cgroups.last_walk.as_ref().unwrap().cpu;
        eprintln!("{n} directories: {cpu:?} of CPU, {:?} per directory", cpu / n as u32);
    }
    let census = evidence.cgroup_censuses.pop().unwrap();
    let grown = census.live as i64 - before.live as i64;
    assert!((grown - n as i64).abs() <= OTHERS, "{grown} more directories");
    let path = host.memory.full_path(scratch.0.file_name().unwrap().to_str().unwrap());
    let parent = census.crowded.iter().find(|parent| parent.path == path).expect("it is listed as crowded");
    assert_eq!((parent.children, parent.empty), (n as u64, Some(n as u64 - 1)));
    assert!(parent.example.as_deref().unwrap().starts_with("session-"));

    // The cost of reading limits, if all these directories had processes.
    let paths: HashSet<String> = (0..n).map(|i| format!("{}/session-{i}.scope", parent.path)).collect();
    let mut control = |what, reread| {
        let started = clock(ClockId::ThreadCPUTime).0;
        let mut evidence = Evidence::default();
        cgroups.look_control(now(), &HashSet::new(), &paths, reread, &mut evidence);
        let cpu = Duration::from_nanos(clock(ClockId::ThreadCPUTime).0 - started);
        eprintln!("memory limits, {what}: {cpu:?}, {:?} per cgroup", cpu / n as u32);
        evidence.counters.subjects(Source::CgroupMemory).len()
    };
    control("first look at cgroups without a limit", Reread::Affordable);
    control("a later look", Reread::Everything);
    for i in 0..n.min(5000) {
        let limit = if host.memory.version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
        std::fs::write(scratch.0.join(format!("session-{i}.scope/{limit}")), "1073741824").unwrap();
    }
    cgroups = Cgroups::new(Root::live());
    let mut control = |what, reread| {
        let started = clock(ClockId::ThreadCPUTime).0;
        let mut evidence = Evidence::default();
        cgroups.look_control(now(), &HashSet::new(), &paths, reread, &mut evidence);
        let cpu = Duration::from_nanos(clock(ClockId::ThreadCPUTime).0 - started);
        eprintln!("memory limits, {what}: {cpu:?}, {:?} per limited cgroup", cpu / n.min(5000) as u32);
        evidence.counters.subjects(Source::CgroupMemory).len()
    };
    assert_eq!(control("first look, 5,000 of them limited", Reread::Affordable), n.min(5000));
    control("all limited ones again", Reread::Everything);
    let started = Instant::now();
    drop(scratch);
    eprintln!("removed in {:?}", started.elapsed());
}

#[test]
fn a_crowded_parent_is_named() {
    let Some(host) = Host::take() else { return };
    crowd(&host, 1000);
}

#[test]
#[ignore = "makes 20,000 memory cgroups; for measuring"]
fn twenty_thousand_directories() {
    let Some(host) = Host::take() else { return };
    crowd(&host, 20_000);
}

#[test]
fn the_statistics_of_this_node_are_timed() {
    let mut cgroups = Cgroups::new(Root::live());
    let mut evidence = Evidence::default();
    cgroups.start_stat_read(now(), &mut evidence);
    wait_for("the reads come back", || cgroups.collect_stat_read(&mut evidence));
    let readable = |file: &str| {
        let memory = cgroups.found.as_ref().and_then(|f| f.memory.as_ref());
        memory.is_some_and(|m| File::open(m.file(file)).is_ok())
    };
    for file in ["memory.stat", "memory.numa_stat"] {
        let read = evidence.stat_reads.iter().find(|r| r.path.ends_with(file));
        assert_eq!(read.is_some(), readable(file), "{file}: {evidence:?}");
        if let Some(read) = read {
            assert!(read.finished && read.took_ns > 0 && read.cpu_ns.is_some(), "{read:?}");
        }
    }
    eprintln!("{:?}", evidence.stat_reads);
}
