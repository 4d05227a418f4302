//! Against peers that answer, hang, disconnect or send garbage.

use super::address::{UnixSocket, connect};
use super::fake_systemd::{FakeSystemd, Script};
use super::wire::Value;
use super::*;
use coroner_evidence::{Unit, Wall};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(500);

fn at_socket(path: &Path) -> UnitReader {
    UnitReader::new(Root::live(), Some(format!("unix:path={}", path.display())))
}

fn look_with(reader: &mut UnitReader, look: Look) -> Evidence {
    let mut evidence = Evidence::default();
    let started = Instant::now();
    reader.start(Time::from_secs(1), look);
    assert!(reader.collect(LONG, &mut evidence));
    assert!(started.elapsed() < reader.limit + LONG, "{:?}", started.elapsed());
    evidence
}

fn unseen_of(mut reader: UnitReader) -> String {
    let mut evidence = look_with(&mut reader, Look::All);
    assert_eq!((evidence.units.len(), evidence.unseen.len()), (0, 1), "{evidence:?}");
    let unseen = evidence.unseen.remove(0);
    assert_eq!(unseen.probe, probe::UNITS);
    assert!(unseen.how_to_see.contains("--bus"), "{unseen:?}");
    unseen.why
}

fn running(name: &str, invocation: &'static [u8; 2], restarts: u64) -> Script {
    let of = |property, value| (name.to_owned(), property, value);
    Script {
        units: vec![(name.to_owned(), "active", "running")],
        values: vec![
            of("InvocationID", Value::Bytes(invocation)),
            of("NRestarts", Value::Unsigned(restarts)),
            of("Result", Value::Text("success")),
            of("ExecMainStartTimestampMonotonic", Value::Unsigned(7_000_000)),
            of("Restart", Value::Text("always")),
            of("RestartUSec", Value::Unsigned(100_000)),
            of("ControlGroup", Value::Text("/system.slice/x.service")),
            of("MainPID", Value::Unsigned(5)),
        ],
        ..Script::default()
    }
}

impl Script {
    fn and(mut self, other: Script) -> Script {
        self.units.extend(other.units);
        self.values.extend(other.values);
        self
    }
}

fn names(evidence: &Evidence) -> Vec<&str> {
    evidence.units.iter().map(|u| u.name.as_str()).collect()
}

fn of<'e>(evidence: &'e Evidence, name: &str) -> &'e Unit {
    evidence.units.iter().find(|u| u.name == name).unwrap_or_else(|| panic!("no {name}: {evidence:?}"))
}

#[test]
fn a_node_without_systemd_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(unseen_of(UnitReader::new(Root::at(dir.path()), None)), "systemd is not running here");
}

#[test]
fn a_missing_socket_and_a_bad_address_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("run/systemd/system")).unwrap();
    let why = unseen_of(UnitReader::new(Root::at(dir.path()), None));
    assert!(why.contains("run/dbus/system_bus_socket") && why.contains("No such file"), "{why}");
    let why = unseen_of(UnitReader::new(Root::live(), Some("nonsense".into())));
    assert!(why.contains("nonsense"), "{why}");
    let why = unseen_of(UnitReader::new(Root::live(), Some("unixexec:path=/bin/true".into())));
    assert!(why.contains("not a unix socket"), "{why}");
}

#[test]
fn a_bus_that_never_answers_is_abandoned_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bus");
    let listener = UnixListener::bind(&path).unwrap();
    let mut reader = at_socket(&path);
    reader.limit = SHORT;
    let mut evidence = Evidence::default();
    let started = Instant::now();
    reader.start(Time::from_secs(1), Look::All);
    assert!(!reader.collect(Duration::from_millis(1), &mut evidence), "waits no longer than asked");
    assert_eq!(evidence.unseen, []);
    reader.start(Time::from_secs(1), Look::All);
    assert!(reader.collect(LONG, &mut evidence));
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    assert!(evidence.unseen[0].why.starts_with("the bus did not answer within 0."), "{evidence:?}");
    // We closed the connection.
    let (mut peer, _) = listener.accept().unwrap();
    assert!(std::io::Read::read_to_end(&mut peer, &mut Vec::new()).is_ok());
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "only one connection was made");
}

