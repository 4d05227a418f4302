//! `coroner.incidents/1` and `coroner.incident-report/1`: documented in docs/json.md. Fields may be added under the same version,
//! never removed or renamed.

use super::diagnosis;
use coroner_evidence::recording::Riser;
use coroner_source::incident_report::{IncidentReport, Listed, losses};
use serde_json::{Value, json};
use std::path::Path;

pub fn list(directory: &Path, is_live: bool, listed: &[Listed]) -> Value {
    let incidents: Vec<Value> = listed.iter().map(incident).collect();
    json!({
        "schema": "coroner.incidents/1",
        "directory": directory,
        "recorder_runs": is_live,
        "incidents": incidents,
    })
}

fn incident(listed: &Listed) -> Value {
    let Listed { incident, file, bytes } = listed;
    let also = |also: &coroner_source::incident::Also| json!({ "at": also.at, "code": also.code, "subject": also.subject, "text": also.text });
    json!({
        "number": incident.number,
        "code": incident.code,
        "key": incident.key,
        "subject": incident.subject,
        "by": incident.by,
        "core": incident.core,
        "text": incident.text,
        "triggered": incident.triggered,
        "lasted_seconds": incident.lasting.map(|lasting| lasting.lasted_ns as f64 / 1e9),
        "since": incident.lasting.map(|lasting| lasting.since),
        "over": incident.lasting.and_then(|lasting| lasting.until),
        "window": diagnosis::window(Some((incident.from, incident.until))),
        "state": incident.state,
        "frozen": incident.frozen,
        "repeats": incident.repeats,
        "last_repeat": incident.last_repeat,
        "last_repeat_text": incident.last_repeat_text,
        "lasted_longer": incident.lasting.map(|lasting| lasting.at_least),
        "also": incident.also.iter().map(also).collect::<Vec<_>>(),
        "also_more": incident.also_more,
        "error": incident.error,
        "file": file,
        "bytes": bytes,
    })
}

pub fn report(report: &IncidentReport) -> anyhow::Result<Value> {
    let (diagnosis, risers, missing, unreadable) = match &report.read {
        Ok(read) => {
            let diagnosis = diagnosis::document(&read.diagnosis)?;
            let missing: Vec<Value> = losses(&read.evidence)
                .iter()
                .map(|l| json!({ "core": l.core, "lost": l.lost, "throttled_ms": l.throttled.as_millis() as u64 }))
                .collect();
            (diagnosis, Value::from(read.risers.iter().map(riser).collect::<Vec<_>>()), Value::from(missing), None)
        }
        Err(why) => (Value::Null, Value::Null, Value::Null, Some(why)),
    };
    Ok(json!({
        "schema": "coroner.incident-report/1",
        "incident": incident(&report.listed),
        "about": report.read.as_ref().ok().and_then(|read| read.about.as_ref()),
        "diagnosis": diagnosis,
        "risers": risers,
        "missing_samples": missing,
        "unreadable": unreadable,
    }))
}

fn riser(riser: &Riser) -> Value {
    json!({
        "what": riser.what,
        "name": riser.name,
        "baseline": riser.baseline,
        "now": riser.now,
        "baseline_samples": riser.baseline_samples,
        "now_samples": riser.now_samples,
        "sigmas": riser.sigmas,
        "mostly_in": riser.mostly_in.as_ref().map(|(command, share)| json!({ "command": command, "share": share })),
        "carries": riser.carries,
    })
}

pub fn exported(listed: &Listed, output: &Path, bytes: u64) -> anyhow::Result<String> {
    let document = json!({
        "schema": "coroner.export/1",
        "output": output,
        "bytes": bytes,
        "incident": incident(listed),
    });
    Ok(super::document(&document))
}
