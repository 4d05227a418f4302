use super::*;
use crate::agents::questions;
use crate::rules::test_evidence::{END, cannot_tell, fact_of, fine, one, watched};
use coroner_evidence::Evidence;
use coroner_evidence::{Container, Enablement, FileAnswer, FileState, Unit, UnitFile, UnitSockets};

/// A node with these units enabled and active, and their files all present or all missing.
fn node(units: &[&str], configured: bool) -> Evidence {
    let enabled =
        |name: &&str| UnitFile { name: name.to_string(), enablement: Enablement::Enabled, ..UnitFile::default() };
    let active = |name: &&str| Unit {
        at: END,
        name: name.to_string(),
        load_state: "loaded".into(),
        active_state: "active".into(),
        restarts: Some(0),
        ..Unit::default()
    };
    let mut evidence = Evidence {
        unit_files: units.iter().map(enabled).collect(),
        units: units.iter().map(active).collect(),
        ..watched(10)
    };
    let state = |question: &coroner_evidence::FileQuestion| match configured {
        true => FileState::Present { path: question.path.clone(), keys_set: question.keys.clone() },
        false => FileState::Missing,
    };
    let questions = questions(&evidence).unwrap();
    evidence.agent_files = questions.into_iter().map(|q| FileAnswer { state: state(&q), question: q }).collect();
    evidence
}

#[test]
fn two_orchestrators_are_named_with_their_signs_of_use() {
    let mut evidence = node(&["ecs.service", "kubelet.service", "amazon-ecs-volume-plugin.socket"], true);
    evidence.unit_sockets =
        vec![UnitSockets { at: END, unit: "kubelet.service".into(), processes: 1, listening: 2, connected: 3 }];
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!(f.severity, Severity::Warning);
    assert_eq!(f.title, "Two orchestrators on one node: ecs.service and kubelet.service");
    let used: Vec<String> = f.evidence.iter().filter(|f| f.key == FactKey::InUse).map(|f| f.value_text()).collect();
    assert!(used.iter().any(|u| u.contains("/etc/ecs/ecs.config has the cluster to join")), "{used:?}");
    assert!(used.iter().any(|text| text == "it has 3 network connections"), "{used:?}");
    assert!(f.detail.contains("Both show signs of use"), "{}", f.detail);
    assert!(!f.remedy.contains("disable --now kubelet"), "{}", f.remedy);
}

#[test]
fn one_without_configuration_is_no_conflict() {
    fine(examine(&Case::of(&node(&["ecs.service", "kubelet.service"], false))));
    fine(examine(&Case::of(&node(&["kubelet.service", "sshd.service"], true))));
}

#[test]
fn docker_beside_a_kubelet_is_worth_knowing_unless_it_has_containers() {
    let mut evidence = node(&["docker.service", "containerd.service", "kubelet.service"], true);
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!((f.severity, f.subject.name.as_str()), (Severity::Info, "docker.service"));
    assert_eq!(fact_of(&f, FactKey::InUse, "docker.service"), "no sign of use");
    assert!(f.detail.contains("docker.service shows no signs of use, kubelet.service is in use"), "{}", f.detail);
    assert!(
        f.remedy.contains("docker.service should not be removed") && !f.remedy.contains("systemctl"),
        "{}",
        f.remedy
    );
    evidence.containers =
        vec![Container { at: END, runtime: "docker".into(), name: "web".into(), ..Container::default() }];
    fine(examine(&Case::of(&evidence)));
}

#[test]
fn without_units_and_processes_it_cannot_tell() {
    cannot_tell(examine(&Case::of(&Evidence::default())));
}
