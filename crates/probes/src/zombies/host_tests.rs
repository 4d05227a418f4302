//! On the live node, as root: real zombies, both methods, churn, missing capabilities.
//!
//! Others create and remove cgroups meanwhile: tests look only below their own cgroup and share the machine. Those that compare with the
//! kernel's count of the whole node have it for themselves.

use super::slots::SlotRecord;
use super::*;
use crate::test_tree::{wait_for, with_capabilities};
use coroner_lab::{Cgroup, Child, HostLock, Mapping, TmpfsMount};
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

pub(super) const METHODS: [Method; 2] = [Method::TestRun, Method::PageFaults];

/// A parent for the zombies, a home for the shells that make them, and a tmpfs that pins them. Dropped in this order: files
/// first, which frees the zombies, then their parent.
pub(super) struct Scene {
    tmpfs: Option<TmpfsMount>,
    home: Cgroup,
    pub parent: Cgroup,
    _lock: HostLock,
}

impl Scene {
    pub fn set(what: &str) -> Option<Scene> {
        Scene::below_own(what, HostLock::share_as_root()?)
    }

    /// For tests that use node-wide counts, or change what the node can do.
    pub fn alone(what: &str) -> Option<Scene> {
        Scene::below_own(what, HostLock::take_as_root()?)
    }

    fn below_own(what: &str, lock: HostLock) -> Option<Scene> {
        let parent = match Cgroup::with_controller("memory", &format!("coroner-test-{what}")) {
            Ok(parent) => parent,
            Err(error) => {
                coroner_lab::skip(&format!("needs a writable memory cgroup: {error:#}"));
                return None;
            }
        };
        parent.hierarchy().enable(parent.dir(), "memory").unwrap();
        let _ = parent.write("memory.use_hierarchy", "1");
        let home = parent.child("home").unwrap();
        let tmpfs = TmpfsMount::create(&format!("coroner-test-{what}"), 64 << 20, 20_000).unwrap();
        Some(Scene { tmpfs: Some(tmpfs), home, parent, _lock: lock })
    }

    pub fn tmpfs(&self) -> &Path {
        self.tmpfs.as_ref().expect("mounted").dir()
    }

    /// A shell that does `each` for every name, inside a new cgroup of that name, then leaves and removes it.
    /// There `$z` is the name, `$1` the tmpfs, `$2` a file.
    fn make(&self, names: &[String], each: &str, file: &Path) {
        let script = format!(
            "while read -r z; do mkdir -p \"$0/$z\" && echo $$ > \"$0/$z/cgroup.procs\" && {{ {each}; }} \
             && echo $$ > \"$0/home/cgroup.procs\" || exit 1; {REMOVE}; done"
        );
        let list = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(list.path(), names.join("\n") + "\n").unwrap();
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).arg(self.parent.dir()).arg(self.tmpfs()).arg(file);
        let status = shell.stdin(std::fs::File::open(list.path()).unwrap()).status().unwrap();
        assert!(status.success(), "{status}");
        // After rmdir the kernel takes a cgroup offline at its leisure (css_killed_work_fn).
        wait_for("all are dead", || {
            let scan = scan_by(Method::TestRun, false);
            let below = self.below(&scan);
            names.iter().all(|name| below.contains_key(name))
        });
    }

    /// Puts pages that wait in per-CPU batches onto their lists (mm/memcontrol-v1.c: mem_cgroup_force_empty).
    pub fn drain(&self) {
        let _ = self.home.write("memory.force_empty", "0");
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.parent.path())
    }

    /// The zombies below this scene's cgroup, by relative path.
    pub fn below<'s>(&self, scan: &'s Scan) -> BTreeMap<String, &'s Zombie> {
        let prefix = self.path("");
        scan.zombies.iter().filter_map(|z| Some((z.path.strip_prefix(&prefix)?.to_owned(), z))).collect()
    }

    /// Frees all zombies of this scene.
    pub fn clear(&mut self) {
        self.tmpfs = None;
        let mut walker = Walker::open(&Root::live(), None).unwrap();
        let options = ScanOptions { pins: false, ..ScanOptions::default() };
        wait_for("the zombies are freed with their files", || self.below(&walker.scan(&options).unwrap()).is_empty());
    }
}

/// A cgroup may stay busy for a moment after its last process leaves.
const REMOVE: &str = "n=0; until rmdir \"$0/$z\" 2>/dev/null; do n=$((n+1)); [ $n -lt 1000 ] || exit 2; done";

/// Unpredictable names.
fn drawn(count: usize, what: &str) -> Vec<String> {
    let draw = RandomState::new();
    (0..count).map(|i| format!("{what}-{:016x}", draw.hash_one(i))).collect()
}

