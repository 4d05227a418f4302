//! What is written can be read back, and additions of newer versions do no harm.

use coroner_report::incident::{Also, Incident, IncidentState, Lasting};
use coroner_report::node::{Gpu, Node, NodeIdentity, Software};
use coroner_report::*;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Through JSON, with a field that this version does not know.
fn again<T: Serialize + DeserializeOwned + PartialEq + Debug>(told: &T) {
    let mut json = serde_json::to_value(told).unwrap();
    assert_eq!(serde_json::from_value::<T>(json.clone()).unwrap(), *told);
    if let Some(fields) = json.as_object_mut() {
        fields.insert("of_a_newer_version".to_owned(), serde_json::json!([{ "x": 1 }]));
    }
    assert_eq!(serde_json::from_value::<T>(json).unwrap(), *told);
}

fn node() -> Node {
    Node {
        host: Some("gpu-7".to_owned()),
        booted: Some(Wall(1_780_000_000_123_000_000)),
        kernel: Some("6.18".to_owned()),
        cores: Some(192),
        memory_bytes: Some(512 << 30),
        kubelet: Some(Software {
            name: "kubelet".into(),
            running: Some(true),
            version: Some("1.34".into()),
            seen_by: "process".into(),
        }),
        gpus: vec![Gpu { bus: "0000:0a:00.0".into(), model: Some("H100".into()), driver: Some("580".into()) }; 8],
        ..Node::default()
    }
}

#[test]
fn identities_minutes_and_incidents_can_be_read_back() {
    again(&node());
    let identity = NodeIdentity::of(&node());
    assert_eq!((identity.attributes["gpus"].as_str(), identity.attributes["gpu"].as_str()), ("8", "H100"));
    assert!(!identity.attributes.contains_key("zone"), "unknown attributes are absent");
    again(&identity);
    let core = CoreMinute { core: 3, busy: 0.5, system: 0.25, saturated_s: 1.5 };
    again(&Minute {
        minute: Wall(1_780_000_020_000_000_000),
        busy_mean: Some(0.5),
        by_core: vec![core],
        ..Minute::default()
    });
    let stack = StackSamples { stack: "kubelet;main;vfs_read_[k]".to_owned(), samples: 7 };
    again(&HeaviestStacks {
        from: Wall(1_780_000_020_000_000_000),
        until: Wall(1_780_000_620_000_000_000),
        samples: 9,
        stacks: vec![stack],
    });
    let also = Also { at: Wall(7), code: "mark".into(), subject: "node".into(), text: "…".into() };
    let incident = Incident {
        schema: incident::SCHEMA.to_owned(),
        number: 3,
        code: "nic-reset".into(),
        key: Some("nic-reset:ena".into()),
        subject: "eth0".into(),
        by: None,
        core: Some(3),
        text: "…".into(),
        triggered: Wall(1),
        lasting: Some(Lasting::since(Wall(5))),
        from: Wall(0),
        until: Wall(9),
        state: IncidentState::Open,
        frozen: None,
        repeats: 2,
        last_repeat: Some(Wall(8)),
        last_repeat_text: None,
        also: vec![also],
        also_more: 0,
        error: None,
    };
    again(&incident);
    // Files that older versions wrote and read have numbers.
    let json = serde_json::to_value(&incident).unwrap();
    assert_eq!((&json["triggered_real_ns"], &json["last_repeat_real_ns"]), (&1.into(), &8.into()));
    assert_eq!((&json["lasting"]["since_real_ns"], &json["also"][0]["real_ns"]), (&5.into(), &7.into()));
}

fn value() -> impl Strategy<Value = FactValue> {
    prop_oneof![
        any::<u64>().prop_map(FactValue::Count),
        (i64::MIN..0).prop_map(FactValue::Integer),
        (-1e9..1e9f64).prop_map(FactValue::Number),
        ".{0,20}".prop_map(FactValue::Text),
    ]
}

fn key() -> impl Strategy<Value = FactKey> {
    let other = "[a-z0-9_]{1,47}".prop_map(|name| match FactKey::parse(&name) {
        Some(known) => known,
        None => FactKey::Other(Name::new(&name).unwrap()),
    });
    prop_oneof![proptest::sample::select(FactKey::ALL), other]
}

prop_compose! {
    fn fact()(key in key(), value in value(), of in proptest::option::of(".{0,9}"), over_ms in proptest::option::of(any::<u64>()), source in ".{0,9}") -> Fact {
        Fact { of, over_ms, ..Fact::new(key, value, source) }
    }
}

proptest! {
    #[test]
    fn facts_proofs_and_verdicts_can_be_read_back(
        facts in proptest::collection::vec(fact(), 0..4), text in ".{0,20}", shown in any::<bool>(), ms in 0..4_000_000_000_000_u64,
        code in proptest::sample::select(Code::ALL),
    ) {
        facts.iter().for_each(again);
        let proof = || if shown { Proof::shown(text.clone()) } else { Proof::not_seen(text.clone()) };
        let proofs = Proofs { identity: proof(), order: proof(), size: proof() };
        let finding = FindingRef { code, key: text.clone(), subject: Subject::new(SubjectKind::Core, "1"), by: None, title: text.clone() };
        let link = Link {
            from: finding.clone(), to: finding.clone(), because: text.clone(), certainty: proofs.certainty(), proofs: proofs.clone(),
            evidence: facts.clone(),
        };
        let moment = Moment { at: Wall(ms * 1_000_000), uncertainty_ms: ms, already: shown, what: text.clone() };
        let verdict = Verdict {
            key: text.clone(), root_cause: finding.clone(), certainty: Certainty::Likely, severity: Severity::Critical, story: text.clone(),
            story_path: vec![text.clone()], story_also: vec![text.clone()], first_aid: Some(text.clone()), fix: text.clone(),
            chain: vec![link], context: vec![finding.clone()], because: text.clone(), proofs, timeline: vec![moment],
            time: TimeSpan { from: Some(Wall(ms * 1_000_000)), already: shown, ongoing: shown, uncertainty_ms: ms, until: None },
            over: shown.then_some(Wall(ms * 1_000_000)), remedy: text.clone(), not_fixed: text.clone(), risk: Some(text.clone()),
        };
        again(&verdict);
        let unexplained = Unexplained { finding, needs: text.clone(), command: text.clone(), then: text.clone() };
        again(&Conclusion { verdicts: vec![verdict], unexplained: vec![unexplained] });
        again(&Unseen { probe: text.clone(), about: About::ALL.get(facts.len()).copied(), what: text.clone(), why: text.clone(), how_to_see: text });
    }

    #[test]
    fn names_of_other_versions_survive_and_nothing_else_does(text in "\\PC{0,60}") {
        let read: Result<Code, _> = serde_json::from_value(serde_json::json!(text));
        prop_assert_eq!(read.as_ref().ok().map(|code| code.as_str().to_owned()), Name::new(&text).map(|name| name.as_str().to_owned()));
    }
}
