use super::*;
use crate::rules::test_evidence::{END, start, watched};
use coroner_evidence::CgroupChurn;
use proptest::collection::vec;
use proptest::prelude::*;

const NOW_NS: u64 = 1_750_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;
const UID: &str = "6f9b1c7e-1111-2222-3333-444455556666";

/// As kubelet reports it: last started `started_ago` seconds ago, first known start `known` seconds before that.
pub fn pod_container(restarts: u64, started_ago: u64, known: u64) -> Container {
    let started = NOW_NS - started_ago * SECOND;
    Container {
        at: END,
        runtime: "kubelet".into(),
        name: "app".into(),
        namespace: Some("prod".into()),
        pod: Some("web-0".into()),
        pod_uid: Some(UID.into()),
        restarts,
        started: Some(Wall(started)),
        first_started: Some(Wall(started - known * SECOND)),
        exit_code: Some(1),
        ..Container::default()
    }
}

/// Docker's `web`, seen `ago` seconds before the end.
pub fn docker(ago: u64, restarts: u64) -> Container {
    Container {
        at: start(ago),
        runtime: "docker".into(),
        name: "web".into(),
        id: Some("aa".into()),
        restarts,
        started: Some(Wall(NOW_NS - ago * SECOND)),
        exit_code: Some(1),
        ..Container::default()
    }
}

/// `n` containers that came and went below one pod, one every 20 s.
pub fn pod_births(n: u64) -> Vec<CgroupChurn> {
    let row = |i| CgroupChurn {
        from: start(300 - i * 20),
        to: start(295 - i * 20),
        parent: format!("/kubepods/burstable/pod{UID}"),
        pattern: "*".into(),
        example: "x".into(),
        born: 1,
        removed: 1,
        ..CgroupChurn::default()
    };
    (0..n).map(row).collect()
}

fn of(containers: Vec<Container>) -> Evidence {
    Evidence { containers, ..watched(60) }
}

#[test]
fn restarts_in_the_window_make_a_loop() {
    let evidence = of(vec![docker(60, 3), docker(30, 6), docker(0, 9)]);
    let found = container_loops(&evidence);
    assert_eq!((found[0].name().as_str(), found[0].in_window), ("web", Some((6, Duration::from_secs(60)))));
    assert_eq!(found[0].per_hour, Some(360.0));
    assert!(container_loops(&of(vec![docker(60, 0), docker(0, 1)])).is_empty(), "one crash is no loop");
    assert!(container_loops(&of(vec![docker(60, 1), docker(0, 1)])).is_empty());
    // Two restarts in a day.
    let mut day = watched(86_400);
    day.containers = vec![docker(86_400, 1), docker(0, 3)];
    assert!(container_loops(&day).is_empty());
    // Twenty within an hour of a day.
    day.containers = (0..=20).map(|i| docker(50_000 - i * 180, i)).chain([docker(0, 20)]).collect();
    assert_eq!(container_loops(&day)[0].per_hour, Some(20.0));
}

#[test]
fn a_slow_loop_shows_in_its_history() {
    // Every five minutes.
    assert_eq!(container_loops(&of(vec![pod_container(40, 120, 12_000)])).len(), 1);
    // kubelet remembers only the last two starts.
    let last_two = of(vec![pod_container(40, 120, 310)]);
    let found = container_loops(&last_two);
    assert!((10.0..20.0).contains(&found[0].per_hour.unwrap()), "{:?}", found[0].per_hour);
    // Up for an hour; 3 restarts in a month; only two restarts; start time unknown.
    assert!(container_loops(&of(vec![pod_container(40, 3600, 12_000)])).is_empty());
    assert!(container_loops(&of(vec![pod_container(3, 120, 30 * 86_400)])).is_empty());
    assert!(container_loops(&of(vec![pod_container(2, 120, 600)])).is_empty());
    let unknown = Container { started: None, ..pod_container(40, 120, 600) };
    assert!(container_loops(&of(vec![unknown])).is_empty());
}

#[test]
fn a_container_that_is_recreated_under_its_name_loops_too() {
    let anew = |ago, id: &str| Container { id: Some(id.into()), ..docker(ago, 0) };
    let evidence = of(vec![anew(45, "a"), anew(30, "b"), anew(15, "c"), anew(0, "d")]);
    let found = container_loops(&evidence);
    assert!(found[0].made_anew);
    assert_eq!(found[0].in_window.unwrap().0, 3);
    // Two deployments.
    assert!(container_loops(&of(vec![anew(45, "a"), anew(30, "b"), anew(0, "c")])).is_empty());
}

#[test]
fn cgroups_below_one_pod_show_a_loop_without_files() {
    let mut evidence = Evidence { cgroup_churn: pod_births(12), ..watched(300) };
    let found = container_loops(&evidence);
    assert_eq!((found[0].name(), found[0].in_window.unwrap().0), (format!("pod {UID}"), 12));
    assert!(found[0].told_by_cgroups());
    // A file knows its name, but shows no restarts.
    evidence.containers = vec![pod_container(0, 3000, 0)];
    assert_eq!(container_loops(&evidence)[0].name(), "prod/web-0");
    // If the file shows restarts, the loop is reported once.
    evidence.containers = vec![pod_container(40, 120, 12_000)];
    assert_eq!(container_loops(&evidence).len(), 1);
    // A pod starting with its init containers; many pods starting.
    assert!(container_loops(&Evidence { cgroup_churn: pod_births(6), ..watched(300) }).is_empty());
    let mut many = pod_births(14);
    for (i, row) in many.iter_mut().enumerate() {
        row.parent = format!("/kubepods/burstable/pod{i:08x}-1111-2222-3333-444455556666");
    }
    assert!(container_loops(&Evidence { cgroup_churn: many, ..watched(300) }).is_empty());
}

#[test]
fn it_gets_worse_if_the_newer_half_has_more() {
    let mut evidence = watched(600);
    evidence.containers = vec![docker(600, 0), docker(300, 5), docker(0, 45)];
    assert_eq!(container_loops(&evidence)[0].trend, Some(Trend::Worse));
    evidence.containers = vec![docker(600, 0), docker(300, 20), docker(0, 45)];
    assert_eq!(container_loops(&evidence)[0].trend, Some(Trend::Steady));
    evidence.containers = vec![docker(600, 0), docker(0, 45)];
    assert_eq!(container_loops(&evidence)[0].trend, None);
}

proptest! {
    #[test]
    fn any_containers_are_judged(rows in vec((any::<u64>(), any::<u64>(), any::<Option<u64>>(), any::<Option<u64>>(), "[ab]?"), 0..20)) {
        let containers = rows.into_iter().map(|(at, restarts, started, first_started, id)| Container {
            at: coroner_evidence::Time(at), restarts, started: started.map(Wall), first_started: first_started.map(Wall), id: Some(id), ..docker(0, 0)
        });
        for l in container_loops(&of(containers.collect())) {
            prop_assert!(l.per_hour.is_none_or(|rate| rate.is_finite() && rate >= 0.0));
        }
    }

    /// One that never restarts is no loop, whatever else is known and in whatever order.
    #[test]
    fn a_container_without_restarts_is_no_loop(rows in vec((0u64..600, any::<Option<u64>>(), any::<Option<u64>>(), 0u64..3), 0..30).prop_shuffle()) {
        let containers = rows.into_iter().map(|(ago, started, first_started, restarts)| Container {
            started: started.map(Wall), first_started: first_started.map(Wall), restarts: restarts / 3, ..docker(ago, 0)
        });
        prop_assert!(container_loops(&of(containers.collect())).is_empty());
    }
}
