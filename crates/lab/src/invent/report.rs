//! Sums over all cases, in numbers and words.

use super::{NotRun, Ran};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Shares that must be reached, in percent of the losses.
const BAR: f64 = 95.0;
/// Cases in which nobody lost and a warning names somebody of the case, in percent.
const FALSE_ALARMS: f64 = 1.0;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sums {
    pub cases: usize,
    /// Cases in which the rest of the node took a share of what was lost.
    pub disturbed: usize,
    pub kinds: BTreeMap<&'static str, Kind>,
    pub all: Kind,
    /// Verdicts that name somebody of the case, and those of them that are about a loss.
    pub given: usize,
    pub right: usize,
    pub wrong_proven: usize,
    /// Cases in which nobody lost, and those of them with a warning.
    pub quiet: usize,
    pub false_alarms: usize,
    pub precision_percent: Option<f64>,
    pub recall_percent: Option<f64>,
    pub cause_percent: Option<f64>,
    pub culprit_percent: Option<f64>,
}

/// Losses of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Kind {
    pub lost: usize,
    pub found: usize,
    pub right_cause: usize,
    pub right_culprit: usize,
    /// Of those, the ones that blame a taker of the case: where others took a share, naming the loser is enough.
    pub taker_named: usize,
}

impl Sums {
    pub fn of(ran: &[Ran]) -> Sums {
        let mut sums = Sums { cases: ran.len(), ..Sums::default() };
        for judged in ran.iter().map(|one| &one.judged) {
            sums.disturbed += usize::from(judged.disturbed);
            sums.given += judged.given;
            sums.right += judged.right;
            sums.wrong_proven += judged.wrong_proven.len();
            sums.quiet += usize::from(judged.quiet);
            sums.false_alarms += usize::from(!judged.false_alarms.is_empty());
            for lost in &judged.lost {
                for kind in [sums.kinds.entry(lost.kind).or_default(), &mut sums.all] {
                    kind.lost += 1;
                    kind.found += usize::from(lost.found);
                    kind.right_cause += usize::from(lost.right_cause);
                    kind.right_culprit += usize::from(lost.right_culprit);
                    kind.taker_named += usize::from(lost.taker_named);
                }
            }
        }
        sums.precision_percent = percent(sums.right, sums.given);
        sums.recall_percent = percent(sums.all.found, sums.all.lost);
        sums.cause_percent = percent(sums.all.right_cause, sums.all.lost);
        sums.culprit_percent = percent(sums.all.right_culprit, sums.all.lost);
        sums
    }

    pub fn pass(&self) -> bool {
        let reached = |share: Option<f64>| share.is_none_or(|share| share >= BAR);
        reached(self.cause_percent)
            && reached(self.culprit_percent)
            && self.wrong_proven == 0
            && percent(self.false_alarms, self.quiet).is_none_or(|share| share <= FALSE_ALARMS)
    }
}

fn percent(part: usize, all: usize) -> Option<f64> {
    (all > 0).then(|| (1000.0 * part as f64 / all as f64).round() / 10.0)
}

/// One line for a case, and one for each fault.
pub fn line(ran: &Ran) -> String {
    let names: Vec<&str> = ran.case.troubles.iter().map(|trouble| trouble.name()).collect();
    let troubles = if names.is_empty() { "healthy".to_owned() } else { names.join(" + ") };
    let judged = &ran.judged;
    let outcome = match judged.faults.len() {
        0 => "right".to_owned(),
        n => format!("{n} WRONG"),
    };
    let others = if judged.disturbed { ", others took a share" } else { "" };
    let mut text = format!(
        "seed {}: {troubles}: {} lost, {} grey{others}: {outcome}",
        ran.case.seed,
        judged.lost.len(),
        judged.grey
    );
    for fault in &judged.faults {
        let _ = write!(text, "\n  {fault}");
    }
    text
}

pub fn table(sums: &Sums, ran: &[Ran], not_run: &[NotRun]) -> String {
    let mut text =
        format!("\n{:12} {:>5} {:>6} {:>6} {:>8} {:>6}\n", "lost by", "lost", "found", "cause", "culprit", "taker");
    for (name, kind) in sums.kinds.iter().map(|(name, kind)| (*name, kind)).chain([("all", &sums.all)]) {
        let Kind { lost, found, right_cause, right_culprit, taker_named } = kind;
        let _ = writeln!(text, "{name:12} {lost:5} {found:6} {right_cause:6} {right_culprit:8} {taker_named:6}");
    }
    let of = |part: usize, all: usize| match percent(part, all) {
        Some(share) => format!("{part} of {all} ({share} %)"),
        None => "none".to_owned(),
    };
    let all = &sums.all;
    let rows = [
        ("found", of(all.found, all.lost), None),
        ("right cause", of(all.right_cause, all.lost), Some("95 %")),
        ("right culprit", of(all.right_culprit, all.lost), Some("95 %")),
        ("verdicts about a loss", of(sums.right, sums.given), None),
        ("wrong, and proven", sums.wrong_proven.to_string(), Some("0")),
        ("warnings where nobody lost", of(sums.false_alarms, sums.quiet), Some("at most 1 %")),
    ];
    text.push('\n');
    for (name, value, bar) in rows {
        let bar = bar.map(|bar| format!("  (needed: {bar})")).unwrap_or_default();
        let _ = writeln!(text, "{name:28} {value}{bar}");
    }
    let _ = writeln!(
        text,
        "{} cases; in {} of them others on this node took a share of what was lost",
        sums.cases, sums.disturbed
    );
    let failed = ran.iter().filter(|one| !one.judged.faults.is_empty()).map(|one| one.case.seed);
    let failed: Vec<u64> = failed.chain(not_run.iter().map(|one| one.seed)).collect();
    if !failed.is_empty() {
        let _ = writeln!(text, "\nTo repeat a case with a fault:");
        for seed in failed {
            let _ = writeln!(text, "  coroner-lab invent --runs 1 --seed {seed}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_of_what_was_lost() {
        let all = Kind { lost: 20, found: 20, right_cause: 19, right_culprit: 19, taker_named: 19 };
        let good = Sums { all, cause_percent: percent(19, 20), culprit_percent: percent(19, 20), ..Sums::default() };
        assert!(good.pass() && Sums::default().pass());
        assert!(!Sums { wrong_proven: 1, ..good.clone() }.pass());
        assert!(!Sums { quiet: 50, false_alarms: 1, ..good.clone() }.pass());
        assert!(Sums { quiet: 100, false_alarms: 1, ..good.clone() }.pass());
        assert!(!Sums { culprit_percent: percent(18, 20), ..good }.pass());
        assert_eq!(percent(0, 0), None);
    }
}
