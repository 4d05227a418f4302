//! A minimal D-Bus client: strings as arguments, one string or number as the answer. Not the probes' client, so that a scenario's truth
//! does not come from the code under test.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A runner that waits for ever cannot clean up.
const ANSWER: Duration = Duration::from_secs(30);
const LONGEST: usize = 1 << 20;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;

/// Codes of header fields (D-Bus specification, "Header Fields").
mod field {
    pub const PATH: u8 = 1;
    pub const INTERFACE: u8 = 2;
    pub const MEMBER: u8 = 3;
    pub const ERROR_NAME: u8 = 4;
    pub const REPLY_SERIAL: u8 = 5;
    pub const DESTINATION: u8 = 6;
    pub const SIGNATURE: u8 = 8;
}

#[derive(Debug)]
pub struct Bus {
    stream: UnixStream,
    serial: Cell<u32>,
}

impl Bus {
    /// Connects and says hello.
    pub fn connect(socket: &Path) -> Result<Bus> {
        let stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        let bus = Bus { stream, serial: Cell::new(0) };
        let uid = rustix::process::geteuid().as_raw().to_string();
        let uid: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        (&bus.stream).write_all(format!("\0AUTH EXTERNAL {uid}\r\nBEGIN\r\n").as_bytes())?;
        let said = bus.line()?;
        ensure!(said.starts_with("OK "), "the bus does not let us in: {said}");
        bus.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello", &[])?;
        Ok(bus)
    }

    fn line(&self) -> Result<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(self.bytes(1)?);
            ensure!(line.len() < LONGEST, "the bus sends a line that does not end");
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    fn bytes(&self, count: usize) -> Result<Vec<u8>> {
        ensure!(count < LONGEST, "a message of {count} bytes");
        let mut bytes = vec![0; count];
        (&self.stream).read_exact(&mut bytes).context("no answer from the bus")?;
        Ok(bytes)
    }

    /// Calls a method and waits for the answer: a string, a number, or null.
    pub fn call(&self, to: &str, path: &str, interface: &str, member: &str, arguments: &[&str]) -> Result<Value> {
        let serial = self.serial.get() + 1;
        self.serial.set(serial);
        let mut body = Vec::new();
        for argument in arguments {
            put_text(&mut body, argument);
        }
        let mut fields = Vec::new();
        for (code, kind, value) in [
            (field::PATH, b'o', path),
            (field::INTERFACE, b's', interface),
            (field::MEMBER, b's', member),
            (field::DESTINATION, b's', to),
        ] {
            pad(&mut fields, 8);
            fields.extend([code, 1, kind, 0]);
            put_text(&mut fields, value);
        }
        pad(&mut fields, 8);
        fields.extend([field::SIGNATURE, 1, b'g', 0, arguments.len() as u8]);
        fields.extend(arguments.iter().map(|_| b's'));
        fields.push(0);
        let mut message = vec![b'l', METHOD_CALL, 0, 1];
        for number in [body.len() as u32, serial, fields.len() as u32] {
            message.extend(number.to_le_bytes());
        }
        message.extend(fields);
        pad(&mut message, 8);
        message.extend(body);
        (&self.stream).write_all(&message)?;
        loop {
            // Skip late answers to earlier calls.
            if let Some(answer) = self.answer(serial).with_context(|| format!("{member}({})", arguments.join(", ")))? {
                return Ok(answer);
            }
        }
    }

    /// The next message, if it answers that call.
    fn answer(&self, to: u32) -> Result<Option<Value>> {
        let fixed = self.bytes(16)?;
        ensure!(fixed[0] == b'l', "the bus has another byte order");
        let mut lengths = Reader { bytes: &fixed, at: 4 };
        let (body, _serial, fields) = (lengths.number()?, lengths.number()?, lengths.number()?);
        let fields = self.bytes(fields as usize)?;
        self.bytes((16 + fields.len()).next_multiple_of(8) - 16 - fields.len())?;
        let body = self.bytes(body as usize)?;
        let (mut signature, mut error, mut answers) = (String::new(), Value::Null, None);
        let mut reader = Reader { bytes: &fields, at: 0 };
        while reader.at < fields.len() {
            reader.align(8);
            let code = reader.byte()?;
            match (code, reader.variant()?) {
                (field::REPLY_SERIAL, number) => answers = number.as_u64(),
                (field::SIGNATURE, Value::String(text)) => signature = text,
                (field::ERROR_NAME, name) => error = name,
                _ => {}
            }
        }
        if answers != Some(u64::from(to)) {
            return Ok(None);
        }
        let value = match signature.bytes().next() {
            Some(kind) => Reader { bytes: &body, at: 0 }.value(kind)?,
            None => Value::Null,
        };
        match fixed[1] {
            METHOD_RETURN => Ok(Some(value)),
            ERROR => bail!("{error}: {value}"),
            other => bail!("a message of type {other} as an answer"),
        }
    }
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    pad(bytes, 4);
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let end = self.at + count;
        let taken = self.bytes.get(self.at..end).context("a message that ends early")?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u32> {
        self.align(4);
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?))
    }

    fn text(&mut self, length: usize) -> Result<String> {
        let text = String::from_utf8(self.take(length)?.to_vec())?;
        self.byte()?;
        Ok(text)
    }

    fn variant(&mut self) -> Result<Value> {
        let length = self.byte()?.into();
        match self.text(length)?.as_bytes() {
            [kind] => self.value(*kind),
            other => bail!("a value of type {}", other.escape_ascii()),
        }
    }

    fn value(&mut self, kind: u8) -> Result<Value> {
        match kind {
            b's' | b'o' => {
                let length = self.number()? as usize;
                Ok(Value::String(self.text(length)?))
            }
            b'g' => {
                let length = self.byte()?.into();
                Ok(Value::String(self.text(length)?))
            }
            b'u' => Ok(Value::from(self.number()?)),
            b'v' => self.variant(),
            other => bail!("a value of type {}", other.escape_ascii()),
        }
    }
}
