//! Other causes, two at once, none, and findings without a cause.

use super::node::*;
use super::*;
use crate::cores::scene::{Actor, Doing, Load, Scene, time};
use coroner_evidence::{CoreTimes, WorkKind};

/// A real-time thread pinned to a core from second 1 to 4, and a kernel worker that it keeps off.
fn with_real_time(scene: Scene, core: u32, tid: u32) -> Scene {
    scene
        .load(core, 1.0, 4.0, Load::User, 0.95)
        .with(Actor::new(tid, "spin", core).fifo(50).pinned().between(1.0, 4.0, Doing::Run))
        .with(
            Actor::kernel(tid + 1, &format!("kworker/{core}:1"), core)
                .until(1.0, Doing::Sleep)
                .until(4.0, Doing::Wait)
                .until(4.1, Doing::Run)
                .until(99.0, Doing::Sleep),
        )
}

#[test]
fn a_real_time_thread_is_the_root_and_the_full_core_its_effect() {
    let verdict = only(&with_real_time(quiet(), 1, 900).evidence());
    assert_eq!(
        (verdict.root_cause.code, verdict.root_cause.subject.name.as_str()),
        (Code::CoreMonopolised, "spin[900]")
    );
    assert_eq!(steps(&verdict), [(Code::CoreMonopolised, Code::CoreSaturated)]);
    assert_eq!(verdict.certainty, Certainty::Proven);
}

#[test]
fn a_real_time_thread_on_the_core_of_a_queue_explains_the_reset() {
    let scene = quiet()
        .load(CORE, 2.0, 8.6, Load::User, 0.95)
        .with(Actor::new(900, "spin", CORE).fifo(99).pinned().between(2.0, 8.6, Doing::Run))
        .with(starving(CORE));
    let mut evidence = scene.evidence();
    nic(&mut evidence, CORE);
    line(&mut evidence, 8.4, 7, "NETDEV WATCHDOG: eth0 (ena): transmit queue 5 timed out 5164 ms");
    let verdict = only(&evidence);
    assert_eq!(
        (verdict.root_cause.code, verdict.root_cause.subject.name.as_str()),
        (Code::CoreMonopolised, "spin[900]")
    );
    let reset = verdict.chain.iter().find(|link| link.to.code == Code::NicReset).unwrap();
    let text = format!("{} {:?}", reset.because, reset.proofs);
    assert!(text.contains("eth0 tx-5") && text.contains("core 3"), "the verdict names core and queue: {text}");
    assert_eq!(verdict.certainty, Certainty::Proven, "{}", told(&diagnose(&evidence)));
}

#[test]
fn two_independent_problems_are_two_verdicts() {
    let mut evidence = with_real_time(with_full_core(quiet()), 1, 900).evidence();
    unit(&mut evidence, "ecs.service", 24);
    dead(&mut evidence, CGROUP, 19_976, 20_000);
    work(&mut evidence, 2, 9, CORE, KUBELET, "kubelet", WorkKind::StatsWalk);
    let conclusion = concluded(&evidence);
    let told = told(&diagnose(&evidence));
    let mut roots = roots(&conclusion);
    roots.sort_unstable();
    assert_eq!(roots, [(Code::CoreMonopolised, "spin[900]"), (Code::UnitCrashloop, "ecs.service")], "{told}");
    for verdict in &conclusion.verdicts {
        let core =
            |name: &str| verdict.chain.iter().any(|l| l.to.code == Code::CoreSaturated && l.to.subject.name == name);
        match verdict.root_cause.code {
            Code::CoreMonopolised => assert!(core("1") && !core("3"), "{told}"),
            _ => assert!(core("3") && !core("1"), "{told}"),
        }
    }
    assert_eq!(conclusion.unexplained, []);
}

#[test]
fn two_crashloops_are_two_verdicts() {
    let mut evidence = quiet().evidence();
    unit(&mut evidence, "a.service", 24);
    unit(&mut evidence, "b.service", 9);
    sampled(&mut evidence);
    let conclusion = concluded(&evidence);
    let mut roots = roots(&conclusion);
    roots.sort_unstable();
    assert_eq!(roots, [(Code::UnitCrashloop, "a.service"), (Code::UnitCrashloop, "b.service")]);
}

