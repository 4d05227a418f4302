//! The thread that serves /metrics.
//!
//! All connections are served at once by one thread that never waits for a single one of them: each has a deadline, a bounded head and one
//! answer. If there are too many, the oldest goes, as it is the one that dawdles. The status is copied
//! under its lock, and turned into text outside of it.

use super::request;
use crate::status::Status;
use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A scraper or two, and a person with curl.
const MOST_CONNECTIONS: usize = 16;
/// From the first byte of the request to the last one of the answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// What a client still sends after its answer is read and thrown away, so that closing does not take the answer from it; no more than this.
const MOST_IGNORED: usize = 64 << 10;
/// After an error of `accept` (no descriptors left, say) it is tried again, but not at once.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Serves until it is dropped.
pub struct Server {
    address: SocketAddr,
    /// Closing it wakes the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(listen: SocketAddr, status: Arc<Mutex<Status>>) -> anyhow::Result<Server> {
        let listener = TcpListener::bind(listen).with_context(|| {
            format!("metrics.listen = \"{listen}\": cannot listen there (choose another port, or \"off\")")
        })?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = UnixStream::pair()?;
        let serve = move || serve(&listener, &stopped, &status);
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(serve)?;
        Ok(Server { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens: the port that was chosen if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, stopped: &UnixStream, status: &Mutex<Status>) {
    let mut connections: Vec<Connection> = Vec::new();
    let mut accept_from: Option<Instant> = None;
    loop {
        let now = Instant::now();
        connections.retain(|connection| connection.deadline > now);
        accept_from = accept_from.filter(|from| *from > now);

        let mut waiting_for = vec![PollFd::new(stopped, PollFlags::IN)];
        waiting_for.extend(connections.iter().map(|c| PollFd::new(&c.stream, c.waits_for())));
        if accept_from.is_none() {
            waiting_for.push(PollFd::new(listener, PollFlags::IN));
        }
        let next = connections.iter().map(|c| c.deadline).chain(accept_from).min();
        let timeout = next.and_then(|next| Timespec::try_from(next.saturating_duration_since(now)).ok());
        if let Err(error) = poll(&mut waiting_for, timeout.as_ref())
            && error != rustix::io::Errno::INTR
        {
            // No memory: what else could be done than to wait for better times?
            std::thread::sleep(ACCEPT_AGAIN);
            continue;
        }
        let ready: Vec<bool> = waiting_for.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        let mut of_connection = ready[1..].iter();
        connections.retain_mut(|connection| !of_connection.next().is_some_and(|&r| r) || connection.turn(status));
        if accept_from.is_none() && ready.last() == Some(&true) {
            match listener.accept() {
                Ok((stream, _)) => {
                    if connections.len() >= MOST_CONNECTIONS {
                        connections.remove(0);
                    }
                    connections.extend(Connection::new(stream));
                }
                Err(error) if is_passing(&error) => {}
                Err(_) => accept_from = Some(Instant::now() + ACCEPT_AGAIN),
            }
        }
    }
}

/// Nothing to do now, or the client went away before we came.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}

struct Connection {
    stream: TcpStream,
    deadline: Instant,
    state: State,
}

enum State {
    /// What came of the request's head so far.
    Reading(Vec<u8>),
    /// The answer, and how much of it is sent.
    Answering(Vec<u8>, usize),
    /// The answer is sent; what else the client says is counted and forgotten until it goes.
    Leaving(usize),
}

impl Connection {
    fn new(stream: TcpStream) -> Option<Connection> {
        stream.set_nonblocking(true).ok()?;
        Some(Connection { stream, deadline: Instant::now() + DEADLINE, state: State::Reading(Vec::new()) })
    }

    fn waits_for(&self) -> PollFlags {
        match self.state {
            State::Reading(_) | State::Leaving(_) => PollFlags::IN,
            State::Answering(..) => PollFlags::OUT,
        }
    }

    /// Does what can be done at once. False if the connection is over.
    fn turn(&mut self, status: &Mutex<Status>) -> bool {
        let over = loop {
            let step = match &mut self.state {
                State::Reading(head) => read_head(&mut self.stream, head, status),
                State::Answering(answer, sent) => send(&mut self.stream, answer, sent),
                State::Leaving(ignored) => ignore(&mut self.stream, ignored),
            };
            match step {
                Ok(Some(state)) => self.state = state,
                Ok(None) => break true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
        };
        !over
    }
}

fn read_head(stream: &mut TcpStream, head: &mut Vec<u8>, status: &Mutex<Status>) -> io::Result<Option<State>> {
    let mut bytes = [0; 2048];
    loop {
        let count = stream.read(&mut bytes)?;
        if count == 0 {
            return Ok(None);
        }
        head.extend_from_slice(&bytes[..count]);
        if let Some(length) = request::head_length(head) {
            let status = || status.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
            let line = head[..length].strip_suffix(b"\r").unwrap_or(&head[..length]);
            return Ok(Some(State::Answering(request::answer(line, status), 0)));
        }
        if head.len() > request::LONGEST_HEAD {
            return Ok(Some(State::Answering(request::too_long(), 0)));
        }
    }
}

fn send(stream: &mut TcpStream, answer: &[u8], sent: &mut usize) -> io::Result<Option<State>> {
    while let Some(rest) = answer.get(*sent..).filter(|rest| !rest.is_empty()) {
        match stream.write(rest)? {
            0 => return Ok(None),
            count => *sent += count,
        }
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(Some(State::Leaving(0)))
}

fn ignore(stream: &mut TcpStream, ignored: &mut usize) -> io::Result<Option<State>> {
    let mut bytes = [0; 2048];
    while *ignored < MOST_IGNORED {
        match stream.read(&mut bytes)? {
            0 => break,
            count => *ignored += count,
        }
    }
    Ok(None)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
