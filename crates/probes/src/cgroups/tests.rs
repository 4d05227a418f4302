//! Fake trees in a directory: v2, containers, old kernels, whatever this node is not.

use super::*;
use proptest::prelude::*;
use std::path::Path;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Tree {
        Tree(crate::test_tree::tree(files))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: &str) {
        crate::test_tree::write(self.path(), path, text);
    }

    fn mkdir(&self, path: &str) {
        std::fs::create_dir_all(self.path().join(path)).unwrap();
    }

    fn cgroups(&self) -> Cgroups {
        Cgroups::new(Root::at(self.path()))
    }
}

const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
const V2_CONTROLLERS: &str = "cpuset cpu io memory hugetlb pids rdma misc\n";

fn v2() -> Tree {
    let tree = Tree::new(&[
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/cgroup.controllers", V2_CONTROLLERS),
        (
            "sys/fs/cgroup/cgroup.stat",
            "nr_descendants 6\nnr_subsys_memory 7\nnr_dying_descendants 900\nnr_dying_subsys_memory 890\n",
        ),
        ("sys/fs/cgroup/kubepods.slice/cgroup.stat", "nr_descendants 3\nnr_dying_descendants 880\n"),
    ]);
    for dir in ["kubepods.slice/a", "kubepods.slice/b", "kubepods.slice/c", "system.slice/x.service"] {
        tree.mkdir(&format!("sys/fs/cgroup/{dir}"));
    }
    tree
}

fn set(paths: &[&str]) -> HashSet<String> {
    paths.iter().map(|p| (*p).to_owned()).collect()
}

#[test]
fn v2_counts_dying_cgroups_itself() {
    let tree = v2();
    let mut evidence = Evidence::default();
    let processes = set(&["/", "/kubepods.slice/b", "/system.slice/x.service", "/outside/../weird"]);
    tree.cgroups().look(Time::from_secs(1), Some(&processes), &mut evidence);
    let census = &evidence.cgroup_censuses[0];
    assert_eq!((census.version, census.live, census.tracked, census.dying), (2, 7, Some(907), Some(890)));
    assert_eq!(census.dying_source, "cgroup.stat nr_dying_subsys_memory");
    assert_eq!(census.empty, Some(2), "a and c");
    let crowded = &census.crowded[0];
    assert_eq!((crowded.path.as_str(), crowded.children, crowded.empty), ("/kubepods.slice", 3, Some(2)));
    assert_eq!(crowded.dying, Some(880));
    assert!(["a", "b", "c"].contains(&crowded.example.as_deref().unwrap()));
    assert_eq!(evidence.unseen.iter().filter(|u| u.what.contains("dead")).count(), 0);
    assert_eq!(evidence.counters.last(Source::CgroupTree, "unified", "dying"), Some(890));
    assert_eq!(evidence.counters.last(Source::CgroupTree, "unified", "live"), Some(7));
}

#[test]
fn without_all_processes_nothing_is_called_empty() {
    let mut evidence = Evidence::default();
    v2().cgroups().look(Time::from_secs(1), None, &mut evidence);
    let census = &evidence.cgroup_censuses[0];
    assert_eq!(census.empty, None);
    assert!(census.crowded.iter().all(|c| c.empty.is_none()));
}

#[test]
fn only_changes_are_reported_and_the_walk_waits_for_one() {
    let tree = v2();
    let mut cgroups = tree.cgroups();
    let mut first = Evidence::default();
    cgroups.look(Time::from_secs(1), None, &mut first);
    assert_eq!(first.cgroup_mounts.len(), 1);

    let mut unmoved = Evidence::default();
    cgroups.look(Time::from_secs(100), None, &mut unmoved);
    assert_eq!(unmoved, Evidence::default());

    tree.write("sys/fs/cgroup/cgroup.stat", "nr_descendants 6\nnr_dying_descendants 1000\n");
    let mut too_soon = Evidence::default();
    cgroups.last_walk.as_mut().unwrap().cpu = Duration::from_secs(10);
    cgroups.look(Time::from_secs(101), None, &mut too_soon);
    assert_eq!(too_soon.cgroup_censuses, []);
    assert_eq!(too_soon.counters.last(Source::CgroupTree, "unified", "dying"), Some(1000));
    assert_eq!(too_soon.counters.points(Source::CgroupTree, "unified", "live"), []);

    let mut later = Evidence::default();
    cgroups.look(Time::from_secs(501), None, &mut later);
    assert_eq!(later.cgroup_censuses[0].dying, Some(1000));
    assert_eq!(later.cgroup_censuses[0].dying_source, "cgroup.stat nr_dying_descendants");
}

