//! `coroner.diagnosis/1`: documented in docs/json.md. Fields may be added under the same version, never removed or renamed.

use coroner_diagnosis::Diagnosis;
use coroner_evidence::Wall;
use serde_json::{Value, json};

pub fn document(diagnosis: &Diagnosis) -> serde_json::Result<Value> {
    serde_json::to_value(diagnosis.report(env!("CARGO_PKG_VERSION")))
}

pub fn window(watched: Option<(Wall, Wall)>) -> Value {
    match watched {
        Some((from, to)) => json!({ "from": from, "to": to }),
        None => json!({ "from": null, "to": null }),
    }
}

pub fn node(diagnosis: &Diagnosis) -> serde_json::Result<Value> {
    serde_json::to_value(&diagnosis.node)
}