#[test]
fn a_full_queue_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bus");
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let place = UnixSocket::File(path.clone());
    let mut held = Vec::new();
    while let Ok(stream) = connect(&place) {
        held.push(stream);
        assert!(held.len() < 1000);
    }
    let why = unseen_of(at_socket(&path));
    assert!(why.contains("temporarily unavailable"), "{why}");
}

#[test]
fn garbage_from_the_bus_is_reported() {
    for garbage in [&b"REJECTED\r\n"[..], b"\xff\xfe\0\0\n", b"OK 1234\r\nl\x02\x01\x01\xff\xff\xff\xff01234567", b""] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let _ = peer.write_all(garbage);
        });
        let mut reader = at_socket(&path);
        reader.limit = Duration::from_secs(5);
        let why = unseen_of(reader);
        assert!(why.contains("cannot query systemd"), "{why}");
        server.join().unwrap();
    }
}

#[test]
fn services_timers_and_sockets_are_reported_with_their_triggers() {
    let is = |name: &str, property, value| (name.to_owned(), property, value);
    for is_private in [false, true] {
        let script = Script {
            units: vec![
                ("job.service".into(), "inactive", "dead"),
                ("job.timer".into(), "active", "waiting"),
                ("skipped.service".into(), "inactive", "dead"),
                ("never.service".into(), "inactive", "dead"),
                ("counted.socket".into(), "active", "listening"),
                ("uncounted.socket".into(), "active", "listening"),
                ("home.mount".into(), "active", "mounted"),
            ],
            values: vec![
                is("job.service", "InvocationID", Value::Bytes(&[1, 2])),
                is("job.service", "Type", Value::Text("oneshot")),
                is("job.service", "Restart", Value::Text("no")),
                is("job.service", "Result", Value::Text("exit-code")),
                is("job.service", "ExecMainCode", Value::Signed(1)),
                is("job.service", "ExecMainStatus", Value::Signed(3)),
                is("job.service", "ExecMainStartTimestampMonotonic", Value::Unsigned(5)),
                is("job.service", "ExecMainExitTimestampMonotonic", Value::Unsigned(6)),
                is("job.service", "CPUUsageNSec", Value::Unsigned(77)),
                is("job.timer", "Triggers", Value::Texts(vec!["job.service"])),
                is("job.timer", "LastTriggerUSec", Value::Unsigned(8)),
                is("job.timer", "NextElapseUSecRealtime", Value::Unsigned(9)),
                is("skipped.service", "ConditionTimestampMonotonic", Value::Unsigned(4)),
                is("skipped.service", "ConditionResult", Value::Flag(false)),
                is("counted.socket", "Accept", Value::Flag(true)),
                is("counted.socket", "NAccepted", Value::Unsigned(3)),
                is("counted.socket", "NConnections", Value::Unsigned(1)),
                is("uncounted.socket", "Accept", Value::Flag(false)),
            ],
            is_private,
            ..running("web.service", &[1, 1], 0)
        }
        .and(running("web.service", &[1, 1], 0));
        let peer = FakeSystemd::start(script);
        let mut reader = at_socket(&peer.path);
        let first = look_with(&mut reader, Look::All);
        assert_eq!((first.units.len(), &first.unseen[..]), (8, &[][..]), "{first:?}");
        let job = of(&first, "job.service");
        assert_eq!((job.service_type.as_deref(), job.result.as_deref()), (Some("oneshot"), Some("exit-code")));
        assert_eq!((job.exit_kind.as_deref(), job.exit_status), (Some("exited"), Some(3)));
        assert_eq!((job.main_started, job.main_exited), (Some(Time(5000)), Some(Time(6000))));
        assert_eq!((job.cpu_ns, &job.triggered_by[..]), (Some(77), &["job.timer".to_owned()][..]));
        let timer = of(&first, "job.timer");
        assert_eq!((timer.last_trigger, timer.next_trigger), (Some(Wall(8000)), Some(Wall(9000))));
        assert_eq!(timer.triggers, ["job.service"]);
        assert_eq!(of(&first, "skipped.service").conditions_held, Some(false));
        assert_eq!(of(&first, "never.service").conditions_held, None);
        let counted = of(&first, "counted.socket");
        assert_eq!((counted.accepted, counted.connections), (Some(3), Some(1)));
        assert_eq!(of(&first, "uncounted.socket").accepted, None, "systemd does not count here");
        let web = of(&first, "web.service");
        assert_eq!((web.restarts, web.restart_delay_us), (Some(0), Some(100_000)));
        assert_eq!((web.conditions_held, web.main_pid), (Some(true), None), "the pid's namespace is unknown here");
        let asked = peer.take_asked();
        assert!(!asked.iter().any(|a| a.contains("home.mount") || a.contains("UnitFileState")), "{asked:?}");
        assert!(!asked.contains(&"never.service Result".to_owned()), "{asked:?}");

        // Nothing changed: little is asked, nothing reported.
        let second = look_with(&mut reader, Look::Changes);
        assert_eq!((names(&second), &second.unseen[..]), (vec![], &[][..]));
        let mut asked = peer.take_asked();
        asked.sort_unstable();
        assert_eq!(asked, ["ListUnits", "job.service InvocationID", "web.service InvocationID"]);
        // The last look reports running units again.
        let last = look_with(&mut reader, Look::All);
        assert_eq!(names(&last), ["web.service"]);
        assert_eq!(Unit { at: web.at, ..of(&last, "web.service").clone() }, *web);
    }
}

