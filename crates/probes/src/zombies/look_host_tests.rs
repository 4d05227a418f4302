//! On the live node, as root: real dead cgroups, seen without BPF. Tests look only below their own cgroups, so they share the machine.

use super::look::Ground;
use super::*;
use crate::cgroups::directories;
use crate::cgroups::mounts::Hierarchy;
use crate::test_tree::{wait_for, with_capabilities};
use coroner_evidence::{Charged, DeadBelow, Evidence, ZombieMethod, ZombieScan};
use coroner_lab::{Cgroup, Child, HostLock, TmpfsMount};
use rustix::thread::CapabilitySet;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A tmpfs whose pages pin what is created below the parents. Dropped first, so that the dead are freed before their parents.
struct Scene {
    tmpfs: TmpfsMount,
    home: Cgroup,
    parents: Vec<Cgroup>,
    _lock: HostLock,
}

impl Scene {
    fn set(what: &str, parents: usize) -> Option<Scene> {
        let lock = HostLock::share_as_root()?;
        let draw = RandomState::new();
        let make =
            |i: usize| Cgroup::with_controller("memory", &format!("coroner-{what}-{:08x}", draw.hash_one(i) as u32));
        let parents: Result<Vec<Cgroup>, _> = (0..parents).map(make).collect();
        let parents = match parents {
            Ok(parents) if parents[0].hierarchy().version == 1 => parents,
            Ok(_) => {
                coroner_lab::skip("needs cgroup v1 memory");
                return None;
            }
            Err(error) => {
                coroner_lab::skip(&format!("needs a writable memory cgroup: {error:#}"));
                return None;
            }
        };
        for parent in &parents {
            let _ = parent.write("memory.use_hierarchy", "1");
        }
        let home = Cgroup::with_controller("memory", &format!("coroner-{what}-home")).unwrap();
        let tmpfs = TmpfsMount::create(&format!("coroner-{what}"), 64 << 20, 20_000).unwrap();
        Some(Scene { tmpfs, home, parents, _lock: lock })
    }

    /// A shell joins a new child, writes a page into the tmpfs, leaves and removes the child, `count` times.
    fn leak(&self, parent: &Path, count: u64) {
        let script = format!("i=0; while [ $i -lt {count} ]; do {LEAK_ONE}; i=$((i+1)); done");
        let status = self.shell(parent, &script).status().unwrap();
        assert!(status.success(), "{status}");
    }

    /// `$0` is the parent, `$1` the tmpfs, `$2` the home.
    fn shell(&self, parent: &Path, script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).arg(parent).arg(self.tmpfs.dir()).arg(self.home.dir());
        shell
    }

    /// Charges pages to a live cgroup.
    fn fill(&self, cgroup: &Path, name: &str, pages: u64) {
        let script = format!(
            "echo $$ > \"$0/cgroup.procs\" && dd if=/dev/zero of=\"$1/{name}\" bs={} count={pages} status=none; \
             echo $$ > \"$2/cgroup.procs\"",
            page()
        );
        assert!(self.shell(cgroup, &script).status().unwrap().success());
    }
}

const LEAK_ONE: &str = "z=$(cat /proc/sys/kernel/random/uuid); mkdir \"$0/$z\" && echo $$ > \"$0/$z/cgroup.procs\" \
    && echo x > \"$1/$z\" && echo $$ > \"$2/cgroup.procs\" || exit 1; \
    n=0; until rmdir \"$0/$z\" 2>/dev/null; do n=$((n+1)); [ $n -lt 1000 ] || exit 2; done";

fn page() -> u64 {
    rustix::param::page_size() as u64
}

fn look_without_bpf() -> (ZombieScan, Evidence) {
    let mut evidence = Evidence::default();
    let scan = look(&LookOptions { bpf: Bpf::No, ..LookOptions::default() }, &mut evidence);
    (scan.expect("this node has memory cgroups"), evidence)
}

fn held(scan: &ZombieScan, parent: &str) -> Option<Charged> {
    let found: Vec<&DeadBelow> = scan.below.iter().filter(|b| b.parent == parent).collect();
    assert!(found.len() < 2, "reported twice: {found:?}");
    found.first().and_then(|b| b.held)
}

/// Pages of shared memory that dead children of a parent hold.
fn pages(scan: &ZombieScan, parent: &str) -> u64 {
    held(scan, parent).and_then(|h| h.shmem).unwrap_or(0) / page()
}

