//! `coroner.source/1`: summary of the source. Cheap: reads no samples that are not already in memory.

use super::axis::AxisTime;
use super::loading::Loading;
use super::shown::{GAP, Shown};
use coroner_evidence::Wall;
use serde::Serialize;
use serde_json::{Value, json};

const SCHEMA: &str = "coroner.source/1";

pub fn document(shown: &Shown) -> Value {
    let parts = shown.parts();
    let axis = shown.axis();
    let whole = shown.whole();
    let last = parts.last();
    let kept = if shown.is_directory() { None } else { shown.kept() };
    let sources = || parts.iter().filter_map(|part| part.outline.samples.as_ref());
    let mut cores: Vec<u32> = parts.iter().flat_map(|part| part.outline.cores.iter().copied()).collect();
    cores.extend(kept.iter().flat_map(|kept| &kept.cores));
    cores.sort_unstable();
    cores.dedup();
    let events: Vec<Value> = match kept {
        Some(kept) => kept.names.events.iter().map(|event| json!(event)).collect(),
        None => {
            let mut names: Vec<&String> = sources().flat_map(|samples| &samples.events).collect();
            names.sort_unstable();
            names.dedup();
            names.into_iter().map(|name| json!({ "name": name, "samples": null, "weight": null })).collect()
        }
    };
    let samples: u64 = match kept {
        Some(kept) => kept.samples.len() as u64,
        None => sources().map(|samples| samples.count).sum(),
    };
    let lost: Option<u64> = match kept {
        Some(kept) => Some(kept.report.lost),
        None => sources().map(|samples| samples.source.lost).sum(),
    };
    let incidents =
        shown.directory().map_or(usize::from(last.is_some_and(|part| part.outline.incident.is_some())), |dir| {
            coroner_source::incident_files::numbers(dir).map_or(0, |numbers| numbers.len())
        });
    let segments: Vec<Value> = parts
        .iter()
        .map(|part| {
            json!({ "from": part.range.start, "to": part.range.end, "bytes": part.bytes(), "sealed": part.outline.about.sealed })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "coroner_version": env!("CARGO_PKG_VERSION"),
        "kind": shown.kind.as_str(),
        "name": shown.name,
        "format": shown.format,
        "live": shown.is_live(),
        "loading": null,
        "node": last.and_then(|part| part.outline.node.as_ref()),
        "start_ns": axis.start_ns().to_string(),
        "length_ns": whole.end.since(whole.start),
        "start_time": axis.wall(whole.start),
        "cores": cores,
        "has": {
            "evidence": shown.has_evidence(),
            "samples": samples > 0,
            "incidents": incidents,
            "diagnosis": shown.has_evidence(),
        },
        "events": events,
        "samples": samples,
        "lost": lost,
        "unused": kept.map_or(json!([]), |kept| json!(kept.report.oddities)),
        "unnamed": kept.map_or(json!([]), |kept| json!(kept.unnamed)),
        "truncated": kept.is_some_and(|kept| kept.report.truncated),
        "segments": segments,
        "gaps": gaps(shown),
        "rate_hz": rate(shown, samples, cores.len()),
    })
}

#[derive(Serialize)]
pub struct Gap {
    pub from: AxisTime,
    to: AxisTime,
    pub why: &'static str,
}

/// The gaps between segments.
pub fn gaps(shown: &Shown) -> Vec<Gap> {
    let parts = shown.parts();
    let mut gaps = Vec::new();
    let mut end: Option<(AxisTime, &Option<String>)> = None;
    for part in parts.iter() {
        if let Some((end, boot)) = end.filter(|(end, _)| part.range.start.since(*end) > GAP) {
            let why = match *boot == part.outline.boot_id {
                true => "nothing was recorded: the recorder was not running, could not write, or the segment is gone",
                false => "the node rebooted",
            };
            gaps.push(Gap { from: end, to: part.range.start, why });
        }
        if end.is_none_or(|(end, _)| end <= part.range.end) {
            end = Some((part.range.end, &part.outline.boot_id));
        }
    }
    gaps
}

/// Samples per second and core, rounded; `None` if unknown.
pub fn rate(shown: &Shown, samples: u64, cores: usize) -> Option<f64> {
    let parts = shown.parts();
    let whole = shown.whole();
    let covered: u64 = match parts.is_empty() {
        true => whole.end.since(whole.start),
        false => parts.iter().map(|part| part.range.end.since(part.range.start)).sum(),
    };
    let seconds = covered as f64 / 1e9 * cores as f64;
    (samples > 0 && seconds > 0.0).then(|| (samples as f64 / seconds * 10.0).round() / 10.0)
}

/// A wall-clock time on the axis; `None` if outside.
pub fn on_axis(shown: &Shown, wall: Wall) -> Option<AxisTime> {
    shown.axis().of_wall(wall).filter(|at| shown.whole().contains(at))
}

/// The incident of an incident file.
pub fn own_incident(shown: &Shown) -> Value {
    let parts = shown.parts();
    let incidents = parts.iter().filter_map(|part| part.outline.incident.as_ref()).map(|incident| {
        json!({
            "number": incident.number,
            "code": incident.code,
            "subject": incident.subject,
            "core": incident.core,
            "text": incident.text,
            "triggered": incident.triggered,
            "window": { "from": incident.from, "to": incident.until },
            "trigger_ns": on_axis(shown, incident.triggered),
            "from": on_axis(shown, incident.from),
            "to": on_axis(shown, incident.until),
        })
    });
    let incidents: Vec<Value> = incidents.collect();
    json!({ "schema": "coroner.incidents/1", "directory": null, "recorder_runs": false, "incidents": incidents })
}

/// While a profile is being read.
pub fn not_yet(loading: &Loading) -> Value {
    json!({
        "schema": SCHEMA,
        "coroner_version": env!("CARGO_PKG_VERSION"),
        "kind": "profile",
        "name": loading.name,
        "format": loading.format,
        "live": false,
        "loading": { "read_bytes": loading.read(), "total_bytes": loading.bytes },
    })
}

/// `coroner.progress/1`
pub fn progress(loading: &Loading) -> Value {
    let (state, error) = match loading.shown() {
        None => ("loading", None),
        Some(Ok(_)) => ("ready", None),
        Some(Err(why)) => ("failed", Some(why)),
    };
    json!({
        "schema": "coroner.progress/1",
        "state": state,
        "read_bytes": if state == "ready" { loading.bytes } else { loading.read() },
        "total_bytes": loading.bytes,
        "error": error,
    })
}
