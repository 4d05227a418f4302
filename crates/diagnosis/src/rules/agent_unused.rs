//! Does an agent start here that has no work here?
//!
//! The base image enables it, nobody configured it, and it tries for ever. How it is judged is in docs/catalogue.md; this rule says
//! who hears of it. A stock node is full of daemons that idle: those are one line together. An agent that does harm, or against
//! which two kinds of reasons speak, has a finding of its own; in an image each has.

use crate::agents::{self, CatalogueError, Certainty, Harm, Judgement, ReasonKind, Verdict};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::Ties;
use crate::words::{list, plural};
use coroner_evidence::{Evidence, probe};
use std::collections::BTreeMap;

/// Begins what the step leaves as it is.
const DOES_NOT_FIX: &str = "It does not fix: ";

/// From two kinds of independent reasons on an agent is named, even if it idles: what it waits for may come with the next boot.
const KINDS: usize = 2;

/// How many idle agents the common finding names in its title.
const NAMED: usize = 6;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    if let Some(blind) = nothing_seen(evidence) {
        return blind;
    }
    let judgements = match agents::judgements(evidence) {
        Ok(judgements) => judgements,
        Err(error) => return broken_catalogue(&error),
    };
    let mut units = unused(&judgements);
    units.sort_by_key(|group| std::cmp::Reverse((group[0].harm == Harm::Seen, group[0].certainty)));
    let (named, idle): (Vec<_>, Vec<_>) = units.into_iter().partition(|group| is_named(group[0]));
    let mut findings: Vec<Finding> = named.iter().map(|group| finding(group)).collect();
    findings.extend(summary(&idle));
    match blind_to_files(evidence) {
        Some(blind) if findings.is_empty() => blind,
        _ => Answer::from_findings(findings, || fine(&judgements)),
    }
}

/// The units of each agent that is judged unused, the worst of each first.
fn unused(judgements: &[Judgement]) -> Vec<Vec<&Judgement>> {
    let mut by_agent: BTreeMap<&str, Vec<&Judgement>> = BTreeMap::new();
    for judgement in judgements.iter().filter(|j| j.verdict == Verdict::Unused) {
        by_agent.entry(&judgement.agent).or_default().push(judgement);
    }
    let mut units: Vec<Vec<&Judgement>> = by_agent.into_values().collect();
    for group in &mut units {
        group.sort_by_key(|j| std::cmp::Reverse((j.harm == Harm::Seen, j.certainty, is_service(j))));
    }
    units
}

/// The first part of the remedy for the agent of this unit: what to do, without what that leaves as it is.
pub fn what_to_do(evidence: &Evidence, unit: &str) -> Option<String> {
    let judgements = agents::judgements(evidence).ok()?;
    let group = unused(&judgements).into_iter().find(|group| group.iter().any(|j| j.unit == unit))?;
    Some(step(group[0], &others(&group)).trim_end().to_owned())
}

fn others<'j>(group: &[&'j Judgement]) -> Vec<&'j str> {
    group[1..].iter().map(|j| j.unit.as_str()).collect()
}

/// Processes alone rule nothing out.
pub fn blind_to_files(evidence: &Evidence) -> Option<Answer> {
    let blind = evidence.why_unseen(probe::UNIT_FILES).filter(|_| evidence.unit_files.is_empty())?;
    Some(Answer::CannotTell { because: blind.why.clone(), how_to_see: blind.how_to_see.clone() })
}

/// Neither units nor processes.
pub fn nothing_seen(evidence: &Evidence) -> Option<Answer> {
    let seen = !(evidence.unit_files.is_empty() && evidence.units.is_empty() && evidence.processes.is_empty());
    if seen {
        return None;
    }
    let blind = evidence.why_unseen(probe::UNIT_FILES).or(evidence.why_unseen(probe::UNITS));
    Some(match blind {
        Some(u) => Answer::CannotTell { because: u.why.clone(), how_to_see: u.how_to_see.clone() },
        None => Answer::CannotTell {
            because: "neither units nor processes were seen".to_owned(),
            how_to_see: "run on the node itself, or `coroner units --root DIR` on its image".to_owned(),
        },
    })
}

pub fn broken_catalogue(error: &CatalogueError) -> Answer {
    Answer::CannotTell {
        because: format!("a catalogue of agents cannot be used: {error}"),
        how_to_see: format!("correct {} (docs/catalogue.md), or take it away", error.file),
    }
}

fn fine(judgements: &[Judgement]) -> String {
    let open = judgements.iter().filter(|j| j.verdict == Verdict::CannotTell).count() as u64;
    let mut words = format!(
        "{}, none without work",
        plural(judgements.len() as u64, "known agent or unit", "units of known agents")
    );
    if open > 0 {
        words.push_str(&format!("; of {open} it cannot be told"));
    }
    words
}

fn is_service(judgement: &Judgement) -> bool {
    judgement.unit.ends_with(".service")
}

/// Those who look at an image decide on each.
fn is_named(judgement: &Judgement) -> bool {
    judgement.in_image || judgement.certainty >= Certainty::Likely || judgement.kinds_against() >= KINDS
}

