//! systemd units, asked over D-Bus.
//!
//! A starved node's bus may hang, so a look runs on a thread of its own, and the socket is ours: when time is up it is shut
//! down, which ends the thread wherever it waits.
//!
//! To be cheap for PID 1, properties are asked only of services that run, start, stop or failed; a second look asks only those
//! that may have changed. A service that restarts between two looks may be `running` at both: those that had restarted before
//! are asked again as well.

use std::collections::HashMap;
use std::fmt;
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use coroner_evidence::{Evidence, Time, Unit, probe};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use zbus::address::Transport;
use zbus::address::transport::UnixSocket;
use zbus::blocking::Connection;
use zbus::blocking::connection::Builder;
use zbus::zvariant::{OwnedObjectPath, OwnedValue};

use crate::Root;

/// systemd's sign that it runs the node (sd_booted(3)).
const SIGN_OF_SYSTEMD: &str = "/run/systemd/system";
const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

/// A look that takes longer is given up.
const LIMIT: Duration = Duration::from_secs(3);

/// Of more services than this the properties are not asked.
const MAX_ASKED: usize = 2000;

const SYSTEMD: &str = "org.freedesktop.systemd1";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";

/// Reads units, now and again.
#[derive(Debug)]
pub struct UnitReader {
    root: Root,
    address: Option<String>,
    limit: Duration,
    looking: Option<Looking>,
    /// What was seen last, by name.
    known: HashMap<String, Known>,
}

/// What decides whether a unit is worth asking again.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    load_state: String,
    active_state: String,
    sub_state: String,
    restarts: Option<u32>,
}

impl Known {
    fn of(unit: &Unit) -> Known {
        Known {
            load_state: unit.load_state.clone(),
            active_state: unit.active_state.clone(),
            sub_state: unit.sub_state.clone(),
            restarts: unit.restarts,
        }
    }

    fn same_state(&self, unit: &Unit) -> bool {
        (&self.load_state, &self.active_state, &self.sub_state)
            == (&unit.load_state, &unit.active_state, &unit.sub_state)
    }
}

/// A look that is under way.
#[derive(Debug)]
struct Looking {
    since: Instant,
    /// To end it.
    socket: Option<UnixStream>,
    answer: Receiver<Result<Seen, Blind>>,
}

#[derive(Debug, Default)]
struct Seen {
    units: Vec<Unit>,
    /// Why some services were not asked for their properties.
    partly: Option<String>,
}

/// Why nothing was seen, and what to do about it.
#[derive(Debug)]
struct Blind {
    why: String,
    how_to_see: String,
}

impl Blind {
    fn new(why: impl fmt::Display) -> Blind {
        Blind { why: why.to_string(), how_to_see: "name the node's system bus with --bus unix:path=…".to_owned() }
    }
}

impl UnitReader {
    /// `address` is a D-Bus address; without one it is the node's system bus.
    pub fn new(root: Root, address: Option<String>) -> UnitReader {
        UnitReader { root, address, limit: LIMIT, looking: None, known: HashMap::new() }
    }

    /// Starts a look in the background: at all units the first time, then at what may have changed. Nothing happens if one
    /// is under way.
    pub fn start(&mut self, at: Time) {
        if self.looking.is_some() {
            return;
        }
        let (sender, answer) = sync_channel(1);
        let since = Instant::now();
        let mut looking = Looking { since, socket: None, answer };
        match self.connect() {
            Ok((stream, spare)) => {
                looking.socket = Some(spare);
                let known = self.known.clone();
                let deadline = since + self.limit;
                let done = sender.clone();
                let spawned = std::thread::Builder::new().name("units".to_owned()).spawn(move || {
                    let seen = look(stream, at, since, deadline, &known);
                    let _ = done.send(seen);
                });
                if let Err(e) = spawned {
                    let _ = sender.send(Err(Blind::new(format_args!("no thread to ask systemd: {e}"))));
                }
            }
            Err(blind) => {
                let _ = sender.send(Err(blind));
            }
        }
        self.looking = Some(looking);
    }