#[test]
fn a_start_between_two_looks_is_reported_whatever_the_counts_say() {
    let peer = FakeSystemd::start(running("web.service", &[1, 1], 0));
    let mut reader = at_socket(&peer.path);
    look_with(&mut reader, Look::All);
    *peer.script.lock().unwrap() = running("web.service", &[2, 2], 0);
    let second = look_with(&mut reader, Look::Changes);
    assert_eq!(of(&second, "web.service").invocation_id.as_deref(), Some("0202"));
    assert_eq!(of(&second, "web.service").main_started, Some(Time::from_secs(7)));
}

#[test]
fn a_unit_that_once_looped_is_always_queried_in_full() {
    let peer = FakeSystemd::start(running("ecs.service", &[1, 1], 30));
    let mut reader = at_socket(&peer.path);
    look_with(&mut reader, Look::All);
    // After reset-failed: the count is zero, and it happens to run.
    *peer.script.lock().unwrap() = running("ecs.service", &[2, 2], 0);
    let look = look_with(&mut reader, Look::Changes);
    assert_eq!(of(&look, "ecs.service").restarts, Some(0));
    for restarts in 1..4 {
        *peer.script.lock().unwrap() = running("ecs.service", &[2, 2], restarts);
        let look = look_with(&mut reader, Look::Changes);
        assert_eq!(of(&look, "ecs.service").restarts, Some(restarts as u32), "though nothing else changed");
    }
    assert_eq!(names(&look_with(&mut reader, Look::Changes)), <[&str; 0]>::default());
    assert_eq!(names(&look_with(&mut reader, Look::All)), ["ecs.service"]);
}

