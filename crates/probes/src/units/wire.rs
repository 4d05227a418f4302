//! D-Bus messages as bytes: as much of the protocol as is needed to ask for units and properties.
//!
//! Hand-written, because thousands of calls are made in one go and only a few bytes of each answer matter: see docs/benchmarks.md.
//! The format is described in the D-Bus specification, "Message Protocol".

/// Larger than any answer of systemd: a list of 10,000 units takes 3 MB.
const MAX_MESSAGE: usize = 16 << 20;
/// Bytes before the header fields.
const FIXED_HEADER: usize = 16;

const METHOD_CALL: u8 = 1;
/// Call flag: the bus must not start the destination.
const NO_AUTO_START: u8 = 2;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;

mod field {
    pub const PATH: u8 = 1;
    pub const INTERFACE: u8 = 2;
    pub const MEMBER: u8 = 3;
    pub const ERROR_NAME: u8 = 4;
    pub const REPLY_SERIAL: u8 = 5;
    pub const DESTINATION: u8 = 6;
    pub const SIGNATURE: u8 = 8;
}

/// A method argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument<'a> {
    Text(&'a str),
    Flag(bool),
    Texts(&'a [&'a str]),
}

impl Argument<'_> {
    fn signature(&self) -> &'static str {
        match self {
            Argument::Text(_) => "s",
            Argument::Flag(_) => "b",
            Argument::Texts(_) => "as",
        }
    }

    fn write(&self, out: &mut Vec<u8>, start: usize) {
        match self {
            Argument::Text(text) => write_text(out, start, text),
            Argument::Flag(flag) => {
                pad(out, start, 4);
                out.extend(u32::from(*flag).to_le_bytes());
            }
            Argument::Texts(texts) => {
                pad(out, start, 4);
                let length_at = out.len();
                out.extend([0; 4]);
                for text in *texts {
                    write_text(out, start, text);
                }
                let length = (out.len() - length_at - 4) as u32;
                out[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
            }
        }
    }
}

/// A method call.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// `None` without a bus.
    pub destination: Option<&'a str>,
    pub path: &'a str,
    pub interface: &'a str,
    pub member: &'a str,
    pub arguments: &'a [Argument<'a>],
}

impl Call<'_> {
    /// Appends the message, little-endian.
    pub fn write(&self, serial: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([b'l', METHOD_CALL, NO_AUTO_START, 1]);
        out.extend([0; 4]);
        out.extend(serial.to_le_bytes());
        out.extend([0; 4]);
        let fields = out.len();
        write_field(out, start, field::PATH, b'o', self.path);
        write_field(out, start, field::INTERFACE, b's', self.interface);
        write_field(out, start, field::MEMBER, b's', self.member);
        if let Some(destination) = self.destination {
            write_field(out, start, field::DESTINATION, b's', destination);
        }
        if !self.arguments.is_empty() {
            pad(out, start, 8);
            let length: usize = self.arguments.iter().map(|argument| argument.signature().len()).sum();
            out.extend([field::SIGNATURE, 1, b'g', 0, length as u8]);
            out.extend(self.arguments.iter().flat_map(|argument| argument.signature().bytes()));
            out.push(0);
        }
        let fields_length = (out.len() - fields) as u32;
        out[start + 12..start + 16].copy_from_slice(&fields_length.to_le_bytes());
        pad(out, start, 8);
        let body = out.len();
        for argument in self.arguments {
            argument.write(out, start);
        }
        let body_length = (out.len() - body) as u32;
        out[start + 4..start + 8].copy_from_slice(&body_length.to_le_bytes());
    }
}

fn write_field(out: &mut Vec<u8>, start: usize, code: u8, kind: u8, text: &str) {
    pad(out, start, 8);
    out.extend([code, 1, kind, 0]);
    write_text(out, start, text);
}

fn write_text(out: &mut Vec<u8>, start: usize, text: &str) {
    pad(out, start, 4);
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
    out.push(0);
}

fn pad(out: &mut Vec<u8>, start: usize, to: usize) {
    let length = out.len() - start;
    out.resize(start + length.next_multiple_of(to), 0);
}

/// A received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'m> {
    /// The answer to the call with this serial.
    Answer(u32, Body<'m>),
    /// An error reply: serial, error name and optional message.
    Refusal(u32, &'m str, Option<&'m str>),
    /// Not for us: a signal, or a call.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Body<'m> {
    pub signature: &'m str,
    bytes: &'m [u8],
    big_endian: bool,
}

impl<'m> Body<'m> {
    pub fn read(self) -> ValueReader<'m> {
        ValueReader { bytes: self.bytes, at: 0, big_endian: self.big_endian }
    }
}

/// Not a valid D-Bus message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Garbled;

