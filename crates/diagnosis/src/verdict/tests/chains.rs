//! The chain of the incident, whole and with parts missing.

use super::node::*;
use super::*;
use crate::code::Code::{
    CoreMonopolised, CoreSaturated, MemcgWalk, NicCoreStarved, NicReset, SlowMemcgStat, UnitCrashloop, ZombieMemcgs,
};
use crate::cores::scene::{Actor, Doing, Load, time};
use coroner_evidence::{Evidence, Time, Wall, WorkKind};
use std::time::Duration;

fn reset_at(evidence: &mut Evidence, at: Time) {
    evidence.log.iter_mut().filter(|line| line.sequence > 0).for_each(|line| line.at = at);
}

#[test]
fn the_incident_is_one_story_from_the_agent_to_the_reset() {
    let evidence = incident();
    let verdict = only(&evidence);
    assert_eq!((verdict.root_cause.code, verdict.root_cause.subject.name.as_str()), (UnitCrashloop, "ecs.service"));
    assert_eq!(verdict.certainty, Certainty::Proven, "{}", told(&diagnose(&evidence)));
    assert_eq!(verdict.severity, Severity::Critical);
    let told_in_order = [
        (UnitCrashloop, ZombieMemcgs),
        (ZombieMemcgs, MemcgWalk),
        (MemcgWalk, CoreMonopolised),
        (CoreMonopolised, CoreSaturated),
        (CoreSaturated, NicCoreStarved),
        (NicCoreStarved, NicReset),
    ];
    assert_eq!(steps(&verdict), told_in_order);
    let context: Vec<Code> = verdict.context.iter().map(|more| more.code).collect();
    assert_eq!(context, [Code::AgentConflict], "the conflict with kubelet is context, not a verdict");
    // From the harm back to the root cause.
    for (word, before) in [("eth0", "core 3"), ("core 3", "20,000 dead"), ("20,000 dead", "ecs.service crashloops")] {
        let at = |word: &str| verdict.story.find(word).unwrap_or_else(|| panic!("no {word:?} in {}", verdict.story));
        assert!(at(word) < at(before), "{}", verdict.story);
    }
    assert!(verdict.not_fixed.contains("frees nothing"), "{}", verdict.not_fixed);
    assert_eq!(concluded(&evidence).unexplained, []);
    is_honest(&concluded(&evidence));
}

/// On a node in this state coroner itself is held up, too.
#[test]
fn a_walk_fills_a_core_though_its_longest_stretch_was_not_sampled() {
    let kubelet = Actor::new(KUBELET, "kubelet", CORE).in_kernel();
    let kubelet =
        kubelet.until(2.0, Doing::Run).until(3.5, Doing::Sleep).until(8.6, Doing::Run).until(99.0, Doing::Sleep);
    let scene = quiet().load(CORE, 0.0, 2.0, Load::System, 0.95).load(CORE, 3.5, 8.6, Load::System, 0.95);
    let mut evidence = scene.with(kubelet).with(starving(CORE)).evidence();
    dead(&mut evidence, CGROUP, 20_000, 20_000);
    work(&mut evidence, 0, 2, CORE, KUBELET, "kubelet", WorkKind::StatsWalk);
    evidence.kernel_work.truncate(2);
    let links = steps(&only(&evidence));
    assert!(links.contains(&(MemcgWalk, CoreMonopolised)), "{links:?}");
    evidence.kernel_work.iter_mut().for_each(|second| second.rows.retain(|row| row.kind != WorkKind::StatsWalk));
    let told = told(&diagnose(&evidence));
    assert!(!told.contains("memcg-walk"), "{told}");
}

#[test]
fn each_link_names_what_both_findings_share() {
    let verdict = only(&incident());
    let link = |from, to| verdict.chain.iter().find(|l| (l.from.code, l.to.code) == (from, to)).unwrap();
    let says = |from, to, words: &[&str]| {
        let link = link(from, to);
        let text = format!("{} {:?} {:?}", link.because, link.proofs, link.evidence);
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
    };
    says(UnitCrashloop, ZombieMemcgs, &["20,000 of the 20,000", "ecs.service"]);
    says(ZombieMemcgs, MemcgWalk, &["20,000"]);
    says(MemcgWalk, CoreMonopolised, &["kubelet[4711]", "core 3"]);
    says(CoreSaturated, NicCoreStarved, &["core 3", "eth0"]);
    says(NicCoreStarved, NicReset, &["eth0 tx-5", "core 3", "6.3 s"]);
}

#[test]
fn the_time_line_begins_with_the_walk_and_ends_with_the_reset() {
    let verdict = only(&incident());
    assert!(verdict.timeline.is_sorted_by_key(|m| m.at), "{:#?}", verdict.timeline);
    let last = verdict.timeline.last().unwrap();
    assert!(last.what.contains("eth0 was reset or hung"), "{:#?}", verdict.timeline);
    assert_eq!((last.at, last.uncertainty_ms), (Wall(1_700_000_008_400_000_000), 7));
}

