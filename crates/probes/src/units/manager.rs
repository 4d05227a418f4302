//! Changing units through systemd, one synchronous call at a time.
//!
//! Used only by `coroner fix --apply` and `coroner undo`, never by diagnosis or recording.

mod stops_with;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::address;
use super::conversation::{Conversation, End};
use super::wire::{Argument, Body, Value};
use crate::Root;

const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";
const JOB: &str = "org.freedesktop.systemd1.Job";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const PEER: &str = "org.freedesktop.DBus.Peer";

/// A normal answer takes milliseconds; a starved node gets more time.
const ANSWER: Duration = Duration::from_secs(10);
/// A reload reads all unit files again.
const RELOAD: Duration = Duration::from_secs(60);
/// How often to check whether a job is done.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    #[error("systemd cannot be reached: {0}")]
    Unreachable(String),
    /// The connection broke; whether systemd received the last call is unknown.
    #[error("{what}: lost the connection to systemd ({why}); whether it was done is unknown")]
    Lost { what: String, why: String },
    #[error("{what}: systemd refused: {why}")]
    Refused { what: String, why: String },
    #[error("{what}: not done after {} s", .after.as_secs())]
    TooSlow { what: String, after: Duration },
    #[error("{what}: cannot parse systemd's answer")]
    Garbled { what: String },
    #[error(
        "more than {most} units may stop with {unit}, too many to check whether the node needs one of them. See \
         `systemctl list-dependencies --reverse --all {unit}`, and stop it by hand if you must"
    )]
    TooMany { unit: String, most: usize },
}

impl ManagerError {
    /// The unit or its file does not exist.
    pub fn is_no_such_unit(&self) -> bool {
        matches!(self, ManagerError::Refused { why, .. }
            if why.contains("NoSuchUnit") || why.contains("FileNotFound") || why.contains("NoSuchFile"))
    }
}

/// The current state of a unit, according to systemd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitNow {
    /// Its primary name; the requested name may be an alias.
    pub id: String,
    /// All its names.
    pub names: Vec<String>,
    pub load_state: String,
    pub active_state: String,
    pub sub_state: String,
    /// As `systemctl is-enabled`; empty for a unit without a file.
    pub file_state: String,
    /// The unit file.
    pub fragment: String,
    pub drop_ins: Vec<String>,
    /// Timers, sockets and paths that start it.
    pub triggered_by: Vec<String>,
    /// When it became active, in µs on the monotonic clock; 0 if it is not active.
    pub active_since_us: u64,
    /// Services: the last result, `success`, `exit-code`, `start-limit-hit`; empty if unknown.
    pub result: String,
    /// Services: automatic restarts.
    pub restarts: Option<u32>,
    /// Invocation id, which changes with every start.
    pub invocation: Vec<u8>,
    /// Its cgroup as systemd names it; empty while it has none.
    pub cgroup: String,
}

pub struct Manager {
    bus: Conversation,
    socket: UnixStream,
}

impl Manager {
    /// `address` is a D-Bus address; the default is the node's systemd, or its system bus.
    pub fn connect(root: &Root, address: Option<&str>) -> Result<Manager, ManagerError> {
        let places = address::places(root, address).map_err(|blind| ManagerError::Unreachable(blind.why))?;
        let mut why = "the bus address is empty".to_owned();
        for place in &places {
            let opened = address::connect(place).and_then(|socket| Ok((socket.try_clone()?, socket)));
            let (socket, spare) = match opened {
                Ok(pair) => pair,
                Err(e) => {
                    why = format!("{place}: {e}");
                    continue;
                }
            };
            match Conversation::open(socket, Instant::now() + ANSWER) {
                Ok(bus) => return Ok(Manager { bus, socket: spare }),
                Err(end) => why = format!("{place}: {}", words(&end)),
            }
        }
        Err(ManagerError::Unreachable(why))
    }

    /// The process that listens on the socket, in our pid namespace: systemd, or the bus that one of its units runs.
    pub fn peer(&self) -> Option<u32> {
        let peer = rustix::net::sockopt::socket_peercred(&self.socket).ok()?;
        u32::try_from(peer.pid.as_raw_pid()).ok().filter(|pid| *pid > 0)
    }

    /// The machine id of the node that this systemd runs.
    pub fn machine_id(&mut self) -> Result<String, ManagerError> {
        let what = "the machine id";
        self.ask(what, MANAGER_PATH, PEER, "GetMachineId", &[], ANSWER, |body| Some(body.read().text()?.to_owned()))
    }