/// The same from the walk over the kernel's lists.
fn pages_by_name(scan: &ZombieScan, parent: &str) -> (u64, u64) {
    let children = scan.zombies.iter().filter(|z| z.path.rsplit_once('/').is_some_and(|(p, _)| p == parent));
    children.fold((0, 0), |(n, bytes), z| (n + 1, bytes + z.held.shmem.unwrap_or(0) / page()))
}

#[test]
fn parents_are_exact_to_the_page_without_bpf() {
    let Some(scene) = Scene::set("arithmetic", 3) else { return };
    let [one, two, bystander] = &scene.parents[..] else { unreachable!() };
    let inner = one.child("service").unwrap();
    let innermost = inner.child("worker").unwrap();
    scene.leak(one.dir(), 150);
    scene.leak(innermost.dir(), 40);
    scene.leak(two.dir(), 77);
    // Live cgroups hold memory too: a parent with a process of its own, and children at each level.
    scene.fill(two.dir(), "own", 300);
    scene.fill(inner.dir(), "inner", 200);
    scene.fill(innermost.dir(), "innermost", 100);
    scene.fill(bystander.dir(), "bystander", 500);
    let own = Child::spawn("own", Command::new("sleep").arg("600")).unwrap();
    two.add(own.pid()).unwrap();

    let expected =
        [(one.path(), 150), (innermost.path(), 40), (two.path(), 77), (inner.path(), 0), (bystander.path(), 0)];
    // The kernel sums its counters every two seconds.
    wait_for("all are exact to the page", || {
        let (scan, _) = look_without_bpf();
        expected.iter().all(|(parent, count)| pages(&scan, parent) == *count)
    });
    let (scan, evidence) = look_without_bpf();
    eprintln!("took {} µs: {:?}", scan.took_ns / 1000, scan.below);
    assert_eq!((scan.method, scan.version, scan.truncated.as_ref()), (ZombieMethod::MemoryStat, 1, None));
    assert_eq!(held(&scan, &one.path()).map(|h| (h.file, h.unevictable, h.kernel)), Some((0, 0, None)));
    assert!(scan.dead.is_some_and(|dead| dead >= 267), "{:?}", scan.dead);
    assert!(evidence.unseen.iter().any(|u| u.what.contains("how many dead memory cgroups each parent has")));

    // With BPF the same dead have names.
    let by_name = look(&LookOptions::default(), &mut Evidence::default()).unwrap();
    if by_name.method.is_bpf() {
        for (parent, count) in &expected[..3] {
            assert_eq!(pages_by_name(&by_name, parent), (*count, *count), "{parent}");
        }
        assert!(by_name.instead_of.is_empty() && by_name.below.is_empty() && by_name.files_unseen.is_none());
        let ours = scene.tmpfs.dir().to_str().unwrap();
        assert!(by_name.files.iter().any(|f| f.path.as_deref().is_some_and(|p| p.starts_with(ours))));
    }

    drop(own);
    let parents = [one.path(), innermost.path(), two.path()];
    drop(scene.tmpfs);
    wait_for("nothing is reported when nothing is held", || {
        let (scan, _) = look_without_bpf();
        parents.iter().all(|parent| pages(&scan, parent) == 0)
    });
}

#[test]
fn under_churn_no_live_cgroup_is_counted_as_dead() {
    let Some(scene) = Scene::set("coming", 1) else { return };
    let parent = &scene.parents[0];
    let live = parent.child("live").unwrap();
    scene.fill(live.dir(), "live", 2000);
    scene.leak(parent.dir(), 25);
    wait_for("the steady dead are counted", || pages(&look_without_bpf().0, &parent.path()) == 25);
    // Three of four are freed at once, every fourth is pinned for a while, at most twenty at a time.
    let script = "i=0; while :; do z=churn-$i; mkdir \"$0/$z\" && echo $$ > \"$0/$z/cgroup.procs\" || exit 1; \
        [ $((i%4)) != 0 ] || echo x > \"$1/$z\"; echo $$ > \"$2/cgroup.procs\"; \
        n=0; until rmdir \"$0/$z\" 2>/dev/null; do n=$((n+1)); [ $n -lt 1000 ] || exit 2; done; \
        [ $((i%80)) != 0 ] || rm -f \"$1\"/churn-*; i=$((i+1)); done";
    let _churn = Child::spawn("churn", &mut scene.shell(parent.dir(), script)).unwrap();
    let started = Instant::now();
    let (mut looks, mut most) = (0, 0);
    while started.elapsed() < Duration::from_secs(4) || looks < 10 {
        let (scan, _) = look_without_bpf();
        let told = pages(&scan, &parent.path());
        // What the kernel batches before it sums: 64 pages per core.
        let slack = 64 * std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        assert!(told <= 25 + 21 + slack, "{told} pages include those of the live child");
        assert_eq!(held(&scan, &live.path()), None);
        most = most.max(told);
        looks += 1;
    }
    eprintln!("{looks} looks, at most {most} pages");
    assert!(most >= 20, "the steady dead were lost");
}

