use super::*;
use crate::cores::scene::{Actor, Doing, Load, Scene, nic};
use crate::rules::test_evidence::{self, fact};
use coroner_evidence::Evidence;
use coroner_evidence::{RayProcess, Source};

fn findings(evidence: &Evidence) -> Vec<Finding> {
    test_evidence::if_any(examine(&Case::of(evidence)))
}

/// The incident: one of 96 cores in the kernel for six seconds.
fn incident() -> Scene {
    Scene::new(96, 10.0)
        .all_cores(Load::User, 0.02)
        .load(39, 2.0, 8.6, Load::System, 0.98)
        .with(Actor::new(4711, "kubelet", 39).in_kernel().between(2.0, 8.6, Doing::Run))
        .with(
            Actor::kernel(222, "ksoftirqd/39", 39)
                .until(2.1, Doing::Sleep)
                .until(8.6, Doing::Wait)
                .until(8.7, Doing::Run)
                .until(99.0, Doing::Sleep),
        )
}

#[test]
fn one_bad_core_of_96_is_found_with_its_owner_and_the_average_that_hides_it() {
    let found = findings(&incident().evidence());
    assert_eq!(found.len(), 1);
    let f = &found[0];
    assert_eq!((f.subject.kind, f.subject.name.as_str(), f.severity), (SubjectKind::Core, "39", Severity::Warning));
    assert_eq!(fact(f, FactKey::Owner), "kubelet[4711]");
    assert!(fact(f, FactKey::OwnerShare).as_f64().unwrap() > 95.0);
    assert!(f.title.contains("kubelet[4711]"), "{}", f.title);
    assert!(f.detail.contains("averaged 3 % busy (which hides this core)"), "{}", f.detail);
    assert!(f.detail.contains("ksoftirqd/39[222]"), "{}", f.detail);
    let lasted = fact(f, FactKey::Lasted).as_u64().unwrap();
    assert!((6500..=6700).contains(&lasted), "{lasted}");
}

#[test]
fn it_is_critical_if_the_core_serves_a_nic() {
    let found = findings(&incident().nic("eth0", 39).evidence());
    assert_eq!(found[0].severity, Severity::Critical);
    assert!(found[0].detail.contains("eth0 rx-0"), "{}", found[0].detail);
    assert!(found[0].remedy.contains("/proc/irq/38/smp_affinity_list"), "{}", found[0].remedy);
    // Another core's NIC changes nothing, and neither does a queue that others can serve as well.
    let mut elsewhere = incident().nic("eth0", 38).evidence();
    assert_eq!(findings(&elsewhere)[0].severity, Severity::Warning);
    elsewhere.nics[0].queues[0].irq_cores = Some(coroner_evidence::CoreSet::new([38, 39]));
    assert_eq!(findings(&elsewhere)[0].severity, Severity::Warning);
}

#[test]
fn kernel_time_is_found_without_any_thread() {
    let mut evidence = incident().evidence();
    evidence.thread_samples.clear();
    evidence.threads.clear();
    let found = findings(&evidence);
    assert_eq!(found[0].subject.name, "39");
    assert!(found[0].detail.contains("no threads were sampled"), "{}", found[0].detail);
    assert!(found[0].evidence.iter().all(|f| f.key != FactKey::Owner));
}

/// A real-time spinner on core 1 for three seconds, and a kernel worker that needs the core.
fn real_time_spinner(throttled: bool) -> Scene {
    let (busy, waits) = if throttled { (0.95, 2.85) } else { (1.0, 3.0) };
    Scene::new(2, 5.0)
        .load(1, 1.0, 4.0, Load::User, busy)
        .load(1, 1.0, 4.0, Load::System, if throttled { 0.01 } else { 0.0 })
        .load(0, 0.0, 5.0, Load::User, 0.1)
        .with(Actor::new(4711, "spin", 1).fifo(50).pinned().between(
            1.0,
            4.0,
            Doing::Turns { run: busy, wait: 1.0 - busy, slices: 1.0 },
        ))
        .with(
            Actor::kernel(31, "kworker/1:1", 1)
                .until(1.0, Doing::Sleep)
                .until(1.0 + waits, Doing::Wait)
                .until(4.05, Doing::Run)
                .until(99.0, Doing::Sleep),
        )
}

