//! The collector: takes reports, answers questions.
//!
//! Nodes present the agents' token and may only report; people present theirs and may only read. A report is acknowledged when it is on
//! disk. When too many wait, nodes are told to come back later; their spools keep what they have.

mod export;
mod files;
mod next;
mod stacks;
mod view;

use crate::files::{Files, Limits, Place};
use crate::ingest::{self, MOST_BYTES};
use crate::page;
use crate::query;
use crate::store::clickhouse::{Address, ClickHouseStore};
use crate::store::read::{self, wall};
use crate::store::write::{Retention, Stored};
use crate::store::{NotStored, Reader, SqliteStore, Store, unix_now};
use crate::tokens::Token;
use crate::viewers::Viewers;
use crate::why;
use anyhow::Context;
use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use coroner_report::{Acknowledged, Wall};
use hyper_util::rt::TokioTimer;
use serde_json::json;
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;

/// Each node has a connection while it waits, and for some seconds after.
const MOST_OPEN_FILES: u64 = 65_536;
/// How long a stopping collector waits for requests in progress.
const DRAINS_WITHIN: Duration = Duration::from_secs(10);
/// Reports at a time; each takes up to 8 MiB unpacked.
const MOST_AT_ONCE: usize = 64;
const MOST_READ_AT_ONCE: usize = 256;
/// Of recordings, by all who look; each waits for a process that may hang.
const MOST_LOOKS: usize = 24;
/// Of a file that a node sends in pieces.
const MOST_PIECE: usize = coroner_report::wanted::PIECE_BYTES as usize;
/// How long a node may take to send a report, and a client to send its headers.
const SENT_WITHIN: Duration = Duration::from_secs(30);
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
const DISCARDED_WITHIN: Duration = Duration::from_secs(5);
/// When the queue is full, nodes come back after this at the earliest.
const COME_BACK_AFTER_S: u32 = 10;
/// Rows of a list, unless more are asked for.
const MOST_NODES: usize = 100_000;
const MOST_INCIDENTS: i64 = 1000;

pub struct ServeOptions {
    pub directory: PathBuf,
    /// Without it, the store is in the directory.
    pub store: Option<Address>,
    pub listen: SocketAddr,
    pub agent_token: Option<PathBuf>,
    pub user_token: Option<PathBuf>,
    pub tls: Option<(PathBuf, PathBuf)>,
    pub retention: Retention,
    /// Where recordings of incidents are kept. `None`: in the directory.
    pub files: Option<String>,
    pub limits: Limits,
}

pub struct Collector {
    pub store: Store,
    files: Files,
    viewers: Viewers,
    agents: Token,
    pub people: Token,
    pub retention: Retention,
    pub is_tls: bool,
    counts: Counts,
    is_stopping: AtomicBool,
    /// Reports being received, up to 1 MiB each.
    reading: Semaphore,
    /// Reports being unpacked or stored: bounds memory.
    places: Semaphore,
    /// Pieces of files being received.
    pieces: Semaphore,
    /// Questions to the processes that show recordings.
    looks: Semaphore,
    exports: Arc<Semaphore>,
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    refused: AtomicU64,
    unauthorised: AtomicU64,
    shed: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    unread_rows: AtomicU64,
}

