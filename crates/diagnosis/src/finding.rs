//! What a diagnosis consists of and how it is made.

use crate::case::Case;
use crate::rules;
use crate::ties::Ties;
use crate::times;
use crate::verdict::{self, Conclusion};
use coroner_evidence::{Cost, Evidence, Node, Order, Unseen, Wall, recording};
use serde::{Serialize, Serializer};
use std::time::Duration;

pub use coroner_report::{Code, Fact, FactKey, FindingRef, RuledOut, Severity, Subject, SubjectKind};

/// What a rule found, with what joins it to other findings.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    pub code: Code,
    pub severity: Severity,
    pub subject: Subject,
    /// One line that a tired person understands.
    pub title: String,
    /// What happened, with the numbers that matter.
    pub detail: String,
    pub evidence: Vec<Fact>,
    /// The safe next step.
    pub remedy: String,
    /// What joins it to other findings.
    pub ties: Ties,
}

impl Finding {
    /// The first fact of this key.
    pub fn fact(&self, key: FactKey) -> Option<&Fact> {
        self.evidence.iter().find(|fact| fact.key == key)
    }

    pub fn number(&self, key: FactKey) -> Option<f64> {
        self.fact(key)?.number()
    }

    pub fn duration(&self, key: FactKey) -> Option<Duration> {
        self.fact(key)?.duration()
    }

    /// 0 to 1.
    pub fn share(&self, key: FactKey) -> Option<f64> {
        self.fact(key)?.share()
    }

    /// Its facts of these keys, in its own order.
    pub fn facts(&self, keys: &[FactKey]) -> Vec<Fact> {
        self.evidence.iter().filter(|fact| keys.contains(&fact.key)).cloned().collect()
    }

    pub fn reference(&self) -> FindingRef {
        FindingRef {
            code: self.code,
            key: self.key(),
            subject: self.subject.clone(),
            by: self.ties.culprit(),
            title: self.title.clone(),
        }
    }

    /// As it leaves the node.
    pub fn report(&self) -> coroner_report::Finding {
        coroner_report::Finding {
            code: self.code,
            key: self.key(),
            severity: self.severity,
            subject: self.subject.clone(),
            by: self.ties.culprit(),
            time: self.ties.time,
            ties: self.ties.report(),
            title: self.title.clone(),
            detail: self.detail.clone(),
            evidence: self.evidence.clone(),
            remedy: self.remedy.clone(),
        }
    }

    /// Whether it goes on at the end of the window.
    pub fn is_ongoing(&self) -> bool {
        self.ties.time.ongoing
    }

    /// Whether the reference means this finding.
    pub fn is(&self, told: &FindingRef) -> bool {
        self.code == told.code && self.subject == told.subject && self.ties.culprit() == told.by
    }
}

/// As it leaves the node.
impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.report().serialize(serializer)
    }
}

/// What a rule says.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// At least one.
    Findings(Vec<Finding>),
    /// Checked and not the case, with the numbers that say so.
    Fine(String),
    /// The evidence is missing.
    CannotTell { because: String, how_to_see: String },
    /// The rule compares with something the user provides, and nothing was provided.
    NotAsked,
}

impl Answer {
    /// The findings, or *fine* with these words if there are none.
    pub fn from_findings(findings: Vec<Finding>, fine: impl FnOnce() -> String) -> Answer {
        if findings.is_empty() { Answer::Fine(fine()) } else { Answer::Findings(findings) }
    }

    /// What a damaged recording lost may be what spoke against *fine*.
    fn unless_damaged(self, damaged: Option<&Unseen>) -> Answer {
        match (self, damaged) {
            (Answer::Fine(_), Some(damaged)) => Answer::CannotTell {
                because: format!("part of the recording is damaged: {}", damaged.why),
                how_to_see: damaged.how_to_see.clone(),
            },
            (answer, _) => answer,
        }
    }
}

/// Everything coroner says about a node.
#[derive(Debug, Clone)]
pub struct Diagnosis {
    pub node: Node,
    /// First to last look.
    pub window: Option<(Wall, Wall)>,
    /// Those that go on, then those that are over; the worst first.
    pub findings: Vec<Finding>,
    pub ruled_out: Vec<RuledOut>,
    pub unseen: Vec<Unseen>,
    pub cost: Option<Cost>,
    /// What caused what.
    pub conclusion: Conclusion,
}

/// Runs every rule on the evidence, then draws conclusions.
pub fn diagnose(evidence: &Evidence) -> Diagnosis {
    let mut case = Case::of(evidence);
    let mut findings = Vec::new();
    let mut ruled_out = Vec::new();
    let mut unseen = evidence.unseen.clone();
    let damaged = evidence.why_unseen(recording::PROBE);
    for rule in rules::ALL {
        match (rule.examine)(&case).unless_damaged(damaged) {
            Answer::Findings(found) => findings.extend(found),
            Answer::NotAsked => {}
            Answer::Fine(why) => ruled_out.push(RuledOut { code: rule.code, why }),
            Answer::CannotTell { because, how_to_see } => unseen.push(Unseen {
                about: None,
                probe: rule.code.as_str().to_owned(),
                what: format!("whether there is {}", rule.code),
                why: because,
                how_to_see,
            }),
        }
    }
    for finding in &mut findings {
        finding.ties.time = times::of(evidence, &finding.ties);
        // An event with an age, not what hurts now: it must not outrank that.
        if times::was_before(evidence, &finding.ties) {
            finding.severity = finding.severity.min(Severity::Warning);
        }
    }
    // Stable: the order of the rules is the reading order of equals.
    findings.order_by_key(|f| std::cmp::Reverse((f.is_ongoing(), f.severity)));
    let window = evidence.window().zip(evidence.clocks.last()).map(|(w, c)| (c.wall_of(w.from), c.wall_of(w.to)));
    case.findings = findings;
    let conclusion = verdict::conclude(&case);
    Diagnosis {
        conclusion,
        node: evidence.node.clone().unwrap_or_default(),
        window,
        findings: case.findings,
        ruled_out,
        unseen,
        cost: evidence.cost,
    }
}

impl Diagnosis {
    /// The document that leaves the node.
    pub fn report(&self, coroner_version: &str) -> coroner_report::Diagnosis {
        coroner_report::Diagnosis {
            schema: coroner_report::diagnosis::SCHEMA.to_owned(),
            coroner_version: coroner_version.to_owned(),
            node: self.node.clone(),
            window: coroner_report::diagnosis::Window {
                from: self.window.map(|(from, _)| from),
                to: self.window.map(|(_, to)| to),
            },
            conclusion: self.outcome(),
            verdicts: self.conclusion.verdicts.clone(),
            unexplained: self.conclusion.unexplained.clone(),
            findings: self.findings.iter().map(Finding::report).collect(),
            ruled_out: self.ruled_out.clone(),
            unseen: self.unseen.clone(),
            cost: self.cost,
        }
    }

    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|f| f.severity).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{log, watched};

    #[test]
    fn a_damaged_recording_rules_nothing_out() {
        let mut evidence = watched(5);
        evidence.log = log(&[]);
        assert!(diagnose(&evidence).ruled_out.iter().any(|r| r.code == Code::OomKill));
        evidence.unseen(recording::PROBE, "the table log", "page 7 is damaged", "copy the file again");
        let diagnosis = diagnose(&evidence);
        assert_eq!(diagnosis.ruled_out, []);
        let oom = diagnosis.unseen.iter().find(|u| u.probe == "oom-kill").unwrap();
        assert!(oom.why.contains("damaged: page 7"), "{}", oom.why);
        assert_eq!(oom.how_to_see, "copy the file again");
    }
}