#[test]
fn a_real_time_spinner_with_a_victim_is_found_throttled_or_not() {
    for throttled in [true, false] {
        let found = findings(&real_time_spinner(throttled).evidence());
        assert_eq!(found.len(), 1, "throttled: {throttled}");
        assert_eq!(found[0].subject.name, "1");
        assert_eq!(found[0].severity, Severity::Warning);
        assert_eq!(fact(&found[0], FactKey::Owner), "spin[4711]");
        assert!(found[0].title.contains("kworker/1:1[31]"), "{}", found[0].title);
        assert!(found[0].detail.contains("SCHED_FIFO 50"), "{}", found[0].detail);
    }
}

#[test]
fn short_waits_do_not_add_up_to_starvation_over_minutes() {
    let waits = |seconds: f64, every: f64| {
        let mut worker = Actor::kernel(31, "kworker/1:1", 1);
        for n in 0..(seconds / every) as u32 {
            let at = f64::from(n) * every + 0.5;
            worker = worker.until(at, Doing::Sleep).until(at + 0.033, Doing::Wait).until(at + 0.034, Doing::Run);
        }
        Scene::new(2, seconds)
            .load(1, 0.0, seconds, Load::User, 1.0)
            .with(Actor::new(4711, "stress-ng-cpu", 1).until(999.0, Doing::Run))
            .with(worker.until(999.0, Doing::Sleep))
            .evidence()
    };
    // Waits of 33 ms: the same share of the time is the same harm, however long the watch.
    assert_eq!(findings(&waits(150.0, 8.0)), []);
    assert_eq!(findings(&waits(150.0, 1.0)).len(), 1);
    assert_eq!(findings(&waits(5.0, 1.0)).len(), 1);
}

#[test]
fn total_starvation_is_seen_while_it_lasts() {
    // sched_rt_runtime_us = -1: the victim never gets to run, so its wait is in no counter.
    let evidence = Scene::new(2, 5.0)
        .load(1, 0.0, 5.0, Load::User, 1.0)
        .with(Actor::new(4711, "spin", 1).fifo(50).pinned().until(99.0, Doing::Run))
        .with(Actor::kernel(31, "kworker/1:1", 1).until(0.5, Doing::Sleep).until(99.0, Doing::Wait))
        .evidence();
    let found = findings(&evidence);
    assert!(found[0].detail.contains("kworker/1:1[31] (a kernel thread) 4.4 s (still waiting)"), "{}", found[0].detail);
}

#[test]
fn a_real_time_spinner_is_found_on_a_full_node_too() {
    let evidence = real_time_spinner(true).load(0, 0.0, 5.0, Load::User, 0.9).evidence();
    let found = findings(&evidence);
    assert_eq!(found.len(), 1);
    assert!(found[0].detail.contains("The other cores averaged 100 % busy"), "{}", found[0].detail);
    assert!(!found[0].detail.contains("hides"), "{}", found[0].detail);
}

#[test]
fn a_thread_stuck_in_the_kernel_is_found_on_a_full_node_too() {
    let waits = |wait: Doing| {
        let mut scene = Scene::new(4, 5.0)
            .load(1, 1.0, 4.0, Load::System, 1.0)
            .with(Actor::new(4711, "kubelet", 1).in_kernel().between(1.0, 4.0, Doing::Run));
        for core in [0, 2, 3] {
            scene = scene.load(core, 0.0, 5.0, Load::User, 1.0);
        }
        let worker = Actor::kernel(31, "kworker/1:1", 1).until(1.0, Doing::Sleep).until(4.0, wait);
        findings(&scene.with(worker.until(4.1, Doing::Run).until(99.0, Doing::Sleep)).evidence()).len()
    };
    assert_eq!(waits(Doing::Wait), 1);
    // On a full node of equal threads a worker gets its turn every 50 ms.
    assert_eq!(waits(Doing::Turns { run: 0.05, wait: 0.95, slices: 20.0 }), 0);
}