impl Counts {
    fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

pub async fn serve(options: ServeOptions) -> anyhow::Result<()> {
    let ServeOptions { directory, store, listen, agent_token, user_token, tls, retention, files, limits } = options;
    let store = match store {
        Some(address) => Store::ClickHouse(Box::new(ClickHouseStore::open(&directory, address, retention).await?)),
        None => Store::Sqlite(SqliteStore::open(&directory, retention)?),
    };
    let own = store.directory().to_owned();
    allow_many_connections();
    let token = |given: Option<PathBuf>, name: &str| match given {
        Some(file) => Token::read(&file).map(|token| (token, file)),
        None => Token::read_or_make(&own.join(name)).map(|token| (token, own.join(name))),
    };
    let (agents, agents_file) = token(agent_token, "agent.token")?;
    let (people, people_file) = token(user_token, "user.token")?;
    anyhow::ensure!(
        agents != people,
        "nodes and people have the same token: with it nodes could read what others report"
    );
    let page_token = people.clone();
    let place = Place::parse(&files.unwrap_or_else(|| own.join("files").display().to_string()))?;
    let collector = Arc::new(Collector {
        files: Files::open(place, &own, limits, store.board(collector_name()?))?,
        viewers: Viewers::open(&own)?,
        store,
        agents,
        people,
        retention,
        is_tls: tls.is_some(),
        counts: Counts::default(),
        is_stopping: AtomicBool::new(false),
        reading: Semaphore::new(MOST_READ_AT_ONCE),
        places: Semaphore::new(MOST_AT_ONCE),
        pieces: Semaphore::new(MOST_AT_ONCE),
        looks: Semaphore::new(MOST_LOOKS),
        exports: Arc::new(Semaphore::new(export::MOST_EXPORTS)),
    });
    let app = Router::new()
        .route("/api/v1/report", post(report))
        .route("/api/v1/status", get(status))
        .route("/api/v1/nodes", get(nodes))
        .route("/api/v1/nodes/{node}", get(node))
        .route("/api/v1/incidents", get(incidents))
        .route("/api/v1/why", get(why_sick))
        .route("/api/v1/stacks", get(stacks::list))
        .route("/api/v1/flame", get(stacks::picture))
        .merge(page::routes())
        .route("/api/v1/next", get(next::next))
        .route("/api/v1/export", get(export::rows))
        .route("/api/v1/nodes/{node}/incidents/{number}/fetch", get(files::progress).post(files::fetch))
        .route("/api/v1/nodes/{node}/incidents/{number}/file", get(files::file))
        .route("/api/v1/incidents/{number}/file", put(files::receive))
        .route("/incidents/{node}/{number}", get(view::without_slash))
        .route("/incidents/{node}/{number}/", get(view::index))
        .route("/incidents/{node}/{number}/{*path}", get(view::below))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .fallback(|| async {
            refusal(StatusCode::NOT_FOUND, "no such page", "see coroner fleet --help for what may be asked")
        })
        .layer(axum::middleware::map_response(page::secured))
        .with_state(Arc::clone(&collector));

    let is_tls = tls.is_some();
    let tls = match tls {
        Some((certificate, key)) => {
            // Ring alone is linked; nobody else may have installed a provider.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let config = axum_server::tls_rustls::RustlsConfig::from_pem_file(&certificate, &key).await;
            Some(config.with_context(|| format!("cannot use {} with {}", certificate.display(), key.display()))?)
        }
        None => None,
    };
    let listener = std::net::TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let scheme = if is_tls { "https" } else { "http" };
    println!("collecting into {}", collector.store.shown());
    println!("at {scheme}://{address}; stop with Ctrl-C or SIGTERM");
    // Others reach it by its name.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let shown = match (address.ip().is_unspecified(), host.trim()) {
        (true, host) if !host.is_empty() => format!("{scheme}://{host}:{}", address.port()),
        _ => format!("{scheme}://{address}"),
    };
    println!("make a node report here:");
    println!(
        "  coroner record --dir /var/lib/coroner --report-to {shown} --report-token-file {}",
        agents_file.display()
    );
    println!("{}", page::told(&format!("{shown}/"), &page_token, &people_file));
    println!("ask:");
    println!("  coroner fleet status --at {shown} --token-file {}", people_file.display());
    if !is_tls && !address.ip().is_loopback() {
        eprintln!(
            "coroner fleet: reports and tokens cross the network in clear text; use --tls-cert and --tls-key, or a proxy that does"
        );
    }
    let handle = axum_server::Handle::new();
    tokio::spawn(stop_on_signals(handle.clone(), Arc::clone(&collector)));
    tokio::spawn(files::tidy(Arc::clone(&collector)));
    tokio::spawn(files::hear(Arc::clone(&collector)));
    tokio::spawn(view::tidy(Arc::clone(&collector)));
    let service = app.into_make_service();
    match tls {
        Some(config) => {
            let mut server = axum_server::from_tcp_rustls(listener, config)?.handle(handle);
            bound(server.http_builder());
            server.serve(service).await?;
        }
        None => {
            let mut server = axum_server::from_tcp(listener)?.handle(handle);
            bound(server.http_builder());
            server.serve(service).await?;
        }
    }
    Ok(())
}

