//! With a real systemd in namespaces, which nobody else knows: it shares the machine.

use super::*;
use crate::watch::{Watch, WatchOptions};
use coroner_evidence::{FileFormat, FileQuestion, FileState};
use coroner_lab::{HostLock, LiveScenario};

#[test]
fn a_crashing_agent_is_seen_in_its_files_and_its_journal() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let live = LiveScenario::start("crashloop-leak", &["--seconds", "120"]).expect("the lab boots systemd");
    let bus = live.truth.facts["bus"].as_str().expect("its bus").to_owned();
    let question = FileQuestion {
        path: "/etc/ecs/ecs.config".into(),
        format: FileFormat::Lines,
        keys: vec!["ECS_CLUSTER".into()],
    };
    let audit = AuditOptions {
        questions: vec![question],
        agent_units: vec!["ecs.service".into(), "dbus.service".into(), "systemd-journald.service".into()],
        ..AuditOptions::default()
    };
    let options = WatchOptions { bus: Some(bus), audit: Some(audit), ..WatchOptions::default() };
    let mut watch = Watch::start(Root::live(), options, Duration::from_secs(3));
    let mut seen = Evidence::default();
    while let Some(turn) = watch.next_turn() {
        seen.append(turn);
    }
    drop(watch);
    live.stop().expect("the lab ends well");

    let ecs = seen.unit_files.iter().find(|u| u.name == "ecs.service").expect("its file");
    assert_eq!(ecs.enablement, Enablement::Enabled);
    assert_eq!(ecs.path.as_deref(), Some("/usr/lib/systemd/system/ecs.service"), "of the node behind the bus");
    let journald = seen.unit_files.iter().find(|u| u.name == "systemd-journald.service").expect("its file");
    assert_eq!(journald.package.as_ref().map(|p| p.name.as_str()), Some("systemd"));
    assert_eq!(seen.agent_files[0].state, FileState::Missing);

    let restarts: Vec<u32> =
        seen.unit_log.iter().filter(|l| l.unit == "ecs.service").filter_map(|l| l.restart).collect();
    assert!(restarts.len() >= 3, "{:?} {:?}", seen.unit_log, seen.unseen);
    assert!(restarts.windows(2).all(|pair| pair[0] < pair[1]), "{restarts:?}");
    let blind: Vec<_> = seen.unseen.iter().filter(|u| u.probe == probe::JOURNAL).collect();
    assert!(blind.is_empty(), "{blind:?}");
    let others = |l: &coroner_evidence::UnitLogLine| {
        !["ecs.service", "dbus.service", "systemd-journald.service"].contains(&l.unit.as_str())
    };
    assert!(!seen.unit_log.iter().any(others), "only requested units are kept: {:?}", seen.unit_log);
    println!("{} lines, sockets {:?}", seen.unit_log.len(), seen.unit_sockets);
}