pub(super) fn scan_by(method: Method, pins: bool) -> Scan {
    scan(&ScanOptions { method: Some(method), pins, ..ScanOptions::default() }).unwrap()
}

#[test]
fn three_hundred_zombies_are_named_with_the_files_that_pin_them() {
    let Some(mut scene) = Scene::set("named") else { return };
    let began = now();
    let page = rustix::param::page_size() as u64;
    let real = tempfile::Builder::new().prefix("coroner-test-").tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (by_tmpfs, by_disk, nested) = (drawn(149, "agent"), drawn(150, "task"), drawn(2, "pod"));
    let nowhere = Path::new("/dev/null");
    scene.make(&by_tmpfs, "echo x > \"$1/$z\"", nowhere);
    // One page each of one file on disk, locked at once so that DAMON does not page it out.
    let mut held = Vec::new();
    for names in by_disk.chunks(10) {
        scene.make(names, &format!("printf '%{page}s' x >> \"$2\""), real.path());
        let bytes = std::fs::metadata(real.path()).unwrap().len() as usize;
        let mapping = Mapping::of(real.as_file().as_fd(), bytes).unwrap();
        held.push((mapping.hold_pages().unwrap(), mapping));
    }
    let child = format!("{}/{}", nested[0], nested[1]);
    scene.make(std::slice::from_ref(&child), "echo x > \"$1/nested\"", nowhere);
    scene.make(&nested[..1], ":", nowhere);
    // A deleted file that is still open.
    let deleted = scene.tmpfs().join(&by_tmpfs[0]);
    let open = std::fs::File::open(&deleted).unwrap();
    std::fs::remove_file(&deleted).unwrap();
    scene.drain();

    let mut expected: Vec<String> = by_tmpfs.iter().chain(&by_disk).cloned().collect();
    expected.extend([nested[0].clone(), child.clone()]);
    expected.sort();
    let mut both = Vec::new();
    for method in METHODS {
        let mut scan = scan_by(method, true);
        // A page under reclaim is on no list for a moment.
        wait_for("all pages are on their lists", || {
            scan = scan_by(method, true);
            let below = scene.below(&scan);
            by_tmpfs.iter().all(|name| below.get(name).is_some_and(|z| z.held.swap_backed == page))
        });
        assert_eq!((scan.method, scan.truncated.as_ref()), (method, None));
        let below = scene.below(&scan);
        assert_eq!(below.keys().cloned().collect::<Vec<_>>(), expected, "{method:?}");
        for name in &by_tmpfs {
            let held = below[name].held;
            assert_eq!(
                (held.shmem, held.anonymous, held.file),
                (Some(page), Some(0), 0),
                "{method:?} {name}: {held:?}"
            );
        }
        let on_disk: u64 = by_disk.iter().map(|name| below[name].held.file).sum();
        assert!(on_disk >= 150 * page, "{method:?}: {on_disk} bytes");
        let born = below[&by_disk[0]].born.expect("a v1 memcg tells its birth").at;
        let early = began.since(born);
        assert!(early < Duration::from_secs(5), "{method:?}: born {early:?} before this test");
        assert!(below.values().all(|z| z.references.is_some_and(|r| r > 0) && !z.directory_lives), "{method:?}");

        let pins = scan.pins.as_ref().unwrap().as_ref().unwrap();
        let file = |path: &Path| {
            let found = pins.files.iter().find(|f| f.path.as_deref() == path.to_str());
            found.unwrap_or_else(|| panic!("{method:?}: no {}", path.display()))
        };
        let on_disk = file(real.path());
        assert!(on_disk.bytes >= 150 * page && on_disk.zombies >= 150 && !on_disk.deleted, "{on_disk:?}");
        assert_ne!(on_disk.filesystem, "tmpfs");
        assert!(file(&deleted).deleted);
        let last = file(&scene.tmpfs().join(&by_tmpfs[148]));
        let kept = (last.bytes, last.zombies, last.deleted, last.filesystem.as_str(), last.mounted);
        assert_eq!(kept, (page, 1, false, "tmpfs", true));
        assert!(pins.files.is_sorted_by_key(|f| std::cmp::Reverse(f.bytes)), "largest first");
        // The link between the two: this zombie is pinned by that file.
        let hold = pins.holds.iter().find(|h| scan.zombies[h.zombie as usize].path == scene.path(&child)).unwrap();
        assert_eq!(pins.files[hold.file as usize].path.as_deref(), scene.tmpfs().join("nested").to_str());
        let told = below.iter().filter(|(name, _)| !by_disk.contains(name));
        both.push(told.map(|(n, z)| (n.clone(), z.id, z.references, z.held, z.serial)).collect::<Vec<_>>());
    }
    assert_eq!(both[0], both[1], "both methods agree");

    // A zombie's id is the inode number its directory had: create a cgroup and compare.
    let probe = scene.parent.child("probe").unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(probe.dir()).unwrap());
    assert!(both[0].iter().all(|z| z.1 < inode), "ids grow with each cgroup: {inode}");
    drop((open, held, real, probe));
    scene.clear();
}

