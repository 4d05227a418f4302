//! What happened when, for the findings of one verdict.

use crate::finding::Finding;
use crate::times::FIRST_LOOK;
use coroner_evidence::{Evidence, Order};
use coroner_report::Moment;

/// The findings that have a time, oldest first.
pub fn of(evidence: &Evidence, findings: &[&Finding]) -> Vec<Moment> {
    let Some(clocks) = evidence.clocks.last() else { return Vec::new() };
    let mut moments: Vec<Moment> = findings
        .iter()
        .filter_map(|finding| {
            let when = finding.ties.when?;
            let from = finding.ties.since.map_or(when.from, |since| since.min(when.from));
            let watched = evidence.window()?;
            let already = from >= watched.from && from <= watched.from + FIRST_LOOK && watched.length() > FIRST_LOOK;
            Some(Moment {
                at: clocks.wall_of(from),
                uncertainty_ms: when.uncertainty.as_millis() as u64,
                already,
                what: finding.title.clone(),
            })
        })
        .collect();
    moments.order_by_key(|moment| moment.at);
    moments
}
