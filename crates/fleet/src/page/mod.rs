//! The fleet's page, and the documents that only it needs. Sources are in ui/src/fleet; `npm run build` there writes assets/.

pub mod access;
mod assets;
mod map;

use crate::server::{Asked, Collector, Refusal, answer, bad_request, bearer, find_one, of_store, refusal};
use crate::store::hours::HOUR_S;
use crate::store::look;
use crate::store::read::NUMBERS;
use crate::tokens::Token;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::collections::{BTreeSet, HashMap};
use std::io::IsTerminal;
use std::path::Path as FilePath;
use std::sync::Arc;

/// Minutes are answered for so long a time; hours for a longer one.
const LONGEST_IN_MINUTES_S: i64 = 36 * HOUR_S;
/// Growth is that of the last day.
const SLOPE_OVER_S: i64 = 24 * HOUR_S;

const SECURE: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
         frame-ancestors 'none'; form-action 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Adds the headers that keep a browser from running or leaking what nodes sent; those that an answer has stay.
pub async fn secured(mut response: Response) -> Response {
    for (name, value) in SECURE {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    // What nodes said is for those with the token, not for a cache on the way. The page's own files say for how long they are good.
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

pub fn routes() -> Router<Arc<Collector>> {
    Router::new()
        .route("/", get(index))
        .route("/assets/{name}", get(asset))
        .route("/api/v1/session", post(begin_session).delete(end_session))
        .route("/api/v1/map", get(map))
        .route("/api/v1/history", get(history))
        .route("/api/v1/problem", get(problem))
        .route("/api/v1/nodes/{node}/minutes", get(minutes))
}

/// How to open the page. The token is shown to a terminal only: the output of a service is kept in a log that others read.
pub fn told(url: &str, token: &Token, file: &FilePath) -> String {
    let is_plain = token.text().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
    if std::io::stdout().is_terminal() && is_plain {
        format!("open in a browser:\n  {url}?token={}", token.text())
    } else {
        format!("open in a browser (it asks for the token in {}):\n  {url}", file.display())
    }
}

/// With a token in the address, it moves into a cookie and out of the address.
async fn index(State(collector): State<Arc<Collector>>, Query(asked): Asked) -> Response {
    let Some(given) = asked.get("token") else { return file("index.html") };
    if !collector.people.is(given) {
        return (StatusCode::SEE_OTHER, [(header::LOCATION, "/?refused=1")]).into_response();
    }
    let cookie = access::cookie(Some(&collector.people), collector.is_tls);
    (StatusCode::SEE_OTHER, [(header::LOCATION, "/".to_owned()), (header::SET_COOKIE, cookie)]).into_response()
}

async fn asset(Path(name): Path<String>) -> Response {
    file(&format!("assets/{name}"))
}

fn file(name: &str) -> Response {
    let missing = || refusal(StatusCode::NOT_FOUND, "no such file", "open /").into_response();
    assets::file(name).unwrap_or_else(missing)
}

/// The page exchanges the token that was typed into it for a cookie that no script can read.
async fn begin_session(State(collector): State<Arc<Collector>>, headers: HeaderMap) -> Response {
    if !collector.people.is(bearer(&headers)) {
        let what_to_do = "it is in user.token in the collector's directory";
        return refusal(StatusCode::UNAUTHORIZED, "this is not the collector's user token", what_to_do).into_response();
    }
    let cookie = access::cookie(Some(&collector.people), collector.is_tls);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

async fn end_session(State(collector): State<Arc<Collector>>) -> Response {
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, access::cookie(None, collector.is_tls))]).into_response()
}

fn seconds(asked: &HashMap<String, String>, name: &str) -> Result<Option<i64>, Refusal> {
    let Some(text) = asked.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let seconds = text.parse::<u32>().map(|seconds| Some(i64::from(seconds)));
    seconds.map_err(|_| bad_request(&format!("{name}: expected seconds since 1970")))
}

/// The numbers asked for by name; all, if none are named.
fn numbers(asked: &HashMap<String, String>) -> Result<Vec<&'static str>, Refusal> {
    let Some(names) = asked.get("numbers") else { return Ok(NUMBERS.iter().map(|(name, ..)| *name).collect()) };
    let known = |wanted: &str| NUMBERS.iter().map(|(name, ..)| *name).find(|name| *name == wanted);
    let wanted: BTreeSet<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
    wanted.into_iter().map(|name| known(name).ok_or_else(|| unknown_number("numbers"))).collect()
}

fn unknown_number(parameter: &str) -> Refusal {
    let names: Vec<&str> = NUMBERS.iter().map(|(name, ..)| *name).collect();
    bad_request(&format!("{parameter}: expected some of {}", names.join(", ")))
}

async fn map(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    let retention = collector.retention;
    answer(collector, &headers, move |reader, now| {
        let at = seconds(&asked, "at")?.filter(|at| *at < now);
        let numbers = numbers(&asked)?;
        let moment =
            look::Moment { at: at.unwrap_or(now), is_live: at.is_none(), minutes_from: now - retention.minutes_s };
        map::map(reader, moment, now - retention.hours_s.max(retention.minutes_s), &numbers).map_err(of_store)
    })
    .await
}

async fn history(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    let kept = collector.retention.episodes_s;
    answer(collector, &headers, move |reader, now| {
        let until = seconds(&asked, "until")?.unwrap_or(now).min(now);
        let from = seconds(&asked, "from")?.unwrap_or(until - 7 * 24 * HOUR_S).max(now - kept);
        reader.history(from.min(until), until).map_err(of_store)
    })
    .await
}

async fn problem(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    let minutes_from = collector.retention.minutes_s;
    answer(collector, &headers, move |reader, now| {
        let code = asked.get("code").filter(|code| !code.is_empty());
        let code = code.ok_or_else(|| bad_request("code: name a problem's code or key"))?;
        let number = asked.get("number").map_or("zombies", String::as_str);
        let number = NUMBERS.into_iter().find(|(name, ..)| *name == number);
        let number = number.ok_or_else(|| unknown_number("number"))?;
        let at = seconds(&asked, "at")?.filter(|at| *at < now);
        let moment = look::Moment { at: at.unwrap_or(now), is_live: at.is_none(), minutes_from: now - minutes_from };
        map::points(reader, moment, code, number, SLOPE_OVER_S).map_err(of_store)
    })
    .await
}

async fn minutes(
    State(collector): State<Arc<Collector>>,
    Path(name): Path<String>,
    Query(asked): Asked,
    headers: HeaderMap,
) -> Response {
    let kept = collector.retention.minutes_s;
    answer(collector, &headers, move |reader, now| {
        let node = find_one(reader, &name)?;
        let until = seconds(&asked, "until")?.unwrap_or(now);
        let from = seconds(&asked, "from")?.unwrap_or(until - 24 * HOUR_S);
        let by_hour = until - from > LONGEST_IN_MINUTES_S || from < now - kept;
        reader.series(&node, from, until, by_hour).map_err(of_store)
    })
    .await
}