fn tracked() -> u64 {
    let text = std::fs::read_to_string("/proc/cgroups").unwrap();
    let memory = text.lines().find_map(|l| l.strip_prefix("memory\t")).expect("v1 counts them");
    memory.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

fn directories(top: &Path) -> u64 {
    let below =
        std::fs::read_dir(top).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    1 + below.map(|e| directories(&e.path())).sum::<u64>()
}

#[test]
fn the_count_matches_the_kernels_in_twenty_runs() {
    let Some(mut scene) = Scene::alone("count") else { return };
    if scene.parent.hierarchy().version != 1 {
        return coroner_lab::skip("only v1 counts all memory cgroups of the node");
    }
    scene.make(&drawn(700, "z"), "echo x > \"$1/$z\"", Path::new("/dev/null"));
    let top = scene.parent.hierarchy().mount_point.clone();
    for method in METHODS {
        let mut walker = Walker::open(&Root::live(), Some(method)).unwrap();
        for run in 0..20 {
            // The node is not ours alone: compare only if nothing changed meanwhile.
            wait_for(&format!("{method:?}, run {run}: the kernel counts as many"), || {
                let before = (tracked(), directories(&top));
                let scan = walker.scan(&ScanOptions { pins: false, ..ScanOptions::default() }).unwrap();
                let after = (tracked(), directories(&top));
                let told = (scan.tracked, scan.live, scan.zombies.len() as u64 + scan.leaving);
                before == after && told == (before.0, before.1, before.0 - before.1)
            });
        }
    }
    scene.clear();
}

/// Creates and removes cgroups as fast as a shell can (over 200 a second): three of four are freed at once, every fourth is
/// pinned by a page for a few rounds.
fn churn(scene: &Scene) -> Child {
    let script = format!(
        "i=0; while :; do z=churn-$i; mkdir \"$0/$z\" && echo $$ > \"$0/$z/cgroup.procs\" || exit 1; \
         [ $((i%4)) != 0 ] || echo x > \"$1/$z\"; echo $$ > \"$0/home/cgroup.procs\"; {REMOVE}; \
         [ $((i%40)) != 0 ] || rm -f \"$1\"/churn-*; i=$((i+1)); done"
    );
    let mut shell = Command::new("sh");
    Child::spawn("churn", shell.arg("-c").arg(script).arg(scene.parent.dir()).arg(scene.tmpfs())).unwrap()
}

fn names(dir: &Path) -> HashSet<String> {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.file_name().into_string().unwrap()).collect()
}

#[test]
fn under_churn_no_zombie_is_lost_or_duplicated_and_no_live_one_is_dead() {
    let Some(mut scene) = Scene::set("churn") else { return };
    let steady = drawn(400, "steady");
    scene.make(&steady, "echo x > \"$1/$z\"", Path::new("/dev/null"));
    let live: Vec<Cgroup> = (0..50).map(|i| scene.parent.child(&format!("live-{i}")).unwrap()).collect();
    let churn = churn(&scene);
    let mut seen = HashSet::new();
    for method in METHODS {
        let mut walker = Walker::open(&Root::live(), Some(method)).unwrap();
        let started = Instant::now();
        let mut scans = 0;
        while started.elapsed() < Duration::from_secs(4) || scans < 10 {
            let before = names(scene.parent.dir());
            let scan = walker.scan(&ScanOptions { pins: scans % 4 == 0, ..ScanOptions::default() }).unwrap();
            let after = names(scene.parent.dir());
            let below = scene.below(&scan);
            for name in before.intersection(&after) {
                assert!(!below.contains_key(name), "{method:?}: {name} lives");
            }
            let lost: Vec<&String> = steady.iter().filter(|name| !below.contains_key(*name)).collect();
            assert!(lost.is_empty(), "{method:?}, scan {scans}: {lost:?} lost, resumed {} times", scan.resumed);
            let serials: HashSet<u64> = scan.zombies.iter().map(|z| z.serial).collect();
            assert_eq!(serials.len(), scan.zombies.len(), "{method:?}: duplicates");
            assert!(scan.truncated.is_none(), "{:?}", scan.truncated);
            assert!(scan.zombies.iter().all(|z| z.references != Some(0)));
            seen.extend(below.into_keys().filter(|name| name.starts_with("churn-")));
            scans += 1;
        }
        let births = seen.iter().filter_map(|name| name.strip_prefix("churn-")?.parse::<u64>().ok()).max().unwrap_or(0);
        eprintln!("{method:?}: {scans} scans, {births} cgroups made so far");
    }
    assert!(seen.len() > 10, "the churn leaves zombies behind, but only {} were seen", seen.len());
    drop(churn);
    drop(live);
    scene.clear();
}

