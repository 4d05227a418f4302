//! `coroner.history/1`: documented in docs/json.md. Fields may be added under the same version, never removed or renamed.

use coroner_evidence::Wall;
use coroner_source::history::{End, Episode, History};
use serde_json::{Value, json};
use std::path::Path;

pub fn document(directory: &Path, is_live: bool, history: &History) -> Value {
    let span = |(from, to): (Wall, Wall)| json!({ "from": from, "to": to });
    json!({
        "schema": "coroner.history/1",
        "directory": directory,
        "recorder_runs": is_live,
        "diagnoses": history.diagnoses,
        "window": history.span.map(span),
        "problems": history.episodes.iter().map(episode).collect::<Vec<_>>(),
        "gaps": history.gaps.iter().copied().map(span).collect::<Vec<_>>(),
    })
}

fn episode(episode: &Episode) -> Value {
    let Episode { problem, began, is_older, seen_until, end } = episode;
    json!({
        "key": problem.key,
        "code": problem.code,
        "subject": { "kind": problem.subject_kind, "name": problem.subject },
        "severity": problem.severity,
        "certainty": problem.certainty,
        "title": problem.title,
        "began": began,
        "already": is_older,
        "last_seen": seen_until,
        "ended": (*end == End::Ended).then_some(seen_until),
        "state": end.as_str(),
    })
}