const V1_MOUNTS: &str = "\
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const PROC_CGROUPS: &str = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t5\t1\nmemory\t4\t68680\t1\n";

fn v1() -> Tree {
    let tree = Tree::new(&[
        ("proc/self/mountinfo", V1_MOUNTS),
        ("proc/cgroups", PROC_CGROUPS),
        ("sys/fs/cgroup/memory/release_agent", ""),
        ("sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n"),
    ]);
    for i in 0..239 {
        tree.mkdir(&format!("sys/fs/cgroup/memory/{i}"));
    }
    tree
}

#[test]
fn on_v1_dying_is_tracked_minus_directories() {
    let mut evidence = Evidence::default();
    v1().cgroups().look(Time::from_secs(1), None, &mut evidence);
    let census = &evidence.cgroup_censuses[0];
    assert_eq!((census.version, census.live, census.tracked, census.dying), (1, 240, Some(68_680), Some(68_440)));
    assert_eq!(census.mount_point, "/sys/fs/cgroup/memory");
    assert_eq!(evidence.cgroup_mounts.len(), 3);
    assert_eq!(evidence.unseen, []);
}

#[test]
fn in_a_container_on_v1_the_dead_cannot_be_counted() {
    // Without a cgroup namespace the mount's root shows it; with one the root is `/`, and only the root's files are missing.
    for root in ["/docker/0123", "/"] {
        let tree = v1();
        tree.write("proc/self/mountinfo", &V1_MOUNTS.replace("0:32 /", &format!("0:32 {root}")));
        std::fs::remove_file(tree.path().join("sys/fs/cgroup/memory/release_agent")).unwrap();
        let mut evidence = Evidence::default();
        tree.cgroups().look(Time::from_secs(1), None, &mut evidence);
        let census = &evidence.cgroup_censuses[0];
        assert_eq!((census.tracked, census.dying), (Some(68_680), None), "{root}");
        assert_eq!(census.crowded[0].path, root);
        let unseen = evidence.unseen.iter().find(|u| u.what.contains("dead memory cgroups")).expect("reported");
        assert!(unseen.why.contains("the whole node"), "{unseen:?}");
        assert_eq!(evidence.counters.points(Source::CgroupTree, "memory", "dying"), []);
    }
}

#[test]
fn in_a_container_on_v2_the_part_is_counted_and_reported_as_one() {
    let tree = v2();
    tree.write("sys/fs/cgroup/cgroup.events", "populated 1\n");
    let mut evidence = Evidence::default();
    tree.cgroups().look(Time::from_secs(1), None, &mut evidence);
    assert_eq!(evidence.cgroup_censuses[0].dying, Some(890));
    assert!(evidence.unseen.iter().any(|u| u.what.contains("outside this container")));
}

#[test]
fn what_is_missing_is_reported_and_never_zero() {
    // No mountinfo at all; no cgroup mounts; memory nowhere; no `memory` row; no dying in cgroup.stat.
    let look = |tree: &Tree| {
        let mut evidence = Evidence::default();
        let mut cgroups = tree.cgroups();
        cgroups.look(Time::from_secs(1), Some(&HashSet::new()), &mut evidence);
        cgroups.look_control(Time::from_secs(1), &HashSet::new(), &HashSet::new(), Reread::Affordable, &mut evidence);
        cgroups.start_stat_read(Time::from_secs(1), &mut evidence);
        evidence
    };
    let nothing = look(&Tree::new(&[]));
    assert!(nothing.unseen[0].why.contains("mountinfo"), "{nothing:?}");
    assert_eq!(nothing.cgroup_censuses, []);

    let none = look(&Tree::new(&[("proc/self/mountinfo", "22 1 0:1 / /proc rw - proc proc rw\n")]));
    assert_eq!(none.unseen.len(), 1);
    assert!(none.unseen[0].why.contains("no cgroup mount"), "{none:?}");

    let no_memory =
        look(&Tree::new(&[("proc/self/mountinfo", V2_MOUNT), ("sys/fs/cgroup/cgroup.controllers", "pids\n")]));
    assert_eq!(no_memory.unseen.len(), 2, "{:?}", no_memory.unseen);
    assert!(no_memory.unseen.iter().any(|u| u.why.contains("memory controller")));
    assert!(no_memory.counters.is_empty());

    let tree = v1();
    tree.write("proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t5\t1\n");
    let no_row = look(&tree);
    assert_eq!((no_row.cgroup_censuses[0].tracked, no_row.cgroup_censuses[0].dying), (None, None));
    assert!(no_row.unseen.iter().any(|u| u.why.contains("/proc/cgroups does not list")));

    let tree = v2();
    tree.write("sys/fs/cgroup/cgroup.stat", "");
    let old = look(&tree);
    assert_eq!((old.cgroup_censuses[0].live, old.cgroup_censuses[0].dying), (7, None));
    assert!(old.unseen.iter().any(|u| u.why.contains("4.14")));

    let tree = v1();
    tree.write("proc/cgroups", "memory four many 1\n");
    let broken = look(&tree);
    assert_eq!(broken.cgroup_censuses[0].dying, None);
    assert!(broken.unseen.iter().any(|u| u.why.contains("/proc/cgroups: line 1: expected")), "{:?}", broken.unseen);
}

