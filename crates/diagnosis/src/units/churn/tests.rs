use super::*;
use crate::rules::test_evidence::{END, start, watched};
use coroner_evidence::{CgroupChurn, Maker, Unit};
use proptest::collection::vec;
use proptest::prelude::*;

/// Two looks at a service that systemd does not restart.
pub fn service(name: &str) -> Vec<Unit> {
    let look = |at| Unit {
        at,
        name: name.into(),
        active_state: "active".into(),
        sub_state: "running".into(),
        result: Some("success".into()),
        restarts: Some(0),
        invocation_id: Some("a".into()),
        cgroup: Some(format!("/system.slice/{name}")),
        ..Unit::default()
    };
    vec![look(start(5)), look(END)]
}

/// Cgroups made and removed within the last five seconds by a process of this cgroup.
pub fn births(parent: &str, pattern: &str, born: u64, comm: &str, cgroup: &str) -> Vec<CgroupChurn> {
    vec![row(5, 0, parent, pattern, born, comm, cgroup)]
}

fn row(from: u64, to: u64, parent: &str, pattern: &str, born: u64, comm: &str, cgroup: &str) -> CgroupChurn {
    CgroupChurn {
        from: start(from),
        to: start(to),
        parent: parent.into(),
        pattern: pattern.into(),
        example: pattern.replace('*', "1"),
        born,
        removed: born,
        freed: 0,
        maker: Some(Maker {
            pid: 700,
            comm: comm.into(),
            processes: 1,
            parent_pid: Some(1),
            parent_comm: Some("systemd".into()),
            cgroup: Some(cgroup.into()),
            ..Maker::default()
        }),
    }
}

/// Children of one process that ended within the last five seconds, `failed` of them soon after their start.
pub fn children(parent: &str, comm: &str, exits: u64, failed: u64, cgroup: &str) -> Vec<ChildExits> {
    vec![ChildExits {
        from: start(5),
        to: END,
        parent_pid: 700,
        parent_comm: parent.into(),
        cgroup: Some(cgroup.into()),
        comm: comm.into(),
        exits,
        failed,
        failed_young: failed,
        exit_code: Some(5),
        signal: None,
    }]
}

const ECS: &str = "/system.slice/ecs.service";

fn units(evidence: &Evidence) -> Vec<String> {
    churning(evidence).into_iter().map(|c| c.unit).collect()
}

fn made(parent: &str, pattern: &str, born: u64, comm: &str, cgroup: &str) -> Evidence {
    Evidence { cgroup_churn: births(parent, pattern, born, comm, cgroup), ..watched(5) }
}

fn failing(parent: &str, comm: &str, exits: u64, failed: u64, cgroup: &str) -> Evidence {
    Evidence { child_exits: children(parent, comm, exits, failed, cgroup), ..watched(60) }
}

#[test]
fn births_below_a_unit_or_by_its_processes_are_churn() {
    let mut below = made(ECS, "agent.*", 15, "ecs-init", ECS);
    below.units = service("ecs.service");
    let found = churning(&below);
    assert_eq!((&*found[0].unit, found[0].restarts, found[0].per_hour), ("ecs.service", Some(0), 10_800.0));
    assert!(matches!(found[0].kind, ChurnKind::Cgroups { born: 15, removed: 15, .. }), "{:?}", found[0].kind);
    assert_eq!(found[0].kind.what(), "/system.slice/ecs.service/agent.*");
    // Elsewhere, by a process of the unit, each in its own directory.
    let mut elsewhere = watched(120);
    elsewhere.cgroup_churn =
        (0..24).map(|i| row(120 - i * 5, 115 - i * 5, &format!("/ecs/task-{i}"), "c*", 1, "ecs-init", ECS)).collect();
    assert_eq!(units(&elsewhere), ["ecs.service"]);
}

#[test]
fn a_low_rate_a_burst_or_cgroups_that_stay_are_no_churn() {
    // One a minute.
    let mut modest = watched(600);
    modest.cgroup_churn = (0..10).map(|i| row(600 - i * 60, 595 - i * 60, ECS, "job.*", 1, "x", ECS)).collect();
    assert_eq!(units(&modest), [""; 0]);
    // But if its children fail, that is enough.
    modest.child_exits = children("x", "job", 10, 10, ECS);
    assert_eq!(units(&modest), ["ecs.service"]);
    // Forty at once in ten minutes.
    let mut burst = watched(600);
    burst.cgroup_churn = vec![row(300, 295, ECS, "job.*", 40, "x", ECS)];
    assert_eq!(units(&burst), [""; 0]);
    let mut stay = made(ECS, "agent.*", 15, "ecs-init", ECS);
    stay.cgroup_churn[0].removed = 3;
    assert_eq!(units(&stay), [""; 0]);
    assert_eq!(units(&made(ECS, "agent.*", 4, "ecs-init", ECS)), [""; 0]);
}

#[test]
fn an_hour_of_churn_in_a_day_is_churn() {
    let mut day = watched(86_400);
    day.cgroup_churn = (0..240).map(|i| row(50_000 - i * 15, 49_995 - i * 15, ECS, "agent.*", 1, "x", ECS)).collect();
    let found = churning(&day);
    assert_eq!(found[0].per_hour.round(), 241.0);
}

