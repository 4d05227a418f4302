//! Recordings of incidents: people ask for them and take them, nodes send them.

use super::export::send_body;
use super::{
    Asked, Collector, Counts, MOST_PIECE, Refusal, SENT_WITHIN, answer, bearer, failed, find_one, no_user_token,
    of_store, refusal, wrong_agent_token,
};
use crate::answers::Fetch;
use crate::files::{Files, Id, MOST_IN_FILE, NotReceived, Piece, Progress, Stored};
use crate::store::read::{self, wall};
use crate::store::{self, Reader};
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use coroner_report::{Incident, Received};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const TIDIES_EVERY: Duration = Duration::from_secs(600);
/// A node reports each minute.
const HEARS_EVERY: Duration = Duration::from_secs(3);

/// Learns from other collectors what is wanted.
pub async fn hear(collector: Arc<Collector>) {
    let mut said = String::new();
    while collector.files.has_others() {
        let theirs = Arc::clone(&collector);
        let heard = tokio::task::spawn_blocking(move || theirs.files.hear(None)).await;
        let trouble = match heard {
            Ok(Err(error)) => format!("{error:#}"),
            _ => String::new(),
        };
        if !trouble.is_empty() && trouble != said {
            eprintln!("coroner fleet: which recordings are wanted is not known: {trouble}");
        }
        said = trouble;
        tokio::time::sleep(HEARS_EVERY).await;
    }
}

/// Removes old files from time to time.
pub async fn tidy(collector: Arc<Collector>) {
    loop {
        let tidied = Arc::clone(&collector);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || tidied.files.tidy(0)).await {
            eprintln!("coroner fleet: files: {error:#}");
        }
        tokio::time::sleep(TIDIES_EVERY).await;
    }
}

type Named = Path<(String, u64)>;

/// How far it is.
pub async fn progress(State(collector): State<Arc<Collector>>, Path(named): Named, headers: HeaderMap) -> Response {
    told(collector, named, headers, false).await
}

/// Asks the node for it.
pub async fn fetch(State(collector): State<Arc<Collector>>, Path(named): Named, headers: HeaderMap) -> Response {
    told(collector, named, headers, true).await
}

async fn told(collector: Arc<Collector>, named: (String, u64), headers: HeaderMap, ask: bool) -> Response {
    let theirs = Arc::clone(&collector);
    answer(collector, &headers, move |reader, now| {
        let files = &theirs.files;
        let (id, host, incident) = known(reader, &named)?;
        let stored = files.find(&id).map_err(|error| of_files(&error))?;
        if ask && stored.is_none() {
            let busy = "too many files are wanted at once";
            files.want(&id).map_err(|why| match why {
                NotReceived::Failed(why) => of_store(anyhow::anyhow!(why)),
                _ => refusal(StatusCode::TOO_MANY_REQUESTS, busy, "try again later"),
            })?;
        }
        fetch_state(reader, files, &id, host, &incident, stored, now)
    })
    .await
}

fn fetch_state(
    reader: &Reader,
    files: &Files,
    id: &Id,
    host: Option<String>,
    incident: &Incident,
    stored: Option<Stored>,
    now: i64,
) -> Result<Fetch, Refusal> {
    let last_seen = reader.last_seen(&id.node).map_err(of_store)?;
    let mut fetch = Fetch {
        schema: "coroner.fleet.fetch/1".to_owned(),
        id: format!("{}/{}", id.node, id.number),
        host,
        incident_state: incident.state.as_str().to_owned(),
        last_seen: wall(last_seen),
        is_silent: last_seen < now - read::SILENT_AFTER_S,
        ..Fetch::default()
    };
    let (state, bytes, of) = match (stored, files.progress(id).map_err(of_store)?) {
        (Some(stored), _) => {
            fetch.sha256 = Some(stored.sha256);
            ("stored", Some(stored.bytes), Some(stored.bytes))
        }
        (None, Progress::Unwanted) => ("unwanted", None, None),
        (None, Progress::Waiting) => ("waiting", None, None),
        (None, Progress::Receiving { bytes, of }) => ("receiving", Some(bytes), Some(of)),
        (None, Progress::Refused) => ("refused", None, None),
        (None, Progress::Gone) => ("gone", None, None),
        (None, Progress::StoredElsewhere) => {
            let why = "another collector has the file, and this one does not find it";
            let what_to_do = "give all collectors the same --files: a bucket, or a directory that they share";
            return Err(refusal(StatusCode::CONFLICT, why, what_to_do));
        }
        (None, Progress::TooLarge { bytes }) => ("too large", None, Some(bytes)),
    };
    (fetch.state, fetch.bytes, fetch.of) = (state.to_owned(), bytes, of);
    Ok(fetch)
}

