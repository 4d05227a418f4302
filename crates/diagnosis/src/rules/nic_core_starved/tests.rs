use super::*;
use crate::cores::scene::{Actor, Doing, Load, Scene, time};
use crate::rules::test_evidence;
use coroner_evidence::CoreSet;

fn findings(evidence: &Evidence) -> Vec<Finding> {
    test_evidence::if_any(examine(&Case::of(evidence)))
}

fn spinner() -> Actor {
    Actor::new(4711, "spin", 1).fifo(50).pinned().until(99.0, Doing::Run)
}

fn full_core() -> Scene {
    Scene::new(2, 5.0).load(1, 0.0, 5.0, Load::User, 1.0)
}

fn waits(actor: Actor) -> Actor {
    actor.until(1.0, Doing::Sleep).until(4.0, Doing::Wait).until(4.1, Doing::Run).until(99.0, Doing::Sleep)
}

#[test]
fn a_starved_napi_thread_is_named_with_core_and_culprit() {
    let scene = full_core().with(spinner()).with(waits(Actor::kernel(300, "napi/vb-8195", 1)));
    // Its device is in a network namespace that could not be entered.
    let mut evidence = scene.evidence();
    let found = findings(&evidence);
    assert_eq!((found.len(), found[0].severity), (1, Severity::Critical));
    assert_eq!((found[0].subject.kind, found[0].subject.name.as_str()), (SubjectKind::Nic, "napi/vb-8195"));
    for word in ["napi/vb-8195[300]", "core 1", "spin[4711]", "3.0 s"] {
        assert!(found[0].title.contains(word), "{word}: {}", found[0].title);
    }
    assert!(found[0].remedy.contains("`chrt -o -p 0 4711`"), "{}", found[0].remedy);
    assert!(found[0].remedy.contains("`taskset -pc 0 300`"), "{}", found[0].remedy);

    // With the device in sight, the TID tells which queue it is.
    let mut nic = crate::cores::scene::nic("vb", 0);
    nic.netns = Some("blue".into());
    nic.queues[0].napi_tid = Some(300);
    nic.queues[0].napi_cores = Some(CoreSet::new([1]));
    evidence.nics.push(nic.clone());
    let found = findings(&evidence);
    assert_eq!(found[0].subject.name, "vb in netns blue");
    assert!(found[0].title.starts_with("vb in netns blue rx-0"), "{}", found[0].title);

    // Without the TID, its name does.
    evidence.nics[0].queues[0].napi_tid = None;
    assert_eq!(findings(&evidence)[0].subject.name, "vb in netns blue");
}

/// Two threads had the core one after another: each gets a finding of its own.
#[test]
fn each_owner_in_turn_is_a_finding() {
    let spinner = |tid: u32, comm: &str, from: f64, to: f64| {
        let actor = Actor::new(tid, comm, 1).fifo(50).pinned().until(from, Doing::Sleep);
        actor.until(to, Doing::Run).until(99.0, Doing::Sleep)
    };
    let napi = Actor::kernel(300, "napi/vb-8195", 1).until(2.5, Doing::Sleep).until(12.0, Doing::Wait).between(
        20.5,
        26.0,
        Doing::Wait,
    );
    let evidence = Scene::new(2, 40.0)
        .load(1, 2.0, 12.0, Load::User, 1.0)
        .load(1, 20.0, 26.0, Load::User, 1.0)
        .with(spinner(4711, "first", 2.0, 12.0))
        .with(spinner(4712, "second", 20.0, 26.0))
        .with(napi)
        .evidence();
    let found = findings(&evidence);
    let culprits: Vec<&str> = found.iter().flat_map(|f| &f.ties.culprits).map(|task| task.comm.as_str()).collect();
    assert_eq!(culprits, ["first", "second"]);
    assert!(found[0].title.contains("9.5 s") && found[1].title.contains("5.5 s"), "{found:#?}");
}

#[test]
fn a_thread_is_not_moved_to_a_core_that_is_full_or_serves_a_nic() {
    let scene = || full_core().with(spinner()).with(waits(Actor::kernel(300, "napi/vb-8195", 1)));
    let remedy = &findings(&scene().load(0, 0.0, 5.0, Load::User, 0.6).evidence())[0].remedy;
    assert!(remedy.starts_with("Drop spin[4711] to SCHED_OTHER: `chrt -o -p 0 4711`"), "{remedy}");
    assert!(!remedy.contains("taskset") && remedy.contains("Moving it won't help"), "{remedy}");
    assert!(remedy.contains("stop it"), "{remedy}");
    let remedy = &findings(&scene().nic("eth9", 0).evidence())[0].remedy;
    assert!(!remedy.contains("taskset -pc 0 4711"), "{remedy}");
}