#[test]
fn a_walk_stops_at_its_limit_and_reports_it() {
    let tree = v1();
    let top = tree.path().join("sys/fs/cgroup/memory");
    let walk = census::walk(&top, &Populated::default(), 100).unwrap();
    assert_eq!((walk.live, walk.truncated), (100, true));
    let walk = census::walk(&top, &Populated::default(), 240).unwrap();
    assert_eq!((walk.live, walk.truncated), (240, false));
}

#[test]
fn deep_and_wide_trees_are_counted_completely() {
    let tree = Tree::new(&[]);
    let mut deep = "m".to_owned();
    for i in 0..200 {
        deep.push_str(&format!("/{i}"));
    }
    tree.mkdir(&deep);
    for i in 0..50 {
        tree.mkdir(&format!("m/wide/{i}/leaf"));
    }
    tree.write("m/wide/3/file", "");
    let walk = census::walk(&tree.path().join("m"), &Populated::default(), MAX_DIRECTORIES).unwrap();
    assert_eq!(walk.live, 1 + 200 + 1 + 50 + 50);
    assert_eq!(walk.empty, walk.live - 1);
    assert_eq!((walk.crowded[0].path.as_str(), walk.crowded[0].children), ("wide", 50));
    assert_eq!(walk.crowded.len(), 10);
}