#[test]
fn without_a_nic_it_ends_at_the_core() {
    let mut evidence = with_full_core(quiet()).evidence();
    unit(&mut evidence, "ecs.service", 24);
    restarted_before(&mut evidence, "ecs.service", 19_876);
    dead(&mut evidence, CGROUP, 19_976, 20_000);
    work(&mut evidence, 2, 9, CORE, KUBELET, "kubelet", WorkKind::StatsWalk);
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.subject.name, "ecs.service");
    assert_eq!(verdict.chain.last().unwrap().to.code, CoreSaturated, "{:?}", steps(&verdict));
    assert_eq!(verdict.certainty, Certainty::Proven);
}

#[test]
fn where_the_kernel_was_not_sampled_slow_reads_show_the_cost() {
    let mut evidence = quiet().evidence();
    unit(&mut evidence, "ecs.service", 24);
    dead(&mut evidence, CGROUP, 19_976, 20_000);
    dead_without_names(&mut evidence, 19_976, 20_000);
    slow_read(&mut evidence, 1_400);
    let verdict = only(&evidence);
    assert_eq!(steps(&verdict), [(UnitCrashloop, ZombieMemcgs), (ZombieMemcgs, SlowMemcgStat)]);
    assert_eq!(verdict.risk, None, "it already does harm");
}

#[test]
fn zombies_that_cost_nothing_yet_are_a_risk_with_a_date() {
    let mut evidence = quiet().evidence();
    evidence.node.as_mut().unwrap().kernel = Some("6.1.0-40-cloud-amd64".to_owned());
    unit(&mut evidence, "ecs.service", 24);
    // 24 in 9.5 s are 9,095 per hour: the missing 2,703 take 18 minutes.
    dead(&mut evidence, CGROUP, 976, 1_000);
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.subject.name, "ecs.service");
    assert_eq!(steps(&verdict), [(UnitCrashloop, ZombieMemcgs)]);
    let risk = verdict.risk.expect("no cost yet, but growing");
    for word in ["3,703", "memory reclaim", "2023-11-14", "18 min"] {
        assert!(risk.contains(word), "{word}: {risk}");
    }
}

#[test]
fn few_restarts_cannot_have_left_thousands() {
    let mut evidence = quiet().evidence();
    unit(&mut evidence, "ecs.service", 24);
    dead(&mut evidence, CGROUP, 5_976, 6_000);
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.subject.name, "ecs.service");
    assert_eq!(verdict.certainty, Certainty::Likely);
    let size = &verdict.chain[0].proofs.size;
    assert!(size.text().contains("124 can be its own") && size.text().contains("5,876 were there before"), "{size:?}");
    // As many restarts as dead cgroups.
    restarted_before(&mut evidence, "ecs.service", 5_876);
    assert_eq!(only(&evidence).certainty, Certainty::Proven);
}

#[test]
fn births_of_the_last_hour_are_no_forecast() {
    let mut evidence = quiet().evidence();
    evidence.node.as_mut().unwrap().kernel = Some("6.1.0-40-cloud-amd64".to_owned());
    dead(&mut evidence, "/lab/gone", 1_000, 1_000);
    for scan in &mut evidence.zombie_scans {
        for zombie in &mut scan.zombies {
            zombie.born = crate::zombies::test_scan::born(time(0.0) - Duration::from_secs(600), true);
        }
    }
    let verdict = only(&evidence);
    assert_eq!((verdict.root_cause.code, verdict.risk), (ZombieMemcgs, None), "nothing was seen to grow");
}

#[test]
fn zombies_that_do_not_grow_have_no_date() {
    let mut evidence = quiet().evidence();
    dead(&mut evidence, "/lab/gone", 1_000, 1_000);
    // The first look was two minutes before.
    evidence.zombie_scans[0].at = time(0.0) - Duration::from_secs(120);
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.code, ZombieMemcgs);
    assert_eq!(verdict.risk, None);
}

#[test]
fn without_units_the_dead_cgroups_are_the_root() {
    let mut evidence = incident();
    evidence.units.clear();
    for scan in &mut evidence.zombie_scans {
        scan.zombies.iter_mut().for_each(|zombie| zombie.path = "/batch/job".to_owned());
    }
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.code, ZombieMemcgs);
    assert!(steps(&verdict).contains(&(NicCoreStarved, NicReset)));
    assert_ne!(verdict.certainty, Certainty::Proven, "who makes them was not seen");
    is_honest(&concluded(&evidence));
}

#[test]
fn a_reset_that_nobody_watched_is_not_blamed_on_what_runs_now() {
    // The reset was ten minutes ago, the walk is now.
    let mut evidence = incident();
    reset_at(&mut evidence, time(0.0) - Duration::from_secs(600));
    let conclusion = concluded(&evidence);
    let chained = conclusion.verdicts.iter().flat_map(steps).any(|(_, to)| to == NicReset);
    assert!(!chained, "{}", told(&diagnose(&evidence)));
    let [reset] = &conclusion.unexplained[..] else { panic!("{}", told(&diagnose(&evidence))) };
    assert_eq!(reset.finding.code, NicReset);
    assert!(reset.command.contains("coroner record"), "{}", reset.command);
}

