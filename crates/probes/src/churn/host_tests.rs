//! On the live node, as root: real cgroups, created and removed by real processes.
//!
//! Others create and remove cgroups meanwhile: tests look only below their own, so they share the machine. Only the one that fills the queue
//! would take events from the others.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use coroner_evidence::{CgroupChurn, CgroupOwner};
use coroner_lab::{Cgroup, Child, HostLock, TmpfsMount};

use super::*;

const WAYS: [Way; 2] = [Way::Bpf, Way::Perf];

struct Scene {
    parent: Cgroup,
    _lock: HostLock,
}

impl Scene {
    fn set(what: &str) -> Option<Scene> {
        Scene::below(what, HostLock::share_as_root()?)
    }

    fn below(what: &str, lock: HostLock) -> Option<Scene> {
        match Cgroup::with_controller("memory", &format!("coroner-test-{what}")) {
            Ok(parent) => Some(Scene { parent, _lock: lock }),
            Err(error) => {
                coroner_lab::skip(&format!("needs a writable memory cgroup: {error:#}"));
                None
            }
        }
    }

    fn dir(&self) -> &Path {
        self.parent.dir()
    }
}

/// A reader that reports its rows at each look, and the evidence so far.
struct Watching {
    reader: Option<ChurnReader>,
    evidence: Evidence,
}

impl Watching {
    fn start(way: Way) -> Watching {
        let options = ChurnOptions { only: Some(way), interval: Duration::ZERO };
        let mut watching =
            Watching { reader: Some(ChurnReader::start(&Root::live(), &options)), evidence: Evidence::default() };
        watching.look();
        assert_eq!(watching.reader.as_ref().unwrap().way(), Some(way), "{:?}", watching.evidence.unseen);
        watching
    }

    fn look(&mut self) {
        self.reader.as_mut().expect("still watching").look(now(), &mut self.evidence);
    }

    fn finish(&mut self) {
        self.reader.take().expect("still watching").finish(now(), &mut self.evidence);
    }

    fn rows(&self, scene: &Scene) -> Vec<&CgroupChurn> {
        self.evidence.cgroup_churn.iter().filter(|r| r.parent == scene.parent.path()).collect()
    }

    /// Born, removed and freed below the scene, by pattern.
    fn counts(&self, scene: &Scene) -> BTreeMap<String, [u64; 3]> {
        let mut counts: BTreeMap<String, [u64; 3]> = BTreeMap::new();
        for row in self.rows(scene) {
            let sum = counts.entry(row.pattern.clone()).or_default();
            *sum = [sum[0] + row.born, sum[1] + row.removed, sum[2] + row.freed];
        }
        counts
    }

    /// The dead below the scene that were reported as left, by pattern and id.
    fn left(&self, scene: &Scene) -> Vec<(String, u64)> {
        let of_scene = self.evidence.cgroup_fates.iter().filter(|f| f.parent == scene.parent.path());
        of_scene.flat_map(|f| f.left.iter().map(|id| (f.pattern.clone(), *id))).collect()
    }