/// The newest incident with this number.
fn known(reader: &Reader, (name, number): &(String, u64)) -> Result<(Id, Option<String>, Incident), Refusal> {
    let node = find_one(reader, name)?;
    let found = reader.incident(&node, *number).map_err(of_store)?;
    let (host, incident) = found.ok_or_else(|| {
        let why = format!("no incident {number} of {} is known", crate::ingest::printable(name));
        refusal(StatusCode::NOT_FOUND, &why, "coroner fleet incidents lists them")
    })?;
    Ok((Id { node, number: *number, triggered_s: store::write::seconds(incident.triggered) }, host, incident))
}

fn of_files(error: &anyhow::Error) -> Refusal {
    let why: String = crate::ingest::printable(&format!("{error:#}"));
    eprintln!("coroner fleet: files: {why}");
    refusal(StatusCode::SERVICE_UNAVAILABLE, &why, "see where --files leads")
}

/// The complete file of an incident.
pub fn stored_of(collector: &Collector, named: &(String, u64)) -> Result<(Id, Stored), Refusal> {
    let reader = collector.store.reader().map_err(of_store)?;
    let (id, ..) = known(&reader, named)?;
    let stored = collector.files.find(&id).map_err(|error| of_files(&error))?;
    let missing = || refusal(StatusCode::NOT_FOUND, "the file is not here", "coroner fleet fetch asks its node for it");
    Ok((id, stored.ok_or_else(missing)?))
}

/// The file itself.
pub async fn file(State(collector): State<Arc<Collector>>, Path(named): Named, headers: HeaderMap) -> Response {
    if !collector.people.is(bearer(&headers)) {
        return no_user_token().into_response();
    }
    let Ok(place) = Arc::clone(&collector.exports).try_acquire_owned() else {
        let why = "too many files and exports are being sent";
        return refusal(StatusCode::TOO_MANY_REQUESTS, why, "try again when one has ended").into_response();
    };
    let opened = tokio::task::spawn_blocking(move || {
        let (_, stored) = stored_of(&collector, &named)?;
        let file = collector.files.open_stored(&stored).map_err(|error| of_files(&error))?;
        Ok::<_, Refusal>((stored, file))
    });
    let (stored, mut file) = match opened.await {
        Ok(Ok(opened)) => opened,
        Ok(Err(refusal)) => return refusal.into_response(),
        Err(error) => return failed(&error.to_string()).into_response(),
    };
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, stored.bytes.to_string()),
        (header::HeaderName::from_static("coroner-sha256"), stored.sha256),
    ];
    (headers, send_body(place, move |to| Ok(std::io::copy(&mut file, to).map(drop)?))).into_response()
}

