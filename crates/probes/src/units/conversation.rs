//! A D-Bus connection to systemd over a unix socket, with many calls in flight and a deadline.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::wire::{self, Argument, Body, Call, Message};

pub const SYSTEMD: &str = "org.freedesktop.systemd1";
const BUS: &str = "org.freedesktop.DBus";

/// The longest authentication line.
const MAX_LINE: usize = 4096;
const READ_AT_ONCE: usize = 64 << 10;

pub struct Conversation {
    socket: UnixStream,
    deadline: Instant,
    /// The other side is a bus, so calls need a destination.
    over_bus: bool,
    serial: u32,
    output: Vec<u8>,
    input: Vec<u8>,
    /// How much of `input` was handed out.
    consumed: usize,
}

/// Why the conversation ended.
#[derive(Debug)]
pub enum End {
    /// The deadline passed.
    Time,
    /// The other side closed the connection.
    Closed,
    Socket(io::Error),
    /// Invalid input.
    Garbled,
    /// Authentication failed.
    Rejected(String),
    /// The bus authenticated us, then refused Hello.
    Refused(String),
}

/// An answer, or an error name with an optional message.
pub type Answer<'m> = Result<Body<'m>, (&'m str, Option<&'m str>)>;

impl Conversation {
    /// Authenticates within the deadline. The socket must be nonblocking.
    pub fn open(socket: UnixStream, deadline: Instant) -> Result<Conversation, End> {
        let mut it = Conversation {
            socket,
            deadline,
            over_bus: false,
            serial: 0,
            output: Vec::new(),
            input: Vec::new(),
            consumed: 0,
        };
        // Sent in one go, with nothing after it until the answer arrives: systemd's private socket leaves bytes that arrived
        // together with BEGIN unprocessed until more come.
        let uid = rustix::process::geteuid().as_raw().to_string();
        let uid: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
        it.output.extend(format!("\0AUTH EXTERNAL {uid}\r\nBEGIN\r\n").bytes());
        let said = it.line()?;
        if !said.starts_with("OK") {
            return Err(End::Rejected(said));
        }
        let hello = Call {
            destination: Some(BUS),
            path: "/org/freedesktop/DBus",
            interface: BUS,
            member: "Hello",
            arguments: &[],
        };
        let serial = it.send(&hello);
        it.over_bus = loop {
            match it.receive()? {
                (to, Ok(_)) if to == serial => break true,
                // systemd itself, not a bus.
                (to, Err((name, words))) if to == serial => {
                    if name.ends_with(".AccessDenied") || name.ends_with(".LimitsExceeded") {
                        return Err(End::Refused(format!("{} ({name})", words.unwrap_or("no reason given"))));
                    }
                    break false;
                }
                _ => {}
            }
        };
        Ok(it)
    }

    /// Queues a call to systemd; it is sent by the next [`Conversation::receive`].
    pub fn ask(&mut self, path: &str, interface: &str, member: &str, arguments: &[&str]) -> u32 {
        let arguments: Vec<Argument<'_>> = arguments.iter().map(|text| Argument::Text(text)).collect();
        self.call(path, interface, member, &arguments)
    }

    /// The same with arguments of other types.
    pub fn call(&mut self, path: &str, interface: &str, member: &str, arguments: &[Argument<'_>]) -> u32 {
        let destination = self.over_bus.then_some(SYSTEMD);
        self.send(&Call { destination, path, interface, member, arguments })
    }

    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Whether we are connected to the bus, not to systemd itself.
    pub fn is_over_bus(&self) -> bool {
        self.over_bus
    }

    fn send(&mut self, call: &Call) -> u32 {
        self.serial += 1;
        call.write(self.serial, &mut self.output);
        self.serial
    }

    /// The next answer to any call, with the serial of the call.
    pub fn receive(&mut self) -> Result<(u32, Answer<'_>), End> {
        let (start, end, to) = loop {
            let bytes = &self.input[self.consumed..];
            let Some(length) = wire::length(bytes).map_err(|_| End::Garbled)?.filter(|&n| n <= bytes.len()) else {
                self.exchange()?;
                continue;
            };
            let start = self.consumed;
            self.consumed += length;
            match wire::parse(&self.input[start..self.consumed]).map_err(|_| End::Garbled)? {
                Message::Other => {}
                Message::Answer(to, _) | Message::Refusal(to, ..) => break (start, self.consumed, to),
            }
        };
        match wire::parse(&self.input[start..end]) {
            Ok(Message::Answer(_, body)) => Ok((to, Ok(body))),
            Ok(Message::Refusal(_, name, words)) => Ok((to, Err((name, words)))),
            _ => Err(End::Garbled),
        }
    }

    fn line(&mut self) -> Result<String, End> {
        loop {
            if let Some(end) = self.input.iter().position(|&b| b == b'\n') {
                let line = String::from_utf8_lossy(&self.input[..end]).trim().to_owned();
                self.consumed = end + 1;
                return Ok(line);
            }
            if self.input.len() > MAX_LINE {
                return Err(End::Garbled);
            }
            self.exchange()?;
        }
    }

    /// Waits for input, and sends pending output meanwhile.
    fn exchange(&mut self) -> Result<(), End> {
        self.input.drain(..self.consumed);
        self.consumed = 0;
        loop {
            while !self.output.is_empty() {
                match self.socket.write(&self.output) {
                    Ok(sent) => drop(self.output.drain(..sent)),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    // What it sent before closing can still be read.
                    Err(e) if e.kind() == io::ErrorKind::BrokenPipe => self.output.clear(),
                    Err(e) => return Err(End::Socket(e)),
                }
            }
            let before = self.input.len();
            self.input.resize(before + READ_AT_ONCE, 0);
            let read = self.socket.read(&mut self.input[before..]);
            self.input.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(End::Closed),
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait()?,
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Err(End::Closed),
                Err(e) => return Err(End::Socket(e)),
            }
        }
    }

    fn wait(&self) -> Result<(), End> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(End::Time);
        }
        let mut wanted = PollFlags::IN;
        if !self.output.is_empty() {
            wanted |= PollFlags::OUT;
        }
        // At least 1 ms, so that a shorter remainder does not spin.
        let left = left.max(Duration::from_millis(1));
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.socket, wanted)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(End::Socket(e.into())),
        }
    }
}
