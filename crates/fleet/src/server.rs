//! The collector: takes reports, answers questions.
//!
//! Nodes present the agents' token and may only report; people present theirs and may only read. A report is acknowledged when it is on
//! disk. When too many wait, nodes are told to come back later; their spools keep what they have.

use crate::ingest::{self, MOST_BYTES};
use crate::query;
use crate::store::read::{self, wall};
use crate::store::write::Retention;
use crate::store::{NotStored, Store, unix_now};
use crate::tokens::Token;
use crate::why;
use anyhow::Context;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use coroner_report::Wall;
use hyper_util::rt::TokioTimer;
use serde_json::json;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;

/// How long a stopping collector waits for requests in progress.
const DRAINS_WITHIN: Duration = Duration::from_secs(10);
/// Reports at a time; each takes up to 8 MiB unpacked.
const MOST_AT_ONCE: usize = 64;
/// How long a node may take to send a report, and a client to send its headers.
const SENT_WITHIN: Duration = Duration::from_secs(30);
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// When the queue is full, nodes come back after this at the earliest.
const COME_BACK_AFTER_S: u32 = 10;
/// Rows of a list, unless more are asked for.
const MOST_NODES: usize = 100_000;
const MOST_INCIDENTS: i64 = 1000;

pub struct ServeOptions {
    pub directory: PathBuf,
    pub listen: SocketAddr,
    pub agent_token: Option<PathBuf>,
    pub user_token: Option<PathBuf>,
    pub tls: Option<(PathBuf, PathBuf)>,
    pub retention: Retention,
}

struct Collector {
    store: Store,
    agents: Token,
    people: Token,
    counts: Counts,
    is_stopping: AtomicBool,
    /// Reports being read or stored: bounds memory.
    places: Semaphore,
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    refused: AtomicU64,
    unauthorised: AtomicU64,
    shed: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

pub async fn serve(options: ServeOptions) -> anyhow::Result<()> {
    let ServeOptions { directory, listen, agent_token, user_token, tls, retention } = options;
    let store = Store::open(&directory, retention)?;
    let own = store.directory().to_owned();
    let token = |given: Option<PathBuf>, name: &str| match given {
        Some(file) => Token::read(&file).map(|token| (token, file)),
        None => Token::read_or_make(&own.join(name)).map(|token| (token, own.join(name))),
    };
    let (agents, agents_file) = token(agent_token, "agent.token")?;
    let (people, people_file) = token(user_token, "user.token")?;
    let collector = Arc::new(Collector {
        store,
        agents,
        people,
        counts: Counts::default(),
        is_stopping: AtomicBool::new(false),
        places: Semaphore::new(MOST_AT_ONCE),
    });
    let app = Router::new()
        .route("/api/v1/report", post(report))
        .route("/api/v1/status", get(status))
        .route("/api/v1/nodes", get(nodes))
        .route("/api/v1/nodes/{node}", get(node))
        .route("/api/v1/incidents", get(incidents))
        .route("/api/v1/why", get(why_sick))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .fallback(|| async {
            refusal(StatusCode::NOT_FOUND, "no such page", "see coroner fleet --help for what may be asked")
        })
        .with_state(Arc::clone(&collector));

    let listener = std::net::TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    println!("collecting into {}", own.display());
    println!("at {scheme}://{address}; stop with Ctrl-C or SIGTERM");
    println!("make a node report here:");
    println!(
        "  coroner record --dir /var/lib/coroner --report-to {scheme}://{address} --report-token-file {}",
        agents_file.display()
    );
    println!("ask:");
    println!("  coroner fleet status --at {scheme}://{address} --token-file {}", people_file.display());
    if tls.is_none() && !address.ip().is_loopback() {
        eprintln!(
            "coroner fleet: reports and tokens cross the network in clear text; use --tls-cert and --tls-key, or a proxy that does"
        );
    }
    let handle = axum_server::Handle::new();
    tokio::spawn(stop_on_signals(handle.clone(), Arc::clone(&collector)));
    let service = app.into_make_service();
    match tls {
        Some((certificate, key)) => {
            // Ring alone is linked; nobody else may have installed a provider.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let config = axum_server::tls_rustls::RustlsConfig::from_pem_file(&certificate, &key)
                .await
                .with_context(|| format!("cannot use {} with {}", certificate.display(), key.display()))?;
            let mut server = axum_server::from_tcp_rustls(listener, config)?.handle(handle);
            server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
            server.serve(service).await?;
        }
        None => {
            let mut server = axum_server::from_tcp(listener)?.handle(handle);
            server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
            server.serve(service).await?;
        }
    }
    Ok(())
}

async fn stop_on_signals(handle: axum_server::Handle<SocketAddr>, collector: Arc<Collector>) {
    let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) else { return };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    collector.is_stopping.store(true, Ordering::Relaxed);
    handle.graceful_shutdown(Some(DRAINS_WITHIN));
}

