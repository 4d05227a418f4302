//! `coroner.fix-plan/1`, `coroner.fix/1`, `coroner.undo/1`: documented in docs/json.md. Fields may be added under the same version,
//! never removed or renamed.

use super::fix_text::Shown;
use coroner_remedy::apply::FixReport;
use coroner_remedy::image::ImagePlan;
use coroner_remedy::journal::{Run, StepState};
use coroner_remedy::plan::{Plan, Step};
use coroner_remedy::undo;
use coroner_web::documents::diagnosis::{node, window};
use serde_json::{Value, json};
use std::path::Path;

const PLAN: &str = "coroner.fix-plan/1";
const FIX: &str = "coroner.fix/1";
const UNDO: &str = "coroner.undo/1";

fn step(step: &Step, shown: &Shown<'_>) -> serde_json::Result<Value> {
    let mut document = serde_json::to_value(step)?;
    if let Some(fields) = document.as_object_mut() {
        let measures: Vec<Value> = step
            .measures
            .iter()
            .map(|measure| {
                let value = measure.value(shown.evidence);
                json!({"measure": measure, "words": measure.words(), "now": value.as_ref().ok(), "why_unknown": value.err()})
            })
            .collect();
        fields.insert("measures".into(), measures.into());
    }
    Ok(document)
}

pub fn plan(plan: &Plan, shown: &Shown<'_>) -> serde_json::Result<Value> {
    let steps = shown.chosen.iter().map(|it| step(it, shown)).collect::<serde_json::Result<Vec<Value>>>()?;
    let chosen = |it: &&Step| shown.chosen.iter().any(|chosen| chosen.id == it.id);
    let others =
        plan.all().filter(|it| !chosen(it)).map(|it| step(it, shown)).collect::<serde_json::Result<Vec<Value>>>()?;
    Ok(json!({
        "schema": PLAN,
        "coroner_version": env!("CARGO_PKG_VERSION"),
        "node": node(shown.diagnosis)?,
        "window": window(shown.diagnosis.window),
        "causes": plan.causes,
        "over": plan.over,
        "steps": steps,
        "alternatives": others,
        "refused": plan.refused,
        "by_hand": plan.by_hand,
        "files": plan.files,
        "other_dead": plan.other_dead,
        "reboot": plan.reboot,
    }))
}

pub fn image(plan: &ImagePlan, of: &str) -> serde_json::Result<Value> {
    Ok(json!({
        "schema": PLAN,
        "coroner_version": env!("CARGO_PKG_VERSION"),
        "image": {"of": of, "remove": plan.remove, "decide": plan.decide, "keep": plan.keep, "script": plan.script(of)},
    }))
}

pub fn nothing_done(plan: &Plan, shown: &Shown<'_>) -> serde_json::Result<Value> {
    Ok(json!({
        "schema": FIX, "coroner_version": env!("CARGO_PKG_VERSION"), "worked": false, "run": null, "journal": null, "stopped": null,
        "steps": [], "plan": self::plan(plan, shown)?,
    }))
}

pub fn done(plan: &Plan, report: &FixReport, shown: &Shown<'_>) -> serde_json::Result<Value> {
    let steps: Vec<_> = report.steps.iter().map(|step| step.document()).collect();
    Ok(json!({
        "schema": FIX,
        "coroner_version": env!("CARGO_PKG_VERSION"),
        "worked": report.worked(),
        "run": report.run,
        "journal": report.journal,
        "stopped": report.stopped,
        "steps": steps,
        "plan": self::plan(plan, shown)?,
    }))
}

pub fn undone(report: &undo::UndoReport) -> Value {
    let steps: Vec<Value> = report
        .steps
        .iter()
        .map(|taken| {
            let (how, words) = match &taken.result {
                Ok(undone) => (undone.word(), undone.words()),
                Err(why) => ("failed", why.as_str()),
            };
            json!({"id": taken.id, "title": taken.title, "how": how, "words": words})
        })
        .collect();
    json!({
        "schema": UNDO, "coroner_version": env!("CARGO_PKG_VERSION"), "run": report.run, "whole": report.is_whole(),
        "stopped": report.stopped, "steps": steps,
    })
}

pub fn nothing_to_undo() -> Value {
    json!({
        "schema": UNDO, "coroner_version": env!("CARGO_PKG_VERSION"), "run": null, "whole": true, "stopped": null, "steps": [],
    })
}

/// What the journal holds.
pub fn runs(runs: &[Run], directory: &Path) -> Value {
    let runs: Vec<Value> = runs
        .iter()
        .map(|run| {
            let steps: Vec<Value> = run
                .steps
                .iter()
                .map(|step| {
                    let (state, words) = match &step.state {
                        StepState::Unknown => ("unknown", ""),
                        StepState::Done(words) => ("done", words.as_str()),
                        StepState::Failed(why) => ("failed", why.as_str()),
                        StepState::Undone(_, words) => ("undone", words.as_str()),
                    };
                    json!({
                        "id": step.id, "title": step.title, "state": state, "words": words, "reversible": step.reversible,
                        "before": step.before,
                    })
                })
                .collect();
            json!({
                "run": run.number, "at": run.at, "host": run.host, "why": run.why, "open": run.is_open(), "bus": run.bus,
                "root": run.root, "damaged_lines": run.damaged, "steps": steps,
            })
        })
        .collect();
    json!({"schema": UNDO, "coroner_version": env!("CARGO_PKG_VERSION"), "journal": directory, "runs": runs})
}