#[test]
fn making_cgroups_for_others_is_no_churn() {
    let pod = "/kubepods/burstable/pod6f9b1c7e-1111-2222-3333-444455556666";
    for (parent, pattern, comm, cgroup) in [
        ("/system.slice", "x.service", "systemd", "/init.scope"),
        ("/system.slice", "run-r*.scope", "systemd", "/init.scope"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice",
            "app-*.scope",
            "systemd",
            "/user.slice/user-1000.slice/user@1000.service/init.scope",
        ),
        ("/user.slice/x", "job*", "bash", "/user.slice/user-1000.slice/user@1000.service/x"),
        (pod, "*", "runc", "/system.slice/containerd.service"),
        ("/kubepods/burstable", "pod*", "kubelet", "/system.slice/kubelet.service"),
        ("/docker", "*", "runc:[1:CHILD]", "/system.slice/docker.service"),
        ("/machine", "libpod-*", "conmon", "/system.slice/backup.service"),
        ("/slurm/uid_*/job_*", "step_*", "slurmstepd", "/system.slice/slurmd.service"),
        ("/x", "a*", "somebody", "/batch"),
    ] {
        assert_eq!(units(&made(parent, pattern, 60, comm, cgroup)), [""; 0], "{parent} {comm}");
    }
    // The maker is unknown.
    let mut unknown = made(ECS, "agent.*", 15, "x", ECS);
    unknown.cgroup_churn[0].maker = None;
    assert_eq!(units(&unknown), [""; 0]);
    // A batch system whose steps all fail has a loop in it.
    let mut steps = made("/slurm", "step_*", 60, "slurmstepd", "/system.slice/slurmd.service");
    steps.child_exits = children("slurmstepd", "agent", 60, 60, "/system.slice/slurmd.service");
    assert_eq!(units(&steps), ["slurmd.service"]);
}

#[test]
fn a_child_that_always_fails_is_churn_and_an_exit_code_as_answer_is_not() {
    assert_eq!(units(&failing("watchdog.sh", "agent", 6, 6, ECS)), ["ecs.service"]);
    assert_eq!(units(&failing("supervisord", "bash", 3, 3, ECS)), ["ecs.service"]);
    // Too few, mostly successful, an answer, a subshell, systemd itself, a session, a runtime.
    for (parent, comm, exits, failed, cgroup) in [
        ("watchdog.sh", "agent", 4, 4, ECS),
        ("watchdog.sh", "agent", 60, 10, ECS),
        ("watchdog.sh", "sleep", 60, 0, ECS),
        ("watchdog.sh", "grep", 60, 60, ECS),
        ("python3", "sh", 60, 60, ECS),
        ("systemd", "agent", 60, 60, "/init.scope"),
        ("bash", "agent", 60, 60, "/user.slice/user-0.slice/session-3.scope"),
        ("containerd-shim", "agent", 60, 60, "/system.slice/containerd.service"),
        ("udev-worker", "agent", 60, 60, "/system.slice/systemd-udevd.service"),
    ] {
        assert_eq!(units(&failing(parent, comm, exits, failed, cgroup)), [""; 0], "{parent} {comm}");
    }
}

#[test]
fn a_build_in_which_many_things_fail_is_no_churn() {
    let mut build = watched(60);
    for name in ["conftest", "cc1", "ld", "a.out", "unit-test"] {
        build.child_exits.extend(children("make", name, 10, 10, "/system.slice/build.service"));
    }
    assert_eq!(units(&build), [""; 0]);
    build.child_exits.extend(children("make", "agent", 900, 900, "/system.slice/build.service"));
    assert_eq!(units(&build), ["build.service"]);
}

#[test]
fn a_supervisor_in_a_container_is_named_after_the_container() {
    let id = "0123456789abcdef".repeat(4);
    let evidence = failing("supervisord", "worker", 9, 9, &format!("/docker/{id}"));
    let found = churning(&evidence);
    assert!(found[0].is_container);
    assert_eq!(found[0].unit, "container 0123456789ab");
}

#[test]
fn what_a_crashlooping_unit_makes_is_part_of_its_loop() {
    let mut evidence = made(ECS, "agent.*", 15, "ecs-init", ECS);
    evidence.units = service("ecs.service");
    (evidence.units[1].restarts, evidence.units[1].invocation_id) = (Some(15), Some("b".into()));
    assert_eq!(units(&evidence), [""; 0]);
    // Far more than its restarts can explain.
    evidence.units[1].restarts = Some(2);
    assert_eq!(units(&evidence), ["ecs.service"]);
}

proptest! {
    #[test]
    fn any_rows_are_judged(
        rows in vec((0u64..700, 0u64..700, "(/[a-z]{1,3}|/ecs.service|/pod[0-9]){0,3}", "[a-z*]{0,3}", any::<u64>(), "\\PC{0,6}"), 0..20),
        exits in vec((any::<u32>(), "\\PC{0,4}", any::<u64>(), any::<u64>()), 0..20), seconds in 0u64..600,
    ) {
        let mut evidence = watched(seconds);
        evidence.cgroup_churn = rows.iter().map(|(a, b, parent, pattern, n, comm)| row(*a, *b, parent, pattern, *n, comm, ECS)).collect();
        for (pid, comm, n, failed) in &exits {
            let children = children("x", comm, *n, *failed, ECS);
            evidence.child_exits.extend(children.into_iter().map(|c| ChildExits { parent_pid: *pid, ..c }));
        }
        for c in churning(&evidence) {
            prop_assert!(c.per_hour.is_finite() && c.per_hour > 0.0 && c.times >= 3);
        }
    }

    /// Children that succeed are never churn.
    #[test]
    fn success_is_no_churn(rows in vec(("[a-z]{1,9}", "[a-z]{1,9}", any::<u64>()), 0..30)) {
        let mut evidence = watched(60);
        for (parent, comm, n) in &rows {
            evidence.child_exits.extend(children(parent, comm, *n, 0, ECS));
        }
        prop_assert!(churning(&evidence).is_empty());
    }
}
