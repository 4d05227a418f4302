use super::*;
use crate::rules::test_evidence::{END, start, watched};
use crate::zombies::test_scan::{born, file, pin, scan};
use coroner_evidence::tasks::{SchedTimes, SchedulingClass};
use coroner_evidence::{
    CgroupChurn, CgroupOwner, DeadBelow, Maker, Process, Thread, ThreadKey, ThreadSample, Time, ZombieMethod,
};
use proptest::prelude::*;

fn look(at: Time, name: &str, cpu_ns: Option<u64>, invocation: &str) -> Unit {
    Unit {
        at,
        name: name.into(),
        active_state: "active".into(),
        sub_state: "running".into(),
        restarts: Some(0),
        invocation_id: Some(invocation.into()),
        cgroup: Some(format!("/lab/system.slice/{name}")),
        cpu_ns,
        memory_bytes: Some(4096),
        tasks: Some(3),
        ..Unit::default()
    }
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn cpu_comes_from_the_looks_at_one_invocation() {
    let mut evidence = watched(10);
    evidence.units =
        vec![look(start(10), "a.service", Some(7 * SECOND), "x"), look(END, "a.service", Some(12 * SECOND), "x")];
    let cost = &costs(&evidence)["a.service"];
    assert_eq!(
        (cost.cores, cost.cpu_ns, cost.memory_bytes, cost.tasks),
        (Some(0.5), Some(12 * SECOND), Some(4096), Some(3))
    );
    // Another invocation: all it has used, not the difference.
    evidence.units[1] = look(END, "a.service", Some(SECOND), "y");
    assert_eq!(costs(&evidence)["a.service"].cores, Some(0.1));
    // A dead one holds nothing any more.
    evidence.units[1].active_state = "failed".into();
    assert_eq!(costs(&evidence)["a.service"].memory_bytes, None);
}

fn process(pid: u32, cgroup: &str) -> Process {
    Process {
        at: END,
        pid,
        started: 5,
        ppid: 1,
        comm: "x".into(),
        memory_cgroup: Some(cgroup.into()),
        owner: CgroupOwner::of_path(cgroup),
        ..Process::default()
    }
}

fn threads(evidence: &mut Evidence, pid: u32, ran_ns: u64) {
    let key = ThreadKey { tid: pid, started: 5 };
    evidence.threads.push(Thread {
        at: END,
        key,
        pid,
        comm: "x".into(),
        class: SchedulingClass::Other,
        ..Thread::default()
    });
    for (at, run_ns) in [(start(10), 100 * SECOND), (END, 100 * SECOND + ran_ns)] {
        let sched = Some(SchedTimes { run_ns, wait_ns: 0, slices: 1 });
        evidence.thread_samples.push(ThreadSample { at, key, state: 'R', sched, ..ThreadSample::default() });
    }
}

#[test]
fn without_systemd_cpu_comes_from_threads() {
    let id = "0123456789abcdef".repeat(4);
    let mut evidence = watched(10);
    evidence.processes = vec![
        process(10, "/lab/system.slice/a.service/sub"),
        process(11, &format!("/docker/{id}")),
        process(12, "/batch/job7"),
    ];
    for pid in [10, 11, 12] {
        threads(&mut evidence, pid, 2 * SECOND);
    }
    let without = costs(&evidence);
    let cores: Vec<(&str, Option<f64>)> = without.iter().map(|(name, c)| (name.as_str(), c.cores)).collect();
    assert_eq!(cores, [("/batch", Some(0.2)), ("a.service", Some(0.2)), ("container 0123456789ab", Some(0.2))]);
    evidence.units = vec![look(END, "a.service", None, "x")];
    let with = costs(&evidence);
    assert_eq!((with.len(), with["a.service"].cores), (1, Some(0.2)), "only units where there are any");
}

#[test]
fn dead_cgroups_are_joined_by_path_and_by_maker() {
    let mut evidence = watched(10);
    // At the last look it waits for its next restart and has no cgroup.
    let waiting = Unit { cgroup: None, sub_state: "auto-restart".into(), ..look(END, "a.service", None, "y") };
    evidence.units = vec![
        look(start(10), "a.service", None, "x"),
        waiting,
        look(END, "b.service", None, "x"),
        look(END, "c.service", None, "x"),
    ];
    let mut paths: Vec<String> = (0..30).map(|_| "/lab/system.slice/a.service".to_owned()).collect();
    paths.extend((0..20).map(|i| format!("/tasks/t{i}")));
    paths.extend((0..5).map(|_| "/lab/system.slice/gone.service".to_owned()));
    let mut scan = scan(paths);
    pin(&mut scan, file(Some("/var/lib/a/state"), "tmpfs"), 0..25, 4096);
    for (i, zombie) in scan.zombies.iter_mut().enumerate() {
        zombie.born = born(start(if i < 10 { 7200 } else { 60 }), true);
    }
    evidence.zombie_scans = vec![scan];
    let maker = Maker {
        pid: 9,
        comm: "worker".into(),
        processes: 1,
        cgroup: Some("/lab/system.slice/b.service".into()),
        ..Maker::default()
    };
    evidence.cgroup_churn = vec![CgroupChurn {
        from: start(10),
        to: END,
        parent: "/tasks".into(),
        pattern: "t*".into(),
        example: "t7".into(),
        born: 4,
        removed: 4,
        freed: 0,
        maker: Some(maker),
    }];
    let all = costs(&evidence);
    let a = &all["a.service"];
    assert_eq!((a.zombies, a.zombie_bytes, a.zombies_per_hour), (Some(30), Some(30 * 4096), Some(20.0)));
    assert_eq!(a.pinned_by, [PinnedBy { file: "/var/lib/a/state".into(), bytes: 25 * 4096, zombies: 25 }]);
    assert_eq!(all["b.service"].zombies, Some(20), "by its maker");
    assert_eq!(all["c.service"].zombies, Some(0));
    assert_eq!(all["gone.service"].zombies, Some(5), "by its path, though systemd no longer knows it");
    // A container runtime makes them for others.
    evidence.cgroup_churn[0].maker.as_mut().unwrap().comm = "runc".into();
    assert_eq!(costs(&evidence)["b.service"].zombies, Some(0));
}

#[test]
fn without_names_unknown_counts_stay_unknown() {
    let mut evidence = watched(10);
    evidence.units = vec![look(END, "a.service", None, "x"), look(END, "b.service", None, "x")];
    let mut unnamed = scan::<String>([]);
    (unnamed.method, unnamed.dead) = (ZombieMethod::CgroupStat, Some(90));
    unnamed.below = vec![
        DeadBelow { parent: "/lab/system.slice/a.service".into(), dead: Some(40), held: None },
        DeadBelow { parent: "/lab/system.slice".into(), dead: Some(50), held: None },
    ];
    evidence.zombie_scans = vec![unnamed];
    let all = costs(&evidence);
    assert_eq!((all["a.service"].zombies, all["b.service"].zombies), (Some(40), None));
    evidence.zombie_scans.clear();
    assert_eq!(costs(&evidence)["a.service"].zombies, None);
}

#[test]
fn what_hurts_most_comes_first() {
    let cost = |zombies, restarts, cores, memory_bytes| UnitCost {
        zombies: Some(zombies),
        restarts: Some(restarts),
        cores: Some(cores),
        memory_bytes: Some(memory_bytes),
        ..UnitCost::default()
    };
    let worst_first = [
        cost(60_000, 0, 0.0, 0),
        cost(300, 900, 0.0, 0),
        cost(0, 900, 0.0, 0),
        cost(1, 0, 3.0, 0),
        cost(2, 2, 0.0, 9 << 30),
        cost(0, 0, 0.0, 1 << 20),
        UnitCost::default(),
    ];
    let mut sorted = worst_first.to_vec();
    sorted.reverse();
    sorted.sort_by(order);
    assert_eq!(sorted, worst_first);
}

prop_compose! {
    fn any_cost()(
        cores in prop::option::of(any::<f64>()), memory_bytes in any::<Option<u64>>(), restarts in any::<Option<u32>>(),
        zombies in any::<Option<u64>>(), tasks in any::<Option<u64>>(),
    ) -> UnitCost {
        UnitCost { cores, memory_bytes, restarts, zombies, tasks, ..UnitCost::default() }
    }
}

proptest! {
    #[test]
    fn any_costs_have_an_order(mut all in proptest::collection::vec(any_cost(), 0..40)) {
        all.sort_by(order);
        for pair in all.windows(2) {
            prop_assert_ne!(order(&pair[0], &pair[1]), Ordering::Greater);
            prop_assert_eq!(order(&pair[0], &pair[1]), order(&pair[1], &pair[0]).reverse());
        }
    }
}
