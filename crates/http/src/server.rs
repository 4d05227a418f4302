//! Connections, and the way of a request: guard, asset or API, and back.
//!
//! One thread speaks with all clients; what takes time runs on a few others. Everything is bounded: connections, requests that
//! run and that wait, how long a client may take to say what it wants and how long it waits for an answer.

use crate::answer::Encoding;
use crate::guard::{self, Guard, Passes, Token};
use crate::kept::{Encoded, KeptAnswers};
use crate::patience::Patient;
use crate::{Api, Ask, Refusal, is_loopback, peer};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Connections at a time; a browser has six.
const CONNECTIONS: usize = 64;
/// Requests that wait for others to end; more are sent away.
const WAITING: usize = 64;
/// Light answers at a time.
const LIGHT: usize = 4;
/// How long a client may take to send its headers.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How long it waits for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How long a client may take nothing of an answer that is on its way.
const TAKEN_WITHIN: Duration = Duration::from_secs(20);
/// How long a connection may last, whether or not its client reads; browsers make a new one.
const CONNECTION_FOR: Duration = Duration::from_secs(600);
/// Longer addresses are nobody's honest question; also the room for all headers of a request.
const HEADER_BYTES: usize = 64 << 10;

pub struct Options {
    /// Demanded from whoever asks; must be there beyond loopback.
    pub token: Option<Token>,
    /// Names of this machine, beside localhost and addresses.
    pub names: Vec<String>,
    /// On loopback, whose connections are served; empty for everybody's.
    pub users: Vec<u32>,
    /// Heavy answers at a time.
    pub heavy: usize,
}

