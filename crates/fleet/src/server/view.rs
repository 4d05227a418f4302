//! `/incidents/NODE/NUMBER/`: the recording of an incident in the node's own page.

use super::files::stored_of;
use super::{Collector, Refusal, failed, no_user_token, refusal};
use crate::page::access;
use crate::viewers::{ASKED, Answer, NotShown};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;

const TIDIES_EVERY: Duration = Duration::from_secs(60);

/// Closes pages that nobody looks at.
pub async fn tidy(collector: Arc<Collector>) {
    loop {
        tokio::time::sleep(TIDIES_EVERY).await;
        let theirs = Arc::clone(&collector);
        let _ = tokio::task::spawn_blocking(move || theirs.viewers.tidy()).await;
    }
}

/// Its files and documents have addresses below it.
pub async fn without_slash(Path((node, number)): Path<(String, u64)>) -> Response {
    let to = format!("/incidents/{}/{number}/", crate::client::encoded(&node));
    (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, to)]).into_response()
}

pub async fn index(
    State(collector): State<Arc<Collector>>,
    Path((node, number)): Path<(String, u64)>,
    headers: HeaderMap,
) -> Response {
    shown(collector, (node, number), String::new(), headers).await
}

pub async fn below(
    State(collector): State<Arc<Collector>>,
    Path((node, number, path)): Path<(String, u64, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    // The path was decoded: nothing but names of files and documents is passed on.
    if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte)) {
        return refusal(StatusCode::NOT_FOUND, "no such page", "open the incident itself").into_response();
    }
    let path = query.map_or(path.clone(), |query| format!("{path}?{query}"));
    shown(collector, (node, number), path, headers).await
}

async fn shown(collector: Arc<Collector>, named: (String, u64), path: String, headers: HeaderMap) -> Response {
    if !access::admits(&collector.people, &headers) {
        // A person who followed a link logs in first.
        return match path.is_empty() {
            true => (StatusCode::SEE_OTHER, [(header::LOCATION, "/")]).into_response(),
            false => no_user_token().into_response(),
        };
    }
    let theirs = Arc::clone(&collector);
    let Ok(_place) = theirs.looks.try_acquire() else {
        let why = "too many questions about recordings at once";
        return refusal(StatusCode::TOO_MANY_REQUESTS, why, "reload the page in a moment").into_response();
    };
    let text = |name: &'static str| Some((name, headers.get(name)?.to_str().ok()?.to_owned()));
    let passed: Vec<_> = ASKED.into_iter().filter_map(text).collect();
    match tokio::task::spawn_blocking(move || answer(&collector, &named, &path, &passed)).await {
        Ok(Ok(answer)) => respond(answer),
        Ok(Err(refusal)) => refusal.into_response(),
        Err(error) => failed(&error.to_string()).into_response(),
    }
}

fn answer(
    collector: &Arc<Collector>,
    named: &(String, u64),
    path: &str,
    headers: &[(&str, String)],
) -> Result<Answer, Refusal> {
    let name = format!("{}/{}", named.0, named.1);
    let gone = |error: anyhow::Error| {
        let why = format!("the recording is not shown: {error:#}");
        refusal(StatusCode::BAD_GATEWAY, &why, "reload the page; coroner fleet fetch brings the file itself")
    };
    // Opening it, or the first question after it was closed.
    if path.is_empty() || collector.viewers.ask(&name, "api/v1/progress", &[]).is_none() {
        let (_, stored) = stored_of(collector, named)?;
        collector.viewers.show(&name, &collector.files, &stored).map_err(|why| match why {
            NotShown::Busy => {
                let why = "too many recordings are being shown";
                refusal(StatusCode::TOO_MANY_REQUESTS, why, "try again when others have been closed for a while")
            }
            NotShown::Failed(error) => gone(error),
        })?;
    }
    match collector.viewers.ask(&name, path, headers) {
        Some(answer) => answer.map_err(gone),
        None => Err(gone(anyhow::anyhow!("it was closed"))),
    }
}

fn respond(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = (status, answer.body).into_response();
    response.headers_mut().remove(header::CONTENT_TYPE);
    for (name, value) in answer.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}
