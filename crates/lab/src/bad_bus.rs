//! Broken buses: they never answer, hang up, or stop in the middle of an answer.
//!
//! Each listens on a Unix socket and serves every connection on its own thread; they end with the process.

use anyhow::{Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// How a bus is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manner {
    /// Accepts the connection and does nothing else.
    Accepts,
    /// Completes the handshake, then never answers.
    Handshakes,
    /// Completes the handshake, answers the first call, hangs up.
    AnswersOnce,
    /// Forwards the real bus behind this socket, but only `after` bytes of its answers; then silence, or it hangs up.
    Severed { behind: PathBuf, after: u64, hangs_up: bool },
}

#[derive(Debug)]
pub struct BadBus {
    path: PathBuf,
    connections: Arc<AtomicU64>,
}

impl BadBus {
    pub fn listen(path: &Path, manner: Manner) -> Result<BadBus> {
        let listener = UnixListener::bind(path).with_context(|| path.display().to_string())?;
        let connections = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&connections);
        thread::Builder::new().spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::Relaxed);
                let manner = manner.clone();
                // Errors do not matter: the bus is broken on purpose.
                let _ = thread::Builder::new().spawn(move || serve(stream, &manner));
            }
        })?;
        Ok(BadBus { path: path.to_owned(), connections })
    }

    pub fn address(&self) -> String {
        format!("unix:path={}", self.path.display())
    }

    /// How many clients came.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

fn serve(mut stream: UnixStream, manner: &Manner) -> std::io::Result<()> {
    match manner {
        Manner::Accepts => swallow(stream),
        Manner::Handshakes => {
            let _unanswered = let_in(&mut stream)?;
            swallow(stream)
        }
        Manner::AnswersOnce => {
            let begun = let_in(&mut stream)?;
            let call = first_message(&mut stream, begun)?;
            stream.write_all(&answer_to_hello(&call))?;
            stream.shutdown(Shutdown::Both)
        }
        Manner::Severed { behind, after, hangs_up } => sever(stream, behind, *after, *hangs_up),
    }
}