#[test]
fn a_thread_in_the_kernel_that_lets_others_run_is_not_stuck() {
    let copying = |pinned: bool, turns: Doing| {
        let reader = Actor::new(4711, "tar", 1).in_kernel();
        let reader = if pinned { reader.pinned() } else { reader.on_any_core(4) };
        let worker = Actor::kernel(31, "kworker/1:1", 1).until(99.0, turns);
        let scene = Scene::new(4, 5.0).load(1, 0.0, 5.0, Load::System, 1.0);
        let found = findings(&scene.with(reader.until(99.0, Doing::Run)).with(worker).evidence());
        found[0].severity
    };
    let at_once = Doing::Turns { run: 0.001, wait: 0.001, slices: 5.0 };
    assert_eq!(copying(false, at_once), Severity::Info);
    assert_eq!(copying(true, at_once), Severity::Warning, "it cannot leave");
    assert_eq!(copying(false, Doing::Sleep), Severity::Warning, "no other thread was seen to run");
    let late = Doing::Turns { run: 0.001, wait: 0.2, slices: 5.0 };
    assert_eq!(copying(false, late), Severity::Warning);
}

#[test]
fn a_busy_thread_that_nobody_waits_for_is_fine() {
    let evidence = Scene::new(2, 5.0)
        .load(1, 0.0, 5.0, Load::User, 1.0)
        .with(Actor::new(4711, "train", 1).until(99.0, Doing::Run))
        .evidence();
    assert_eq!(findings(&evidence), []);
    let Answer::Fine(why) = examine(&Case::of(&evidence)) else { panic!() };
    assert!(why.contains("core 1 was 100 % busy") && why.contains("train[4711]"), "{why}");
}

#[test]
fn many_short_waits_of_background_threads_are_not_starvation() {
    // 40 wake-ups a second, 4 ms each: 160 ms in every second, yet only taking turns.
    let evidence = Scene::new(2, 5.0)
        .load(1, 0.0, 5.0, Load::User, 1.0)
        .with(Actor::new(4711, "train", 1).until(99.0, Doing::Run))
        .with(Actor::kernel(31, "kworker/1:1", 1).until(99.0, Doing::Turns { run: 0.01, wait: 0.16, slices: 40.0 }))
        .with(Actor::kernel(22, "ksoftirqd/1", 1).until(99.0, Doing::Turns { run: 0.05, wait: 0.3, slices: 100.0 }))
        .evidence();
    assert_eq!(findings(&evidence), []);
}

#[test]
fn a_busy_healthy_node_is_fine() {
    // stress-ng --cpu 8 on two cores: all wait long, and all get their turn.
    let mut scene = Scene::new(2, 5.0).all_cores(Load::User, 1.0);
    for n in 0..8 {
        scene = scene.with(
            Actor::new(100 + n, "stress-ng-cpu", n % 2)
                .until(99.0, Doing::Turns { run: 0.25, wait: 0.75, slices: 30.0 }),
        );
    }
    assert_eq!(findings(&scene.evidence()), []);
}

#[test]
fn a_full_node_with_hidden_waits_is_not_called_fine() {
    let scene = |wait: Doing| {
        let crowd = Doing::Turns { run: 0.5, wait: 0.5, slices: 100.0 };
        let mut scene = Scene::new(2, 5.0).all_cores(Load::User, 1.0);
        for tid in [60, 61] {
            scene = scene.with(Actor::new(tid, "cc1plus", 0).until(99.0, crowd));
        }
        // Core 1 is full of processes too short-lived to be sampled.
        scene.with(Actor::kernel(31, "kworker/1:1", 1).until(1.0, Doing::Sleep).until(99.0, wait)).evidence()
    };
    let Answer::Fine(why) = examine(&Case::of(&scene(Doing::Sleep))) else { panic!() };
    assert!(why.contains("no thread was kept off"), "{why}");
    let Answer::Fine(why) = examine(&Case::of(&scene(Doing::Wait))) else { panic!() };
    assert!(why.contains("kworker/1:1[31] waited at least") && why.contains("short-lived processes"), "{why}");
    assert!(!why.contains("no thread was kept off"), "{why}");
    let mut hidden = scene(Doing::Sleep);
    hidden.threads.retain(|t| !t.kernel);
    let Answer::CannotTell { because, .. } = examine(&Case::of(&hidden)) else { panic!() };
    assert!(because.contains("2 cores were full"), "{because}");
}

