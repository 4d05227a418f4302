//! Fake trees in a directory: v2, containers, old kernels, whatever this node is not.

use super::*;
use coroner_evidence::{DeadBelow, Evidence, ZombieMethod, ZombieScan, probe};
use proptest::prelude::*;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Tree {
        Tree(crate::test_tree::tree(files))
    }

    fn write(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        crate::test_tree::write(self.0.path(), path, text);
    }

    fn remove(&self, path: &str) {
        std::fs::remove_file(self.0.path().join(path)).unwrap();
    }

    fn look(&self) -> (Option<ZombieScan>, Evidence) {
        self.look_for(Duration::from_secs(10))
    }

    fn look_for(&self, time_limit: Duration) -> (Option<ZombieScan>, Evidence) {
        let mut evidence = Evidence::default();
        let options = LookOptions { root: Root::at(self.0.path()), time_limit, ..LookOptions::default() };
        (look(&options, &mut evidence), evidence)
    }
}

fn whys(evidence: &Evidence) -> String {
    assert!(evidence.unseen.iter().all(|u| u.probe == probe::ZOMBIES), "{:?}", evidence.unseen);
    evidence.unseen.iter().map(|u| format!("{}: {} ({})\n", u.what, u.why, u.how_to_see)).collect()
}

/// Parent, number of dead, bytes of shared memory and of files.
type Line<'s> = (&'s str, Option<u64>, Option<(u64, u64)>);

fn below(scan: &ZombieScan) -> Vec<Line<'_>> {
    let held = |b: &DeadBelow| b.held.map(|h| (h.shmem.unwrap(), h.file));
    scan.below.iter().map(|b| (b.parent.as_str(), b.dead, held(b))).collect()
}

const RELEASE: (&str, &str) = ("proc/sys/kernel/osrelease", "6.12.0\n");
const V2_MOUNT: &str = "30 23 0:26 / /cg rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

/// A v2 memory.stat with this much shared memory, other page cache and anonymous memory.
fn v2_stat(shmem: u64, file: u64, anon: u64) -> String {
    format!(
        "anon {anon}\nfile {}\nkernel 5000\nslab 400\nkernel_stack 50\nshmem {shmem}\ninactive_anon {}\nactive_anon 0\n\
         inactive_file {file}\nactive_file 0\nunevictable 0\n",
        file + shmem,
        anon + shmem
    )
}

impl Tree {
    fn v2(&self, path: &str, dying: u64, memory: bool, procs: &str, stat: &str) {
        let at = |file: &str| if path.is_empty() { format!("cg/{file}") } else { format!("cg/{path}/{file}") };
        self.write(
            at("cgroup.stat"),
            format!("nr_descendants 0\nnr_dying_descendants {dying}\nnr_dying_subsys_memory {dying}\n"),
        );
        self.write(at("cgroup.subtree_control"), if memory { "cpu memory pids\n" } else { "pids\n" });
        self.write(at("cgroup.procs"), procs);
        self.write(at("memory.stat"), stat);
    }
}

/// 300 dead below agent, of which 40 are below a live child; 5 below the root itself.
fn v2() -> Tree {
    let tree = Tree::new(&[RELEASE, ("proc/self/mountinfo", V2_MOUNT), ("cg/cgroup.controllers", "cpu memory pids\n")]);
    tree.v2("", 305, true, "1\n2\n", &v2_stat(900_000, 900_000, 0));
    tree.write(
        "cg/cgroup.stat",
        "nr_descendants 4\nnr_subsys_memory 5\nnr_dying_descendants 310\nnr_dying_subsys_memory 305\n",
    );
    tree.v2("agent", 300, true, "", &v2_stat(10_000, 5000, 300));
    tree.v2("agent/pod", 40, true, "", &v2_stat(3000, 4000, 200));
    tree.v2("agent/pod/main", 0, false, "77\n", &v2_stat(1000, 4000, 200));
    tree.v2("agent/side", 0, false, "78\n", &v2_stat(1000, 0, 100));
    for (path, bytes) in [("agent", 70), ("agent/pod", 30), ("agent/pod/main", 30), ("agent/side", 0)] {
        tree.write(format!("cg/{path}/memory.swap.current"), format!("{bytes}\n"));
    }
    tree
}