/// A server at work. Dropped, it ends.
pub struct Running {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Ends it and waits for that.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// What all requests share.
struct Shared {
    api: Arc<dyn Api>,
    guard: Guard,
    kept: KeptAnswers,
    heavy: Semaphore,
    light: Semaphore,
    waiting: Semaphore,
}

/// Serves on a thread of its own from now on.
pub fn serve(listener: TcpListener, api: Arc<dyn Api>, options: Options) -> io::Result<Running> {
    let address = listener.local_addr()?;
    if !is_loopback(&address) && options.token.is_none() {
        return Err(io::Error::other("beyond loopback a token is needed"));
    }
    listener.set_nonblocking(true)?;
    let heavy = options.heavy.clamp(1, 64);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("coroner-view")
        .max_blocking_threads(heavy + LIGHT)
        .build()?;
    let guard = Guard { is_loopback: is_loopback(&address), names: options.names, token: options.token };
    let users = if guard.is_loopback { options.users } else { Vec::new() };
    let shared = Arc::new(Shared {
        api,
        guard,
        kept: KeptAnswers::default(),
        heavy: Semaphore::new(heavy),
        light: Semaphore::new(LIGHT),
        waiting: Semaphore::new(WAITING),
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new().name("coroner-view".to_owned()).spawn(move || {
        runtime.block_on(async {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
            let accepting = std::pin::pin!(accept(listener, shared, users));
            let stopped = std::pin::pin!(stopped);
            // Whichever ends first: accepting never does.
            either(accepting, stopped).await;
        });
        // What still runs is not waited for.
        runtime.shutdown_background();
    })?;
    Ok(Running { address, stop: Some(stop), thread: Some(thread) })
}

async fn either<A: Future + Unpin, B: Future + Unpin>(mut a: A, mut b: B) {
    std::future::poll_fn(|context| {
        let a = std::pin::Pin::new(&mut a).poll(context).is_ready();
        let b = std::pin::Pin::new(&mut b).poll(context).is_ready();
        if a || b { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

async fn accept(listener: tokio::net::TcpListener, shared: Arc<Shared>, users: Vec<u32>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let router = Router::new().fallback(respond).with_state(shared);
    loop {
        let Ok(room) = Arc::clone(&room).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            // No descriptors are left, or the client is gone already.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let ours = stream.local_addr();
        if !users.is_empty() {
            // Who cannot be told is not served: the tables of the kernel know every connection of this machine.
            let user = ours.ok().and_then(|ours| peer::user(peer, ours));
            if !user.is_some_and(|user| users.contains(&user)) {
                continue;
            }
        }
        let _ = stream.set_nodelay(true);
        let stream = Patient::new(stream, TAKEN_WITHIN);
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_buf_size(HEADER_BYTES);
            // What goes wrong on a connection is its client's business.
            let _ = tokio::time::timeout(CONNECTION_FOR, http.serve_connection(TokioIo::new(stream), service)).await;
            drop(room);
        });
    }
}

async fn respond(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (method, uri, headers) = (request.method().clone(), request.uri().clone(), request.headers().clone());
    let mut response = match shared.guard.check(&method, &uri, &headers) {
        // Who is sent away does not keep a place.
        Err(refusal) => {
            let mut response = refused(&refusal);
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            response
        }
        Ok(Passes::WithCookie(cookie)) => {
            let mut response = with_status(StatusCode::SEE_OTHER, "");
            response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/"));
            response.headers_mut().insert(header::SET_COOKIE, cookie);
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Ok(Passes::Yes) => match uri.path().strip_prefix("/api/v1/") {
            Some(path) => from_api(&shared, Ask::new(path, uri.query().unwrap_or("")), &headers).await,
            None => asset(&*shared.api, uri.path(), &headers),
        },
    };
    guard::secure(response.headers_mut());
    if method == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    response
}

fn asset(api: &dyn Api, path: &str, headers: &HeaderMap) -> Response {
    let name = match path {
        "/" => "index.html",
        path => path.trim_start_matches('/'),
    };
    let Some(asset) = api.asset(name) else {
        return refused(&Refusal::absent(
            format!("{path:?} is not here"),
            "the page is at /, its data below /api/v1/ (docs/api.md)",
        ));
    };
    let tag = format!("\"{:016x}\"", hash(&asset.body));
    let (cache, tag) = match asset.is_immutable {
        true => ("public, max-age=31536000, immutable", None),
        false => ("no-cache", Some(tag)),
    };
    if tag.as_deref().is_some_and(|tag| is_known(headers, tag)) {
        return not_modified(tag.as_deref().unwrap_or_default(), cache);
    }
    let (body, encoding) = accepted(headers).encode(&asset.body);
    let encoded = Encoded { body, encoding, content_type: asset.content_type, file_name: None };
    whole(encoded, tag.as_deref(), cache)
}

async fn from_api(shared: &Arc<Shared>, ask: Ask, headers: &HeaderMap) -> Response {
    let wanted = accepted(headers);
    let version = shared.api.version(&ask);
    let tag = version.map(|version| format!("W/\"{version:016x}-{:016x}\"", hash(&ask.words())));
    // Not "immutable": at the same address another recording may be shown tomorrow. Asking again costs nothing.
    const KEEP: &str = "private, no-cache";
    if let Some(tag) = &tag {
        if is_known(headers, tag) {
            return not_modified(tag, KEEP);
        }
        if let Some(encoded) = shared.kept.get(tag, wanted) {
            return whole(encoded, Some(tag), KEEP);
        }
    }
    match tokio::time::timeout(ANSWER_WITHIN, answer(shared, ask, wanted)).await {
        Ok(Ok(encoded)) => {
            if let Some(tag) = &tag {
                shared.kept.keep(tag, wanted, &encoded);
            }
            whole(encoded, tag.as_deref(), if tag.is_some() { KEEP } else { "no-store" })
        }
        Ok(Err(refusal)) => refused(&refusal),
        Err(_) => refused(&Refusal::of_status(
            StatusCode::GATEWAY_TIMEOUT,
            &format!("no answer within {} s", ANSWER_WITHIN.as_secs()),
            "ask for less time at once, or for fewer cores",
        )),
    }
}

/// Waits for its turn, and for the answer. Who goes away meanwhile gives up both.
async fn answer(shared: &Arc<Shared>, ask: Ask, wanted: Encoding) -> Result<Encoded, Refusal> {
    let busy = || {
        Refusal::of_status(StatusCode::SERVICE_UNAVAILABLE, "too many requests wait already", "ask again in a second")
    };
    let _waiting = ask.guard();
    let place = shared.waiting.try_acquire().map_err(|_| busy())?;
    let turns = if shared.api.is_light(&ask) { &shared.light } else { &shared.heavy };
    let turn = turns.acquire().await.map_err(|_| busy())?;
    drop(place);
    // The turn lasts until the work ends, also if nobody waits for it any more.
    turn.forget();
    let shared = Arc::clone(shared);
    let work = tokio::task::spawn_blocking(move || {
        let _turn = Turn { shared: &shared, is_light: shared.api.is_light(&ask) };
        if ask.is_cancelled() {
            return Err(Refusal::failed("nobody waits for it any more"));
        }
        shared.api.answer(&ask).map(|answer| Encoded::of(answer, wanted))
    });
    work.await.unwrap_or_else(|_| {
        Err(Refusal::of_status(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the answer failed: a defect of coroner",
            "report what was asked, with the recording if you may share it",
        ))
    })
}

/// Gives a turn back, however the work ends.
struct Turn<'a> {
    shared: &'a Shared,
    is_light: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.is_light { self.shared.light.add_permits(1) } else { self.shared.heavy.add_permits(1) }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn accepted(headers: &HeaderMap) -> Encoding {
    Encoding::accepted(headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or(""))
}

fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let plain = tag.trim_start_matches("W/");
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or("");
    known.split(',').any(|known| known.trim().trim_start_matches("W/") == plain)
}

fn with_status(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
}

fn not_modified(tag: &str, cache: &'static str) -> Response {
    let mut response = with_status(StatusCode::NOT_MODIFIED, "");
    set(response.headers_mut(), header::ETAG, tag);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    response
}

fn set(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn whole(encoded: Encoded, tag: Option<&str>, cache: &'static str) -> Response {
    let length = encoded.body.len();
    let mut response = with_status(StatusCode::OK, encoded.body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(encoded.content_type));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Some(encoding) = encoded.encoding.header() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    if let Some(tag) = tag {
        set(headers, header::ETAG, tag);
    }
    if let Some(name) = encoded.file_name {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let name: String = name.chars().map(plain).collect();
        set(headers, header::CONTENT_DISPOSITION, &format!("attachment; filename=\"{name}\""));
    }
    response
}

fn refused(refusal: &Refusal) -> Response {
    let mut response = with_status(refusal.status, refusal.document());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    match refusal.status {
        StatusCode::METHOD_NOT_ALLOWED => set(headers, header::ALLOW, "GET, HEAD"),
        StatusCode::SERVICE_UNAVAILABLE => set(headers, header::RETRY_AFTER, "1"),
        StatusCode::UNAUTHORIZED => set(headers, header::WWW_AUTHENTICATE, "Bearer"),
        _ => {}
    }
    response
}