#[test]
fn an_idle_node_is_fine_with_its_numbers() {
    let Answer::Fine(why) = examine(&Case::of(&Scene::new(4, 5.0).load(2, 0.0, 5.0, Load::System, 0.34).evidence()))
    else {
        panic!()
    };
    assert!(why.contains("kernel time peaked at 34 % (core 2)"), "{why}");
}

#[test]
fn a_spike_of_six_tenths_of_a_second_is_fine() {
    let evidence = Scene::new(2, 5.0).load(1, 1.0, 1.6, Load::System, 1.0).evidence();
    assert_eq!(findings(&evidence), []);
}

#[test]
fn a_node_with_all_cores_in_the_kernel_is_no_saturated_core() {
    let evidence = Scene::new(8, 5.0).all_cores(Load::System, 1.0).evidence();
    assert_eq!(findings(&evidence), []);
}

#[test]
fn room_on_the_other_cores_decides() {
    for (others, expected) in [(0.79, 1), (0.81, 0)] {
        let evidence =
            Scene::new(2, 5.0).load(1, 0.0, 5.0, Load::System, 1.0).load(0, 0.0, 5.0, Load::User, others).evidence();
        assert_eq!(findings(&evidence).len(), expected, "{others}");
    }
}

#[test]
fn a_victim_waits_a_tenth_of_a_second_or_more() {
    for (wait, expected) in [(0.09, 0), (0.25, 1)] {
        let evidence = Scene::new(2, 5.0)
            .load(1, 0.0, 5.0, Load::User, 1.0)
            .with(Actor::new(4711, "spin", 1).fifo(50).pinned().until(99.0, Doing::Run))
            .with(
                Actor::kernel(31, "kworker/1:1", 1)
                    .until(2.0, Doing::Sleep)
                    .until(2.0 + wait, Doing::Wait)
                    .until(2.0 + wait + 0.01, Doing::Run)
                    .until(99.0, Doing::Sleep),
            )
            .evidence();
        let warnings = findings(&evidence).iter().filter(|f| f.severity >= Severity::Warning).count();
        assert_eq!(warnings, expected, "{wait}");
    }
}

#[test]
fn throttled_threads_are_not_victims_of_a_core() {
    let quota = |evidence: &mut Evidence, us: u64| {
        let (from, to) = (crate::cores::scene::time(0.0), crate::cores::scene::time(5.0));
        evidence.counters.push(Source::CgroupCpu, "/kubepods/pod1", "throttled_us", from, 100);
        evidence.counters.push(Source::CgroupCpu, "/kubepods/pod1", "throttled_us", to, 100 + us);
    };
    let scene = || {
        Scene::new(4, 5.0)
            .load(1, 0.0, 5.0, Load::User, 1.0)
            .with(Actor::new(50, "other", 1).until(99.0, Doing::Run))
            .with(
                Actor::new(51, "limited", 1)
                    .in_cgroup("/kubepods/pod1/c")
                    .until(99.0, Doing::Turns { run: 0.2, wait: 0.8, slices: 10.0 }),
            )
            .evidence()
    };
    let mut limited = scene();
    quota(&mut limited, 4_000_000);
    assert_eq!(findings(&limited), []);
    let mut hardly_limited = scene();
    quota(&mut hardly_limited, 1_000);
    assert_eq!(findings(&hardly_limited).len(), 1);
}

#[test]
fn threads_crowded_on_one_core_by_their_affinity_are_found() {
    let mut scene = Scene::new(8, 5.0).load(3, 0.0, 5.0, Load::User, 1.0);
    for n in 0..4 {
        scene = scene.with(
            Actor::new(100 + n, "rank", 3).pinned().until(99.0, Doing::Turns { run: 0.25, wait: 0.75, slices: 80.0 }),
        );
    }
    let found = findings(&scene.nic("eth0", 3).evidence());
    assert_eq!((found.len(), found[0].subject.name.as_str()), (1, "3"));
    assert_eq!(found[0].severity, Severity::Warning, "the NIC is not affected");
    assert!(found[0].detail.contains("shared by 4 threads"), "{}", found[0].detail);
    assert!(found[0].remedy.contains("affinity"), "{}", found[0].remedy);
}