#[test]
fn v2_names_the_parents_with_count_and_bytes() {
    let (scan, evidence) = v2().look();
    let scan = scan.unwrap();
    assert_eq!((scan.method, scan.version), (ZombieMethod::CgroupStat, 2));
    assert_eq!((scan.tracked, scan.live, scan.dead), (Some(310), Some(5), Some(305)));
    assert_eq!(
        below(&scan),
        [("/agent", Some(260), Some((6000, 1000))), ("/agent/pod", Some(40), Some((2000, 0))), ("/", Some(5), None)]
    );
    let held = scan.below[0].held.unwrap();
    assert_eq!((held.anonymous, held.swap, held.kernel, held.total()), (Some(0), Some(40), None, 7000));
    assert_eq!((scan.truncated.as_ref(), scan.zombies.len()), (None, 0));
    assert_eq!(scan.instead_of.len(), 1);
    assert_eq!(scan.instead_of[0].method, "bpf");
    assert!(scan.files_unseen.is_some());
    let whys = whys(&evidence);
    assert!(whys.contains("names and ages of dead memory cgroups"), "{whys}");
    assert!(whys.contains("below / hold: cgroup v2 adds the memory of the parent's own processes to it"), "{whys}");
}

#[test]
fn dead_cgroups_keep_kernel_memory_only_on_old_kernels() {
    let tree = v2();
    tree.write(RELEASE.0, "5.4.0-1103-aws\n");
    let (scan, evidence) = tree.look();
    // 450 in the parent's file minus twice 450 in the children's saturates at 0.
    assert_eq!(scan.unwrap().below[0].held.unwrap().kernel, Some(0));
    assert!(whys(&evidence).contains("up to 32 pages"), "{}", whys(&evidence));
    tree.write("cg/agent/memory.stat", v2_stat(10_000, 5000, 300).replace("slab 400", "slab 9400"));
    assert_eq!(tree.look().0.unwrap().below[0].held.unwrap().kernel, Some(9450 - 900));
}

#[test]
fn before_6_12_dead_cgroups_of_any_kind_are_counted_and_reported_as_such() {
    let tree = v2();
    for (path, dying, live) in
        [("", 305, 5), ("agent", 300, 4), ("agent/pod", 40, 1), ("agent/pod/main", 0, 0), ("agent/side", 0, 0)]
    {
        let text = format!("nr_descendants {live}\nnr_dying_descendants {dying}\n");
        tree.write(format!("cg/{path}/cgroup.stat"), text);
    }
    // Does not enable the memory controller for its children.
    tree.write("cg/agent/pod/cgroup.subtree_control", "pids\n");
    let (scan, evidence) = tree.look();
    let scan = scan.unwrap();
    // The root, agent, pod and side have one; main does not.
    assert_eq!((scan.live, scan.dead, scan.tracked), (Some(4), Some(305), Some(309)));
    assert_eq!(
        below(&scan),
        [("/agent", Some(260), Some((6000, 1000))), ("/agent/pod", Some(40), None), ("/", Some(5), None)]
    );
    let whys = whys(&evidence);
    assert!(whys.contains("below parents that do not enable the memory controller for children: 40"), "{whys}");
    assert!(whys.contains("below /agent/pod hold: the parent's children have no memory controller"), "{whys}");
}

#[test]
fn what_cannot_be_read_is_reported_and_the_rest_stays() {
    // A child's sums: the parent's bytes are unknown, its count is not.
    let tree = v2();
    tree.remove("cg/agent/side/memory.stat");
    std::fs::create_dir(tree.0.path().join("cg/agent/side/memory.stat")).unwrap();
    let (scan, evidence) = tree.look();
    let scan = scan.unwrap();
    assert_eq!(below(&scan)[0], ("/agent", Some(260), None));
    assert_eq!(below(&scan)[1], ("/agent/pod", Some(40), Some((2000, 0))));
    assert!(whys(&evidence).contains("below /agent hold: side/memory.stat"), "{}", whys(&evidence));

    // A child's count: its parent's is unknown, the total is not.
    let tree = v2();
    tree.write("cg/agent/side/cgroup.stat", "nr_descendants 0\n");
    let (scan, evidence) = tree.look();
    let scan = scan.unwrap();
    assert_eq!(scan.dead, Some(305));
    assert!(!below(&scan).iter().any(|b| b.0 == "/agent"), "{:?}", scan.below);
    assert!(whys(&evidence).contains("how many dead cgroups are below /agent"), "{}", whys(&evidence));

    // A pipe in place of a file does not block.
    let tree = v2();
    tree.remove("cg/agent/side/memory.stat");
    let made = std::process::Command::new("mkfifo").arg(tree.0.path().join("cg/agent/side/memory.stat")).status();
    assert!(made.unwrap().success());
    assert_eq!(below(&tree.look().0.unwrap())[0], ("/agent", Some(260), None));
}