/// The units of one agent, the worst first.
fn finding(group: &[&Judgement]) -> Finding {
    let worst = group[0];
    let owner = worst.why.iter().any(|r| r.kind == ReasonKind::CompetingOwner);
    // In an image harm never shows; there two kinds of reasons, one of them an owner, are what the incident looked like before it.
    let warn = worst.certainty >= Certainty::Likely && (worst.harm == Harm::Seen || (worst.in_image && owner));
    let against = worst.why.iter().filter(|r| r.kind.is_against() || r.kind == ReasonKind::Restarts);
    let short: Vec<String> = against.take(2).map(|r| shorten(&r.text)).collect();
    let verb = if worst.pid.is_some() { "runs" } else { "starts" };
    let title = format!("{} {verb}, but has no work here: {}", worst.unit, short.join("; "));
    let mut detail = format!("{} ({}), judged unused: {}. ", worst.unit, worst.what, worst.certainty.as_str());
    for reason in &worst.why {
        detail.push_str(&sentence(&reason.text));
    }
    let others = others(group);
    if !others.is_empty() {
        detail.push_str(&format!("The same holds for {}. ", list(&others, NAMED)));
    }
    Finding {
        code: Code::AgentUnused,
        ties: Ties { units: group.iter().map(|j| j.unit.clone()).collect(), ..Ties::default() },
        severity: if warn { Severity::Warning } else { Severity::Info },
        subject: subject(worst),
        title,
        detail: detail.trim_end().to_owned(),
        evidence: facts(worst),
        remedy: remedy(worst, &others),
    }
}

pub fn subject(judgement: &Judgement) -> Subject {
    match judgement.pid {
        Some(pid) => Subject::new(SubjectKind::Process, format!("{}[{pid}]", judgement.unit)),
        None => Subject::new(SubjectKind::Unit, judgement.unit.clone()),
    }
}

pub fn facts(judgement: &Judgement) -> Vec<Fact> {
    let mut facts: Vec<Fact> =
        judgement.why.iter().map(|r| Fact::new(key_of(r.kind), r.text.clone(), r.source.clone())).collect();
    let source = format!("catalogue: {}", judgement.agent);
    facts.push(Fact::new(FactKey::HowSure, judgement.certainty.as_str(), source));
    facts
}

fn key_of(kind: ReasonKind) -> FactKey {
    match kind {
        ReasonKind::ConfigMissing => FactKey::AgentConfiguration,
        ReasonKind::CredentialsMissing => FactKey::AgentCredentials,
        ReasonKind::HardwareMissing => FactKey::AgentHardware,
        ReasonKind::RegistrationErrors => FactKey::AgentLog,
        ReasonKind::CompetingOwner => FactKey::AgentRival,
        ReasonKind::OtherCloud => FactKey::AgentCloud,
        ReasonKind::Restarts => FactKey::AgentRestarts,
        ReasonKind::CgroupsBorn => FactKey::AgentCgroups,
        ReasonKind::NoSockets => FactKey::AgentSockets,
        ReasonKind::Idle | ReasonKind::Harmless => FactKey::AgentIdle,
        ReasonKind::NoUnit => FactKey::AgentWithoutUnit,
        ReasonKind::NotStarted => FactKey::AgentStart,
        ReasonKind::Configured => FactKey::AgentConfigured,
        ReasonKind::AtWork => FactKey::AgentAtWork,
        ReasonKind::Unseen => FactKey::AgentUnseen,
    }
}

fn remedy(judgement: &Judgement, others: &[&str]) -> String {
    match judgement.report_only {
        true => step(judgement, others),
        false => format!("{}{DOES_NOT_FIX}{}.", step(judgement, others), judgement.does_not_fix),
    }
}

fn step(judgement: &Judgement, others: &[&str]) -> String {
    let step = &judgement.safe_step;
    if judgement.report_only {
        let why = if step.starts_with("report only:") { "" } else { "Do not remove it: it may be the only way in. " };
        return format!("{why}{}", sentence(step)).trim_end().to_owned();
    }
    // Some steps are a command, others say in words what to do.
    let mut words = match agents::recommends_removal(step) {
        true if step.starts_with("systemctl ") => format!("If nobody uses it: `{step}`. "),
        true => format!("If nobody uses it: {step}. "),
        false => sentence(step),
    };
    if !others.is_empty() {
        words.push_str(&format!("The same for {}. ", list(others, NAMED)));
    }
    if !judgement.in_image && judgement.pid.is_none() {
        words.push_str("Do the same in the image the node was made from. ");
    }
    words
}

/// All that idles, in one line.
fn summary(idle: &[Vec<&Judgement>]) -> Option<Finding> {
    let units: Vec<&str> = idle.iter().map(|group| group[0].unit.as_str()).collect();
    if units.is_empty() {
        return None;
    }
    let facts = idle.iter().map(|group| {
        let first = group[0].why.first();
        let text = first.map_or_else(String::new, |r| r.text.clone());
        Fact::new(FactKey::IdleAgent, text, first.map_or_else(String::new, |r| r.source.clone()))
            .of(group[0].unit.clone())
    });
    let n = units.len() as u64;
    Some(Finding {
        code: Code::AgentUnused,
        ties: Ties::default(),
        severity: Severity::Info,
        subject: Subject::new(SubjectKind::Node, "agents"),
        title: format!("{} without work here: {}", plural(n, "agent may be", "agents may be"), list(&units, NAMED)),
        detail: "One kind of reason speaks against each, and none was seen to do harm. Nothing needs to be done now; an image without \
                 them starts faster and has less to go wrong."
            .to_owned(),
        evidence: facts.collect(),
        remedy: "`coroner units` tells of each why, how sure that is, what it costs and the safe step.".to_owned(),
    })
}

/// Up to its explanation, for a title.
fn shorten(text: &str) -> String {
    const TITLE: usize = 90;
    if text.chars().count() <= TITLE {
        return text.to_owned();
    }
    text.chars().take(TITLE - 1).chain(['…']).collect()
}

fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
    format!("{first}{}. ", chars.as_str().trim_end_matches('.'))
}

#[cfg(test)]
mod tests;