#[test]
fn two_threads_pinned_to_one_core_are_found_however_busy_the_others_are() {
    let turns = Doing::Turns { run: 0.5, wait: 0.5, slices: 150.0 };
    let pair = |core: u32, pinned: bool, scene: Scene| {
        let actor = |tid, name| {
            let actor = Actor::new(tid + 10 * core, name, core);
            if pinned { actor.pinned() } else { actor }.until(99.0, turns)
        };
        scene.with(actor(100, "a")).with(actor(101, "b"))
    };
    for other in [0.1, 1.0] {
        let scene = Scene::new(2, 5.0).load(1, 0.0, 5.0, Load::User, 1.0).load(0, 0.0, 5.0, Load::User, other);
        let found = findings(&pair(1, true, scene).evidence());
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning), "{other}");
        assert!(
            found[0].title.contains("shared by 2 threads pinned to it: a[110] 50 % and b[111] 50 %"),
            "{}",
            found[0].title
        );
        assert!(!found[0].title.contains("owned"), "{}", found[0].title);
        assert_eq!(found[0].remedy.contains("`taskset -pc 0 111`"), other < 0.5, "{}", found[0].remedy);
    }
    // Without pinning it is a busy node; so it is with pinned threads spread over all cores.
    let full = || Scene::new(2, 5.0).all_cores(Load::User, 1.0);
    assert_eq!(findings(&pair(1, false, full()).evidence()), []);
    assert_eq!(findings(&pair(0, true, pair(1, true, full())).evidence()), []);
}

#[test]
fn a_softirq_that_owns_a_core_is_named() {
    let mut evidence = Scene::new(4, 5.0).load(2, 0.0, 5.0, Load::Softirq, 1.0).evidence();
    for (name, rate) in [("TIMER", 5000), ("NET_RX", 900), ("BLOCK", 3)] {
        evidence.counters.push(Source::Softirqs, "cpu2", name, crate::cores::scene::time(0.0), 10);
        evidence.counters.push(Source::Softirqs, "cpu2", name, crate::cores::scene::time(5.0), 10 + rate);
    }
    let found = findings(&evidence);
    assert_eq!(fact(&found[0], FactKey::Owner), "softirq NET_RX");
}

#[test]
fn an_owner_is_named_with_process_unit_and_ray_job() {
    let evidence = Scene::new(8, 5.0)
        .load(3, 0.0, 5.0, Load::System, 1.0)
        .with(
            Actor::new(4712, "ray::worker", 3)
                .of_process(4700, "python3")
                .in_kernel()
                .about(|p| {
                    p.command = Some("python3 train.py".into());
                    p.owner.unit = Some("ray.service".into());
                    p.ray = Some(RayProcess { job_id: Some("02000000".into()), ..RayProcess::default() });
                })
                .until(99.0, Doing::Run)
                .rarely_sampled(),
        )
        .evidence();
    let found = findings(&evidence);
    let expected = "ray::worker[4712] (python3 train.py, a thread of process 4700, unit ray.service, Ray job 02000000)";
    assert!(found[0].detail.contains(expected), "{}", found[0].detail);
}

#[test]
fn a_full_core_with_hidden_waits_is_not_called_fine() {
    let blind = |change: fn(&mut Evidence)| {
        let mut evidence = Scene::new(2, 5.0)
            .load(1, 0.0, 5.0, Load::User, 1.0)
            .with(Actor::new(4711, "train", 1).until(99.0, Doing::Run))
            .evidence();
        change(&mut evidence);
        examine(&Case::of(&evidence))
    };
    for change in [
        (|e| e.thread_samples.clear()) as fn(&mut Evidence),
        |e| e.thread_samples.iter_mut().for_each(|s| s.sched = None),
        |e| e.threads.iter_mut().for_each(|t| t.kernel = false),
    ] {
        let Answer::CannotTell { because, how_to_see } = blind(change) else { panic!() };
        assert!(because.contains("core 1 was 100 % busy"), "{because}");
        assert!(!how_to_see.is_empty());
    }
}

#[test]
fn nothing_seen_is_not_fine() {
    let mut evidence = Evidence::default();
    assert!(matches!(examine(&Case::of(&evidence)), Answer::CannotTell { .. }));
    evidence.unseen(coroner_evidence::probe::CORES, "cores", "/proc/stat: Permission denied", "run as root");
    let Answer::CannotTell { because, .. } = examine(&Case::of(&evidence)) else { panic!() };
    assert!(because.contains("Permission denied"));
}

