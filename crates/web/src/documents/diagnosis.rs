//! `coroner.diagnosis/1`: documented in docs/json.md. Fields may be added under the same version, never removed or renamed.

use coroner_diagnosis::verdict::{Unexplained, Verdict};
use coroner_diagnosis::{Diagnosis, Finding, Outcome, RuledOut};
use coroner_evidence::{Unseen, timestamp};
use serde::Serialize;
use serde_json::{Value, json};

pub const SCHEMA: &str = "coroner.diagnosis/1";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    coroner_version: &'static str,
    node: Value,
    window: Value,
    /// What it comes to, in a word.
    conclusion: &'static str,
    verdicts: &'a [Verdict],
    unexplained: &'a [Unexplained],
    findings: &'a [Finding],
    ruled_out: &'a [RuledOut],
    unseen: &'a [Unseen],
    cost: Value,
}

pub fn document(diagnosis: &Diagnosis) -> serde_json::Result<Value> {
    let document = Document {
        schema: SCHEMA,
        coroner_version: env!("CARGO_PKG_VERSION"),
        node: node(diagnosis)?,
        window: window(diagnosis.window_real_ns),
        conclusion: Outcome::of(diagnosis).as_str(),
        verdicts: &diagnosis.conclusion.verdicts,
        unexplained: &diagnosis.conclusion.unexplained,
        findings: &diagnosis.findings,
        ruled_out: &diagnosis.ruled_out,
        unseen: &diagnosis.unseen,
        cost: serde_json::to_value(diagnosis.cost)?,
    };
    serde_json::to_value(&document)
}

pub fn window(real_ns: Option<(u64, u64)>) -> Value {
    match real_ns {
        Some((from, to)) => json!({ "from": timestamp(from), "to": timestamp(to) }),
        None => json!({ "from": null, "to": null }),
    }
}

pub fn node(diagnosis: &Diagnosis) -> serde_json::Result<Value> {
    let mut node = serde_json::to_value(&diagnosis.node)?;
    if let Some(fields) = node.as_object_mut() {
        fields.remove("booted_real_ns");
        fields.insert("booted".into(), diagnosis.node.booted_real_ns.map(timestamp).into());
    }
    Ok(node)
}