#[test]
fn more_in_the_children_than_in_the_parent_is_never_negative() {
    let tree = v2();
    tree.write("cg/agent/side/memory.stat", v2_stat(1 << 40, 1 << 40, 1 << 40));
    tree.write("cg/agent/pod/cgroup.stat", "nr_dying_descendants 0\nnr_dying_subsys_memory 9999\n");
    let scan = tree.look().0.unwrap();
    assert!(below(&scan).iter().all(|b| b.0 != "/agent"), "{:?}", scan.below);
    assert!(scan.below.iter().all(|b| b.dead.is_some_and(|d| d <= 9999)));
}

#[test]
fn a_partial_hierarchy_is_reported_as_such() {
    let tree = v2();
    tree.write("cg/cgroup.events", "populated 1\n");
    let (scan, evidence) = tree.look();
    let scan = scan.unwrap();
    assert_eq!(scan.dead, Some(305));
    assert!(scan.truncated.as_deref().is_some_and(|t| t.contains("shows no others")), "{:?}", scan.truncated);
    assert!(whys(&evidence).contains("outside this container"));
}

#[test]
fn v2_without_counts_falls_back_to_proc_cgroups_minus_directories() {
    let tree = v2();
    tree.write("cg/cgroup.stat", "");
    tree.write("proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t905\t1\n");
    let (scan, evidence) = tree.look();
    let scan = scan.unwrap();
    assert_eq!((scan.method, scan.version), (ZombieMethod::Count, 2));
    assert_eq!((scan.tracked, scan.live, scan.dead, scan.below.len()), (Some(905), Some(5), Some(900), 0));
    let tried: Vec<&str> = scan.instead_of.iter().map(|t| t.method.as_str()).collect();
    assert_eq!(tried, ["bpf", "cgroup-stat"]);
    assert!(scan.instead_of[1].why.contains("4.14"), "{:?}", scan.instead_of);
    assert!(whys(&evidence).contains("cgroups of any kind"));
}

const V1_MOUNT: &str = "35 31 0:32 / /cg rw,relatime - cgroup cgroup rw,memory\n";

fn v1_kinds(prefix: &str, shmem: u64, file: u64) -> String {
    format!(
        "{prefix}cache {}\n{prefix}rss 0\n{prefix}shmem {shmem}\n{prefix}inactive_anon {shmem}\n{prefix}active_anon 0\n\
         {prefix}inactive_file {file}\n{prefix}active_file 0\n{prefix}unevictable 0\n",
        shmem + file
    )
}

/// A v1 memory.stat: charged to the cgroup itself, and including everything below.
fn v1_stat(own: (u64, u64), all: (u64, u64)) -> String {
    v1_kinds("", own.0, own.1) + &v1_kinds("total_", all.0, all.1)
}

fn v1() -> Tree {
    let tree = Tree::new(&[
        RELEASE,
        ("proc/self/mountinfo", V1_MOUNT),
        ("proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t4\t605\t1\n"),
        ("cg/release_agent", ""),
        ("cg/memory.use_hierarchy", "1\n"),
    ]);
    for (path, own, all) in [
        ("", (10_000, 50), (20_000, 1000)),
        ("agent", (500, 20), (9000, 900)),
        ("agent/live", (300, 30), (1300, 530)),
        ("agent/live/inner", (700, 500), (700, 500)),
        ("leaf", (1000, 0), (1000, 50)),
    ] {
        tree.write(format!("cg/{path}/memory.stat"), v1_stat(own, all));
        tree.write(format!("cg/{path}/cgroup.procs"), "1\n");
    }
    tree
}

#[test]
fn v1_separates_the_dead_from_the_parents_own_memory() {
    let (scan, evidence) = v1().look();
    let scan = scan.unwrap();
    assert_eq!((scan.method, scan.version), (ZombieMethod::MemoryStat, 1));
    assert_eq!((scan.tracked, scan.live, scan.dead), (Some(605), Some(5), Some(600)));
    let expected =
        [("/agent", None, Some((7200, 350))), ("/agent/live", None, Some((300, 0))), ("/leaf", None, Some((0, 50)))];
    assert_eq!(below(&scan), expected);
    assert_eq!(scan.below[0].held.unwrap().swap, None, "not in the files");
    let tried: Vec<&str> = scan.instead_of.iter().map(|t| t.method.as_str()).collect();
    assert_eq!(tried, ["bpf", "cgroup-stat"]);
    let whys = whys(&evidence);
    assert!(whys.contains("how many dead memory cgroups each parent has"), "{whys}");
    assert_eq!(evidence.unseen.len(), 2, "{whys}");
}

