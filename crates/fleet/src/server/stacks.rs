//! Stacks and flame graphs of nodes.

use super::{Asked, Collector, Refusal, answer, asked, of_store, refusal, since};
use crate::flame;
use crate::ingest::printable;
use crate::stacks::{self, FleetStacks, MOST_DRAWN, MOST_LISTED, NoStacks, USUAL_STACKS};
use crate::store::Reader;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::collections::HashMap;
use std::sync::Arc;

const USUAL_TIME_S: i64 = 3600;
/// It has its style and its script within, and stands apart from the page's origin.
const OF_A_PICTURE: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; sandbox allow-scripts";

pub async fn list(State(collector): State<Arc<Collector>>, Query(given): Asked, headers: HeaderMap) -> Response {
    answer(collector, &headers, move |reader, now| {
        let most = given.get("limit").and_then(|n| n.parse().ok()).unwrap_or(USUAL_STACKS).min(MOST_LISTED);
        find(reader, &given, most, true, now)
    })
    .await
}

pub async fn picture(State(collector): State<Arc<Collector>>, Query(given): Asked, headers: HeaderMap) -> Response {
    let drawn = asked(collector, &headers, move |reader, now| {
        let stacks = find(reader, &given, MOST_DRAWN, false, now)?;
        flame::picture(&stacks).map_err(|error| {
            refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), "ask for the stacks instead (--json)")
        })
    });
    match drawn.await {
        Ok(svg) => {
            let headers = [(header::CONTENT_TYPE, "image/svg+xml"), (header::CONTENT_SECURITY_POLICY, OF_A_PICTURE)];
            (headers, svg).into_response()
        }
        Err(refusal) => refusal.into_response(),
    }
}

fn find(
    reader: &Reader,
    given: &HashMap<String, String>,
    most: usize,
    with_nodes: bool,
    now: i64,
) -> Result<FleetStacks, Refusal> {
    let expression = |name: &str| given.get(name).filter(|text| !text.trim().is_empty()).cloned();
    let asked = stacks::Asked {
        a: expression("where"),
        b: expression("diff_where"),
        since: since(given, now, USUAL_TIME_S)?,
        most,
        with_nodes,
    };
    stacks::stacks(reader, &asked, now).map_err(|none| match none {
        NoStacks::Db(error) => of_store(error),
        NoStacks::Bad(expression, bad) => {
            let why = format!("'{}': {bad}", printable(&expression));
            refusal(StatusCode::BAD_REQUEST, &why, "see coroner fleet flame --help")
        }
        NoStacks::NoNode { known: 0, .. } => {
            let what_to_do = "coroner fleet serve prints the line that makes a node report";
            refusal(StatusCode::NOT_FOUND, "no node has reported yet", what_to_do)
        }
        NoStacks::NoNode { expression, known } => {
            let which = expression.map_or_else(String::new, |expression| format!(" with {}", printable(&expression)));
            let why = format!("no node{which}, of {known} known");
            refusal(StatusCode::NOT_FOUND, &why, "coroner fleet nodes --where EXPRESSION shows what an expression picks")
        }
        NoStacks::NoneSent { expression, matched, minutes } => {
            let which = expression.map_or_else(String::new, |expression| format!(" with {}", printable(&expression)));
            let why = format!("none of {matched} nodes{which} sent stacks in the last {minutes} min");
            let what_to_do = "recorders of this version send them every ten minutes, unless they take no samples (--rate 0) or \
                              [report] stacks_every is \"0s\"; or look further back (--since)";
            refusal(StatusCode::NOT_FOUND, &why, what_to_do)
        }
        NoStacks::Overlap { count, example } => {
            let why = match count {
                1 => format!("a node is on both sides: {}", printable(&example)),
                _ => format!("{count} nodes are on both sides, such as {}", printable(&example)),
            };
            refusal(StatusCode::BAD_REQUEST, &why, "make the sides exclude each other: --diff-where 'not (…)'")
        }
    })
}
