//! `GET /api/v1/next`

use super::{Asked, Collector, MOST_NODES, answer, of_store, picked};
use crate::next;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use std::sync::Arc;

pub async fn next(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    answer(collector, &headers, move |reader, now| {
        let limit = asked.get("limit").and_then(|n| n.parse().ok()).unwrap_or(MOST_NODES).min(MOST_NODES);
        next::next(reader, picked(&asked)?.as_ref(), limit, now).map_err(of_store)
    })
    .await
}
