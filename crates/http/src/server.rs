//! Connections, and the path of a request: guard, asset or API, response.
//!
//! Each connection has a thread that waits for the client, and each answer a thread that computes it, so that it can be abandoned.
//! Everything is bounded: connections, answers in progress, and how long a client may take to send its request, to wait for the
//! answer and to read it. Too many connections: the one whose client has been idle longest is closed.

use crate::answer::Encoding;
use crate::guard::{Guard, Passes, Token};
use crate::kept::{Encoded, KeptAnswers};
use crate::request::{self, Request};
use crate::response::{Response, Status};
use crate::{Api, ApiQuery, Refusal, is_loopback, peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Light answers in progress at a time.
const LIGHT: usize = 4;
/// How long a client may take to send its headers, and stay silent between two requests.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How long a client waits for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How long a client may stop reading in the middle of an answer.
const TAKEN_WITHIN: Duration = Duration::from_secs(20);
/// How long a connection may last, whether or not its client reads; browsers reconnect.
const CONNECTION_FOR: Duration = Duration::from_secs(600);
/// The limit for the request line and all headers together.
const LONGEST_HEAD: usize = 64 << 10;
/// Bytes per write.
const AT_ONCE: usize = 64 << 10;
/// How often to check whether the client is still there.
const STEP: Duration = Duration::from_millis(100);
/// After the last answer, input is read and discarded up to these limits: closing with unread input would reset the connection
/// and could cost the client the answer.
const MOST_IGNORED: usize = 64 << 10;
const LEAVES_WITHIN: Duration = Duration::from_secs(2);
/// Small: a connection's thread only reads and writes; answers are computed elsewhere.
const STACK: usize = 256 << 10;

pub struct ServerOptions {
    /// Name of the threads.
    pub name: &'static str,
    /// Required from clients; mandatory unless the address is loopback.
    pub token: Option<Token>,
    /// Names of this machine other than localhost and IP addresses.
    pub names: Vec<String>,
    /// The users served on loopback; empty for all.
    pub users: Vec<u32>,
    /// Connections at a time.
    pub connections: usize,
    /// Heavy answers at a time.
    pub heavy: usize,
}

/// A running server; stops when dropped.
pub struct Running {
    pub address: SocketAddr,
    /// Closing it wakes the accepting thread.
    stop: Option<UnixStream>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State shared by all requests.
struct Shared {
    name: &'static str,
    api: Arc<dyn Api>,
    guard: Guard,
    kept: KeptAnswers,
    heavy: Turns,
    light: Turns,
    connections: Mutex<Vec<Open>>,
}

struct Open {
    number: u64,
    stream: TcpStream,
    /// Since when we have been waiting for the client; `None` while it waits for us.
    waits_since: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent even if a holder panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts serving, on threads of its own.
pub fn serve(listener: TcpListener, api: Arc<dyn Api>, options: ServerOptions) -> io::Result<Running> {
    let address = listener.local_addr()?;
    if !is_loopback(&address) && options.token.is_none() {
        return Err(io::Error::other("an address other than loopback requires a token"));
    }
    listener.set_nonblocking(true)?;
    let ServerOptions { name, token, names, users, connections, heavy } = options;
    let guard = Guard { is_loopback: is_loopback(&address), names, token };
    let users = if guard.is_loopback { users } else { Vec::new() };
    let shared = Arc::new(Shared {
        name,
        api,
        guard,
        kept: KeptAnswers::default(),
        heavy: Turns::new(heavy),
        light: Turns::new(LIGHT),
        connections: Mutex::default(),
    });
    let (stop, stopped) = UnixStream::pair()?;
    let accept = move || {
        accept_all(&listener, &stopped, &shared, &users, connections.max(1));
        for open in lock(&shared.connections).drain(..) {
            let _ = open.stream.shutdown(Shutdown::Both);
        }
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(accept)?;
    Ok(Running { address, stop: Some(stop), thread: Some(thread) })
}

fn accept_all(listener: &TcpListener, stopped: &UnixStream, shared: &Arc<Shared>, users: &[u32], most: usize) {
    let mut number = 0;
    loop {
        let mut waiting_for = [PollFd::new(stopped, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        if poll(&mut waiting_for, None).is_err() {
            // A signal, or out of memory: all we can do is retry.
            thread::sleep(STEP);
            continue;
        }
        if !waiting_for[0].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, peer)) => {
                // Unknown users are not served: the kernel's tables list every connection of this machine.
                let user = || stream.local_addr().ok().and_then(|ours| peer::user(peer, ours));
                if users.is_empty() || user().is_some_and(|user| users.contains(&user)) {
                    number += 1;
                    make_room(shared, most);
                    // On failure the connection is closed; the client may retry.
                    let _ = start(shared, stream, number);
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // Out of file descriptors, or the client is already gone.
            Err(_) => thread::sleep(STEP),
        }
    }
}

/// If there are too many connections, closes the one whose client has been idle longest.
fn make_room(shared: &Shared, most: usize) {
    let mut connections = lock(&shared.connections);
    if connections.len() < most {
        return;
    }
    let slowest = connections.iter().enumerate().filter_map(|(at, open)| Some((open.waits_since?, at))).min();
    // If all are waiting for answers, the oldest goes.
    let slowest = connections.remove(slowest.map_or(0, |(_, at)| at));
    let _ = slowest.stream.shutdown(Shutdown::Both);
}

fn start(shared: &Arc<Shared>, stream: TcpStream, number: u64) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(TAKEN_WITHIN))?;
    let open = Open { number, stream: stream.try_clone()?, waits_since: Some(Instant::now()) };
    lock(&shared.connections).push(open);
    let theirs = Arc::clone(shared);
    let converse = move || {
        let connection = Connection { shared: &theirs, number };
        // Errors of a connection concern only its client.
        let _ = connection.converse(&stream);
    };
    let started = thread::Builder::new().name(shared.name.to_owned()).stack_size(STACK).spawn(converse);
    if started.is_err() {
        lock(&shared.connections).retain(|open| open.number != number);
    }
    started.map(drop)
}

struct Connection<'s> {
    shared: &'s Arc<Shared>,
    number: u64,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        lock(&self.shared.connections).retain(|open| open.number != self.number);
    }
}

impl Connection<'_> {
    fn waits_for_client(&self, waits: bool) {
        let mut connections = lock(&self.shared.connections);
        if let Some(open) = connections.iter_mut().find(|open| open.number == self.number) {
            open.waits_since = waits.then(Instant::now);
        }
    }

    /// Serves one request after the other, until the client leaves or the time is up.
    fn converse(&self, stream: &TcpStream) -> io::Result<()> {
        let until = Instant::now() + CONNECTION_FOR;
        let mut waiting = Vec::new();
        loop {
            self.waits_for_client(true);
            let Some(head) = read_head(stream, &mut waiting, until.min(Instant::now() + HEADERS_WITHIN))? else {
                return Ok(());
            };
            self.waits_for_client(false);
            let request = match head {
                Head::Whole(head) => Request::parse(&head).ok_or((Status::BadRequest, "not an HTTP/1 request")),
                Head::TooLong => Err((Status::HeadTooLarge, "the request's head is longer than 64 KiB")),
            };
            let (response, is_last, with_body) = match &request {
                Ok(request) => {
                    let (response, is_refused) = respond(self.shared, request, stream);
                    let is_last = is_refused || request.is_last() || Instant::now() >= until;
                    (response, is_last, request.method != "HEAD")
                }
                Err((status, error)) => {
                    let refusal = Refusal::of_status(*status, error, "use a browser, curl or a scraper");
                    (Response::refused(&refusal), true, true)
                }
            };
            response.write(&mut Taker { stream, until }, with_body, is_last)?;
            if is_last {
                self.waits_for_client(true);
                return leave(stream);
            }
        }
    }
}

