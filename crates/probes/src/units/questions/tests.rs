use super::*;
use coroner_evidence::{Clocks, Wall};

const NOW: Clocks = Clocks { at: Time(100_000_000_000), wall: Wall(1_000_000_000_000), boot_ns: 0 };

fn unit(name: &str, active: &str, sub: &str) -> Unit {
    Unit {
        name: name.into(),
        load_state: "loaded".into(),
        active_state: active.into(),
        sub_state: sub.into(),
        ..Unit::default()
    }
}

fn known(unit: &Unit) -> KnownUnit {
    KnownUnit { unit: Unit { invocation_id: Some("1".into()), ..unit.clone() }, suspect: false }
}

#[test]
fn the_first_look_queries_every_service_and_later_ones_those_that_may_have_run() {
    let running = unit("a.service", "active", "running");
    let dead = unit("a.service", "inactive", "dead");
    let looping = unit("a.service", "activating", "auto-restart");
    let look = Look::Changes;
    assert_eq!(first(&running, None, look), OF_ACTIVE);
    assert_eq!(first(&dead, None, look), OF_INACTIVE);
    assert_eq!(first(&looping, None, look), OF_SUSPECT);
    assert_eq!(first(&running, Some(&known(&running)), look), OF_STEADY);
    assert_eq!(first(&dead, Some(&known(&dead)), look), OF_STEADY, "it ran once and may have run again");
    let never_ran = KnownUnit { unit: dead.clone(), suspect: false };
    assert_eq!(first(&dead, Some(&never_ran), look), &[]);
    let waits_for_timer = Unit { triggered_by: vec!["a.timer".into()], ..dead.clone() };
    assert_eq!(first(&dead, Some(&KnownUnit { unit: waits_for_timer, suspect: false }), look), OF_STEADY);
    assert_eq!(first(&dead, Some(&known(&running)), look), OF_INACTIVE, "it ended");
    // Neither reset-failed nor a quiet moment ends the suspicion.
    let once_looped = KnownUnit { suspect: true, ..known(&running) };
    assert_eq!(first(&running, Some(&once_looped), look), OF_SUSPECT);
    let failed = unit("a.service", "failed", "failed");
    assert_eq!(first(&failed, None, look), OF_SUSPECT);
    assert_eq!(first(&failed, Some(&known(&failed)), look), OF_STEADY, "still failed");
    assert!(is_suspect(&looping) && !is_suspect(&failed));
    assert!(is_suspect(&Unit { restarts: Some(1), ..running.clone() }));
    assert!(!is_suspect(&running) && !is_suspect(&dead));
    for name in ["a.mount", "a.slice", "a.device", "nonsense"] {
        assert_eq!(first(&unit(name, "active", "x"), None, Look::All), &[]);
    }
    assert_eq!(first(&Unit { load_state: "not-found".into(), ..dead }, None, Look::All), &[]);
}

#[test]
fn a_new_invocation_is_followed_up() {
    let running = unit("a.service", "active", "running");
    let same = Unit { invocation_id: Some("1".into()), ..running.clone() };
    let other = Unit { invocation_id: Some("2".into()), ..running.clone() };
    let before = known(&running);
    assert_eq!(next(InvocationId, OF_STEADY, &same, Some(&before)), &[]);
    assert!(next(InvocationId, OF_STEADY, &other, Some(&before)).contains(&MainStarted));
    assert_eq!(next(InvocationId, OF_INACTIVE, &running, None), &[], "it never ran");
    assert_eq!(next(InvocationId, OF_INACTIVE, &other, None), OF_ENDED);
}

#[test]
fn systemd_values_that_mean_none() {
    let mut unit = Unit::default();
    for (property, value) in [
        (Result, Value::Text("success")),
        (Restarts, Value::Unsigned(0)),
        (MainStarted, Value::Unsigned(0)),
        (MainPid, Value::Unsigned(0)),
        (MainCode, Value::Signed(0)),
        (MainStatus, Value::Signed(0)),
        (RestartDelay, Value::Text("of another type")),
        (ControlGroup, Value::Text("")),
        (CpuUsed, Value::Unsigned(u64::MAX)),
        (LastTrigger, Value::Unsigned(0)),
        (NextMonotonic, Value::Unsigned(u64::MAX)),
        (InvocationId, Value::Bytes(&[])),
        (ConditionsTried, Value::Unsigned(0)),
        (Accept, Value::Flag(false)),
    ] {
        note(&mut unit, property, &value, NOW);
    }
    settle(&mut unit);
    let expected = Unit { result: Some("success".into()), restarts: Some(0), ..Unit::default() };
    assert_eq!(unit, expected);
    assert_eq!(hex(&[0; 16]), None);
    assert_eq!(hex(&[0, 255]), Some("00ff".to_owned()));
    assert_eq!(exit_kind(2).as_deref(), Some("killed"));
}

#[test]
fn a_timers_next_trigger_is_the_sooner_of_its_clocks() {
    let mut unit = Unit::default();
    note(&mut unit, NextReal, &Value::Unsigned(1_060_000_000), NOW);
    assert_eq!(unit.next_trigger, Some(Wall(1_060_000_000_000)));
    note(&mut unit, NextMonotonic, &Value::Unsigned(130_000_000), NOW);
    assert_eq!(unit.next_trigger, Some(Wall(1_030_000_000_000)), "30 s from now");
}