    /// Appends what the look saw; waits for it no longer than `wait`. True if no look is under way any more: it is done, or
    /// it was given up after its limit of 3 s, which is then told as unseen.
    pub fn collect(&mut self, wait: Duration, evidence: &mut Evidence) -> bool {
        let Some(looking) = &self.looking else { return true };
        let left = self.limit.saturating_sub(looking.since.elapsed());
        let answer = match looking.answer.recv_timeout(wait.min(left)) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) if looking.since.elapsed() < self.limit => return false,
            Err(RecvTimeoutError::Timeout) => Err(Blind {
                why: format!("the bus did not answer within {:.1} s", self.limit.as_secs_f64()),
                how_to_see: "see whether PID 1 and the bus still run; another bus: --bus unix:path=…".to_owned(),
            }),
            Err(RecvTimeoutError::Disconnected) => Err(Blind::new("the look at the bus broke off")),
        };
        if let Some(socket) = &looking.socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.looking = None;
        match answer {
            Ok(seen) => self.note(seen, evidence),
            Err(blind) => evidence.unseen(
                probe::UNITS,
                "systemd units: which of them crash, restart or failed",
                blind.why,
                blind.how_to_see,
            ),
        }
        true
    }

    fn note(&mut self, seen: Seen, evidence: &mut Evidence) {
        if let Some(why) = seen.partly {
            evidence.unseen(
                probe::UNITS,
                "restarts and results of some services",
                why,
                "examine again when PID 1 is less busy",
            );
        }
        for unit in &seen.units {
            self.known.insert(unit.name.clone(), Known::of(unit));
        }
        evidence.units.extend(seen.units);
    }

    /// Two handles on one connected socket.
    fn connect(&self) -> Result<(UnixStream, UnixStream), Blind> {
        let from_environment =
            || std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok().filter(|a| self.root.is_live() && !a.is_empty());
        let places = match self.address.clone().or_else(from_environment) {
            Some(address) => parse_addresses(&address)?,
            None if !self.root.path(SIGN_OF_SYSTEMD).is_dir() => {
                return Err(Blind {
                    why: "systemd does not run this node".to_owned(),
                    how_to_see: "in a container: mount the host's bus and name it with --bus unix:path=…".to_owned(),
                });
            }
            None => vec![UnixSocket::File(self.root.path(SYSTEM_BUS))],
        };
        let mut error = Blind::new("the bus address is empty");
        for place in places {
            match connect_to(&place).and_then(|stream| Ok((stream.try_clone()?, stream))) {
                Ok(pair) => return Ok(pair),
                Err(e) => error = Blind::new(format_args!("{place}: {e}")),
            }
        }
        Err(error)
    }
}