/// An error as JSON, with what to do about it.
struct Refusal {
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

fn refusal(status: StatusCode, error: &str, what_to_do: &'static str) -> Refusal {
    Refusal { status, error: error.to_owned(), what_to_do }
}

fn bearer(headers: &HeaderMap) -> &str {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.strip_prefix("Bearer ").unwrap_or_default().trim()
}

async fn report(State(collector): State<Arc<Collector>>, headers: HeaderMap, body: Body) -> Response {
    let counts = &collector.counts;
    Counts::one(&counts.requests);
    if !collector.agents.is(bearer(&headers)) {
        Counts::one(&counts.unauthorised);
        let what_to_do =
            "send the collector's agent token (--report-token-file); it is in agent.token in the collector's directory";
        return refusal(StatusCode::UNAUTHORIZED, "the token is not that of this collector's nodes", what_to_do)
            .into_response();
    }
    let Ok(_place) = collector.places.try_acquire() else {
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
    counts.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
    let batches = match ingest::parse(&body, Wall::from(SystemTime::now())) {
        Ok(batches) => batches,
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
    let key = headers.get("coroner-node-key").and_then(|value| value.to_str().ok()).unwrap_or_default();
    match collector.store.store(ingest::printable(key), batches).await {
        Ok(stored) => {
            let body = json!({ "batches": stored.batches, "repeated": stored.repeated, "rows": stored.rows });
            ([(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
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

fn come_back(counts: &Counts) -> Response {
    Counts::one(&counts.shed);
    let mut response =
        refusal(StatusCode::TOO_MANY_REQUESTS, "too many reports at once", "send it again later").into_response();
    response.headers_mut().insert(header::RETRY_AFTER, COME_BACK_AFTER_S.into());
    response
}

/// Answers a question of a person, on a thread that may wait for the disk.
async fn answer<T: serde::Serialize + Send + 'static>(
    collector: Arc<Collector>,
    headers: &HeaderMap,
    ask: impl FnOnce(&rusqlite::Connection, i64) -> Result<T, Refusal> + Send + 'static,
) -> Response {
    if !collector.people.is(bearer(headers)) {
        let what_to_do = "send the user token (--token-file, or CORONER_FLEET_TOKEN_FILE); it is in user.token in the collector's directory";
        return refusal(StatusCode::UNAUTHORIZED, "a token is required", what_to_do).into_response();
    }
    let asked = tokio::task::spawn_blocking(move || {
        let db = collector.store.reader().map_err(|error| failed(&format!("{error:#}")))?;
        ask(&db, unix_now())
    });
    match asked.await {
        Ok(Ok(document)) => match serde_json::to_string(&document) {
            Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response(),
            Err(error) => failed(&error.to_string()).into_response(),
        },
        Ok(Err(refusal)) => refusal.into_response(),
        Err(error) => failed(&error.to_string()).into_response(),
    }
}

fn failed(why: &str) -> Refusal {
    refusal(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!("the store could not be read: {why}"),
        "see the collector's messages",
    )
}

fn of_db(error: rusqlite::Error) -> Refusal {
    failed(&error.to_string())
}

type Asked = Query<HashMap<String, String>>;

async fn status(State(collector): State<Arc<Collector>>, headers: HeaderMap) -> Response {
    answer(collector, &headers, |db, now| read::status(db, now).map_err(of_db)).await
}

async fn nodes(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    answer(collector, &headers, move |db, now| {
        let picked = match asked.get("where").filter(|text| !text.trim().is_empty()) {
            Some(text) => Some(query::parse(text).map_err(|bad| bad_request(&format!("where: {bad}")))?),
            None => None,
        };
        let all = read::nodes(db, now).map_err(of_db)?;
        let known = all.len() as u64;
        let matches = |node: &crate::answers::NodeSummary| {
            picked.as_ref().is_none_or(|expr| expr.matches(node, now) == Some(true))
        };
        let mut nodes: Vec<_> = all.into_iter().map(|(_, node)| node).filter(matches).collect();
        if let Some(field) = asked.get("sort").filter(|field| !field.is_empty()) {
            sort(&mut nodes, field).map_err(|why| bad_request(&why))?;
        }
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

fn bad_request(why: &str) -> Refusal {
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
    answer(collector, &headers, move |db, now| {
        let found = read::find(db, &name).map_err(of_db)?;
        match found.as_slice() {
            [(id, _)] => read::detail(db, *id, now).map_err(of_db),
            [] => {
                let why = format!("no node or host {} is known", ingest::printable(&name));
                Err(refusal(StatusCode::NOT_FOUND, &why, "coroner fleet nodes lists them"))
            }
            several => {
                let ids: Vec<&str> = several.iter().map(|(_, node)| node.as_str()).collect();
                let why = format!(
                    "{} nodes have the host name {}: {}",
                    several.len(),
                    ingest::printable(&name),
                    ids.join(", ")
                );
                Err(refusal(StatusCode::CONFLICT, &why, "name one of them"))
            }
        }
    })
    .await
}

async fn incidents(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    answer(collector, &headers, move |db, now| {
        let since = since(&asked, now, 7 * 86_400)?;
        read::incidents(db, since, now, MOST_INCIDENTS).map_err(of_db)
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
    answer(collector, &headers, move |db, now| {
        let since = since(&asked, now, 7 * 86_400)?;
        let condition = asked.get("condition").map(|text| text.trim()).filter(|text| !text.is_empty());
        why::why(db, condition, since, now).map_err(|error| match error {
            why::WhyError::Bad(why) => bad_request(&why),
            why::WhyError::Db(error) => of_db(error),
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
        ("batches_total", "counter", "Batches stored.", store.batches),
        ("repeated_batches_total", "counter", "Batches that were stored before.", store.repeated),
        ("rows_total", "counter", "Rows stored.", store.rows),
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