/// v2 counts them even without a memory controller, as on hybrid nodes: a socket pins the cgroup it was created in.
#[test]
fn v2_counts_the_dead_by_parent() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let Some(v2) = coroner_lab::Hierarchy::all().unwrap().into_iter().find(|h| h.version == 2) else {
        return coroner_lab::skip("needs a cgroup v2 mount");
    };
    let outer = match Cgroup::create(&v2, "coroner-counts") {
        Ok(outer) => outer,
        Err(error) => return coroner_lab::skip(&format!("needs a writable cgroup v2 mount: {error:#}")),
    };
    let inner = outer.child("inner").unwrap();
    let home = outer.child("home").unwrap();
    // Bash opens an unconnected socket in each and keeps it.
    let script = "for z in $0/z{1..7} $1/z{1..4}; do mkdir $z && echo $$ > $z/cgroup.procs && exec {fd}<>/dev/udp/127.0.0.1/9 \
        && echo $$ > $2/cgroup.procs && rmdir $z || exit 1; done; echo made; exec sleep 600";
    let mut bash = Command::new("bash");
    bash.arg("-c").arg(script).args([outer.dir(), inner.dir(), home.dir()]);
    let Ok((keeper, mut stdout)) = Child::spawn_with_stdout("keeper", bash.stdout(Stdio::piped())) else {
        return coroner_lab::skip("needs bash");
    };
    let mut word = [0; 4];
    stdout.read_exact(&mut word).expect("bash makes and leaves the cgroups");
    let mount_point = v2.mount_point.to_str().unwrap().to_owned();
    let memory = Hierarchy { version: 2, mount_point, root: "/".to_owned(), whole: true };
    let top = directories::open(&v2.mount_point).unwrap();
    let look = || {
        let started = Instant::now();
        let until = started + Duration::from_secs(10);
        let ground = Ground { memory: &memory, top: &top, started, until, slab_stays: false };
        v2_counts::look(&ground, true).unwrap()
    };
    let counted = |found: &v2_counts::FoundCounts, parent: &Cgroup| {
        found.below.iter().find(|b| b.parent == parent.path()).map(|b| (b.dead, b.held))
    };
    let found = look();
    if counted(&found, &outer).is_none() {
        return coroner_lab::skip("sockets pin no cgroups on this kernel");
    }
    assert_eq!(counted(&found, &outer), Some((Some(7), None)), "{found:?}");
    assert_eq!(counted(&found, &inner), Some((Some(4), None)), "{found:?}");
    assert!(found.of_any_kind && found.perhaps_without_memory >= 11 && found.dead >= 11, "{found:?}");
    drop(keeper);
    wait_for("they are freed with the sockets", || {
        let found = look();
        counted(&found, &outer).is_none() && counted(&found, &inner).is_none()
    });
}

#[test]
fn without_the_capability_there_is_a_result_and_the_reason() {
    let Some(scene) = Scene::set("powerless", 1) else { return };
    let parent = scene.parents[0].path();
    scene.leak(scene.parents[0].dir(), 33);
    wait_for("they are counted", || pages(&look_without_bpf().0, &parent) == 33);
    let all = rustix::thread::capabilities(None).unwrap().permitted;
    let without = all - (CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN);
    for (keep, bpf, method) in [
        (without, Bpf::Best, "bpf"),
        (without, Bpf::Only(Method::PageFaults), "bpf-page-faults"),
        (CapabilitySet::empty(), Bpf::Best, "bpf"),
    ] {
        let (scan, evidence) = with_capabilities(keep, move || {
            let mut evidence = Evidence::default();
            (look(&LookOptions { bpf, ..LookOptions::default() }, &mut evidence), evidence)
        });
        let scan = scan.unwrap();
        assert_eq!(scan.method, ZombieMethod::MemoryStat, "{keep:?}");
        assert_eq!(scan.instead_of[0].method, method);
        assert!(scan.instead_of[0].why.contains("lacks CAP_BPF and CAP_PERFMON"), "{:?}", scan.instead_of);
        assert_eq!(pages(&scan, &parent), 33, "{keep:?}");
        assert!(scan.dead.is_some_and(|dead| dead >= 33));
        assert!(evidence.unseen.iter().any(|u| u.what.contains("names") && u.why.contains("CAP_BPF")));
    }
}