/// Writes until the connection's time is up, so that a client that reads a byte now and then cannot hold it forever.
struct Taker<'s> {
    stream: &'s TcpStream,
    until: Instant,
}

impl Write for Taker<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if Instant::now() >= self.until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.write(&bytes[..bytes.len().min(AT_ONCE)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Head {
    Whole(Vec<u8>),
    TooLong,
}

/// The next head; `None` if the client left or took too long. Bytes after it stay in `waiting`.
fn read_head(mut stream: &TcpStream, waiting: &mut Vec<u8>, until: Instant) -> io::Result<Option<Head>> {
    let mut looked_at = 0;
    loop {
        if let Some((end, next)) = request::head_end(waiting, looked_at) {
            let rest = waiting.split_off(next);
            let mut head = std::mem::replace(waiting, rest);
            head.truncate(end);
            if head.last() == Some(&b'\r') {
                head.pop();
            }
            return Ok(Some(Head::Whole(head)));
        }
        looked_at = waiting.len();
        if looked_at > LONGEST_HEAD {
            return Ok(Some(Head::TooLong));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(None),
            Ok(count) => waiting.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until the client has read the last answer.
fn leave(mut stream: &TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(LEAVES_WITHIN))?;
    let until = Instant::now() + LEAVES_WITHIN;
    let (mut bytes, mut ignored) = ([0; 4096], 0);
    while ignored < MOST_IGNORED && Instant::now() < until {
        match stream.read(&mut bytes)? {
            0 => break,
            count => ignored += count,
        }
    }
    Ok(())
}

/// The response, and whether the client was refused; then its connection is closed.
fn respond(shared: &Arc<Shared>, request: &Request, stream: &TcpStream) -> (Response, bool) {
    match shared.guard.check(request) {
        Err(refusal) => (Response::refused(&refusal), true),
        Ok(Passes::WithCookie(cookie)) => {
            let headers = [("Location", "/"), ("Set-Cookie", &cookie), ("Cache-Control", "no-store")];
            (Response::new(Status::SeeOther, &headers), false)
        }
        Ok(Passes::Yes) => {
            let response = asset(&*shared.api, request).unwrap_or_else(|| from_api(shared, request, stream));
            (response, false)
        }
    }
}

fn asset(api: &dyn Api, request: &Request) -> Option<Response> {
    let name = match request.path.as_str() {
        "/" => "index.html",
        path => path.trim_start_matches('/'),
    };
    let asset = api.asset(name)?;
    let (cache, tag) = match asset.is_immutable {
        true => ("public, max-age=31536000, immutable", None),
        false => ("no-cache", Some(format!("\"{:016x}\"", hash(&asset.body)))),
    };
    if let Some(tag) = tag.as_deref().filter(|tag| is_known(request, tag)) {
        return Some(Response::not_modified(tag, cache));
    }
    let (body, encoding) = accepted(request).encode(&asset.body);
    let encoded = Encoded { body, encoding, content_type: asset.content_type, file_name: None };
    Some(Response::whole(encoded, tag.as_deref(), cache))
}

fn from_api(shared: &Arc<Shared>, request: &Request, stream: &TcpStream) -> Response {
    let ask = ApiQuery::new(&request.path, &request.query, request.header("accept"));
    let wanted = accepted(request);
    let version = shared.api.version(&ask);
    let tag = version.map(|version| format!("W/\"{version:016x}-{:016x}\"", hash(&ask.words())));
    // Not "immutable": the same URL may show another recording tomorrow, and revalidation is cheap.
    const KEEP: &str = "private, no-cache";
    if let Some(tag) = &tag {
        if is_known(request, tag) {
            return Response::not_modified(tag, KEEP);
        }
        if let Some(encoded) = shared.kept.get(tag, wanted) {
            return Response::whole(encoded, Some(tag), KEEP);
        }
    }
    match answer(shared, ask, wanted, stream) {
        Ok(encoded) => {
            if let Some(tag) = &tag {
                shared.kept.keep(tag, wanted, &encoded);
            }
            Response::whole(encoded, tag.as_deref(), if tag.is_some() { KEEP } else { "no-store" })
        }
        Err(refusal) => Response::refused(&refusal),
    }
}

/// Waits for a turn, then for the answer. A client that disconnects gives up both.
fn answer(shared: &Arc<Shared>, ask: ApiQuery, wanted: Encoding, stream: &TcpStream) -> Result<Encoded, Refusal> {
    let _waiting = ask.guard();
    let until = Instant::now() + ANSWER_WITHIN;
    let goes_on = || match (is_gone(stream), Instant::now() >= until) {
        (true, _) => Err(Refusal::failed("cancelled: the client disconnected")),
        (_, true) => Err(Refusal::of_status(
            Status::TimedOut,
            &format!("no answer within {} s", ANSWER_WITHIN.as_secs()),
            "choose a shorter time range or fewer cores",
        )),
        _ => Ok(()),
    };
    let is_light = shared.api.is_light(&ask);
    let turn = Turn::take(shared, is_light, goes_on)?;
    let (tell, told) = sync_channel(1);
    let work = move || {
        // The turn lasts until the work ends, even if nobody is waiting for it any more.
        let turn = turn;
        let answer = turn.shared.api.answer(&ask).map(|answer| Encoded::of(answer, wanted));
        let _ = tell.send(answer);
    };
    let busy = || Refusal::of_status(Status::Unavailable, "cannot start a thread", "try again in a second");
    thread::Builder::new().name(shared.name.to_owned()).spawn(work).map_err(|_| busy())?;
    loop {
        match told.recv_timeout(STEP) {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Timeout) => goes_on()?,
            // The answering thread panicked.
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Refusal::of_status(
                    Status::Failed,
                    "internal error in coroner",
                    "please report the request, with the recording if you may share it",
                ));
            }
        }
    }
}

/// The client has closed the connection.
fn is_gone(stream: &TcpStream) -> bool {
    let mut hangup = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut hangup, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Limits how many answers are computed at a time.
struct Turns {
    free: Mutex<usize>,
    given_back: Condvar,
}

impl Turns {
    fn new(count: usize) -> Turns {
        Turns { free: Mutex::new(count.clamp(1, 64)), given_back: Condvar::new() }
    }
}

/// Returned when dropped, however the work ends.
struct Turn {
    shared: Arc<Shared>,
    is_light: bool,
}

impl Turn {
    fn turns(shared: &Shared, is_light: bool) -> &Turns {
        if is_light { &shared.light } else { &shared.heavy }
    }

    /// Waits for a turn while `goes_on` is `Ok`.
    fn take(shared: &Arc<Shared>, is_light: bool, goes_on: impl Fn() -> Result<(), Refusal>) -> Result<Turn, Refusal> {
        let turns = Turn::turns(shared, is_light);
        let mut free = lock(&turns.free);
        while *free == 0 {
            let waited = turns.given_back.wait_timeout(free, STEP);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
            goes_on()?;
        }
        *free -= 1;
        drop(free);
        Ok(Turn { shared: Arc::clone(shared), is_light })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turns = Turn::turns(&self.shared, self.is_light);
        *lock(&turns.free) += 1;
        turns.given_back.notify_one();
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn accepted(request: &Request) -> Encoding {
    Encoding::accepted(request.header("accept-encoding"))
}

fn is_known(request: &Request, tag: &str) -> bool {
    let plain = tag.trim_start_matches("W/");
    let known = request.header("if-none-match").split(',');
    known.into_iter().any(|known| known.trim().trim_start_matches("W/") == plain)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