/// Reads until the client gives up.
fn swallow(mut stream: UnixStream) -> std::io::Result<()> {
    let mut buffer = [0u8; 4096];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

/// The server's side of the handshake (D-Bus specification, "Authentication Protocol"). Returns bytes that came after it.
fn let_in(stream: &mut UnixStream) -> std::io::Result<Vec<u8>> {
    let mut pending: Vec<u8> = Vec::new();
    loop {
        while let Some(end) = pending.windows(2).position(|two| two == b"\r\n") {
            let line: Vec<u8> = pending.drain(..end + 2).collect();
            let line = String::from_utf8_lossy(&line);
            match line.trim_start_matches('\0').trim_end() {
                "BEGIN" => return Ok(pending),
                "NEGOTIATE_UNIX_FD" => stream.write_all(b"AGREE_UNIX_FD\r\n")?,
                // Some clients send their name at once, some wait to be asked.
                "AUTH EXTERNAL" => stream.write_all(b"DATA\r\n")?,
                word if word.starts_with("AUTH EXTERNAL ") || word.starts_with("DATA") => {
                    stream.write_all(b"OK 00000000000000000000000000000000\r\n")?;
                }
                _ => stream.write_all(b"REJECTED EXTERNAL\r\n")?,
            }
        }
        read_more(stream, &mut pending)?;
    }
}

fn read_more(stream: &mut UnixStream, into: &mut Vec<u8>) -> std::io::Result<()> {
    /// No handshake is longer.
    const MOST: usize = 64 << 10;
    let mut buffer = [0u8; 4096];
    let n = stream.read(&mut buffer)?;
    if n == 0 || into.len() > MOST {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    into.extend_from_slice(&buffer[..n]);
    Ok(())
}

/// The fixed part of the first message's header: all that an answer needs.
fn first_message(stream: &mut UnixStream, mut begun: Vec<u8>) -> std::io::Result<Vec<u8>> {
    while begun.len() < 16 {
        read_more(stream, &mut begun)?;
    }
    Ok(begun)
}

/// A method return that gives the client its name (D-Bus specification, "Message Format").
fn answer_to_hello(call: &[u8]) -> Vec<u8> {
    let serial: [u8; 4] = call.get(8..12).and_then(|s| s.try_into().ok()).unwrap_or([1, 0, 0, 0]);
    let little_endian = call.first() != Some(&b'B');
    let serial = if little_endian { u32::from_le_bytes(serial) } else { u32::from_be_bytes(serial) };
    let name = b":1.7";
    let mut body = (name.len() as u32).to_le_bytes().to_vec();
    body.extend_from_slice(name);
    body.push(0);
    // Header fields, each a struct at a multiple of 8: REPLY_SERIAL (5) and SIGNATURE (8).
    let mut fields = vec![5, 1, b'u', 0];
    fields.extend_from_slice(&serial.to_le_bytes());
    fields.extend_from_slice(&[8, 1, b'g', 0, 1, b's', 0]);
    // Little-endian, METHOD_RETURN, no reply expected, version 1.
    let mut message = vec![b'l', 2, 1, 1];
    message.extend_from_slice(&(body.len() as u32).to_le_bytes());
    message.extend_from_slice(&1u32.to_le_bytes());
    message.extend_from_slice(&(fields.len() as u32).to_le_bytes());
    message.extend_from_slice(&fields);
    message.resize(message.len().next_multiple_of(8), 0);
    message.extend_from_slice(&body);
    message
}

fn sever(client: UnixStream, behind: &Path, after: u64, hangs_up: bool) -> std::io::Result<()> {
    let bus = UnixStream::connect(behind)?;
    let (mut to_bus, mut from_client) = (bus.try_clone()?, client.try_clone()?);
    thread::Builder::new().spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_bus);
        let _ = to_bus.shutdown(Shutdown::Both);
    })?;
    let mut to_client = &client;
    std::io::copy(&mut bus.take(after), &mut to_client)?;
    if hangs_up {
        client.shutdown(Shutdown::Both)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn bus(manner: Manner) -> (BadBus, PathBuf) {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("coroner-lab-bus-{}-{made}", std::process::id()));
        (BadBus::listen(&path, manner).unwrap(), path)
    }

    #[test]
    fn answers_once_answers_the_first_call() {
        let (bus, path) = bus(Manner::AnswersOnce);
        let mut client = UnixStream::connect(&path).unwrap();
        // The fixed part of a call with the serial number 9 is all that it reads.
        client.write_all(b"\0AUTH EXTERNAL 30\r\nBEGIN\r\nl\x01\0\x01\0\0\0\0\x09\0\0\0\0\0\0\0").unwrap();
        let mut said = Vec::new();
        client.read_to_end(&mut said).expect("it hangs up");
        let answer = said.strip_prefix(b"OK 00000000000000000000000000000000\r\n").expect("it lets the client in");
        assert_eq!((&answer[..2], &answer[20..24]), (&b"l\x02"[..], &[9, 0, 0, 0][..]), "a return to call 9");
        assert!(answer.ends_with(b":1.7\0"));
        assert_eq!(bus.connections(), 1);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn handshakes_never_answers() {
        let (bus, path) = bus(Manner::Handshakes);
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut client = &stream;
        client.write_all(b"\0AUTH EXTERNAL 30\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\nl\x01\x00\x01").unwrap();
        let mut said = Vec::new();
        let end = client.read_to_end(&mut said).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::WouldBlock, "it neither answers nor hangs up");
        assert_eq!(String::from_utf8(said).unwrap(), "OK 00000000000000000000000000000000\r\nAGREE_UNIX_FD\r\n");
        drop(bus);
        std::fs::remove_file(path).unwrap();
    }
}