#[test]
fn v2_quotas_and_limits_are_reported_once_and_then_changes() {
    let tree = v2();
    let at = |file: &str| format!("sys/fs/cgroup/kubepods.slice/{file}");
    for (file, text) in [
        // The pod has the limits, its container has none.
        ("cpu.max", "200000 100000\n"),
        ("cpu.stat", "usage_usec 5\nuser_usec 5\nsystem_usec 0\nnr_periods 70\nnr_throttled 7\nthrottled_usec 7000\n"),
        ("memory.max", "1000000\n"),
        ("memory.high", "max\n"),
        ("memory.current", "500000\n"),
        ("memory.events", "low 0\nhigh 0\nmax 90\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("memory.events.local", "low 0\nhigh 0\nmax 80\noom 1\noom_kill 0\noom_group_kill 0\n"),
        ("a/cpu.max", "max 100000\n"),
        ("a/memory.max", "max\n"),
        ("a/memory.high", "max\n"),
    ] {
        tree.write(&at(file), text);
    }
    let mut cgroups = tree.cgroups();
    let processes = set(&["/kubepods.slice/a", "/gone"]);
    let mut look = |secs| {
        let mut evidence = Evidence::default();
        cgroups.look_control(Time::from_secs(secs), &processes, &processes, Reread::Everything, &mut evidence);
        evidence
    };
    let first = look(1);
    let cpu = |e: &Evidence, name: &str| e.counters.last(Source::CgroupCpu, "/kubepods.slice", name);
    let memory = |e: &Evidence, name: &str| e.counters.last(Source::CgroupMemory, "/kubepods.slice", name);
    assert_eq!(first.counters.subjects(Source::CgroupCpu), ["/kubepods.slice"]);
    assert_eq!((cpu(&first, "quota_us"), cpu(&first, "period_us")), (Some(200_000), Some(100_000)));
    assert_eq!((cpu(&first, "nr_throttled"), cpu(&first, "throttled_us")), (Some(7), Some(7000)));
    assert_eq!(first.counters.subjects(Source::CgroupMemory), ["/kubepods.slice"]);
    assert_eq!((memory(&first, "limit_bytes"), memory(&first, "limit_hits")), (Some(1_000_000), Some(80)));
    assert_eq!((memory(&first, "oom"), memory(&first, "oom_kill")), (Some(1), Some(2)), "kills below count here");
    assert_eq!(memory(&first, "high_bytes"), None);

    assert!(look(2).counters.is_empty());

    tree.write(&at("cpu.stat"), "nr_periods 80\nnr_throttled 17\nthrottled_usec 9000\n");
    tree.write(&at("memory.current"), "505000\n");
    let moved = look(3);
    assert_eq!((cpu(&moved, "nr_throttled"), cpu(&moved, "quota_us")), (Some(17), None));
    assert_eq!(memory(&moved, "usage_bytes"), None, "half a percent is no news");

    // A limit set later is found when unlimited cgroups are checked in turn.
    tree.write(&at("a/cpu.max"), "1000 100000\n");
    tree.write(&at("a/cpu.stat"), "nr_periods 1\nnr_throttled 1\nthrottled_usec 1\n");
    assert_eq!(look(4).counters.last(Source::CgroupCpu, "/kubepods.slice/a", "quota_us"), Some(1000));
}

#[test]
fn v1_quotas_and_limits() {
    let tree = v1();
    for (file, text) in [
        ("cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n"),
        ("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n"),
        ("cpu,cpuacct/job/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 123456789\n"),
        ("cpu,cpuacct/free/cpu.cfs_quota_us", "-1\n"),
        ("memory/job/memory.limit_in_bytes", "1048576\n"),
        ("memory/job/memory.usage_in_bytes", "1048000\n"),
        ("memory/job/memory.failcnt", "55\n"),
        ("memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ("memory/free/memory.limit_in_bytes", "9223372036854771712\n"),
    ] {
        tree.write(&format!("sys/fs/cgroup/{file}"), text);
    }
    let mut evidence = Evidence::default();
    let processes = set(&["/job", "/free"]);
    tree.cgroups().look_control(Time::from_secs(1), &processes, &processes, Reread::Affordable, &mut evidence);
    assert_eq!(evidence.counters.subjects(Source::CgroupCpu), ["/job"]);
    assert_eq!(evidence.counters.last(Source::CgroupCpu, "/job", "throttled_us"), Some(123_456));
    assert_eq!(evidence.counters.subjects(Source::CgroupMemory), ["/job"]);
    assert_eq!(evidence.counters.last(Source::CgroupMemory, "/job", "oom_kill"), Some(3));
    assert_eq!(evidence.counters.last(Source::CgroupMemory, "/job", "limit_hits"), Some(55));
    assert_eq!(evidence.counters.points(Source::CgroupMemory, "/job", "oom"), [], "v1 does not have it");
    assert_eq!(evidence.unseen, []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_bytes_in_any_file_are_handled(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        text in "[a-z_ 0-9\n-]{0,200}",
        path in "\\PC{0,40}",
    ) {
        let tree = v2();
        for file in ["cgroup.stat", "cpu.max", "cpu.stat", "memory.max", "memory.high", "memory.current", "memory.events"] {
            std::fs::write(tree.path().join("sys/fs/cgroup/kubepods.slice").join(file), &bytes).unwrap();
            tree.write(&format!("sys/fs/cgroup/system.slice/{file}"), &text);
            tree.write(&format!("sys/fs/cgroup/{file}"), &format!("{text}\nnr_descendants 18446744073709551615\nnr_dying_descendants 18446744073709551615"));
        }
        let processes = set(&["/kubepods.slice/a", "/system.slice/x.service", &path]);
        let mut evidence = Evidence::default();
        let mut cgroups = tree.cgroups();
        cgroups.look(Time(1), Some(&processes), &mut evidence);
        cgroups.look_control(Time(1), &processes, &processes, Reread::Everything, &mut evidence);
        cgroups.look_control(Time(u64::MAX), &processes, &processes, Reread::Affordable, &mut evidence);
        prop_assert_eq!(evidence.cgroup_censuses[0].live, 7);
        let _ = census::parse_proc_cgroups(&text, "memory");
        let _ = census::parse_proc_cgroups(&String::from_utf8_lossy(&bytes), "memory");
    }
}