/// A piece of a file, from its node.
pub async fn receive(
    State(collector): State<Arc<Collector>>,
    Path(number): Path<u64>,
    Query(asked): Asked,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if !collector.agents.is(bearer(&headers)) {
        Counts::one(&collector.counts.unauthorised);
        return wrong_agent_token().into_response();
    }
    // Of its own: who sends a file slowly keeps no place from reports.
    let Ok(_place) = collector.pieces.try_acquire() else {
        super::discard(body).await;
        return super::come_back(&collector.counts);
    };
    let node = asked.get("node").cloned().unwrap_or_default();
    let key = headers.get("coroner-node-key").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let key = crate::ingest::printable(key);
    if let Err(refusal) = is_itself(&collector, node.clone(), key).await {
        super::discard(body).await;
        return refusal.into_response();
    }
    let bytes = match tokio::time::timeout(SENT_WITHIN, to_bytes(body, MOST_PIECE)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let why = format!("a piece is larger than {} KiB, or ended early", MOST_PIECE >> 10);
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, &why, "send less at a time").into_response();
        }
        Err(_) => {
            return refusal(StatusCode::REQUEST_TIMEOUT, "the piece took too long", "send it again").into_response();
        }
    };
    let theirs = Arc::clone(&collector);
    let stored = tokio::task::spawn_blocking(move || take(&theirs.files, &node, number, &asked, &bytes));
    match stored.await {
        Ok(Ok((status, offset))) => {
            let body = serde_json::to_string(&Received { offset }).unwrap_or_default();
            (status, [(header::CONTENT_TYPE, "application/json")], body + "\n").into_response()
        }
        Ok(Err(refusal)) => refusal.into_response(),
        Err(error) => failed(&error.to_string()).into_response(),
    }
}

async fn is_itself(collector: &Arc<Collector>, node: String, key: String) -> Result<(), Refusal> {
    let theirs = Arc::clone(collector);
    let asked = tokio::task::spawn_blocking(move || {
        let reader = theirs.store.reader().map_err(of_store)?;
        if reader.is_itself(&node, &key).map_err(of_store)? {
            return Ok(());
        }
        Counts::one(&theirs.counts.unauthorised);
        let why = format!("node {} is not known with this key", crate::ingest::printable(&node));
        Err(refusal(StatusCode::FORBIDDEN, &why, "report before sending files"))
    });
    asked.await.unwrap_or_else(|error| Err(failed(&error.to_string())))
}

fn take(
    files: &Files,
    node: &str,
    number: u64,
    asked: &HashMap<String, String>,
    bytes: &[u8],
) -> Result<(StatusCode, u64), Refusal> {
    if let Some(why) = asked.get("unsent") {
        return files.unsent(node, number, why).map(|()| (StatusCode::OK, 0)).map_err(refused);
    }
    let number_of = |name: &'static str| {
        let given = asked.get(name).and_then(|text| text.parse().ok());
        given.ok_or_else(|| refused(NotReceived::Bad("expected size, offset and sha256")))
    };
    let piece = Piece {
        size: number_of("size")?,
        offset: number_of("offset")?,
        sha256: asked.get("sha256").map(String::as_str).unwrap_or_default(),
        bytes,
    };
    match files.receive(node, number, &piece) {
        Ok(have) => Ok((StatusCode::OK, have)),
        // It goes on from there.
        Err(NotReceived::Elsewhere(have)) => Ok((StatusCode::CONFLICT, have)),
        Err(other) => Err(refused(other)),
    }
}

fn refused(why: NotReceived) -> Refusal {
    let (status, error, what_to_do) = match why {
        NotReceived::NotWanted => (StatusCode::NOT_FOUND, "nobody asked for this file".to_owned(), "do not send it"),
        NotReceived::TooLarge => {
            let why = format!("the file is larger than {} MiB, or than --files-max", MOST_IN_FILE >> 20);
            (StatusCode::PAYLOAD_TOO_LARGE, why, "copy it from the node")
        }
        NotReceived::Damaged => {
            (StatusCode::UNPROCESSABLE_ENTITY, "the file does not match its checksum".to_owned(), "send it again")
        }
        NotReceived::Bad(why) => (StatusCode::BAD_REQUEST, why.to_owned(), "see docs/fleet.md"),
        NotReceived::Busy => {
            (StatusCode::TOO_MANY_REQUESTS, "too many files at once".to_owned(), "send it again later")
        }
        NotReceived::Elsewhere(have) => (StatusCode::CONFLICT, format!("{have} bytes are here"), "go on from there"),
        NotReceived::Failed(why) => {
            eprintln!("coroner fleet: files: {why}");
            (StatusCode::SERVICE_UNAVAILABLE, why, "send it again later")
        }
    };
    refusal(status, &error, what_to_do)
}