#[test]
fn a_cause_that_comes_after_its_effect_is_no_cause() {
    // eth0 was reset before the core was occupied.
    let mut evidence = incident();
    reset_at(&mut evidence, time(1.0));
    let conclusion = concluded(&evidence);
    assert!(
        !conclusion.verdicts.iter().flat_map(steps).any(|(_, to)| to == NicReset),
        "{}",
        told(&diagnose(&evidence))
    );
    assert_eq!(conclusion.unexplained[0].finding.code, NicReset);
}

#[test]
fn an_uncertain_log_clock_proves_no_order() {
    let mut evidence = incident();
    evidence.log.iter_mut().for_each(|line| line.uncertainty_ns = 9_000_000_000);
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.subject.name, "ecs.service");
    assert_eq!(verdict.certainty, Certainty::Likely);
    let reset = verdict.chain.iter().find(|link| link.to.code == NicReset).unwrap();
    assert!(reset.proofs.order.text().contains("may be off by"), "{:?}", reset.proofs);
    assert!(!reset.proofs.order.is_shown());
}

#[test]
fn a_reset_of_a_queue_on_another_core_is_unrelated() {
    let mut evidence = with_full_core(quiet()).evidence();
    unit(&mut evidence, "ecs.service", 24);
    dead(&mut evidence, CGROUP, 19_976, 20_000);
    work(&mut evidence, 2, 9, CORE, KUBELET, "kubelet", WorkKind::StatsWalk);
    nic(&mut evidence, 6);
    line(&mut evidence, 8.4, 7, PAUSED);
    let conclusion = concluded(&evidence);
    assert_eq!(roots(&conclusion), [(UnitCrashloop, "ecs.service")], "{}", told(&diagnose(&evidence)));
    assert_eq!(conclusion.unexplained[0].finding.code, NicReset);
}

#[test]
fn without_names_of_the_dead_the_unit_is_only_possible() {
    let mut evidence = incident();
    evidence.zombie_scans.clear();
    dead_without_names(&mut evidence, 19_976, 20_000);
    let verdict = only(&evidence);
    assert_eq!(verdict.root_cause.subject.name, "ecs.service");
    assert_eq!(verdict.certainty, Certainty::Possible);
    is_honest(&concluded(&evidence));
}

#[test]
fn a_crashloop_with_few_dead_of_its_own_is_not_blamed() {
    let mut evidence = incident();
    evidence.zombie_scans.clear();
    // The looping unit left 9; a batch system left 20,000.
    dead(&mut evidence, CGROUP, 3, 9);
    dead(&mut evidence, "/batch/job", 19_900, 20_000);
    let conclusion = concluded(&evidence);
    let roots = roots(&conclusion);
    let told = told(&diagnose(&evidence));
    assert!(roots.iter().any(|(code, _)| *code == ZombieMemcgs), "{told}");
    let unit = conclusion.verdicts.iter().find(|v| v.root_cause.code == UnitCrashloop).expect("it still loops");
    assert_eq!(steps(unit), [], "{told}");
    assert_eq!(conclusion.verdicts[0].root_cause.code, ZombieMemcgs, "what hurts comes first: {told}");
}

#[test]
fn a_unit_with_a_minority_of_the_dead_is_not_proven() {
    let mut evidence = incident();
    evidence.zombie_scans.clear();
    dead(&mut evidence, CGROUP, 7_976, 8_000);
    dead(&mut evidence, "/batch/job", 12_000, 12_000);
    let conclusion = concluded(&evidence);
    let unit = conclusion.verdicts.iter().find(|v| v.root_cause.code == UnitCrashloop).unwrap();
    assert!(unit.certainty < Certainty::Proven, "{}", told(&diagnose(&evidence)));
    is_honest(&conclusion);
    // With a small share there is no link.
    evidence.zombie_scans.clear();
    dead(&mut evidence, CGROUP, 1_976, 2_000);
    dead(&mut evidence, "/batch/job", 18_000, 18_000);
    let conclusion = concluded(&evidence);
    let unit = conclusion.verdicts.iter().find(|v| v.root_cause.code == UnitCrashloop).unwrap();
    assert_eq!(steps(unit), []);
}

#[test]
fn a_walk_over_live_cgroups_is_not_blamed_on_a_few_dead() {
    let mut evidence = incident();
    for scan in &mut evidence.zombie_scans {
        scan.zombies.truncate(400);
        (scan.dead, scan.live, scan.tracked) = (Some(400), Some(30_000), Some(30_401));
    }
    let conclusion = concluded(&evidence);
    let told = told(&diagnose(&evidence));
    let walk = conclusion.verdicts.iter().find(|v| v.root_cause.code == MemcgWalk).unwrap_or_else(|| panic!("{told}"));
    assert!(walk.root_cause.subject.name.contains("kubelet"), "{told}");
    assert!(!conclusion.verdicts.iter().flat_map(steps).any(|step| step == (ZombieMemcgs, MemcgWalk)), "{told}");
}
