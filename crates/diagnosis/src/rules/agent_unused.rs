//! Does an agent run here that has no work here?
//!
//! The base image enables it, nobody configured it, and it retries for ever. docs/catalogue.md says how agents are judged; this
//! rule decides what to report. A stock node is full of idle daemons: they share one finding. An agent that does harm, or with
//! two kinds of evidence against it, gets its own; in an image each does.

use crate::agents::{self, CatalogueError, Certainty, Harm, Judgement, ReasonKind, Verdict};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::{Task, Ties};
use crate::words::{list, plural};
use coroner_evidence::{Evidence, Order, probe};
use std::collections::BTreeMap;

/// Introduces what the step does not change.
const DOES_NOT_FIX: &str = "It does not fix: ";

/// With this many independent kinds of reasons an agent is named even if it idles: the next boot may wake it.
const KINDS: usize = 2;

/// How many agents a sentence names; the rest are counted.
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
    units.order_by_key(|group| std::cmp::Reverse((group[0].harm == Harm::Seen, group[0].certainty)));
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
        group.order_by_key(|j| std::cmp::Reverse((j.harm == Harm::Seen, j.certainty, is_service(j))));
    }
    units
}

/// The remedy for the agent of this unit, without what it does not fix.
pub fn what_to_do(evidence: &Evidence, unit: &str) -> Option<String> {
    let judgements = agents::judgements(evidence).ok()?;
    let group = unused(&judgements).into_iter().find(|group| group.iter().any(|j| j.unit == unit))?;
    Some(step(group[0], &others(&group)).trim_end().to_owned())
}

fn others<'j>(group: &[&'j Judgement]) -> Vec<&'j str> {
    group[1..].iter().map(|j| j.unit.as_str()).collect()
}

/// Without unit files nothing can be ruled out: processes alone are not enough.
pub fn blind_to_files(evidence: &Evidence) -> Option<Answer> {
    let blind = evidence.why_unseen(probe::UNIT_FILES).filter(|_| evidence.unit_files.is_empty())?;
    Some(Answer::CannotTell { because: blind.why.clone(), how_to_see: blind.how_to_see.clone() })
}

/// The answer if neither units nor processes were seen.
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
        because: format!("an agent catalogue is invalid: {error}"),
        how_to_see: format!("fix {} (docs/catalogue.md), or remove it", error.file),
    }
}

fn fine(judgements: &[Judgement]) -> String {
    let open = judgements.iter().filter(|j| j.verdict == Verdict::CannotTell).count() as u64;
    let mut words = format!(
        "{}, none judged unused",
        plural(judgements.len() as u64, "known agent or unit", "units of known agents")
    );
    if open > 0 {
        words.push_str(&format!("; {open} could not be judged"));
    }
    words
}

fn is_service(judgement: &Judgement) -> bool {
    judgement.unit.ends_with(".service")
}

/// In an image every agent is named: whoever builds it decides on each.
fn is_named(judgement: &Judgement) -> bool {
    judgement.in_image || judgement.certainty >= Certainty::Likely || judgement.kinds_against() >= KINDS
}

/// The units of one agent, the worst first.
fn finding(group: &[&Judgement]) -> Finding {
    let worst = group[0];
    let owner = worst.why.iter().any(|r| r.kind == ReasonKind::CompetingOwner);
    // An image never shows harm; two kinds of reasons, one of them a rival owner, are what precedes an incident.
    let warn = worst.certainty >= Certainty::Likely && (worst.harm == Harm::Seen || (worst.in_image && owner));
    let against = worst.why.iter().filter(|r| r.kind.is_against() || r.kind == ReasonKind::Restarts);
    let short: Vec<String> = against.take(2).map(|r| shorten(&r.text)).collect();
    let verb = if worst.pid.is_some() { "runs" } else { "starts" };
    let title = format!("{} {verb}, but has no work here: {}", worst.unit, short.join("; "));
    let mut detail = format!("{} ({}) is judged unused ({}). ", worst.unit, worst.what, worst.certainty.as_str());
    for reason in &worst.why {
        detail.push_str(&sentence(&reason.text));
    }
    let others = others(group);
    if !others.is_empty() {
        detail.push_str(&format!("The same goes for {}. ", list(&others, NAMED)));
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
        Some(pid) => Subject::process(Task { comm: judgement.unit.clone(), pid, tid: pid }),
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
    if judgement.report_only {
        return sentence(&judgement.safe_step).trim_end().to_owned();
    }
    let mut words = match &judgement.command {
        Some(command) => {
            let place = judgement.in_image.then_some("in the image build");
            let when: Vec<&str> = place.into_iter().chain(judgement.advice.as_deref()).collect();
            format!(
                "{}: `{command}`. ",
                [&[format!("If nobody uses {}", judgement.unit).as_str()], when.as_slice()].concat().join(", ")
            )
        }
        None => sentence(&judgement.safe_step),
    };
    if !others.is_empty() {
        words.push_str(&format!("Do the same for {}. ", list(others, NAMED)));
    }
    if !judgement.in_image && judgement.pid.is_none() {
        words.push_str("Also change the image that the node was built from. ");
    }
    words
}

/// One finding for all idle agents.
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
        title: format!("{} unused here: {}", plural(n, "agent may be", "agents may be"), list(&units, NAMED)),
        detail: "Each has only one kind of evidence against it, and none was seen doing harm. Nothing needs to be done now; an image \
                 without them boots faster and has less to go wrong."
            .to_owned(),
        evidence: facts.collect(),
        remedy: "`coroner units` shows for each the reasons, how sure they are, what it costs, and the safe step.".to_owned(),
    })
}

/// Cut to the length of a title.
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