/// No other collector has it.
fn collector_name() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    filled.ok().context("the system gives no random numbers")?;
    Ok(crate::files::hex(&bytes))
}

/// HTTP/1 only, as nobody needs more; and a client must send its request soon.
fn bound(server: &mut hyper_util::server::conn::auto::Builder<hyper_util::rt::TokioExecutor>) {
    let taken =
        std::mem::replace(server, hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new()));
    *server = taken.http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
}

/// The usual limit of 1024 is for programs that know no more.
fn allow_many_connections() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(limit.maximum.unwrap_or(MOST_OPEN_FILES).min(MOST_OPEN_FILES));
    // If that is refused, it goes on with fewer.
    let _ = setrlimit(Resource::Nofile, limit);
}

async fn stop_on_signals(handle: axum_server::Handle<SocketAddr>, collector: Arc<Collector>) {
    let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) else { return };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    collector.is_stopping.store(true, Ordering::Relaxed);
    collector.store.drain();
    handle.graceful_shutdown(Some(DRAINS_WITHIN));
}

/// An error as JSON, with what to do about it.
pub struct Refusal {
    status: StatusCode,
    error: String,
    what_to_do: &'static str,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.error, "what_to_do": self.what_to_do });
        (self.status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
    }
}

pub fn refusal(status: StatusCode, error: &str, what_to_do: &'static str) -> Refusal {
    Refusal { status, error: error.to_owned(), what_to_do }
}

fn wrong_agent_token() -> Refusal {
    let what_to_do =
        "send the collector's agent token (--report-token-file); it is in agent.token in the collector's directory";
    refusal(StatusCode::UNAUTHORIZED, "the token is not that of this collector's nodes", what_to_do)
}

pub fn bearer(headers: &HeaderMap) -> &str {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.strip_prefix("Bearer ").unwrap_or_default().trim()
}

async fn report(State(collector): State<Arc<Collector>>, headers: HeaderMap, body: Body) -> Response {
    let counts = &collector.counts;
    Counts::one(&counts.requests);
    if !collector.agents.is(bearer(&headers)) {
        Counts::one(&counts.unauthorised);
        discard(body).await;
        return wrong_agent_token().into_response();
    }
    let Ok(reading) = collector.reading.try_acquire() else {
        discard(body).await;
        return come_back(counts);
    };
    let body = match tokio::time::timeout(SENT_WITHIN, to_bytes(body, MOST_BYTES)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            Counts::one(&counts.refused);
            let why = format!("the report is larger than {} KiB, or ended early", MOST_BYTES >> 10);
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, &why, "send less at a time").into_response();
        }
        Err(_) => {
            return refusal(StatusCode::REQUEST_TIMEOUT, "the report took too long", "send it again").into_response();
        }
    };
    // Who is slow to send keeps no place from those who have sent.
    drop(reading);
    let Ok(place) = collector.places.try_acquire() else { return come_back(counts) };
    counts.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
    let batches = match ingest::parse(&body, Wall::from(SystemTime::now())) {
        Ok(batches) => batches,
        Err(newer) if newer.is_newer() => {
            Counts::one(&counts.failed);
            let what_to_do = "upgrade the collector; the node keeps what it has until then";
            return refusal(StatusCode::SERVICE_UNAVAILABLE, &newer.0, what_to_do).into_response();
        }
        Err(refused) => {
            Counts::one(&counts.refused);
            return refusal(
                StatusCode::BAD_REQUEST,
                &refused.0,
                "this batch is not taken; the node drops it and goes on",
            )
            .into_response();
        }
    };
    // While requests are gathered, their memory is bounded there.
    let place = (!collector.store.gathers()).then_some(place);
    counts.unread_rows.fetch_add(batches.iter().map(|batch| batch.unknown).sum(), Ordering::Relaxed);
    let key = headers.get("coroner-node-key").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut nodes: Vec<String> = batches.iter().map(|batch| batch.head.node.clone()).collect();
    nodes.dedup();
    let stored = collector.store.store(ingest::printable(key), batches).await;
    drop(place);
    match stored {
        Ok(Stored { batches, repeated, rows, refused_stacks: _ }) => {
            // Only after the store has checked that the node is itself.
            let wanted = nodes.iter().flat_map(|node| collector.files.wanted_of(node)).collect();
            let told = Acknowledged { batches, repeated, rows, wanted };
            let body = serde_json::to_string(&told).unwrap_or_default();
            ([(header::CONTENT_TYPE, "application/json")], body + "\n").into_response()
        }
        Err(NotStored::Busy) => come_back(counts),
        Err(NotStored::NotItself(why)) => {
            Counts::one(&counts.unauthorised);
            refusal(
                StatusCode::FORBIDDEN,
                &why,
                "check whether two machines have the same machine id (--report-as names them)",
            )
            .into_response()
        }
        Err(NotStored::Failed(why)) => {
            Counts::one(&counts.failed);
            refusal(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("the store failed: {why}"),
                "nothing is lost: send it again later",
            )
            .into_response()
        }
    }
}

