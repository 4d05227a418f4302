//! A fake bus with systemd behind it, for tests; it can stop answering at any point.

use super::wire::Value;
use super::wire::tests::{listed_body, read_call, reply, variant_body};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// What it answers, and when it stops.
#[derive(Clone, Default)]
pub struct Script {
    /// Name, active state, sub state.
    pub units: Vec<(String, &'static str, &'static str)>,
    /// By name and property; others are unknown.
    pub values: Vec<(String, &'static str, Value<'static>)>,
    /// Goes silent after this many answers.
    pub silent_after: Option<usize>,
    /// Disconnects after this many answers.
    pub closes_after: Option<usize>,
    /// Queries about this unit are never answered.
    pub mute: Option<String>,
    /// It is systemd itself, which has no Hello.
    pub is_private: bool,
}

pub struct FakeSystemd {
    /// Deleted with the peer.
    _dir: tempfile::TempDir,
    pub path: PathBuf,
    pub script: Arc<Mutex<Script>>,
    /// All queries: unit and property, or the method.
    pub asked: Arc<Mutex<Vec<String>>>,
}

impl FakeSystemd {
    pub fn start(script: Script) -> FakeSystemd {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let listener = UnixListener::bind(&path).unwrap();
        let script = Arc::new(Mutex::new(script));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (scripts, log) = (script.clone(), asked.clone());
        // Ends with the test.
        std::thread::spawn(move || {
            for peer in listener.incoming().flatten() {
                let (script, log) = (scripts.lock().unwrap().clone(), log.clone());
                std::thread::spawn(move || serve(peer, &script, &log));
            }
        });
        FakeSystemd { _dir: dir, path, script, asked }
    }

    pub fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn serve(mut peer: UnixStream, script: &Script, log: &Mutex<Vec<String>>) {
    let mut input = Vec::new();
    let mut buffer = [0; 4096];
    while !input.ends_with(b"BEGIN\r\n") {
        match peer.read(&mut buffer) {
            Ok(n) if n > 0 => input.extend(&buffer[..n]),
            _ => return,
        }
    }
    assert!(input.starts_with(b"\0AUTH EXTERNAL 3"), "the uid is sent in hex");
    input.clear();
    if peer.write_all(b"OK 1234deadbeef\r\n").is_err() {
        return;
    }
    let mut answers = 0;
    loop {
        while let Some((serial, member, path, arguments, length)) = read_call(&input) {
            input.drain(..length);
            if script.closes_after == Some(answers) {
                return;
            }
            if script.silent_after.is_some_and(|n| answers >= n) {
                continue;
            }
            if let Some(answer) = answer(script, log, serial, &member, &path, &arguments) {
                answers += 1;
                if peer.write_all(&answer).is_err() {
                    return;
                }
            }
        }
        match peer.read(&mut buffer) {
            Ok(n) if n > 0 => input.extend(&buffer[..n]),
            _ => return,
        }
    }
}

fn answer(
    script: &Script,
    log: &Mutex<Vec<String>>,
    serial: u32,
    member: &str,
    path: &str,
    arguments: &[String],
) -> Option<Vec<u8>> {
    let refused = |name: &str| Some(reply(serial, Some(&format!("org.freedesktop.DBus.Error.{name}")), "", &[]));
    match member {
        "Hello" if script.is_private => refused("UnknownMethod"),
        "Hello" => Some(reply(serial, None, "", &[])),
        "ListUnits" => {
            log.lock().unwrap().push(member.to_owned());
            let units: Vec<_> =
                script.units.iter().map(|(n, a, s)| (n.as_str(), "loaded", *a, *s, n.as_str())).collect();
            Some(reply(serial, None, "a(ssssssouso)", &listed_body(&units)))
        }
        "Get" if path.ends_with("init_2escope") => {
            Some(reply(serial, None, "v", &variant_body(&Value::Text("/not/where/this/test/runs"))))
        }
        "Get" => {
            let property = arguments.get(1)?;
            log.lock().unwrap().push(format!("{path} {property}"));
            if script.mute.as_deref() == Some(path) {
                return None;
            }
            match script.values.iter().find(|(n, p, _)| n == path && p == property) {
                Some((_, _, value)) => Some(reply(serial, None, "v", &variant_body(value))),
                None => refused("UnknownProperty"),
            }
        }
        _ => refused("UnknownMethod"),
    }
}
