//! Whole nodes in, verdicts out.

mod any;
mod chains;
mod links;
mod node;
mod others;
mod rewording;

use super::{Certainty, Conclusion, Verdict};
use crate::code::Code;
use crate::finding::{Diagnosis, Severity, diagnose};
use coroner_evidence::Evidence;

fn concluded(evidence: &Evidence) -> Conclusion {
    rewording::changes_nothing(evidence);
    diagnose(evidence).conclusion
}

#[track_caller]
fn only(evidence: &Evidence) -> Verdict {
    rewording::changes_nothing(evidence);
    let diagnosis = diagnose(evidence);
    assert_eq!(roots(&diagnosis.conclusion).len(), 1, "{}", told(&diagnosis));
    diagnosis.conclusion.verdicts.into_iter().next().unwrap()
}

fn roots(conclusion: &Conclusion) -> Vec<(Code, &str)> {
    conclusion.verdicts.iter().map(|v| (v.root_cause.code, v.root_cause.subject.name.as_str())).collect()
}

/// The chain: each cause with its effect.
fn steps(verdict: &Verdict) -> Vec<(Code, Code)> {
    verdict.chain.iter().map(|link| (link.from.code, link.to.code)).collect()
}

/// The whole diagnosis, for failure messages.
fn told(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for f in &diagnosis.findings {
        text.push_str(&format!("{} {}: {}\n", f.severity.as_str(), f.code, f.title));
    }
    for v in &diagnosis.conclusion.verdicts {
        text.push_str(&format!("VERDICT {} {}\n", v.certainty.as_str(), v.story));
        for l in &v.chain {
            text.push_str(&format!("  {} -> {}: {:?}\n", l.from.code, l.to.code, l.proofs));
        }
    }
    for u in &diagnosis.conclusion.unexplained {
        text.push_str(&format!("UNEXPLAINED {}: {} | {}\n", u.finding.code, u.needs, u.command));
    }
    text
}

/// Nothing unproven is called proven.
#[track_caller]
fn is_honest(conclusion: &Conclusion) {
    for verdict in &conclusion.verdicts {
        // Only the links to the head of the story decide the certainty.
        let mut proven: Vec<&crate::verdict::FindingRef> =
            if verdict.proofs.certainty() == Certainty::Proven { vec![&verdict.root_cause] } else { Vec::new() };
        for _ in &verdict.chain {
            let links = verdict.chain.iter().filter(|link| link.proofs.certainty() == Certainty::Proven);
            let next: Vec<&crate::verdict::FindingRef> =
                links.filter(|l| proven.contains(&&l.from)).map(|l| &l.to).collect();
            proven.extend(next);
        }
        let is_proven = proven.iter().any(|told| verdict.story_path.first() == Some(&told.title));
        assert_eq!(verdict.certainty == Certainty::Proven, is_proven, "{verdict:#?}");
        assert!(verdict.severity >= Severity::Warning);
        assert!(!verdict.remedy.is_empty() && !verdict.because.is_empty() && !verdict.not_fixed.is_empty());
    }
}