#[test]
fn a_busy_node_with_nothing_wrong_gets_no_verdict() {
    // Each core has its own thread, and hardly any waits.
    let mut scene = quiet().all_cores(Load::User, 0.9);
    for core in 0..8 {
        let turns = Doing::Turns { run: 0.9, wait: 0.02, slices: 200.0 };
        scene = scene.with(Actor::new(1000 + core, "train", core).until(99.0, turns));
    }
    let mut evidence = scene.evidence();
    sampled(&mut evidence);
    unit(&mut evidence, "kubelet.service", 0);
    dead(&mut evidence, "/kubepods/pod", 30, 40);
    nic(&mut evidence, CORE);
    line(&mut evidence, 0.1, 7, "eth0: link up");
    assert_eq!(concluded(&evidence), Conclusion::default(), "{}", told(&diagnose(&evidence)));
}

#[test]
fn a_full_core_without_a_known_owner_is_unexplained() {
    let mut evidence = with_full_core(quiet()).evidence();
    (evidence.threads, evidence.thread_samples) = Default::default();
    let conclusion = concluded(&evidence);
    assert_eq!(conclusion.verdicts, []);
    let [core] = &conclusion.unexplained[..] else { panic!("{}", told(&diagnose(&evidence))) };
    assert_eq!(core.finding.code, Code::CoreSaturated);
    assert!(core.needs.contains("who had the core"), "{}", core.needs);
    assert!(core.command.contains("coroner "), "{}", core.command);
}

#[test]
fn a_full_core_is_blamed_on_its_thread_and_samples_add_what_it_did() {
    let mut evidence = with_full_core(quiet()).evidence();
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.code, Code::CoreSaturated);
    assert!(verdict.because.ends_with("kubelet[4711] filled core 3"), "{}", verdict.because);
    work(&mut evidence, 2, 9, CORE, KUBELET, "kubelet", WorkKind::Other);
    let verdict = only(&evidence);
    assert!(verdict.because.contains("kernel time around other_fn"), "{}", verdict.because);
}

#[test]
fn page_faults_that_fill_a_core_are_named_and_those_elsewhere_are_not() {
    let mut evidence = with_full_core(quiet()).evidence();
    work(&mut evidence, 2, 9, CORE, KUBELET, "kubelet", WorkKind::PageFault);
    assert_eq!(only(&evidence).root_cause.code, Code::PageFaults);
    // The same faults on another core while this one walks: a red herring that once cost weeks.
    let mut evidence = incident();
    work(&mut evidence, 0, 9, 5, 77, "train", WorkKind::PageFault);
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.subject.name, "ecs.service");
}

#[test]
fn a_reader_of_other_processes_page_tables_is_the_root() {
    let mut evidence = with_full_core(quiet()).evidence();
    work(&mut evidence, 2, 9, CORE, KUBELET, "kubelet", WorkKind::PageTables);
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.code, Code::ObserverCost);
    assert_eq!(steps(&verdict), [(Code::ObserverCost, Code::CoreSaturated)]);
    assert!(verdict.remedy.contains("cAdvisor"), "{}", verdict.remedy);
}

#[test]
fn work_of_another_process_on_the_core_does_not_explain_it() {
    let mut evidence = with_full_core(quiet()).evidence();
    work(&mut evidence, 2, 9, 5, 77, "agent", WorkKind::PageTables);
    let conclusion = concluded(&evidence);
    assert!(conclusion.verdicts.iter().all(|v| v.chain.is_empty()), "{}", told(&diagnose(&evidence)));
}

#[test]
fn a_stolen_core_is_the_hypervisors_and_not_the_threads() {
    let mut evidence = quiet().evidence();
    for CoreTimes { at, cores } in &mut evidence.core_times {
        let ticks = at.since(time(0.0)).as_millis() as u64 / 10;
        for core in cores {
            (core.user, core.steal, core.idle) = (1000 + ticks / 2, ticks / 2, 9000);
        }
    }
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.code, Code::CpuSteal);
    assert!(verdict.not_fixed.contains("provider"), "{}", verdict.not_fixed);
}

#[test]
fn a_reset_without_further_evidence_gets_a_command_instead_of_a_cause() {
    let mut evidence = quiet().evidence();
    line(&mut evidence, 5.0, 7, "NETDEV WATCHDOG: CPU: 1: transmit queue 1 timed out 5164 ms");
    let conclusion = concluded(&evidence);
    assert_eq!(conclusion.verdicts, []);
    assert_eq!(conclusion.unexplained.len(), 1);
    assert!(conclusion.unexplained[0].command.contains("coroner record"), "{:?}", conclusion.unexplained);
}