/// Reads a refused report without keeping it. A connection that is closed with unread input is reset, and its client may lose the answer.
async fn discard(mut body: Body) {
    let all = async {
        let mut left = MOST_BYTES;
        while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            match left.checked_sub(frame.data_ref().map_or(0, |data| data.len())) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    let _ = tokio::time::timeout(DISCARDED_WITHIN, all).await;
}

fn come_back(counts: &Counts) -> Response {
    Counts::one(&counts.shed);
    let mut response =
        refusal(StatusCode::TOO_MANY_REQUESTS, "too many reports at once", "send it again later").into_response();
    response.headers_mut().insert(header::RETRY_AFTER, COME_BACK_AFTER_S.into());
    response
}

/// Answers a question of a person, on a thread that may wait for the disk.
pub async fn answer<T: serde::Serialize + Send + 'static>(
    collector: Arc<Collector>,
    headers: &HeaderMap,
    ask: impl FnOnce(&Reader, i64) -> Result<T, Refusal> + Send + 'static,
) -> Response {
    match asked(collector, headers, ask).await {
        Ok(document) => match serde_json::to_string(&document) {
            Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response(),
            Err(error) => failed(&error.to_string()).into_response(),
        },
        Err(refusal) => refusal.into_response(),
    }
}

async fn asked<T: Send + 'static>(
    collector: Arc<Collector>,
    headers: &HeaderMap,
    ask: impl FnOnce(&Reader, i64) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    if !page::access::admits(&collector.people, headers) {
        if !bearer(headers).is_empty() {
            let what_to_do = "send that of user.token in the collector's directory, not that of agent.token";
            return Err(refusal(StatusCode::UNAUTHORIZED, "the token is not this collector's user token", what_to_do));
        }
        return Err(no_user_token());
    }
    let asked = tokio::task::spawn_blocking(move || {
        let reader = collector.store.reader().map_err(of_store)?;
        ask(&reader, unix_now())
    });
    asked.await.unwrap_or_else(|error| Err(failed(&error.to_string())))
}

fn no_user_token() -> Refusal {
    let what_to_do = "send the user token (--token-file, or CORONER_FLEET_TOKEN_FILE); it is in user.token in the collector's directory";
    refusal(StatusCode::UNAUTHORIZED, "a token is required", what_to_do)
}

fn failed(why: &str) -> Refusal {
    refusal(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!("the store could not be read: {why}"),
        "see the collector's messages",
    )
}

