//! On the live node, as root: real zombies, real throttling, real directories.
//!
//! Tests that read node-wide counts take turns and compare before with after; those that look at their own cgroup share the machine.

use super::*;
use crate::test_tree::wait_for;
use coroner_lab::{Cgroup, Child, HostLock, TmpfsMount};
use std::fs::File;
use std::process::Command;

/// `None`, after printing why, if the node does not allow the test.
fn scratch(controller: &str, what: &str) -> Option<Cgroup> {
    let cgroup = Cgroup::with_controller(controller, what);
    cgroup.map_err(|error| coroner_lab::skip(&format!("needs a writable {controller} cgroup: {error:#}"))).ok()
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
    let Some(_lock) = HostLock::take_as_root() else { return };
    let Some(scratch) = scratch("memory", "zombies") else { return };
    // v2 charges pages to the nearest cgroup with the controller.
    scratch.hierarchy().enable(scratch.dir(), "memory").unwrap();
    let home = scratch.child("home").unwrap();
    let tmpfs = TmpfsMount::create("zombies", 64 << 20, 1000).unwrap();
    let before = census();

    // A shell joins a new memory cgroup, writes a page that outlives it, leaves and removes the directory.
    let script = "i=0; while [ $i -lt 300 ]; do mkdir $0/z$i && echo $$ > $0/z$i/cgroup.procs && echo x > $1/f$i \
        && echo $$ > $2/cgroup.procs || exit 1; n=0; until rmdir $0/z$i 2>/dev/null; do n=$((n+1)); [ $n -lt 1000 ] || exit 2; \
        done; i=$((i+1)); done";
    let status =
        Command::new("sh").arg("-c").arg(script).args([scratch.dir(), tmpfs.dir(), home.dir()]).status().unwrap();
    assert!(status.success(), "{status}");

    let dying = |census: &CgroupCensus| census.dying.expect("seen on a whole node") as i64;
    let risen = || dying(&census()) - dying(&before);
    wait_for("300 zombies are counted", || (risen() - 300).abs() <= OTHERS);
    let with = census();
    let live = with.live as i64 - before.live as i64;
    assert!(live.abs() <= OTHERS, "zombies have no directory, but there are {live} more");
    let find = Command::new("find").arg(&scratch.hierarchy().mount_point).args(["-type", "d"]).output().unwrap();
    let find = String::from_utf8_lossy(&find.stdout).lines().count() as i64;
    assert!((find - with.live as i64).abs() <= OTHERS, "find counts {find}, we {}", with.live);
    eprintln!("before {before:?}\nwith   {with:?}");

    drop(tmpfs);
    wait_for("they are freed with their pages", || risen().abs() <= OTHERS);
}

#[test]
fn a_spinner_in_a_quota_is_seen_throttled() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let Some(scratch) = scratch("cpu", "quota") else { return };
    let inner = scratch.child("inner").unwrap();
    let (file, quota) = match scratch.hierarchy().version {
        1 => ("cpu.cfs_quota_us", "10000"),
        _ => ("cpu.max", "10000 100000"),
    };
    scratch.write(file, quota).unwrap();
    let spinner = Child::spawn("spinner", Command::new("sh").args(["-c", "while :; do :; done"])).unwrap();
    inner.add(spinner.pid()).unwrap();

    // The quota is the parent's, the process is in the child.
    let (subject, processes) = (scratch.path(), HashSet::from([inner.path()]));
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
    let Some(_lock) = HostLock::share_as_root() else { return };
    let Some(scratch) = scratch("memory", "limit") else { return };
    let limit = if scratch.hierarchy().version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
    scratch.write(limit, "4194304").unwrap();
    let path = scratch.path();
    let processes = HashSet::from([path.clone()]);
    let mut cgroups = Cgroups::new(Root::live());
    let mut evidence = Evidence::default();
    cgroups.look_control(now(), &HashSet::new(), &processes, Reread::Everything, &mut evidence);
    // Joins, then fills the page cache beyond the limit, so that the kernel reclaims within the cgroup. An OOM kill would stay in
    // the kernel log and show in every diagnosis of this machine for a day.
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let script = "echo $$ > $0/cgroup.procs; exec dd if=/dev/zero of=\"$1\" bs=64k count=512 status=none";
    let status = Command::new("sh").arg("-c").arg(script).args([scratch.dir(), file.path()]).status().unwrap();
    assert!(status.success(), "{status}");
    cgroups.look_control(now(), &HashSet::new(), &processes, Reread::Everything, &mut evidence);
    let moved = |name| evidence.counters.moved(Source::CgroupMemory, &path, name);
    assert_eq!(evidence.counters.last(Source::CgroupMemory, &path, "limit_bytes"), Some(4_194_304));
    assert!(moved("limit_hits") > Some(0), "{:?}", moved("limit_hits"));
    assert_eq!(moved("oom_kill"), Some(0));
}

#[test]
fn a_crowded_parent_is_named() {
    const MANY: u64 = 1000;
    let Some(_lock) = HostLock::take_as_root() else { return };
    let Some(scratch) = scratch("memory", "crowd") else { return };
    let before = census();
    for i in 0..MANY {
        std::fs::create_dir(scratch.dir().join(format!("session-{i}.scope"))).unwrap();
    }
    let mut cgroups = Cgroups::new(Root::live());
    let mut evidence = Evidence::default();
    let populated = HashSet::from([format!("{}/session-7.scope", scratch.path())]);
    cgroups.look(now(), Some(&populated), &mut evidence);
    let census = evidence.cgroup_censuses.pop().unwrap();
    let grown = census.live as i64 - before.live as i64;
    assert!((grown - MANY as i64).abs() <= OTHERS, "{grown} more directories");
    let parent = census.crowded.iter().find(|parent| parent.path == scratch.path()).expect("it is listed as crowded");
    assert_eq!((parent.children, parent.empty), (MANY, Some(MANY - 1)));
    assert!(parent.example.as_deref().unwrap().starts_with("session-"));
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
