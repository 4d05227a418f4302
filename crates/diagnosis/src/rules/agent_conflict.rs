//! Do two agents on this node conflict?
//!
//! Two orchestrators schedule work on the same cores and memory without knowing of each other; two host engines fight over the
//! same counters. Here both are configured, otherwise one of them is unused (see agent-unused). A process name alone does not
//! make an orchestrator a rival: anything can have that name.

use super::agent_unused::{blind_to_files, broken_catalogue, nothing_seen, subject};
use crate::agents::{self, Harm, Judgement, Verdict};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity};
use crate::ties::Ties;
use crate::words::{list, plural};
use std::collections::BTreeMap;

/// Pieces of evidence shown for each side.
const SHOWN: usize = 3;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    if let Some(blind) = nothing_seen(evidence) {
        return blind;
    }
    let judgements = match agents::judgements(evidence) {
        Ok(judgements) => judgements,
        Err(error) => return broken_catalogue(&error),
    };
    // Each pair once, whichever side it was found on; an agent with several units by its first service.
    let mut pairs: BTreeMap<[&str; 2], &Judgement> = BTreeMap::new();
    for judgement in judgements.iter().filter(|j| j.verdict == Verdict::Conflict) {
        for rival in &judgement.rivals {
            let mut pair = [judgement.agent.as_str(), rival.as_str()];
            pair.sort_unstable();
            let better = |now: &&Judgement| !now.unit.ends_with(".service") && judgement.unit.ends_with(".service");
            match pairs.get(&pair) {
                Some(now) if !better(now) => {}
                _ => {
                    pairs.insert(pair, judgement);
                }
            }
        }
    }
    let findings: Vec<Finding> = pairs
        .iter()
        .map(|(pair, side)| {
            let rival = pair.iter().find(|name| **name != side.agent).copied().unwrap_or_default();
            finding(side, rival, &judgements)
        })
        .collect();
    match blind_to_files(evidence) {
        Some(blind) if findings.is_empty() => blind,
        _ => Answer::from_findings(findings, || {
            format!(
                "{}, no conflict",
                plural(judgements.len() as u64, "unit of a known agent", "units of known agents")
            )
        }),
    }
}

fn finding(side: &Judgement, rival: &str, judgements: &[Judgement]) -> Finding {
    let mutual = |j: &&Judgement| j.agent == rival && j.verdict == Verdict::Conflict && j.rivals.contains(&side.agent);
    let other = judgements.iter().find(mutual).or_else(|| judgements.iter().find(|j| j.agent == rival));
    let rival_name = other.map_or(rival, |j| j.unit.as_str());
    let mut facts: Vec<Fact> = Vec::new();
    for (name, judgement) in [(side.unit.as_str(), Some(side)), (rival_name, other)] {
        let used = judgement.map(|j| j.in_use.as_slice()).unwrap_or_default();
        for reason in used.iter().take(SHOWN) {
            facts.push(Fact::new(FactKey::InUse, reason.text.clone(), reason.source.clone()).of(name));
        }
        if used.is_empty() {
            facts.push(
                Fact::new(
                    FactKey::InUse,
                    "no sign of use",
                    format!("catalogue: {}", judgement.map_or(rival, |j| &j.agent)),
                )
                .of(name),
            );
        }
    }
    let here = side.why.iter().filter(|r| r.kind == agents::ReasonKind::CompetingOwner);
    facts.extend(here.map(|r| Fact::new(FactKey::BothHere, r.text.clone(), r.source.clone())));
    facts.push(Fact::new(FactKey::HowSure, side.certainty.as_str(), format!("catalogue: {}", side.agent)));
    let words = |used: bool| if used { "is in use" } else { "shows no signs of use" };
    let (this_used, other_used) = (!side.in_use.is_empty(), other.is_some_and(|j| !j.in_use.is_empty()));
    let verdict = match (this_used, other_used) {
        (true, true) => "Both show signs of use: find out who owns this node before you remove either.".to_owned(),
        (false, false) => "Neither shows signs of use.".to_owned(),
        _ => format!("{} {}, {rival_name} {}.", side.unit, words(this_used), words(other_used)),
    };
    let owners = side.owns_node && other.is_some_and(|j| j.owns_node);
    let harm = side.harm == Harm::Seen || other.is_some_and(|j| j.harm == Harm::Seen);
    let title = match owners {
        true => format!("Two orchestrators on one node: {} and {rival_name}", side.unit),
        false => format!("{} and {rival_name} overlap: one of them is enough", side.unit),
    };
    let about = |j: &Judgement| format!("{} is {}. ", j.unit, j.what);
    let mut detail = about(side);
    detail.push_str(&other.map(about).unwrap_or_default());
    if owners {
        detail.push_str("Each schedules work here as if it owned the node. ");
    }
    detail.push_str(&verdict);
    Finding {
        code: Code::AgentConflict,
        ties: Ties {
            units: [Some(side), other].into_iter().flatten().map(|j| j.unit.clone()).collect(),
            ..Ties::default()
        },
        severity: if owners || harm { Severity::Warning } else { Severity::Info },
        subject: subject(side),
        title,
        detail,
        evidence: facts,
        remedy: remedy(side, other, this_used, other_used),
    }
}

fn remedy(side: &Judgement, other: Option<&Judgement>, this_used: bool, other_used: bool) -> String {
    let step = |j: &Judgement| match (j.report_only, &j.command) {
        (true, _) => format!("{} should not be removed just on this advice ({})", j.unit, j.safe_step),
        (_, Some(command)) => {
            let when = j.advice.as_ref().map(|advice| format!(" {advice}")).unwrap_or_default();
            format!("to remove {}{when}: `{command}` (does not fix: {})", j.unit, j.does_not_fix)
        }
        (_, None) => format!("to remove {}: {} (does not fix: {})", j.unit, j.safe_step, j.does_not_fix),
    };
    // Never the one that is in use.
    let mut steps = Vec::new();
    if !this_used || other_used {
        steps.push(step(side));
    }
    if let Some(other) = other
        && side.owns_node
        && (!other_used || this_used)
    {
        steps.push(step(other));
    }
    if steps.is_empty() {
        return "Keep one of the two; find out who uses them first.".to_owned();
    }
    format!("Decide which one to keep. {}.", list(&steps, 2).replacen("to remove", "To remove", 1))
}

#[cfg(test)]
mod tests;
