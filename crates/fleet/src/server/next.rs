//! `GET /api/v1/next`

use super::{Asked, Collector, MOST_NODES, answer_embedded, of_db, picked};
use crate::next;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use std::sync::Arc;

pub async fn next(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    answer_embedded(collector, &headers, move |db, now| {
        let limit = asked.get("limit").and_then(|n| n.parse().ok()).unwrap_or(MOST_NODES).min(MOST_NODES);
        next::next(db, picked(&asked)?.as_ref(), limit, now).map_err(of_db)
    })
    .await
}
