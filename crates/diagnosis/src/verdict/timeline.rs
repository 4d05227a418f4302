//! What happened when, for the findings of one verdict.

use crate::finding::Finding;
use coroner_evidence::{Evidence, Wall};
use coroner_report::Moment;
use std::time::Duration;

/// Cores are read ten times a second, threads less often: what held this soon held when watching began.
pub const FIRST_LOOK: Duration = Duration::from_secs(1);

/// What was not seen for this long before the end of the window counts as over. Threads are read every second.
const OVER_AFTER: Duration = Duration::from_secs(10);

/// When it was over, if the cause (the first finding) knows when it was last seen.
pub fn over(evidence: &Evidence, findings: &[&Finding]) -> Option<Wall> {
    findings.first()?.ties.until?;
    let last = |finding: &&Finding| finding.ties.until.or(finding.ties.when.map(|when| when.to));
    let until = findings.iter().filter_map(last).max()?;
    let watched = evidence.window()?;
    (watched.to.since(until) >= OVER_AFTER).then(|| evidence.clocks.last().map(|clocks| clocks.wall_of(until)))?
}

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
    moments.sort_by_key(|moment| moment.at);
    moments
}