/// The length of the first message; `None` if there are too few bytes to tell.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, Garbled> {
    let Some(head) = bytes.first_chunk::<FIXED_HEADER>() else { return Ok(None) };
    let big_endian = match head[0] {
        b'l' => false,
        b'B' => true,
        _ => return Err(Garbled),
    };
    let mut reader = ValueReader { bytes: head, at: 4, big_endian };
    let body = reader.u32().ok_or(Garbled)? as usize;
    reader.at = 12;
    let fields = reader.u32().ok_or(Garbled)? as usize;
    if body > MAX_MESSAGE || fields > MAX_MESSAGE {
        return Err(Garbled);
    }
    Ok(Some((FIXED_HEADER + fields).next_multiple_of(8) + body))
}

/// Parses a message of exactly the length that [`length`] returned.
pub fn parse(bytes: &[u8]) -> Result<Message<'_>, Garbled> {
    parse_whole(bytes).ok_or(Garbled)
}

fn parse_whole(bytes: &[u8]) -> Option<Message<'_>> {
    let mut reader = ValueReader { bytes, at: 0, big_endian: *bytes.first()? == b'B' };
    let kind = *bytes.get(1)?;
    reader.at = 4;
    let body_length = reader.u32()? as usize;
    reader.at = 12;
    let fields_end = FIXED_HEADER.checked_add(reader.u32()? as usize)?;
    let (mut reply_to, mut error, mut signature) = (None, None, "");
    while reader.at < fields_end {
        reader.align(8)?;
        let code = reader.u8()?;
        match (code, reader.variant()?) {
            (field::REPLY_SERIAL, Value::Unsigned(serial)) => reply_to = u32::try_from(serial).ok(),
            (field::ERROR_NAME, Value::Text(name)) => error = Some(name),
            (field::SIGNATURE, Value::Text(text)) => signature = text,
            // A value of unknown type cannot be skipped.
            (_, Value::Other) => return None,
            _ => {}
        }
    }
    let start = fields_end.next_multiple_of(8);
    let body =
        Body { signature, bytes: bytes.get(start..start.checked_add(body_length)?)?, big_endian: reader.big_endian };
    match (kind, reply_to) {
        (METHOD_RETURN, Some(serial)) => Some(Message::Answer(serial, body)),
        (ERROR, Some(serial)) => {
            let words = if signature.starts_with('s') { body.read().text() } else { None };
            Some(Message::Refusal(serial, error?, words))
        }
        _ => Some(Message::Other),
    }
}

/// A value of a type used by systemd's properties; other types are not parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'m> {
    Text(&'m str),
    Flag(bool),
    Unsigned(u64),
    Signed(i64),
    Bytes(&'m [u8]),
    Texts(Vec<&'m str>),
    Other,
}

/// Reads values one after the other; `None` once the bytes are malformed.
#[derive(Debug, Clone)]
pub struct ValueReader<'m> {
    bytes: &'m [u8],
    at: usize,
    big_endian: bool,
}

impl<'m> ValueReader<'m> {
    fn take(&mut self, length: usize) -> Option<&'m [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    pub fn align(&mut self, to: usize) -> Option<()> {
        self.at = self.at.checked_next_multiple_of(to)?;
        (self.at <= self.bytes.len()).then_some(())
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.align(4)?;
        let bytes = self.take(4)?.try_into().ok()?;
        Some(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn u64(&mut self) -> Option<u64> {
        self.align(8)?;
        let bytes = self.take(8)?.try_into().ok()?;
        Some(if self.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }

    pub fn text(&mut self) -> Option<&'m str> {
        let length = self.u32()? as usize;
        let text = self.take(length)?;
        self.take(1)?;
        std::str::from_utf8(text).ok()
    }

    fn signature(&mut self) -> Option<&'m str> {
        let length = self.u8()? as usize;
        let text = self.take(length)?;
        self.take(1)?;
        std::str::from_utf8(text).ok()
    }

    /// The bytes of an array with this element alignment; the reader moves past it.
    pub fn array(&mut self, alignment: usize) -> Option<ValueReader<'m>> {
        let length = self.u32()? as usize;
        self.align(alignment)?;
        let start = self.at;
        self.take(length)?;
        Some(ValueReader { bytes: self.bytes.get(..self.at)?, at: start, big_endian: self.big_endian })
    }

    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub fn variant(&mut self) -> Option<Value<'m>> {
        let signature = self.signature()?;
        Some(match signature {
            "s" | "o" => Value::Text(self.text()?),
            "g" => Value::Text(self.signature()?),
            "b" => Value::Flag(self.u32()? != 0),
            "y" => Value::Unsigned(u64::from(self.u8()?)),
            "u" => Value::Unsigned(u64::from(self.u32()?)),
            "i" => Value::Signed(i64::from(self.u32()? as i32)),
            "t" => Value::Unsigned(self.u64()?),
            "x" => Value::Signed(self.u64()? as i64),
            "ay" => {
                let array = self.array(1)?;
                Value::Bytes(array.bytes.get(array.at..)?)
            }
            "as" => {
                let mut array = self.array(4)?;
                let mut texts = Vec::new();
                while !array.is_at_end() {
                    texts.push(array.text()?);
                }
                Value::Texts(texts)
            }
            _ => Value::Other,
        })
    }
}

#[cfg(test)]
pub mod tests;
