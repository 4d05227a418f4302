//! Does this node or image have units that differ from its baseline?
//!
//! The agent that caused the incident came with a base image. A baseline is a list of units that somebody checked; look first at
//! what has changed since.

use crate::agents::baseline::{ChangedUnit, Drift, DriftedUnit};
use crate::agents::{self, Start, start_of};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::rules::not_seen;
use crate::ties::Ties;
use crate::words::{count, list, plural};
use coroner_evidence::{Evidence, UnitFile, probe};
use std::collections::HashMap;

/// Units listed by name.
const LISTED: usize = 20;
/// Units named in the title.
const TITLED: usize = 3;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let Some(baseline) = &evidence.baseline else {
        return Answer::NotAsked;
    };
    if evidence.unit_files.is_empty() {
        let how = "run as root on the node, or with --root on its image";
        return not_seen(evidence.why_unseen(probe::UNIT_FILES), "no unit files were seen", how);
    }
    let drift = match agents::drift(evidence) {
        Some(Ok(drift)) => drift,
        Some(Err(error)) => {
            return Answer::CannotTell {
                because: format!("{}: {error}", baseline.path),
                how_to_see: "create it again on a good node or image: coroner units --baseline FILE".to_owned(),
            };
        }
        None => return Answer::NotAsked,
    };
    if drift.is_empty() {
        let n = plural(evidence.unit_files.len() as u64, "unit", "units");
        return Answer::Fine(format!("{n}, none new, gone or changed compared with {}", baseline.path));
    }
    Answer::Findings(vec![finding(&drift, evidence, &baseline.path)])
}

fn finding(drift: &Drift, evidence: &Evidence, baseline: &str) -> Finding {
    let by_name: HashMap<&str, &UnitFile> = evidence.unit_files.iter().map(|u| (u.name.as_str(), u)).collect();
    let starts = |name: &str| by_name.get(name).is_some_and(|unit| matches!(start_of(unit, &by_name), Start::Yes(_)));
    let came = drift.new.iter().map(|u| u.name.as_str()).chain(drift.changed.iter().map(|u| u.name.as_str()));
    let starting: Vec<&str> = came.filter(|name| starts(name)).collect();
    let (new, gone, changed) = (drift.new.len(), drift.gone.len(), drift.changed.len());
    let counts: Vec<String> = [(new, "new"), (gone, "gone"), (changed, "changed")]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{} {what}", count(n as u64)))
        .collect();
    let mut title = format!("Units differ from the baseline: {}", list(&counts, 3));
    if !starting.is_empty() {
        title.push_str(&format!("; these start: {}", list(&starting, TITLED)));
    }
    let names = |title: &str, names: Vec<&str>| match names.is_empty() {
        true => String::new(),
        false => format!("{title}: {}. ", list(&names, LISTED)),
    };
    let detail = [
        names("New", drift.new.iter().map(|u| u.name.as_str()).collect()),
        names("Gone", drift.gone.iter().map(|u| u.name.as_str()).collect()),
        names("Changed", drift.changed.iter().map(|u| u.name.as_str()).collect()),
    ]
    .concat();
    let mut facts: Vec<Fact> = Vec::new();
    facts.extend(drift.new.iter().take(LISTED).map(|u| drifted(u, FactKey::UnitNew, starts(&u.name))));
    facts.extend(drift.gone.iter().take(LISTED).map(|u| drifted(u, FactKey::UnitGone, false)));
    facts.extend(drift.changed.iter().take(LISTED).map(|u| changed_fact(u, starts(&u.name), baseline)));
    for (what, n) in [("new", new), ("gone", gone), ("changed", changed)] {
        if n > LISTED {
            facts.push(Fact::new(FactKey::UnitsDrifted, n - LISTED, baseline).of(what));
        }
    }
    let image = evidence.image.as_ref();
    Finding {
        code: Code::UnitDrift,
        ties: Ties::default(),
        severity: if starting.is_empty() { Severity::Info } else { Severity::Warning },
        subject: Subject::new(SubjectKind::Node, image.map_or("units", String::as_str)),
        title,
        detail: detail.trim_end().to_owned(),
        evidence: facts,
        remedy: format!(
            "Check each: what it does (`systemctl cat UNIT`) and where it came from. Remove what does not belong here from the image build. If \
             all is as intended, update the baseline: `coroner units --baseline {baseline} --update-baseline`. A difference is no fault in itself."
        ),
    }
}