#[test]
fn ksoftirqd_matters_only_on_a_core_that_serves_a_nic() {
    let scene = || full_core().with(spinner()).with(waits(Actor::kernel(22, "ksoftirqd/1", 1)));
    let mut evidence = scene().nic("eth0", 1).evidence();
    count(&mut evidence, Source::Interrupts, "cpu1", "38", 900);
    let found = findings(&evidence);
    assert_eq!((found[0].subject.name.as_str(), found[0].severity), ("eth0", Severity::Critical));
    assert!(found[0].title.contains("was not served"), "{}", found[0].title);
    assert!(found[0].remedy.contains("/proc/irq/38/smp_affinity_list"), "{}", found[0].remedy);
    assert_eq!(findings(&scene().nic("eth0", 0).evidence()), []);
}

/// A counter that rose by this much in five seconds.
fn count(evidence: &mut Evidence, source: Source, subject: &str, name: &str, by: u64) {
    evidence.counters.push(source, subject, name, time(0.0), 100);
    evidence.counters.push(source, subject, name, time(5.0), 100 + by);
}

#[test]
fn a_waiting_ksoftirqd_does_not_hurt_an_idle_nic() {
    let base = || {
        let scene = full_core().with(spinner()).with(waits(Actor::kernel(22, "ksoftirqd/1", 1)));
        scene.nic("eth0", 1).evidence()
    };
    // Interrupts arrived, but not from this queue; packets on other queues or loopback do not count.
    let mut quiet = base();
    count(&mut quiet, Source::Interrupts, "cpu1", "LOC", 500);
    count(&mut quiet, Source::Softirqs, "cpu1", "NET_RX", 500);
    count(&mut quiet, Source::NicStatistics, "eth0", "rx_packets", 500);
    let Answer::Fine(why) = examine(&Case::of(&quiet)) else { panic!() };
    assert!(why.contains("ksoftirqd/1[22] waited 3.0 s, but eth0 had no traffic"), "{why}");
    // The device counted no packet at all.
    let mut idle = base();
    count(&mut idle, Source::NicStatistics, "eth0", "rx_packets", 0);
    count(&mut idle, Source::NicStatistics, "eth0", "tx_packets", 0);
    count(&mut idle, Source::Softirqs, "cpu1", "NET_RX", 500);
    assert_eq!(findings(&idle), []);
    let mut down = base();
    down.nics[0].up = Some(false);
    assert_eq!(findings(&down), []);
    // No counters prove nothing either way.
    let found = findings(&base());
    assert_eq!(found[0].severity, Severity::Info);
    assert!(found[0].title.contains("may not have been served"), "{}", found[0].title);
    // Without the queue's interrupt, the core's softirqs decide.
    let mut polled = base();
    polled.nics[0].queues[0].irq = None;
    count(&mut polled, Source::Softirqs, "cpu1", "NET_RX", 500);
    assert_eq!(findings(&polled)[0].severity, Severity::Critical);
    let mut unpolled = base();
    count(&mut unpolled, Source::Softirqs, "cpu1", "NET_RX", 0);
    assert_eq!(findings(&unpolled), []);
}

#[test]
fn a_ksoftirqd_that_never_ran_leaves_no_trace_of_packets() {
    let starved = Actor::kernel(22, "ksoftirqd/1", 1).until(99.0, Doing::Wait);
    let mut evidence = full_core().with(spinner()).with(starved).nic("eth0", 1).evidence();
    count(&mut evidence, Source::Interrupts, "cpu1", "LOC", 500);
    assert_eq!(findings(&evidence)[0].severity, Severity::Info);
}

#[test]
fn waits_count_from_a_tenth_of_a_second_and_turns_do_not() {
    let napi = |doing, until| {
        let napi = Actor::kernel(300, "napi/eth0-8195", 1).until(1.0, Doing::Sleep).until(until, doing);
        let napi = napi.until(until + 0.01, Doing::Run).until(99.0, Doing::Sleep);
        findings(&full_core().with(spinner()).with(napi).evidence()).len()
    };
    assert_eq!(napi(Doing::Wait, 1.09), 0);
    assert_eq!(napi(Doing::Wait, 1.12), 1);
    assert_eq!(napi(Doing::Turns { run: 0.4, wait: 0.6, slices: 200.0 }, 4.0), 0);
}

