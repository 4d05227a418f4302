use super::*;
use coroner_evidence::{FileFormat, FileQuestion, FileState, TextFile};
use proptest::prelude::*;
use std::fs;

const AGENT: &str = "[Service]\nExecStart=/usr/bin/agent\nRestart=always\n[Install]\nWantedBy=multi-user.target\n";

fn image() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let units = dir.path().join("etc/systemd/system");
    fs::create_dir_all(units.join("multi-user.target.wants")).unwrap();
    fs::write(units.join("agent.service"), AGENT).unwrap();
    std::os::unix::fs::symlink("../agent.service", units.join("multi-user.target.wants/agent.service")).unwrap();
    fs::create_dir_all(dir.path().join("var/lib/dpkg/info")).unwrap();
    fs::write(dir.path().join("var/lib/dpkg/status"), "Package: agent\nVersion: 1.2\n\n").unwrap();
    fs::write(dir.path().join("var/lib/dpkg/info/agent.list"), "/.\n/etc/systemd/system/agent.service\n").unwrap();
    dir
}

fn options() -> AuditOptions {
    let question =
        FileQuestion { path: "/etc/agent.conf".into(), format: FileFormat::Lines, keys: vec!["CLUSTER".into()] };
    AuditOptions {
        questions: vec![question],
        agent_units: vec!["agent*.service".into()],
        catalogues: vec![TextFile { path: "/etc/coroner/agents.toml".into(), text: "x".into() }],
        baseline: Some(TextFile { path: "good".into(), text: "y".into() }),
    }
}

fn auditor(dir: &tempfile::TempDir) -> Auditor {
    Auditor::new(Root::at(dir.path()), None, options())
}

fn look(auditor: &mut Auditor, ask: Ask) -> Evidence {
    let mut evidence = Evidence::default();
    auditor.look(ask, &mut evidence);
    evidence
}

#[test]
fn files_are_reported_once_and_again_when_changed() {
    let dir = image();
    let mut auditor = auditor(&dir);
    let first = look(&mut auditor, Ask::Files);
    let agent = first.unit_files.iter().find(|u| u.name == "agent.service").unwrap();
    assert_eq!(agent.enablement, Enablement::Enabled);
    assert_eq!(agent.package.as_ref().map(|p| p.name.as_str()), Some("agent"));
    assert_eq!(first.agent_files[0].state, FileState::Missing);
    assert_eq!((first.catalogues.len(), first.baseline.is_some(), first.unseen.len()), (1, true, 0), "{first:?}");

    assert_eq!(look(&mut auditor, Ask::Files), Evidence::default(), "nothing changed");

    fs::write(dir.path().join("etc/agent.conf"), "CLUSTER=blue\n").unwrap();
    let changed = look(&mut auditor, Ask::Files);
    assert!(matches!(&changed.agent_files[0].state, FileState::Present { keys_set, .. } if keys_set == &["CLUSTER"]));
    assert_eq!(changed.unit_files, []);
    fs::remove_file(dir.path().join("etc/systemd/system/multi-user.target.wants/agent.service")).unwrap();
    let changed = look(&mut auditor, Ask::Files);
    let agent = changed.unit_files.iter().find(|u| u.name == "agent.service").unwrap();
    assert_eq!((agent.enablement, agent.package.is_some()), (Enablement::Disabled, true));
}

fn unit(name: &str, active: &str, sub: &str, restarts: Option<u32>) -> Unit {
    Unit { name: name.into(), active_state: active.into(), sub_state: sub.into(), restarts, ..Unit::default() }
}

#[test]
fn logs_are_read_for_agents_and_restarting_units() {
    let dir = image();
    let mut auditor = auditor(&dir);
    look(&mut auditor, Ask::Files);
    for seen in [
        unit("agent.service", "inactive", "dead", None),
        unit("agent-off.service", "inactive", "dead", None),
        unit("agent-2.service", "active", "running", Some(0)),
        unit("db.service", "active", "running", Some(0)),
        unit("broken.service", "failed", "failed", None),
        unit("again.service", "activating", "auto-restart", None),
        unit("agent-3.service", "active", "running", Some(4)),
        unit("agent.timer", "active", "waiting", None),
    ] {
        auditor.note(seen);
    }
    let wanted: Vec<(String, bool)> = auditor.wanted().into_iter().map(|w| (w.unit, w.loops)).collect();
    let expected = [
        ("agent-3.service", true),
        ("again.service", true),
        ("agent-2.service", false),
        ("agent.service", false),
        // Merely failed ones come last: there may be many.
        ("broken.service", true),
    ];
    assert_eq!(wanted, expected.map(|(unit, loops)| (unit.to_owned(), loops)));
    auditor.note(unit("agent-3.service", "active", "running", None));
    assert_eq!(auditor.units["agent-3.service"].restarts, Some(4), "not read is not zero");
}

#[test]
fn a_missing_root_is_reported() {
    let dir = image();
    let mut auditor = Auditor::new(Root::at(dir.path().join("gone")), None, options());
    let evidence = look(&mut auditor, Ask::Files);
    assert_eq!(evidence.unseen[0].probe, probe::UNIT_FILES);
    assert!(evidence.unseen[0].why.contains("gone"), "{:?}", evidence.unseen);
}

#[test]
fn late_answers_are_reported_as_unseen() {
    let (asks, _asked) = channel();
    let (_answer, answers) = channel();
    let pending = VecDeque::from([Ask::Files.about()]);
    let mut audit = Audit { asks, answers, pending, files_asked: Instant::now(), containers_asked: Instant::now() };
    let mut evidence = Evidence::default();
    audit.finish(Duration::from_millis(20), &mut evidence);
    let blind: Vec<&str> = evidence.unseen.iter().map(|u| u.probe.as_str()).collect();
    assert_eq!(blind, [probe::UNIT_FILES, probe::CONTAINERS, probe::UNIT_SOCKETS, probe::JOURNAL]);
}

#[test]
fn the_files_are_those_of_the_node_behind_the_bus() {
    let of = |address: &str| prefix_of_address(address).map(|p| p.display().to_string());
    let at = |prefix: &str| Some(prefix.to_owned());
    assert_eq!(of("unix:path=/proc/77/root/run/dbus/system_bus_socket"), at("/proc/77/root"));
    assert_eq!(of("unix:path=/host/var/run/dbus/system_bus_socket"), at("/host"));
    assert_eq!(of("unix:path=/host/run/systemd/private,guid=12"), at("/host"));
    assert_eq!(of("unix:guid=12,path=/my%20host/run/dbus/s;tcp:host=x"), at("/my host"));
    assert_eq!(of("unix:path=/run/dbus/system_bus_socket"), None);
    assert_eq!(of("unix:path=/var/run/dbus/system_bus_socket"), None);
    assert_eq!(of("unix:abstract=/host/run/dbus/x"), None);
    assert_eq!(of("unix:path=/tmp/bus"), None);
    assert_eq!(of("tcp:host=/host/run/dbus/x"), None);
    let root = Root::at("/some/tree");
    assert_eq!(root_of_bus(&root, Some("unix:path=/run/dbus/x")), root);
    assert_eq!(root_of_bus(&root, Some("unix:path=/proc/5/root/run/dbus/x")), Root::at("/proc/5/root"));
}

proptest! {
    #[test]
    fn any_address(text in any::<String>(), path in "[a-z%0-9/]{0,30}") {
        let _ = prefix_of_address(&text);
        let _ = prefix_of_address(&format!("unix:path={path}/run/dbus/x"));
    }
}
