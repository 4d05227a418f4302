//! What happened when, for the findings of one verdict.

use crate::finding::Finding;
use coroner_evidence::Evidence;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moment {
    /// Nanoseconds since 1970.
    #[serde(skip)]
    pub real_ns: u64,
    /// It may have been so much earlier or later.
    pub uncertainty_ms: u64,
    pub what: String,
}

/// Of the findings that know when they were, oldest first.
pub fn of(evidence: &Evidence, findings: &[&Finding]) -> Vec<Moment> {
    let Some(clocks) = evidence.clocks.last() else { return Vec::new() };
    let mut moments: Vec<Moment> = findings
        .iter()
        .filter_map(|finding| {
            let when = finding.ties.when?;
            Some(Moment {
                real_ns: clocks.real_ns_of(when.from),
                uncertainty_ms: when.uncertainty.as_millis() as u64,
                what: finding.title.clone(),
            })
        })
        .collect();
    moments.sort_by_key(|moment| moment.real_ns);
    moments
}
