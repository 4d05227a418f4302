//! Verdicts and plans do not depend on the wording of findings (all recordings in golden/). And a diagnosis survives a JSON round trip.

use coroner_diagnosis::finding::{Subject, SubjectKind};
use coroner_diagnosis::{Case, Diagnosis, FindingRef, diagnose, verdict};
use coroner_evidence::{Evidence, TextFile, recording};
use coroner_remedy::planner::targets;
use coroner_remedy::{Wishes, facts, plan};
use std::path::{Path, PathBuf};

fn recordings() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden");
    let paths = std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|e| e == "coroner")).collect();
    assert!(found.len() >= 8, "golden recordings are missing: {found:?}");
    found
}

fn name(told: &FindingRef) -> String {
    let Subject { kind, name, task } = &told.subject;
    let name = if is_named_in_words(*kind) { "" } else { name };
    format!("{} {} {kind:?} {name} {task:?} {:?}", told.code, told.key, told.by)
}

/// The names of these are for people; fields say which one it is.
fn is_named_in_words(kind: SubjectKind) -> bool {
    matches!(kind, SubjectKind::Process | SubjectKind::Nic)
}

/// The built-in agents with other words for people.
fn reworded_catalogues() -> Vec<TextFile> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../diagnosis/catalogue");
    let reworded = |line: &str| match line.split_once(" = ") {
        Some((key @ ("what" | "advice" | "does_not_fix"), _)) => format!("{key} = \"∎ c\"\n"),
        _ => format!("{line}\n"),
    };
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap().lines().map(reworded).collect();
            TextFile { path: path.display().to_string(), text }
        })
        .collect()
}

/// The verdicts and the plan without their sentences.
fn skeleton(diagnosis: &Diagnosis, evidence: &Evidence) -> Vec<String> {
    let mut lines = Vec::new();
    for verdict in &diagnosis.conclusion.verdicts {
        let head = (&verdict.key, name(&verdict.root_cause), verdict.certainty, verdict.severity, verdict.over);
        lines.push(format!("{head:?}"));
        lines.extend(verdict.chain.iter().map(|l| format!("{} → {} {:?}", name(&l.from), name(&l.to), l.certainty)));
        lines.extend(verdict.context.iter().map(name));
    }
    lines.extend(diagnosis.conclusion.unexplained.iter().map(|one| format!("? {}", name(&one.finding))));
    let wishes = Wishes::default();
    let facts = facts::of_evidence(evidence, &targets(evidence, diagnosis, &wishes).unwrap());
    let plan = plan(evidence, diagnosis, &wishes, &facts).unwrap();
    lines.extend(plan.steps.iter().map(|step| format!("step {} {:?}", step.id, step.commands)));
    lines.extend(plan.alternatives.iter().map(|step| format!("or {} {:?}", step.id, step.commands)));
    lines.extend(plan.by_hand.iter().map(|step| format!("by hand {}", name(&step.finding))));
    lines.push(format!("{} refused, {} files", plan.refused.len(), plan.files.len()));
    lines
}

#[test]
fn other_words_lead_to_the_same_verdicts_and_plans() {
    let (mut verdicts, mut steps) = (0, 0);
    for path in recordings() {
        let mut evidence = recording::read(&path).unwrap().evidence;
        let mut diagnosis = diagnose(&evidence);
        let before = skeleton(&diagnosis, &evidence);
        verdicts += diagnosis.conclusion.verdicts.len();
        steps += before.iter().filter(|line| line.starts_with("step ")).count();

        evidence.catalogues = reworded_catalogues();
        for unseen in &mut evidence.unseen {
            (unseen.what, unseen.why, unseen.how_to_see) = ("∎ w".to_owned(), "∎ y".to_owned(), "∎ h".to_owned());
        }
        let mut case = Case::of(&evidence);
        case.findings = diagnose(&evidence).findings;
        for (number, finding) in case.findings.iter_mut().enumerate() {
            if is_named_in_words(finding.subject.kind) {
                finding.subject.name = format!("∎ n{number}");
            }
            finding.title = format!("∎ t{number}");
            finding.detail = format!("∎ d{number}");
            finding.remedy = format!("∎ r{number}");
            finding.evidence.iter_mut().for_each(|fact| fact.source = format!("∎ s{number}"));
        }
        diagnosis.conclusion = verdict::conclude(&case);
        diagnosis.findings = case.findings;
        for ruled_out in &mut diagnosis.ruled_out {
            ruled_out.why = "∎ f".to_owned();
        }
        for verdict in &mut diagnosis.conclusion.verdicts {
            let texts = [&mut verdict.story, &mut verdict.because, &mut verdict.remedy, &mut verdict.not_fixed];
            let titles = verdict.story_path.iter_mut().chain(&mut verdict.story_also).chain(&mut verdict.first_aid);
            for sentence in titles.chain(texts).chain([&mut verdict.fix]) {
                *sentence = "∎ v".to_owned();
            }
        }
        assert_eq!(skeleton(&diagnosis, &evidence), before, "{}", path.display());
    }
    assert!(verdicts >= 4 && steps >= 2, "only {verdicts} verdicts and {steps} steps in all recordings");
}

#[test]
fn a_diagnosis_can_be_read_back() {
    for path in recordings() {
        let evidence = recording::read(&path).unwrap().evidence;
        let told = serde_json::to_value(diagnose(&evidence).report("0.0.0")).unwrap();
        let read: coroner_report::Diagnosis = serde_json::from_value(told.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), told, "{}", path.display());
        for finding in &read.findings {
            assert!(finding.key.starts_with(finding.code.as_str()), "{}: {}", path.display(), finding.key);
            let known = finding.evidence.iter().all(|fact| !matches!(fact.key, coroner_report::FactKey::Other(_)));
            assert!(known, "{}: {:?}", path.display(), finding.evidence);
        }
        let keys: Vec<&str> = read.findings.iter().map(|finding| finding.key.as_str()).collect();
        println!("{}: {keys:?}", path.file_stem().unwrap().display());
    }
}