    pub fn unit(&mut self, name: &str) -> Result<UnitNow, ManagerError> {
        let object = self.load(name)?;
        let mut now = UnitNow { id: self.text(&object, UNIT, "Id")?, ..UnitNow::default() };
        now.names = self.texts(&object, UNIT, "Names")?;
        now.load_state = self.text(&object, UNIT, "LoadState")?;
        now.active_state = self.text(&object, UNIT, "ActiveState")?;
        now.sub_state = self.text(&object, UNIT, "SubState")?;
        now.file_state = self.file_state(name)?;
        now.fragment = self.text(&object, UNIT, "FragmentPath")?;
        now.drop_ins = self.texts(&object, UNIT, "DropInPaths")?;
        now.triggered_by = self.texts(&object, UNIT, "TriggeredBy")?;
        now.active_since_us = match now.active_state.as_str() {
            "active" | "reloading" => self.number(&object, UNIT, "ActiveEnterTimestampMonotonic")?.unwrap_or(0),
            _ => 0,
        };
        now.invocation = self
            .property(&object, UNIT, "InvocationID", |value| match value {
                Value::Bytes(bytes) => Some(bytes.to_vec()),
                _ => None,
            })?
            .unwrap_or_default();
        if now.id.ends_with(".service") {
            now.result = self.text(&object, SERVICE, "Result")?;
            now.restarts = self.number(&object, SERVICE, "NRestarts")?.and_then(|n| u32::try_from(n).ok());
            now.cgroup = self.text(&object, SERVICE, "ControlGroup")?;
        }
        Ok(now)
    }

    /// As `systemctl is-enabled`; empty if systemd reports no state.
    pub fn file_state(&mut self, name: &str) -> Result<String, ManagerError> {
        let what = format!("the unit file state of {name}");
        let call = [Argument::Text(name)];
        let answer = self.ask(&what, MANAGER_PATH, MANAGER, "GetUnitFileState", &call, ANSWER, |body| {
            Some(body.read().text()?.to_owned())
        });
        match answer {
            Err(error) if error.is_no_such_unit() => Ok(String::new()),
            // A transient unit, or one whose file was deleted.
            Err(ManagerError::Refused { .. }) => Ok(String::new()),
            other => other,
        }
    }

    /// A numeric property of a service, as currently in effect; `u64::MAX` means no limit.
    pub fn service_number(&mut self, name: &str, property: &str) -> Result<Option<u64>, ManagerError> {
        let object = self.load(name)?;
        let unit_property = property.starts_with("StartLimit");
        self.number(&object, if unit_property { UNIT } else { SERVICE }, property)
    }

    /// As `systemctl stop`; returns when it is done.
    pub fn stop(&mut self, name: &str, patience: Duration) -> Result<(), ManagerError> {
        self.job(&format!("stop {name}"), "StopUnit", name, patience)
    }

    /// As `systemctl start`; returns when it is done.
    pub fn start(&mut self, name: &str, patience: Duration) -> Result<(), ManagerError> {
        self.job(&format!("start {name}"), "StartUnit", name, patience)
    }

    /// As `systemctl disable` (without a reload).
    pub fn disable(&mut self, name: &str) -> Result<(), ManagerError> {
        self.files("disable", "DisableUnitFiles", name, &[Argument::Flag(false)])
    }

    /// As `systemctl enable` (without a reload).
    pub fn enable(&mut self, name: &str) -> Result<(), ManagerError> {
        self.files("enable", "EnableUnitFiles", name, &[Argument::Flag(false), Argument::Flag(false)])
    }

    /// As `systemctl mask` (without a reload). Fails if a file in /etc is in the way.
    pub fn mask(&mut self, name: &str) -> Result<(), ManagerError> {
        self.files("mask", "MaskUnitFiles", name, &[Argument::Flag(false), Argument::Flag(false)])
    }

    /// As `systemctl unmask` (without a reload).
    pub fn unmask(&mut self, name: &str) -> Result<(), ManagerError> {
        self.files("unmask", "UnmaskUnitFiles", name, &[Argument::Flag(false)])
    }

    /// As `systemctl daemon-reload`.
    pub fn reload(&mut self) -> Result<(), ManagerError> {
        self.ask("daemon-reload", MANAGER_PATH, MANAGER, "Reload", &[], RELOAD, |_| Some(()))
    }