#[test]
fn a_bus_that_disconnects_midway_keeps_what_was_seen_before() {
    let many = || {
        let units: Vec<String> = (0..200).map(|n| format!("{n}.service")).collect();
        units.iter().fold(Script::default(), |script, name| script.and(running(name, &[1, 1], 0)))
    };
    // Hello, ListUnits, init.scope, and then ten answers for each.
    for (closes_after, silent_after, words) in
        [(Some(900), None, "closed"), (None, Some(900), "systemd listed its units, then did not answer within ")]
    {
        let peer = FakeSystemd::start(Script { closes_after, silent_after, ..many() });
        let mut reader = at_socket(&peer.path);
        // Long enough for nine hundred answers.
        reader.limit = Duration::from_secs(10);
        let first = look_with(&mut reader, Look::All);
        assert_eq!(first.units.len(), 200, "all were listed");
        let told = first.units.iter().filter(|u| u.restarts.is_some()).count();
        assert!((60..90).contains(&told), "{told}");
        assert!(first.units.iter().all(|u| u.restarts.is_some() == u.invocation_id.is_some()), "all answers or none");
        assert_eq!(first.unseen.len(), 1, "{:?}", first.unseen);
        let why = &first.unseen[0].why;
        assert!(why.contains("of 200 units: ") && why.contains(words), "{why}");

        // It recovers: the units without answers are reported now, and no others.
        *peer.script.lock().unwrap() = many();
        reader.limit = LIMIT;
        let second = look_with(&mut reader, Look::Changes);
        assert_eq!((second.units.len(), &second.unseen[..]), (200 - told, &[][..]));
        assert!(second.units.iter().all(|u| u.restarts == Some(0)));

        // Blind again: nothing changes or disappears, and it is noted.
        for (closes_after, silent_after) in [(Some(1), None), (None, Some(50)), (Some(50), None)] {
            *peer.script.lock().unwrap() = Script { closes_after, silent_after, ..many() };
            reader.limit = SHORT;
            let blind = look_with(&mut reader, Look::Changes);
            assert_eq!(blind.units, []);
            assert_eq!(blind.unseen.len(), 1, "{:?}", blind.unseen);
            *peer.script.lock().unwrap() = many();
            reader.limit = LIMIT;
            let after = look_with(&mut reader, Look::Changes);
            assert_eq!((&after.units[..], &after.unseen[..]), (&[][..], &[][..]), "as if nothing had happened");
        }
    }
}

#[test]
fn one_silent_unit_does_not_hide_the_others() {
    let script = running("mute.service", &[1, 1], 0).and(running("web.service", &[1, 1], 0));
    let peer = FakeSystemd::start(Script { mute: Some("mute.service".into()), ..script });
    let mut reader = at_socket(&peer.path);
    reader.limit = SHORT;
    let evidence = look_with(&mut reader, Look::All);
    assert_eq!(of(&evidence, "web.service").restarts, Some(0));
    assert_eq!(of(&evidence, "mute.service").restarts, None);
    assert!(evidence.unseen[0].why.starts_with("no properties from 1 of 2 units"), "{:?}", evidence.unseen);
}

#[test]
fn a_hung_pid_1_is_distinguished_from_a_hung_bus() {
    let peer = FakeSystemd::start(Script { silent_after: Some(1), ..running("a.service", &[1, 1], 0) });
    let mut reader = at_socket(&peer.path);
    reader.limit = SHORT;
    let why = unseen_of(reader);
    assert!(why.starts_with("the bus answers, but PID 1 did not answer within 0."), "{why}");
}

#[test]
fn lasting_blindness_is_reported_once() {
    let peer = FakeSystemd::start(Script { closes_after: Some(0), ..Script::default() });
    let mut reader = at_socket(&peer.path);
    assert_eq!(look_with(&mut reader, Look::All).unseen.len(), 1);
    assert_eq!(look_with(&mut reader, Look::Changes).unseen, []);
    peer.script.lock().unwrap().closes_after = None;
    assert_eq!(look_with(&mut reader, Look::Changes).unseen, []);
    peer.script.lock().unwrap().closes_after = Some(0);
    assert_eq!(look_with(&mut reader, Look::Changes).unseen.len(), 1);
}