#[test]
fn a_walk_resumes_after_its_position_is_freed() {
    let Some(mut scene) = Scene::alone("resume") else { return };
    // More than two runs of the program.
    let all: Vec<String> = (0..900).map(|i| format!("z{i:03}")).collect();
    scene.make(&all, "echo x > \"$1/$z\"", Path::new("/dev/null"));
    let prefix_serials: BTreeMap<u64, String> = {
        let scan = scan_by(Method::TestRun, false);
        scene.below(&scan).into_iter().map(|(name, z)| (z.serial, name)).collect()
    };
    assert_eq!(prefix_serials.len(), 900);
    for (method, from) in [(Method::TestRun, 100), (Method::PageFaults, 500)] {
        let going = |name: &str| name[1..].parse::<usize>().is_ok_and(|i| (from..from + 300).contains(&i));
        let mut kernel = Kernel::load(&Root::live(), Some(method)).unwrap();
        let (mut told, mut freed) = (Vec::new(), false);
        let (counts, ended) = kernel
            .walk(Duration::from_secs(60), |slot| {
                let SlotRecord::Dead(dead) = slot else { return };
                let Some(name) = prefix_serials.get(&dead.place.serial) else { return };
                told.push(name.clone());
                // Between two runs, free 300 in a row, including the walk's position.
                if !freed && going(name) {
                    freed = true;
                    let before = tracked();
                    for name in all.iter().filter(|n| going(n)) {
                        let _ = std::fs::remove_file(scene.tmpfs().join(name));
                    }
                    wait_for("300 zombies are freed", || tracked() + 290 < before);
                    // Unlinked ones are freed after a grace period; this waits for one (kernel/sched/membarrier.c).
                    let _ = rustix::thread::membarrier(rustix::thread::MembarrierCommand::Global);
                    std::thread::sleep(Duration::from_millis(200));
                }
            })
            .unwrap();
        assert_eq!(ended, RunEnd::Done);
        assert!(counts.resumed > 0, "{method:?}: {counts:?}");
        let once: HashSet<&String> = told.iter().collect();
        assert_eq!(once.len(), told.len(), "{method:?}: duplicates");
        let gone_before = |name: &str| {
            method == Method::PageFaults && name[1..].parse::<usize>().is_ok_and(|i| (100..400).contains(&i))
        };
        for name in all.iter().filter(|n| !going(n) && !gone_before(n)) {
            assert!(once.contains(name), "{method:?}: {name} is lost");
        }
    }
    scene.clear();
}

#[test]
fn without_the_capability_the_reason_is_reported() {
    use rustix::thread::CapabilitySet;
    let Some(_lock) = HostLock::share_as_root() else { return };
    let try_with = |keep, method| {
        with_capabilities(keep, move || {
            scan(&ScanOptions { method: Some(method), ..ScanOptions::default() }).map(|s| s.tracked)
        })
    };
    for method in METHODS {
        let blind = try_with(CapabilitySet::empty(), method).unwrap_err();
        assert_eq!(blind.reason, Reason::Capability);
        assert!(blind.why.contains("CAP_BPF and CAP_PERFMON"), "{}", blind.why);
        let blind = try_with(CapabilitySet::BPF, method).unwrap_err();
        assert!(blind.why.contains("lacks CAP_PERFMON"), "{}", blind.why);
        let mut evidence = Evidence::default();
        blind.note(&mut evidence);
        assert!(format!("{evidence:?}").contains("lacks CAP_PERFMON"));
        // These two suffice; root is not needed.
        let tracked = try_with(CapabilitySet::BPF | CapabilitySet::PERFMON, method);
        assert!(tracked.as_ref().is_ok_and(|n| *n > 0), "{method:?}: {tracked:?}");
    }
}

#[test]
fn a_directory_tree_is_not_walked() {
    let dir: PathBuf = tempfile::tempdir().unwrap().keep();
    let blind = scan(&ScanOptions { root: Root::at(&dir), ..ScanOptions::default() }).unwrap_err();
    assert_eq!(blind.reason, Reason::NotLive);
    std::fs::remove_dir(dir).unwrap();
}