#[test]
fn a_live_child_of_any_name_is_not_dead() {
    let tree = v1();
    let name = std::ffi::OsStr::from_bytes(b"cg/agent/\xff\xfe");
    tree.write(Path::new(name).join("memory.stat"), v1_stat((7200, 350), (7200, 350)));
    let scan = tree.look().0.unwrap();
    assert_eq!(below(&scan), [("/agent/live", None, Some((300, 0))), ("/leaf", None, Some((0, 50)))]);
}

#[test]
fn v1_in_a_container_has_bytes_but_no_count() {
    let tree = v1();
    tree.remove("cg/release_agent");
    tree.write("proc/self/mountinfo", V1_MOUNT.replace(" / ", " /docker/0123 "));
    let (scan, evidence) = tree.look();
    let scan = scan.unwrap();
    assert_eq!((scan.tracked, scan.live, scan.dead), (Some(605), None, None), "of the whole node");
    assert_eq!(below(&scan)[0], ("/docker/0123/agent", None, Some((7200, 350))));
    assert!(scan.truncated.as_deref().is_some_and(|t| t.contains("/docker/0123")), "{:?}", scan.truncated);
    let whys = whys(&evidence);
    assert!(whys.contains("how many dead memory cgroups there are: /proc/cgroups counts the whole node"), "{whys}");
}

#[test]
fn parents_that_do_not_count_their_children_are_reported() {
    let tree = v1();
    tree.write("cg/memory.use_hierarchy", "0\n");
    tree.write("cg/agent/memory.use_hierarchy", "1\n");
    tree.write("cg/leaf/memory.use_hierarchy", "0\n");
    tree.write("cg/leaf/memory.stat", v1_stat((1000, 0), (1000, 0)));
    tree.write("cg/memory.stat", v1_stat((10_000, 50), (10_000, 50)));
    let (scan, evidence) = tree.look();
    let expected = [("/agent", None, Some((7200, 350))), ("/agent/live", None, Some((300, 0)))];
    assert_eq!(below(&scan.unwrap()), expected);
    assert!(whys(&evidence).contains("(parents affected: 2) hold: memory.use_hierarchy is 0"), "{}", whys(&evidence));
}

#[test]
fn sums_too_expensive_to_read_are_not_read() {
    let tree = v1();
    tree.write(RELEASE.0, "4.19.0-20-amd64\n");
    tree.write("proc/cgroups", "memory\t4\t68680\t1\n");
    let (scan, evidence) = tree.look();
    let scan = scan.unwrap();
    assert_eq!((scan.method, scan.dead, scan.below.len()), (ZombieMethod::Count, Some(68_675), 0));
    let last = scan.instead_of.last().unwrap();
    assert_eq!(last.method, "memory-stat");
    assert!(last.why.contains("68680 memory cgroups would take about 4.8 s"), "{}", last.why);
    assert!(whys(&evidence).contains("how much dead memory cgroups hold: too dangerous"), "{}", whys(&evidence));

    let tree = v2();
    tree.write(RELEASE.0, "4.19.0-20-amd64\n");
    tree.write("cg/cgroup.stat", "nr_descendants 4\nnr_dying_descendants 30000\nnr_dying_subsys_memory 30000\n");
    let (scan, evidence) = tree.look();
    let scan = scan.unwrap();
    assert_eq!((scan.method, scan.dead), (ZombieMethod::CgroupStat, Some(30_000)));
    assert!(scan.below.iter().all(|b| b.held.is_none()), "{:?}", scan.below);
    assert!(whys(&evidence).contains("too dangerous"), "{}", whys(&evidence));
}

#[test]
fn v1_parents_with_unreadable_sums_are_reported() {
    let tree = v1();
    tree.write("cg/agent/live/inner/memory.stat", "cache many\n");
    let (scan, evidence) = tree.look();
    // Neither inner nor its parent can be worked out.
    let expected = [("/agent", None, Some((7200, 350))), ("/leaf", None, Some((0, 50)))];
    assert_eq!(below(&scan.unwrap()), expected);
    assert!(whys(&evidence).contains("(parents affected: 2) hold: inner/memory.stat"), "{}", whys(&evidence));
}

