//! Verdicts do not depend on wording. Every node that a verdict test builds goes through here; the recordings in golden/ go through
//! crates/remedy/tests/rewording.rs.

use super::super::conclude;
use crate::case::Case;
use crate::finding::{Finding, Subject, SubjectKind, diagnose};
use crate::verdict::{Conclusion, FindingRef};
use coroner_evidence::{Evidence, Wall};

/// Different words everywhere.
fn reworded(finding: &mut Finding, number: usize) {
    for (sentence, name) in [(&mut finding.title, "t"), (&mut finding.detail, "d"), (&mut finding.remedy, "r")] {
        *sentence = format!("{name}{number} ∎");
    }
    if is_named_in_words(finding.subject.kind) {
        finding.subject.name = format!("n{number} ∎");
    }
    for fact in &mut finding.evidence {
        fact.source = format!("s{number} ∎");
    }
}

/// The names of these are for people; fields say which one it is.
fn is_named_in_words(kind: SubjectKind) -> bool {
    matches!(kind, SubjectKind::Process | SubjectKind::Nic)
}

/// A verdict without its words.
fn skeleton(conclusion: &Conclusion) -> Vec<String> {
    let name = |told: &FindingRef| {
        let Subject { kind, name, task } = &told.subject;
        let name = if is_named_in_words(*kind) { "" } else { name };
        format!("{} {} {kind:?} {name} {task:?} {:?}", told.code, told.key, told.by)
    };
    let verdicts = conclusion.verdicts.iter().map(|verdict| {
        let links = verdict.chain.iter().map(|link| {
            let proofs = [&link.proofs.identity, &link.proofs.order, &link.proofs.size].map(|proof| proof.is_shown());
            let keys: Vec<&str> = link.evidence.iter().map(|fact| fact.key.as_str()).collect();
            format!("{} → {} {:?} {proofs:?} {keys:?}", name(&link.from), name(&link.to), link.certainty)
        });
        let context: Vec<String> = verdict.context.iter().map(name).collect();
        let times: Vec<Wall> = verdict.timeline.iter().map(|moment| moment.at).collect();
        format!(
            "{} {} {:?} {:?} {:?} {context:?} {times:?} {:?}",
            verdict.key,
            name(&verdict.root_cause),
            verdict.certainty,
            verdict.severity,
            links.collect::<Vec<_>>(),
            verdict.over
        )
    });
    let unexplained = conclusion.unexplained.iter().map(|one| format!("? {} {}", name(&one.finding), one.command));
    verdicts.chain(unexplained).collect()
}

#[track_caller]
pub fn changes_nothing(evidence: &Evidence) {
    let before = diagnose(evidence);
    let mut blind = evidence.clone();
    for (number, unseen) in blind.unseen.iter_mut().enumerate() {
        unseen.what = format!("w{number} ∎");
        unseen.why = format!("y{number} ∎");
        unseen.how_to_see = format!("h{number} ∎");
    }
    let mut case = Case::of(&blind);
    case.findings = diagnose(&blind).findings;
    assert_eq!(case.findings.len(), before.findings.len());
    case.findings.iter_mut().enumerate().for_each(|(number, finding)| reworded(finding, number));
    assert_eq!(skeleton(&conclude(&case)), skeleton(&before.conclusion));
}