    fn files(&mut self, verb: &str, member: &str, name: &str, flags: &[Argument<'_>]) -> Result<(), ManagerError> {
        let names = [name];
        let mut arguments = vec![Argument::Texts(&names)];
        arguments.extend(flags);
        self.ask(&format!("{verb} {name}"), MANAGER_PATH, MANAGER, member, &arguments, ANSWER, |_| Some(()))
    }

    fn job(&mut self, what: &str, member: &str, name: &str, patience: Duration) -> Result<(), ManagerError> {
        let call = [Argument::Text(name), Argument::Text("replace")];
        let text = |body: Body<'_>| Some(body.read().text()?.to_owned());
        let job = self.ask(what, MANAGER_PATH, MANAGER, member, &call, ANSWER, text)?;
        let until = Instant::now() + patience;
        loop {
            let get = [Argument::Text(JOB), Argument::Text("State")];
            match self.ask(what, &job, PROPERTIES, "Get", &get, ANSWER, |_| Some(())) {
                Ok(()) => {}
                // A finished job no longer has an object.
                Err(ManagerError::Refused { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
            if Instant::now() >= until {
                return Err(ManagerError::TooSlow { what: what.to_owned(), after: patience });
            }
            std::thread::sleep(LOOK);
        }
    }

    fn load(&mut self, name: &str) -> Result<String, ManagerError> {
        let call = [Argument::Text(name)];
        self.ask(name, MANAGER_PATH, MANAGER, "LoadUnit", &call, ANSWER, |body| Some(body.read().text()?.to_owned()))
    }

    fn text(&mut self, object: &str, interface: &str, name: &str) -> Result<String, ManagerError> {
        let text = |value: Value<'_>| if let Value::Text(text) = value { Some(text.to_owned()) } else { None };
        Ok(self.property(object, interface, name, text)?.unwrap_or_default())
    }

    fn texts(&mut self, object: &str, interface: &str, name: &str) -> Result<Vec<String>, ManagerError> {
        let texts = |value: Value<'_>| match value {
            Value::Texts(texts) => Some(texts.into_iter().map(str::to_owned).collect()),
            _ => None,
        };
        Ok(self.property(object, interface, name, texts)?.unwrap_or_default())
    }

    fn number(&mut self, object: &str, interface: &str, name: &str) -> Result<Option<u64>, ManagerError> {
        let number = |value: Value<'_>| if let Value::Unsigned(number) = value { Some(number) } else { None };
        self.property(object, interface, name, number)
    }

    /// `None` if this version of systemd lacks the property or gives it another type.
    fn property<T>(
        &mut self,
        object: &str,
        interface: &str,
        name: &str,
        read: impl Fn(Value<'_>) -> Option<T>,
    ) -> Result<Option<T>, ManagerError> {
        let get = [Argument::Text(interface), Argument::Text(name)];
        let answer =
            self.ask(name, object, PROPERTIES, "Get", &get, ANSWER, |body| Some(body.read().variant().and_then(&read)));
        match answer {
            Err(ManagerError::Refused { .. }) => Ok(None),
            other => other,
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn ask<T>(
        &mut self,
        what: &str,
        path: &str,
        interface: &str,
        member: &str,
        arguments: &[Argument<'_>],
        patience: Duration,
        read: impl FnOnce(Body<'_>) -> Option<T>,
    ) -> Result<T, ManagerError> {
        let what = || what.to_owned();
        self.bus.set_deadline(Instant::now() + patience);
        let serial = self.bus.call(path, interface, member, arguments);
        loop {
            match self.bus.receive() {
                Ok((to, Ok(body))) if to == serial => {
                    return read(body).ok_or_else(|| ManagerError::Garbled { what: what() });
                }
                Ok((to, Err((name, words)))) if to == serial => {
                    let why = format!("{} ({name})", words.unwrap_or("no reason given"));
                    return Err(ManagerError::Refused { what: what(), why });
                }
                Ok(_) => {}
                Err(End::Time) => return Err(ManagerError::TooSlow { what: what(), after: patience }),
                Err(end) => return Err(ManagerError::Lost { what: what(), why: words(&end) }),
            }
        }
    }
}

fn words(end: &End) -> String {
    match end {
        End::Time => "no answer in time".to_owned(),
        End::Closed => "connection closed".to_owned(),
        End::Socket(e) => e.to_string(),
        End::Garbled => "invalid D-Bus message".to_owned(),
        End::Rejected(said) => format!("authentication rejected: {said:?}"),
        End::Refused(said) => format!("connection refused: {said}"),
    }
}