#[test]
fn without_memory_stat_only_the_count_remains() {
    let tree = v1();
    for path in [
        "memory.stat",
        "agent/memory.stat",
        "agent/live/memory.stat",
        "agent/live/inner/memory.stat",
        "leaf/memory.stat",
    ] {
        tree.remove(&format!("cg/{path}"));
    }
    let scan = tree.look().0.unwrap();
    assert_eq!((scan.method, scan.dead), (ZombieMethod::Count, Some(600)));
    assert!(scan.instead_of.last().unwrap().why.contains("memory.stat"), "{:?}", scan.instead_of);
}

#[test]
fn without_a_mount_the_total_is_reported_and_the_dead_are_unknown() {
    let tree = Tree::new(&[RELEASE, ("proc/self/mountinfo", "22 1 0:1 / /proc rw - proc proc rw\n")]);
    let (scan, evidence) = tree.look();
    assert_eq!(scan, None);
    assert!(whys(&evidence).contains("how many dead memory cgroups there are"), "{}", whys(&evidence));
    assert!(whys(&evidence).contains("no cgroup mount"), "{}", whys(&evidence));

    tree.write("proc/cgroups", "memory\t4\t68680\t1\n");
    let (scan, evidence) = tree.look();
    let scan = scan.unwrap();
    assert_eq!((scan.method, scan.version), (ZombieMethod::Count, 1));
    assert_eq!((scan.tracked, scan.live, scan.dead), (Some(68_680), None, None));
    assert_eq!(scan.instead_of.len(), 3);
    assert!(whys(&evidence).contains("how many dead memory cgroups there are"), "{}", whys(&evidence));
    assert_eq!(Tree::new(&[]).look().0, None);
}

#[test]
fn out_of_time_is_reported_and_nothing_is_made_up() {
    let (scan, _) = v1().look_for(Duration::ZERO);
    let scan = scan.unwrap();
    assert!(scan.truncated.as_deref().is_some_and(|t| t.contains("out of time")), "{:?}", scan.truncated);
    assert_eq!(scan.below, []);
    assert_eq!(scan.dead, Some(600), "a few directories are counted regardless");
    let (scan, _) = v2().look_for(Duration::ZERO);
    let scan = scan.unwrap();
    assert!(scan.truncated.is_some());
    assert_eq!((scan.dead, scan.below.len()), (Some(305), 0));
}

#[test]
fn a_method_that_is_off_or_fails_is_reported() {
    let tree = v1();
    for (bpf, method, why) in [
        (Bpf::No, "bpf", "turned off"),
        (Bpf::Only(Method::PageFaults), "bpf-page-faults", "directory"),
        (Bpf::Best, "bpf", "directory"),
    ] {
        let mut evidence = Evidence::default();
        let options = LookOptions { root: Root::at(tree.0.path()), bpf, ..LookOptions::default() };
        let scan = look(&options, &mut evidence).unwrap();
        assert_eq!(scan.instead_of[0].method, method);
        assert!(scan.instead_of[0].why.contains(why), "{:?}", scan.instead_of[0]);
        assert_eq!(scan.dead, Some(600));
        assert!(evidence.why_unseen(probe::ZOMBIES).unwrap().why.contains(why));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_bytes_in_any_file_are_handled(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        text in "((nr_dying_descendants|nr_dying_subsys_memory|anon|file|total_cache|memory) [0-9]{1,20}\n){0,6}",
        which in 0usize..12,
    ) {
        for tree in [v1(), v2()] {
            let files = ["cgroup.stat", "memory.stat", "cgroup.subtree_control", "memory.swap.current", "cgroup.procs", "memory.use_hierarchy"];
            tree.write(format!("cg/agent/{}", files[which % 6]), &bytes);
            tree.write(format!("cg/agent/side/{}", files[which % 6]), &text);
            tree.write(format!("cg/{}", files[which % 6]), [text.as_bytes(), &bytes].concat());
            if which > 5 {
                tree.write("proc/cgroups", &bytes);
                tree.write("proc/sys/kernel/osrelease", &bytes);
            }
            let (scan, evidence) = tree.look();
            prop_assert!(!evidence.unseen.is_empty());
            if let Some(scan) = scan {
                prop_assert!(!scan.instead_of.is_empty() && scan.zombies.is_empty());
            }
        }
    }
}