fn drifted(unit: &DriftedUnit, key: FactKey, starts: bool) -> Fact {
    let mut words = vec![unit.unit.enablement.as_str().to_owned()];
    if starts {
        words.push("starts".to_owned());
    }
    if let Some(package) = &unit.unit.package {
        let version = unit.unit.version.as_deref().unwrap_or_default();
        words.push(format!("from {package} {version}").trim_end().to_owned());
    }
    let source = unit.unit.path.clone().unwrap_or_default();
    Fact::new(key, words.join(", "), source).of(&unit.name)
}

fn changed_fact(unit: &ChangedUnit, starts: bool, baseline: &str) -> Fact {
    let changes = unit.changes.iter().map(|change| change.words());
    let mut words: Vec<String> = changes.map(|words| words.unwrap_or("unit file or drop-ins".to_owned())).collect();
    if starts {
        words.push("starts".to_owned());
    }
    Fact::new(FactKey::UnitChanged, words.join(", "), baseline).of(&unit.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::Baseline;
    use crate::rules::test_evidence::{cannot_tell, fact_of, fine, one};
    use coroner_evidence::{Enablement, TextFile};

    fn unit(name: &str, enablement: Enablement) -> UnitFile {
        UnitFile { name: name.to_owned(), enablement, content_hash: Some("x".into()), ..UnitFile::default() }
    }

    fn against(good: &[UnitFile], now: Vec<UnitFile>) -> Evidence {
        let text = Baseline::of(good, None, None).to_json();
        Evidence {
            unit_files: now,
            baseline: Some(TextFile { path: "/etc/coroner/good.json".into(), text }),
            ..Evidence::default()
        }
    }

    #[test]
    fn a_new_unit_that_starts_is_a_warning() {
        let good = [unit("a.service", Enablement::Enabled), unit("b.service", Enablement::Disabled)];
        let now = vec![unit("a.service", Enablement::Enabled), unit("ecs.service", Enablement::Enabled)];
        let f = one(examine(&Case::of(&against(&good, now))));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(f.title, "Units differ from the baseline: 1 new and 1 gone; these start: ecs.service");
        assert_eq!(fact_of(&f, FactKey::UnitNew, "ecs.service"), "enabled, starts");
        assert_eq!(fact_of(&f, FactKey::UnitGone, "b.service"), "disabled");
        // Enabled since then: a change that starts something.
        let f = one(examine(&Case::of(&against(&good, vec![good[0].clone(), unit("b.service", Enablement::Enabled)]))));
        assert_eq!(
            (f.severity, fact_of(&f, FactKey::UnitChanged, "b.service")),
            (Severity::Warning, "enablement disabled → enabled, starts".into())
        );
    }

    #[test]
    fn new_units_that_do_not_start_are_info() {
        let good = [unit("a.service", Enablement::Enabled)];
        let mut now = vec![good[0].clone()];
        now.extend((0..30).map(|i| unit(&format!("n{i:02}.service"), Enablement::Static)));
        let f = one(examine(&Case::of(&against(&good, now))));
        assert_eq!(f.severity, Severity::Info);
        assert_eq!((f.evidence.len(), fact_of(&f, FactKey::UnitsDrifted, "new")), (21, 10.into()));
        assert!(f.detail.contains("n19.service and 10 more") && !f.detail.contains("n20"), "{}", f.detail);
    }

    #[test]
    fn fine_and_cannot_tell() {
        let good = [unit("a.service", Enablement::Enabled)];
        let mut evidence = against(&good, good.to_vec());
        assert!(fine(examine(&Case::of(&evidence))).contains("none new, gone or changed compared with /etc"));
        evidence.baseline.as_mut().unwrap().text.truncate(40);
        let (because, _) = cannot_tell(examine(&Case::of(&evidence)));
        assert!(because.starts_with("/etc/coroner/good.json: not a baseline"), "{because}");
        evidence.unit_files.clear();
        evidence.unseen(probe::UNIT_FILES, "unit files", "/etc/systemd: Permission denied", "run as root");
        assert_eq!(
            cannot_tell(examine(&Case::of(&evidence))),
            ("/etc/systemd: Permission denied".into(), "run as root".into())
        );
        assert_eq!(examine(&Case::of(&Evidence::default())), Answer::NotAsked);
    }
}