impl Drop for UnitReader {
    fn drop(&mut self) {
        if let Some(Looking { socket: Some(socket), .. }) = &self.looking {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// The sockets of an address list: `unix:path=/run/dbus/system_bus_socket;unix:abstract=bus`. Other transports are refused:
/// they reach beyond the node, or run a program.
fn parse_addresses(text: &str) -> Result<Vec<UnixSocket>, Blind> {
    let mut places = Vec::new();
    for address in text.split(';').filter(|a| !a.trim().is_empty()) {
        let parsed: zbus::Address =
            address.trim().parse().map_err(|e| Blind::new(format_args!("bus address {address:?}: {e}")))?;
        match parsed.transport() {
            Transport::Unix(unix) => places.push(unix.path().clone()),
            _ => return Err(Blind::new(format_args!("bus address {address:?}: not a unix socket of this node"))),
        }
    }
    Ok(places)
}

/// Does not wait: a connect to a unix socket blocks while the listener's queue is full.
fn connect_to(place: &UnixSocket) -> std::io::Result<UnixStream> {
    let address = match place {
        UnixSocket::File(path) => SocketAddrUnix::new(path)?,
        UnixSocket::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        _ => return Err(rustix::io::Errno::NOTSUP.into()),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

/// What ListUnits says of a unit: name, description, load, active and sub state, what it follows, its object, and a job.
type Listed = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

fn look(
    stream: UnixStream,
    at: Time,
    since: Instant,
    deadline: Instant,
    known: &HashMap<String, Known>,
) -> Result<Seen, Blind> {
    let left = deadline.saturating_duration_since(Instant::now());
    let bus =
        Builder::async_io_unix_stream(stream).method_timeout(left).build().map_err(|e| Blind::new(explain(&e)))?;
    let listed: Vec<Listed> = bus
        .call_method(
            Some(SYSTEMD),
            "/org/freedesktop/systemd1",
            Some("org.freedesktop.systemd1.Manager"),
            "ListUnits",
            &(),
        )
        .and_then(|reply| reply.body().deserialize())
        .map_err(|e| Blind::new(explain(&e)))?;

    let first = known.is_empty();
    let mut seen = Seen::default();
    let (mut asked, mut unasked) = (0, 0);
    for (name, _, load_state, active_state, sub_state, _, object, ..) in listed {
        let mut unit = Unit { at: at + since.elapsed(), name, load_state, active_state, sub_state, ..Unit::default() };
        let before = known.get(&unit.name);
        let changed = before.is_none_or(|before| !before.same_state(&unit));
        if is_worth_asking(&unit, before) {
            // Leaves time to hand over what was seen.
            if asked >= MAX_ASKED
                || deadline.saturating_duration_since(Instant::now()) < deadline_margin(since, deadline)
            {
                unasked += 1;
            } else {
                ask(&bus, &object, &mut unit);
                unit.at = at + since.elapsed();
                asked += 1;
                seen.units.push(unit);
                continue;
            }
        }
        if first || changed {
            seen.units.push(unit);
        }
    }
    if unasked > 0 {
        let why = format!("{unasked} services were not asked: systemd answered for {asked} in {:?}", since.elapsed());
        seen.partly = Some(why);
    }
    Ok(seen)
}

/// A tenth of the whole time.
fn deadline_margin(since: Instant, deadline: Instant) -> Duration {
    deadline.saturating_duration_since(since) / 10
}

/// Services that run or were run; at a second look only those whose counts may have moved.
fn is_worth_asking(unit: &Unit, before: Option<&Known>) -> bool {
    if !unit.name.ends_with(".service") || unit.load_state == "not-found" {
        return false;
    }
    let plainly_inactive = unit.active_state == "inactive";
    match before {
        None => !plainly_inactive,
        Some(before) => {
            !before.same_state(unit)
                || !matches!(unit.active_state.as_str(), "active" | "inactive")
                || (!plainly_inactive && before.restarts.is_some_and(|n| n > 0))
        }
    }
}

/// Two calls for all properties rather than ten for one each: measured on systemd 252, that is 0.70 ms of PID 1 against 0.95,
/// and a fifth of the round trips.
fn ask(bus: &Connection, object: &OwnedObjectPath, unit: &mut Unit) {
    let all = |interface: &str| -> Properties {
        let reply =
            bus.call_method(Some(SYSTEMD), object, Some("org.freedesktop.DBus.Properties"), "GetAll", &(interface,));
        // A unit that was unloaded meanwhile has none.
        Properties(reply.and_then(|reply| reply.body().deserialize()).unwrap_or_default())
    };
    describe(unit, all(SERVICE), all(UNIT));
}

struct Properties(HashMap<String, OwnedValue>);

impl Properties {
    /// `None` if there is no such property, or it is of another type: older and newer versions of systemd differ.
    fn take<T: TryFrom<OwnedValue>>(&mut self, name: &str) -> Option<T> {
        T::try_from(self.0.remove(name)?).ok()
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.take(name).filter(|s: &String| !s.is_empty())
    }
}

fn describe(unit: &mut Unit, mut service: Properties, mut general: Properties) {
    unit.result = service.text("Result");
    // Since systemd 235.
    unit.restarts = service.take("NRestarts");
    unit.main_started = service
        .take("ExecMainStartTimestampMonotonic")
        .filter(|&us: &u64| us > 0)
        .map(|us| Time(us.saturating_mul(1000)));
    unit.main_pid = service.take("MainPID").filter(|&pid: &u32| pid > 0);
    unit.exit_kind = service.take("ExecMainCode").and_then(exit_kind);
    unit.exit_status = unit.exit_kind.as_ref().and_then(|_| service.take("ExecMainStatus"));
    unit.restart_delay_us = service.take("RestartUSec").filter(|&us: &u64| us != u64::MAX);
    unit.cgroup = service.text("ControlGroup");
    // Said again, so that state and counts are of one moment: a crashlooping service changes several times a second.
    for (state, name) in [
        (&mut unit.load_state, "LoadState"),
        (&mut unit.active_state, "ActiveState"),
        (&mut unit.sub_state, "SubState"),
    ] {
        if let Some(now) = general.text(name) {
            *state = now;
        }
    }
    unit.invocation_id = general.take("InvocationID").and_then(|id: Vec<u8>| hex(&id));
    unit.unit_file_state = general.text("UnitFileState");
}

/// si_code of a SIGCHLD (bits/siginfo-consts.h); 0 while it has not ended.
fn exit_kind(code: i32) -> Option<String> {
    let kind = match code {
        1 => "exited",
        2 => "killed",
        3 => "dumped",
        _ => return None,
    };
    Some(kind.to_owned())
}

fn hex(id: &[u8]) -> Option<String> {
    let some = id.iter().any(|&b| b != 0);
    some.then(|| id.iter().map(|b| format!("{b:02x}")).collect())
}

fn explain(error: &zbus::Error) -> String {
    match error {
        zbus::Error::MethodError(name, detail, _) => {
            format!("systemd did not answer: {} ({name})", detail.as_deref().unwrap_or("no reason given"))
        }
        other => format!("the bus did not answer: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    const LONG: Duration = Duration::from_secs(60);

    fn unseen_of(mut reader: UnitReader) -> String {
        let mut evidence = Evidence::default();
        reader.start(Time::from_secs(1));
        assert!(reader.collect(LONG, &mut evidence));
        assert_eq!((evidence.units.len(), evidence.unseen.len()), (0, 1), "{evidence:?}");
        let unseen = evidence.unseen.remove(0);
        assert_eq!(unseen.probe, probe::UNITS);
        assert!(unseen.how_to_see.contains("--bus"), "{unseen:?}");
        unseen.why
    }

    fn at_socket(path: &std::path::Path) -> UnitReader {
        UnitReader::new(Root::live(), Some(format!("unix:path={}", path.display())))
    }

    #[test]
    fn a_node_without_systemd_is_said_to_be_one() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(unseen_of(UnitReader::new(Root::at(dir.path()), None)), "systemd does not run this node");
    }

    #[test]
    fn a_missing_socket_and_a_bad_address_are_named() {
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
    fn a_bus_that_accepts_and_never_answers_is_given_up_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let listener = UnixListener::bind(&path).unwrap();
        let mut reader = at_socket(&path);
        reader.limit = Duration::from_millis(300);
        let mut evidence = Evidence::default();
        let started = Instant::now();
        reader.start(Time::from_secs(1));
        assert!(!reader.collect(Duration::from_millis(1), &mut evidence), "waits no longer than it is told");
        assert_eq!(evidence.unseen, []);
        reader.start(Time::from_secs(1));
        assert!(reader.collect(LONG, &mut evidence));
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        assert_eq!(evidence.unseen[0].why, "the bus did not answer within 0.3 s");
        // The connection is closed from our side, so the thread that waited on it has ended or will.
        let (mut peer, _) = listener.accept().unwrap();
        assert!(std::io::Read::read_to_end(&mut peer, &mut Vec::new()).is_ok());
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "only one look was made");
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
        while let Ok(stream) = connect_to(&place) {
            held.push(stream);
            assert!(held.len() < 1000);
        }
        let why = unseen_of(at_socket(&path));
        assert!(why.contains("temporarily unavailable"), "{why}");
    }

    #[test]
    fn garbage_from_the_bus_is_an_answer_of_a_kind() {
        for garbage in [&b"REJECTED\r\n"[..], b"\xff\xfe\0\0\n", b"OK 1234\r\nl\x02\x01\x01\xff\xff\xff\xff", b""] {
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
            assert!(why.contains("the bus did not answer"), "{why}");
            server.join().unwrap();
        }
    }

    #[test]
    fn services_are_asked_again_only_when_their_counts_may_have_moved() {
        let unit = |active: &str, sub: &str| Unit {
            name: "a.service".into(),
            load_state: "loaded".into(),
            active_state: active.into(),
            sub_state: sub.into(),
            ..Unit::default()
        };
        let known = |unit: &Unit, restarts| Known { restarts, ..Known::of(unit) };
        let running = unit("active", "running");
        let dead = unit("inactive", "dead");
        let looping = unit("activating", "auto-restart");
        assert!(is_worth_asking(&running, None) && is_worth_asking(&looping, None));
        assert!(is_worth_asking(&unit("failed", "failed"), None));
        assert!(!is_worth_asking(&dead, None));
        assert!(!is_worth_asking(&running, Some(&known(&running, Some(0)))));
        assert!(is_worth_asking(&running, Some(&known(&running, Some(3)))), "it may have restarted in between");
        assert!(is_worth_asking(&looping, Some(&known(&looping, Some(0)))));
        assert!(is_worth_asking(&dead, Some(&known(&running, Some(0)))), "it ended");
        assert!(!is_worth_asking(&Unit { name: "a.mount".into(), ..looping.clone() }, None));
    }

    #[test]
    fn values_of_systemd_that_mean_none() {
        let value = |v: zbus::zvariant::Value<'static>| OwnedValue::try_from(v).unwrap();
        let service = [
            ("Result", value("success".into())),
            ("NRestarts", value(0u32.into())),
            ("ExecMainStartTimestampMonotonic", value(0u64.into())),
            ("MainPID", value(0u32.into())),
            ("ExecMainCode", value(0i32.into())),
            ("ExecMainStatus", value(0i32.into())),
            ("RestartUSec", value("of another type".into())),
            ("ControlGroup", value("".into())),
        ];
        let service = Properties(service.into_iter().map(|(k, v)| (k.to_owned(), v)).collect());
        let mut unit = Unit::default();
        describe(&mut unit, service, Properties(HashMap::new()));
        let expected = Unit { result: Some("success".into()), restarts: Some(0), ..Unit::default() };
        assert_eq!(unit, expected);
        assert_eq!(hex(&[]), None);
        assert_eq!(hex(&[0; 16]), None);
        assert_eq!(hex(&[0, 255]), Some("00ff".to_owned()));
        assert_eq!(exit_kind(0), None);
        assert_eq!(exit_kind(2).as_deref(), Some("killed"));
    }

    proptest! {
        #[test]
        fn any_address_is_survived(text in "\\PC*", path in "[a-z/%0-9]*") {
            let _ = parse_addresses(&text);
            let _ = parse_addresses(&format!("unix:path={path};unix:abstract={text}"));
        }
    }

    /// Against a real systemd, whose bus CORONER_TEST_BUS names.
    #[test]
    #[ignore = "needs the address of a bus with systemd"]
    fn units_of_a_real_systemd() {
        let bus = std::env::var("CORONER_TEST_BUS").expect("CORONER_TEST_BUS=unix:path=…");
        let mut reader = UnitReader::new(Root::live(), Some(bus));
        let mut look = |evidence: &mut Evidence| {
            let started = Instant::now();
            let cpu = crate::root::own_cpu();
            reader.start(crate::root::now());
            assert!(reader.collect(LONG, evidence));
            eprintln!("look: {:?}, our CPU {:?}", started.elapsed(), crate::root::own_cpu() - cpu);
        };
        let (mut first, mut second) = (Evidence::default(), Evidence::default());
        look(&mut first);
        std::thread::sleep(Duration::from_secs(3));
        look(&mut second);
        assert_eq!(first.unseen, []);
        for (what, evidence) in [("first", &first), ("second", &second)] {
            eprintln!("{what}: {} units", evidence.units.len());
            for unit in evidence.units.iter().filter(|u| u.result.is_some()) {
                eprintln!("  {unit:?}");
            }
        }
        assert!(!first.units.is_empty());
    }
}