pub fn of_store(error: anyhow::Error) -> Refusal {
    if let Some(bad) = error.downcast_ref::<query::BadExpr>() {
        return bad_request(&format!("where: {bad}"));
    }
    let refusal = failed(&format!("{error:#}"));
    let is_away = error.downcast_ref::<clickhouse::error::Error>().is_some();
    if is_away { Refusal { status: StatusCode::SERVICE_UNAVAILABLE, ..refusal } } else { refusal }
}

pub type Asked = Query<HashMap<String, String>>;

async fn status(State(collector): State<Arc<Collector>>, headers: HeaderMap) -> Response {
    answer(collector, &headers, |reader, now| reader.status(now).map_err(of_store)).await
}

async fn nodes(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    answer(collector, &headers, move |reader, now| {
        let picked = picked(&asked)?;
        let all = reader.nodes(now).map_err(of_store)?;
        if let Some(expr) = &picked {
            expr.check(all.iter()).map_err(|bad| bad_request(&format!("where: {bad}")))?;
        }
        let known = all.len() as u64;
        let matches = |node: &crate::answers::NodeSummary| {
            picked.as_ref().is_none_or(|expr| expr.matches(node, now) == Some(true))
        };
        let mut nodes: Vec<_> = all.into_iter().filter(matches).collect();
        let field = asked.get("sort").map(String::as_str).filter(|field| !field.is_empty());
        sort(&mut nodes, field.unwrap_or("problems")).map_err(|why| bad_request(&why))?;
        let matched = nodes.len() as u64;
        nodes.truncate(asked.get("limit").and_then(|n| n.parse().ok()).unwrap_or(MOST_NODES).min(MOST_NODES));
        Ok(crate::answers::NodeList {
            schema: "coroner.fleet.nodes/1".to_owned(),
            at: wall(now),
            known,
            matched,
            nodes,
        })
    })
    .await
}

/// The parameter `where`.
fn picked(asked: &HashMap<String, String>) -> Result<Option<query::Expr>, Refusal> {
    let text = asked.get("where").filter(|text| !text.trim().is_empty());
    text.map(|text| query::parse(text).map_err(|bad| bad_request(&format!("where: {bad}")))).transpose()
}

pub fn bad_request(why: &str) -> Refusal {
    refusal(StatusCode::BAD_REQUEST, why, "see coroner fleet nodes --help")
}

/// By a number, the largest first; by anything else, in order. Unknown ones come last.
fn sort(nodes: &mut [crate::answers::NodeSummary], field: &str) -> Result<(), String> {
    let text = |node: &crate::answers::NodeSummary| match field {
        "node" => Some(node.node.clone()),
        "host" => node.host.clone(),
        _ => node.attributes.get(field).or_else(|| node.attributes.get(&format!("label:{field}"))).cloned(),
    };
    if field == "up" {
        nodes.sort_by_key(|node| (node.booted.is_none(), node.booted));
    } else if field == "problems" {
        nodes.sort_by_key(|node| std::cmp::Reverse(node.problems.len()));
    } else if read::number_names().any(|name| name == field) {
        let number = |node: &crate::answers::NodeSummary| node.numbers.get(field).copied().unwrap_or(f64::NEG_INFINITY);
        nodes.sort_by(|a, b| number(b).total_cmp(&number(a)));
    } else if nodes.is_empty() || nodes.iter().any(|node| text(node).is_some()) {
        nodes.sort_by_key(|node| (text(node).is_none(), text(node)));
    } else {
        return Err(format!("sort: no node has an attribute '{}'", ingest::printable(field)));
    }
    Ok(())
}

async fn node(State(collector): State<Arc<Collector>>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    answer(collector, &headers, move |reader, now| {
        let node = find_one(reader, &name)?;
        reader.detail(&node, now).map_err(of_store)
    })
    .await
}