/// Core 1 serves eth0 and is in the kernel from 1 to 4 s; its NET_RX is as given, read every half second.
fn stuck(net_rx: impl Fn(f64) -> u64) -> Evidence {
    let mut evidence = Scene::new(4, 5.0)
        .load(1, 1.0, 4.0, Load::System, 1.0)
        .with(Actor::new(50, "kubelet", 1).in_kernel().between(1.0, 4.0, Doing::Run))
        .nic("eth0", 1)
        .evidence();
    for look in 0..=10 {
        let second = f64::from(look) / 2.0;
        evidence.counters.push(Source::Softirqs, "cpu0", "TIMER", time(second), 100 * (look as u64 + 1));
        evidence.counters.push(Source::Softirqs, "cpu1", "NET_RX", time(second), net_rx(second));
    }
    evidence
}

#[test]
fn a_stuck_core_is_a_starved_nic_only_if_packets_stopped() {
    let silent = stuck(|s| {
        if s < 1.0 {
            100
        } else if s <= 4.0 {
            150
        } else {
            500
        }
    });
    let found = findings(&silent);
    assert_eq!((found[0].subject.name.as_str(), found[0].severity), ("eth0", Severity::Critical));
    assert!(found[0].title.contains("kubelet[50]"), "{}", found[0].title);
    assert_eq!(findings(&stuck(|s| (s * 1000.0) as u64)), [], "packets were handled meanwhile");
    assert_eq!(findings(&stuck(|_| 100)), [], "no traffic at all");
}

#[test]
fn without_proof_it_is_info_and_says_may() {
    let mut evidence = stuck(|_| 0);
    evidence.counters = Default::default();
    let found = findings(&evidence);
    assert_eq!(found[0].severity, Severity::Info);
    assert!(found[0].title.contains("may not have been served"), "{}", found[0].title);
}

#[test]
fn a_core_full_of_softirqs_is_serving_its_queues() {
    let evidence = Scene::new(4, 5.0).load(1, 0.0, 5.0, Load::Softirq, 1.0).nic("eth0", 1).evidence();
    assert_eq!(findings(&evidence), []);
}

#[test]
fn a_busy_user_thread_on_the_core_of_a_nic_is_fine() {
    let evidence = full_core().with(Actor::new(50, "train", 1).until(99.0, Doing::Run)).nic("eth0", 1).evidence();
    let Answer::Fine(why) = examine(&Case::of(&evidence)) else { panic!() };
    assert_eq!(why, "no thread that polls a NIC had to wait");
}

#[test]
fn long_turns_among_many_equals_are_not_starvation() {
    let crowd = |wait: Doing| {
        let mut scene = full_core().with(
            Actor::kernel(300, "napi/vb-8195", 1).until(1.0, Doing::Sleep).until(4.0, wait).until(99.0, Doing::Sleep),
        );
        for tid in 100..110 {
            let turns = Doing::Turns { run: 0.1, wait: 0.9, slices: 30.0 };
            scene = scene.with(Actor::new(tid, "cc1plus", 1).until(99.0, turns));
        }
        findings(&scene.evidence()).len()
    };
    assert_eq!(crowd(Doing::Turns { run: 0.1, wait: 0.9, slices: 30.0 }), 0);
    assert_eq!(crowd(Doing::Wait), 1);
}

#[test]
fn a_thread_that_waits_on_an_idle_core_waits_for_something_else() {
    let evidence = Scene::new(2, 5.0).with(waits(Actor::kernel(300, "napi/vb-8195", 1))).evidence();
    assert_eq!(findings(&evidence), []);
}

#[test]
fn without_evidence_it_cannot_tell() {
    let mut evidence = full_core().with(spinner()).nic("eth0", 1).evidence();
    evidence.thread_samples.clear();
    assert!(matches!(examine(&Case::of(&evidence)), Answer::CannotTell { .. }));
    let mut no_nics = full_core().with(spinner()).evidence();
    no_nics.unseen(probe::NICS, "NICs", "/sys/class/net: Permission denied", "run as root");
    let Answer::CannotTell { because, .. } = examine(&Case::of(&no_nics)) else { panic!() };
    assert!(because.contains("Permission denied"), "{because}");
}
