//! `coroner.history/1`: documented in docs/json.md. Fields may be added under the same version, never removed or renamed.

use coroner_evidence::timestamp;
use coroner_source::history::{End, Episode, History};
use serde_json::{Value, json};
use std::path::Path;

pub fn document(directory: &Path, is_live: bool, history: &History) -> Value {
    let span = |(from, to): (u64, u64)| json!({ "from": timestamp(from), "to": timestamp(to) });
    json!({
        "schema": "coroner.history/1",
        "directory": directory,
        "recorder_runs": is_live,
        "diagnoses": history.diagnoses,
        "window": history.span_real_ns.map(span),
        "problems": history.episodes.iter().map(episode).collect::<Vec<_>>(),
        "gaps": history.gaps_real_ns.iter().copied().map(span).collect::<Vec<_>>(),
    })
}

fn episode(episode: &Episode) -> Value {
    let Episode { problem, began_real_ns, is_older, seen_until_real_ns, end } = episode;
    json!({
        "key": problem.key,
        "code": problem.code,
        "subject": { "kind": problem.subject_kind, "name": problem.subject },
        "severity": problem.severity,
        "certainty": problem.certainty,
        "title": problem.title,
        "began": timestamp(*began_real_ns),
        "already": is_older,
        "last_seen": timestamp(*seen_until_real_ns),
        "ended": (*end == End::Ended).then(|| timestamp(*seen_until_real_ns)),
        "state": end.as_str(),
    })
}