    /// Waits until `count` cgroups of the scene are freed: no more events follow.
    fn until_freed(&mut self, scene: &Scene, count: u64) {
        let started = Instant::now();
        loop {
            self.look();
            let freed: u64 = self.counts(scene).values().map(|c| c[2]).sum();
            if freed >= count {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(180), "only {freed} of {count} were freed");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Runs `script` with the scene's directory as `$0`, waits until it is done, and keeps the shell alive until dropped.
fn shell(script: &str, dir: &Path, argument: &Path) -> Child {
    let script = format!("{script}\necho done; exec 2>/dev/null; while :; do sleep 1; done");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(dir).arg(argument).stdout(Stdio::piped());
    let (child, stdout) = Child::spawn_with_stdout("shell", &mut command).unwrap();
    assert_eq!(BufReader::new(stdout).lines().next().expect("a line").unwrap(), "done");
    child
}

const ACTOR_IN: &str = "CORONER_TEST_CHURN_ACTOR_IN";

/// Not a test: [`bpf_and_perf_agree_and_name_the_maker`] runs it as a process that creates cgroups itself.
#[test]
fn actor() {
    let Some(dir) = std::env::var_os(ACTOR_IN) else { return };
    for i in 0..100 {
        let cgroup = Path::new(&dir).join(format!("job_{i}"));
        std::fs::create_dir(&cgroup).unwrap();
        std::fs::remove_dir(&cgroup).unwrap();
    }
}

#[test]
fn bpf_and_perf_agree_and_name_the_maker() {
    let Some(scene) = Scene::set("churn") else { return };
    let foreign = Cgroup::with_controller("pids", "coroner-test-churn").ok();
    let mut watching = WAYS.map(Watching::start);

    let home = scene.parent.path();
    let script = "i=0; while [ $i -lt 60 ]; do mkdir \"$0/ecs-agent-$i\"; rmdir \"$0/ecs-agent-$i\"; i=$((i+1)); done";
    let nested =
        "i=0; while [ $i -lt 20 ]; do sh -c 'mkdir \"$0\"; rmdir \"$0\"; true' \"$0/run-$i.scope\"; i=$((i+1)); done";
    let (outer, nesting) =
        (shell(script, scene.dir(), Path::new("")), shell(nested, scene.dir(), Path::new("an argument")));
    let mut actor = Command::new(std::env::current_exe().unwrap());
    actor.args(["--exact", "churn::host_tests::actor", "--nocapture"]).env(ACTOR_IN, scene.dir());
    let mut actor = actor.stdout(Stdio::null()).spawn().unwrap();
    assert!(actor.wait().unwrap().success());
    // The same in another hierarchy and by ourselves: not counted.
    if let Some(foreign) = &foreign {
        drop(shell("mkdir \"$0/foreign-1\"; rmdir \"$0/foreign-1\"", foreign.dir(), Path::new("")));
    }
    std::fs::create_dir(scene.dir().join("own-1")).unwrap();
    std::fs::remove_dir(scene.dir().join("own-1")).unwrap();
    drop(shell("mkdir \"$0/last-1\"; rmdir \"$0/last-1\"", scene.dir(), Path::new("")));

    let expected: BTreeMap<String, [u64; 3]> =
        [("ecs-agent-*", 60), ("run-*.scope", 20), ("job_*", 100), ("last-*", 1)]
            .map(|(pattern, n)| (pattern.to_owned(), [n; 3]))
            .into();
    for watching in &mut watching {
        let way = watching.reader.as_ref().unwrap().way();
        watching.until_freed(&scene, 181);
        watching.finish();
        assert_eq!(watching.counts(&scene), expected, "{way:?}");
        assert_eq!(watching.evidence.unseen, [], "{way:?}");
        let foreign = watching.evidence.cgroup_churn.iter().find(|r| r.pattern.starts_with("foreign"));
        assert_eq!(foreign, None, "{way:?}");

        for row in watching.rows(&scene) {
            let Some(maker) = &row.maker else {
                assert_eq!((row.born, row.removed), (0, 0), "{way:?}: {row:?}");
                continue;
            };
            assert_eq!(row.freed, 0);
            match row.pattern.as_str() {
                "ecs-agent-*" => {
                    assert_eq!((maker.pid, maker.comm.as_str()), (outer.pid(), "sh"), "{way:?}: {row:?}");
                    assert!(maker.via.as_deref().is_some_and(|v| v.contains("mkdir") || v.contains("rmdir")));
                    assert_eq!(maker.parent_pid, Some(std::process::id()));
                    assert_eq!(maker.command.as_deref(), Some("sh -c"), "no arguments: they may hold secrets");
                    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
                    assert_eq!(maker.cgroup, crate::tasks::parse_membership(&own).memory);
                    assert_eq!(CgroupOwner::of_path(&home).unit, None);
                }
                "run-*.scope" => assert_eq!(maker.pid, nesting.pid(), "{way:?}: {row:?}"),
                "job_*" => {
                    assert_eq!((maker.pid, maker.via.as_ref()), (actor.id(), None), "{way:?}: {row:?}");
                    assert_eq!(maker.processes, 1);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn an_unfreed_cgroup_is_a_zombie() {
    let Some(scene) = Scene::set("churn-zombie") else { return };
    let home = scene.parent.child("home").unwrap();
    let tmpfs = TmpfsMount::create("coroner-test-churn", 1 << 20, 100).unwrap();
    for way in WAYS {
        let mut watching = Watching::start(way);
        let script = format!(
            "mkdir \"$0/z-1\" && echo $$ > \"$0/z-1/cgroup.procs\" && echo x > \"$1/page\" && echo $$ > '{}/cgroup.procs'
             n=0; until rmdir \"$0/z-1\" 2>/dev/null; do n=$((n+1)); [ $n -lt 1000 ] || exit 2; done
             mkdir \"$0/other-1\"; rmdir \"$0/other-1\"",
            home.dir().display()
        );
        let shell = shell(&script, scene.dir(), tmpfs.dir());
        watching.until_freed(&scene, 1);
        assert_eq!(watching.counts(&scene)["z-*"], [1, 1, 0], "{way:?}: the tmpfs page pins it");
        assert_eq!(watching.counts(&scene)["other-*"], [1, 1, 1], "{way:?}");
        // The shell is in the scene's own cgroup by now.
        let maker = watching.rows(&scene).into_iter().find_map(|r| r.maker.clone()).unwrap();
        assert_eq!(maker.pid, shell.pid());
        // Followed by its id: it is left, the other is not.
        crate::test_tree::wait_for("it is reported as left", || {
            watching.look();
            !watching.left(&scene).is_empty()
        });
        assert_eq!(watching.left(&scene).into_iter().map(|(pattern, _)| pattern).collect::<Vec<_>>(), ["z-*"]);
        std::fs::remove_file(tmpfs.dir().join("page")).unwrap();
        watching.until_freed(&scene, 2);
        assert_eq!(watching.counts(&scene)["z-*"], [1, 1, 1], "{way:?}");
        let freed: Vec<u64> = watching.evidence.cgroup_fates.iter().flat_map(|f| f.left_freed.clone()).collect();
        assert!(watching.left(&scene).iter().all(|(_, id)| freed.contains(id)), "{way:?}: {freed:?}");
    }
}

#[test]
fn events_lost_to_a_full_queue_are_still_counted() {
    let Some(scene) = HostLock::take_as_root().and_then(|lock| Scene::below("churn-lost", lock)) else { return };
    let mut watching = Watching::start(Way::Bpf);
    {
        // Nobody reads meanwhile. The queue holds 8,192 events.
        let watch = watching.reader.as_ref().unwrap().watch.as_ref().unwrap();
        let _held = watch.state();
        let mut actor = Command::new(std::env::current_exe().unwrap());
        actor.args(["--exact", "churn::host_tests::fast_actor"]).env(ACTOR_IN, scene.dir()).stdout(Stdio::null());
        assert!(actor.status().unwrap().success());
    }
    watching.finish();
    let sum = |row: &CgroupChurn| [row.born, row.removed];
    let rows = &watching.evidence.cgroup_churn;
    let unnamed = rows.iter().filter(|r| r.parent == "*").map(sum).fold([0; 2], |s, r| [s[0] + r[0], s[1] + r[1]]);
    let named = watching.rows(&scene).into_iter().map(sum).fold([0; 2], |s, r| [s[0] + r[0], s[1] + r[1]]);
    assert!(unnamed[0] > 0 && unnamed[1] > 0, "{rows:?}");
    // The unnamed may include others' cgroups.
    assert!(named[0] + unnamed[0] >= FAST && named[1] + unnamed[1] >= FAST, "{named:?} {unnamed:?}");
    assert!(named[0] < FAST);
    let unseen = watching.evidence.why_unseen(probe::CGROUP_CHURN).expect("the loss is reported");
    assert!(unseen.why.contains("faster than they could be read"), "{unseen:?}");
}

const FAST: u64 = 4500;

/// Not a test: see above.
#[test]
fn fast_actor() {
    let Some(dir) = std::env::var_os(ACTOR_IN) else { return };
    for i in 0..FAST {
        let cgroup = Path::new(&dir).join(format!("fast-{i}"));
        std::fs::create_dir(&cgroup).unwrap();
        std::fs::remove_dir(&cgroup).unwrap();
    }
}

/// Starts a reader in a thread that keeps only these capabilities.
fn start_with(keep: rustix::thread::CapabilitySet) -> (Option<Way>, Evidence) {
    crate::test_tree::with_capabilities(keep, || {
        let mut evidence = Evidence::default();
        let mut reader = ChurnReader::start(&Root::live(), &ChurnOptions::default());
        reader.look(now(), &mut evidence);
        let way = reader.way();
        reader.finish(now(), &mut evidence);
        (way, evidence)
    })
}

#[test]
fn without_privileges_the_reason_is_reported() {
    use rustix::thread::CapabilitySet;
    let Some(_lock) = HostLock::share_as_root() else { return };
    if !Path::new("/sys/kernel/tracing/events").exists() {
        return coroner_lab::skip("needs a mounted tracefs (./check mounts it)");
    }
    let (way, evidence) = start_with(CapabilitySet::empty());
    assert_eq!((way, evidence.unseen.len()), (None, 1), "{:?}", evidence.unseen);
    let unseen = evidence.why_unseen(probe::CGROUP_CHURN).unwrap();
    assert!(unseen.why.contains("lacks CAP_BPF and CAP_PERFMON"), "{unseen:?}");
    assert!(unseen.why.contains("without BPF: perf_event_open"), "{unseen:?}");
    assert!(unseen.how_to_see.contains("run as root"), "{unseen:?}");
    assert!(evidence.cgroup_churn.is_empty());

    let (way, evidence) = start_with(CapabilitySet::PERFMON);
    assert_eq!(way, Some(Way::Perf), "{:?}", evidence.unseen);
    let (way, evidence) = start_with(CapabilitySet::BPF | CapabilitySet::PERFMON);
    assert_eq!(way, Some(Way::Bpf), "{:?}", evidence.unseen);
}

#[test]
fn a_directory_tree_has_no_events() {
    let dir = tempfile::tempdir().unwrap();
    let mut evidence = Evidence::default();
    let reader = ChurnReader::start(&Root::at(dir.path()), &ChurnOptions::default());
    reader.finish(now(), &mut evidence);
    assert!(evidence.unseen[0].why.contains("not the running node"));
}
