//! Handmade evidence for the tests of the rules, and the check that no evidence makes a rule panic.

use crate::finding::{Answer, FactKey, Finding};
use coroner_evidence::{Clocks, CoreTicks, CoreTimes, Evidence, LogLine, Time, Wall};
use std::time::Duration;

/// When watching ended: more than two days after boot.
pub const END: Time = Time(200_000_000_000_000);

/// A node that was watched this long, with nothing else known about it.
pub fn watched(seconds: u64) -> Evidence {
    let start = start(seconds);
    let look =
        |at| CoreTimes { at, cores: vec![CoreTicks { core: 0, idle: at.0 / 10_000_000, ..CoreTicks::default() }] };
    Evidence {
        core_times: vec![look(start), look(END)],
        clocks: vec![Clocks { at: END, wall: Wall(1_750_000_000_000_000_000), boot_ns: END.0 }],
        ..Evidence::default()
    }
}

pub fn start(seconds: u64) -> Time {
    END - Duration::from_secs(seconds)
}

/// A kernel log line of this age.
pub fn kernel_line(age: Duration, text: &str) -> LogLine {
    let at = END - age;
    LogLine {
        at,
        uncertainty_ns: 7_000_000,
        stamp_us: at.0 / 1000,
        sequence: at.0 / 1000,
        level: 4,
        facility: 0,
        text: text.to_owned(),
    }
}

/// A log with one irrelevant line, then these.
pub fn log(lines: &[(u64, &str)]) -> Vec<LogLine> {
    let mut log = vec![LogLine { sequence: 0, ..kernel_line(Duration::from_secs(190_000), "Linux version 6.1.0") }];
    log.extend(lines.iter().map(|(age, text)| kernel_line(Duration::from_secs(*age), text)));
    log
}

#[track_caller]
pub fn findings(answer: Answer) -> Vec<Finding> {
    match answer {
        Answer::Findings(findings) => findings,
        other => panic!("expected findings, got {other:?}"),
    }
}

/// None if all is fine.
#[track_caller]
pub fn if_any(answer: Answer) -> Vec<Finding> {
    match answer {
        Answer::Findings(findings) => findings,
        Answer::Fine(_) | Answer::NotAsked => Vec::new(),
        Answer::CannotTell { because, .. } => panic!("cannot tell: {because}"),
    }
}

#[track_caller]
pub fn one(answer: Answer) -> Finding {
    let mut findings = findings(answer);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.remove(0)
}

#[track_caller]
pub fn fine(answer: Answer) -> String {
    match answer {
        Answer::Fine(why) => why,
        other => panic!("expected fine, got {other:?}"),
    }
}

#[track_caller]
pub fn cannot_tell(answer: Answer) -> (String, String) {
    match answer {
        Answer::CannotTell { because, how_to_see } => (because, how_to_see),
        other => panic!("expected cannot tell, got {other:?}"),
    }
}

/// The value of the first fact with this key.
#[track_caller]
pub fn fact(finding: &Finding, key: FactKey) -> serde_json::Value {
    let found = finding.fact(key).unwrap_or_else(|| panic!("no {key:?} in {:#?}", finding.evidence));
    serde_json::to_value(&found.value).unwrap()
}

/// The same for a key with several facts.
#[track_caller]
pub fn fact_of(finding: &Finding, key: FactKey, of: &str) -> serde_json::Value {
    let found = finding.evidence.iter().find(|fact| fact.key == key && fact.of.as_deref() == Some(of));
    let found = found.unwrap_or_else(|| panic!("no {key:?} of {of} in {:#?}", finding.evidence));
    serde_json::to_value(&found.value).unwrap()
}

pub mod any;