/// The node that a person means.
pub fn find_one(reader: &Reader, asked: &str) -> Result<String, Refusal> {
    let mut found = reader.find(asked).map_err(of_store)?;
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => {
            let why = format!("no node or host {} is known", ingest::printable(asked));
            Err(refusal(StatusCode::NOT_FOUND, &why, "coroner fleet nodes lists them"))
        }
        several => {
            let why = format!("{several} nodes have the host name {}: {}", ingest::printable(asked), found.join(", "));
            Err(refusal(StatusCode::CONFLICT, &why, "name one of them"))
        }
    }
}

async fn incidents(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    answer(collector, &headers, move |reader, now| {
        let since = since(&asked, now, 7 * 86_400)?;
        reader.incidents(since, now, MOST_INCIDENTS).map_err(of_store)
    })
    .await
}

/// The parameter `since` in seconds back from now.
fn since(asked: &HashMap<String, String>, now: i64, usual: i64) -> Result<i64, Refusal> {
    match asked.get("since") {
        None => Ok(now - usual),
        Some(text) => match text.parse::<u32>() {
            Ok(seconds) => Ok(now - i64::from(seconds)),
            Err(_) => Err(bad_request("since: expected seconds")),
        },
    }
}

async fn why_sick(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    answer(collector, &headers, move |reader, now| {
        let since = since(&asked, now, 7 * 86_400)?;
        let condition = asked.get("condition").map(|text| text.trim()).filter(|text| !text.is_empty());
        why::why(reader, condition, since, now).map_err(|error| match error {
            why::WhyError::Bad(why) => bad_request(&why),
            why::WhyError::Db(error) => of_store(error),
        })
    })
    .await
}

async fn ready(State(collector): State<Arc<Collector>>) -> Response {
    if collector.is_stopping.load(Ordering::Relaxed) {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "stopping", "ask another collector").into_response();
    }
    match collector.store.status().trouble {
        Some(why) => refusal(StatusCode::SERVICE_UNAVAILABLE, &why, "see the collector's messages").into_response(),
        None => "ok\n".into_response(),
    }
}

async fn metrics(State(collector): State<Arc<Collector>>, headers: HeaderMap) -> Response {
    if !collector.people.is(bearer(&headers)) {
        return refusal(
            StatusCode::UNAUTHORIZED,
            "a token is required",
            "scrape with the user token (authorization: credentials_file)",
        )
        .into_response();
    }
    let counts = &collector.counts;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let store = collector.store.status();
    let rows = [
        ("requests_total", "counter", "Reports received.", read(&counts.requests)),
        ("request_bytes_total", "counter", "Bytes of reports, compressed.", read(&counts.bytes)),
        ("refused_requests_total", "counter", "Reports that were refused for good.", read(&counts.refused)),
        (
            "unauthorised_requests_total",
            "counter",
            "Reports with a wrong token or as another node.",
            read(&counts.unauthorised),
        ),
        ("shed_requests_total", "counter", "Reports that were told to come later.", read(&counts.shed)),
        ("failed_requests_total", "counter", "Reports that the store could not take.", read(&counts.failed)),
        (
            "unread_rows_total",
            "counter",
            "Rows of nodes of other versions that this one cannot read.",
            read(&counts.unread_rows),
        ),
        ("batches_total", "counter", "Batches stored.", store.batches),
        ("repeated_batches_total", "counter", "Batches that were stored before.", store.repeated),
        ("rows_total", "counter", "Rows stored.", store.rows),
        (
            "refused_stacks_total",
            "counter",
            "Stacks beyond the limits of a node or of the store.",
            store.refused_stacks,
        ),
        ("commits_total", "counter", "Commits of the store.", store.commits),
        ("failed_commits_total", "counter", "Commits that failed.", store.failed_commits),
        ("store_bytes", "gauge", "Size of the store on disk.", collector.store.bytes()),
    ];
    let text: String = rows
        .iter()
        .map(|(name, kind, help, value)| {
            format!(
                "# HELP coroner_fleet_{name} {help}\n# TYPE coroner_fleet_{name} {kind}\ncoroner_fleet_{name} {value}\n"
            )
        })
        .collect();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