#[test]
fn our_own_threads_are_victims_only_of_real_time_threads() {
    let scene = |owner: Actor| {
        let evidence = Scene::new(2, 5.0)
            .load(1, 0.0, 5.0, Load::User, 1.0)
            .with(owner.pinned().until(99.0, Doing::Run))
            .with(Actor::new(90, "sampler", 1).of_process(89, "watcher").until(99.0, Doing::Wait))
            .evidence();
        observed_by(89, evidence)
    };
    assert_eq!(findings(&scene(Actor::new(4711, "spin", 1))), []);
    assert_eq!(findings(&scene(Actor::new(4711, "spin", 1).fifo(50)))[0].severity, Severity::Warning);
}

#[test]
fn threads_that_take_turns_in_the_kernel_are_not_stuck() {
    let evidence = (60..65).fold(Scene::new(4, 5.0).load(1, 0.0, 5.0, Load::System, 1.0), |scene, tid| {
        let turns = (0..50).fold(Actor::new(tid, "loader", 1).of_process(tid, "loader").in_kernel(), |actor, turn| {
            let doing = if turn % 5 == tid - 60 { Doing::Run } else { Doing::Sleep };
            actor.until(f64::from(turn + 1) / 10.0, doing)
        });
        scene.with(turns)
    });
    let found = findings(&evidence.evidence());
    assert_eq!((found.len(), found[0].severity), (1, Severity::Info), "{found:?}");
    assert!(found[0].detail.contains("shared by 5 threads"), "{}", found[0].detail);
}

#[test]
fn a_core_that_we_fill_ourselves_is_only_worth_knowing() {
    let scene = |observer: u32| {
        let evidence = Scene::new(2, 5.0)
            .load(1, 0.0, 5.0, Load::System, 1.0)
            .with(Actor::new(90, "sampler", 1).of_process(89, "coroner").in_kernel().until(99.0, Doing::Run))
            .evidence();
        observed_by(observer, evidence)
    };
    assert_eq!(findings(&scene(88))[0].severity, Severity::Warning, "the name says nothing");
    assert_eq!(findings(&scene(89))[0].severity, Severity::Info);
}

/// Evidence that this process made.
fn observed_by(pid: u32, mut evidence: Evidence) -> Evidence {
    let started = evidence.processes.iter().find(|process| process.pid == pid).map_or(5, |process| process.started);
    evidence.observers.push(coroner_evidence::Observer { pid, started, ..Default::default() });
    evidence
}

#[test]
fn a_real_time_thread_that_fills_a_core_is_worth_knowing_even_if_nobody_waits() {
    let evidence = Scene::new(2, 5.0)
        .load(1, 0.0, 5.0, Load::User, 1.0)
        .with(Actor::new(4711, "spin", 1).fifo(50).pinned().until(99.0, Doing::Run))
        .nic("eth0", 1)
        .evidence();
    let found = findings(&evidence);
    assert_eq!((found.len(), found[0].severity), (1, Severity::Info));
}

#[test]
fn a_niced_thread_is_no_victim_of_ordinary_threads() {
    let evidence = Scene::new(2, 5.0)
        .load(1, 0.0, 5.0, Load::User, 1.0)
        .with(Actor::new(4711, "train", 1).until(99.0, Doing::Run))
        .with(Actor::new(90, "khugepaged", 1).nice(19).until(99.0, Doing::Wait))
        .evidence();
    assert_eq!(findings(&evidence), []);
}

#[test]
fn fifty_bad_cores_are_not_fifty_findings() {
    let mut scene = Scene::new(192, 5.0);
    for core in 0..50 {
        scene = scene.load(core, 0.0, 5.0, Load::System, 1.0);
    }
    scene.evidence.nics.push(nic("eth0", 49));
    let found = findings(&scene.evidence());
    assert_eq!(found.len(), MOST_FINDINGS);
    assert_eq!(found[0].subject.name, "49", "the one that serves a NIC comes first");
    assert!(found[MOST_FINDINGS - 1].detail.contains("42 more cores"));
}
