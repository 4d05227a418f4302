//! Lists a recorder's incidents, and reads and diagnoses one of them.

use crate::incident::Incident;
use crate::{directory, incident_files as files, kernel_work, warn};
use anyhow::{Context, bail};
use coroner_diagnosis::finding::{Subject, SubjectKind};
use coroner_diagnosis::verdict::Verdict;
use coroner_diagnosis::{Code, Diagnosis, Finding, Severity, diagnose};
use coroner_evidence::recording::{self, Riser};
use coroner_evidence::{Evidence, Order, Source};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An incident and its file.
pub struct Listed {
    pub incident: Incident,
    /// `None` if it has none.
    pub file: Option<PathBuf>,
    pub bytes: Option<u64>,
}

impl Listed {
    pub fn new(directory: &Path, incident: Incident) -> Listed {
        let file = files::recording(directory, incident.number);
        let bytes = std::fs::metadata(&file).ok().map(|about| about.len());
        Listed { incident, file: bytes.map(|_| file), bytes }
    }
}

/// Newest first.
pub fn listed(directory: &Path) -> anyhow::Result<Vec<Listed>> {
    let sizes = files::listed(directory)
        .with_context(|| format!("cannot list {}", directory::incidents(directory).display()))?;
    let mut listed = Vec::new();
    for number in sizes.keys().rev().copied() {
        match files::read(directory, number) {
            Ok(incident) => listed.push(Listed::new(directory, incident)),
            // Evicted after it was listed.
            Err(_) if !files::json(directory, number).exists() => {}
            Err(error) => warn(&format!("{error:#}")),
        }
    }
    Ok(listed)
}

/// Everything reported about one incident. Conclusions are derived again from its file.
pub struct IncidentReport {
    pub directory: PathBuf,
    pub listed: Listed,
    /// An error says why there is no file to read.
    pub read: Result<ReadIncident, String>,
    pub verbose: bool,
}

pub struct ReadIncident {
    pub evidence: Evidence,
    pub diagnosis: Diagnosis,
    /// The finding it was frozen for, if it hurt nobody: then no verdict mentions it.
    pub about: Option<Finding>,
    /// Whether a verdict or a problem without a cause is about what triggered it.
    pub names_trigger: bool,
    /// As found when the incident was frozen: the hour before is not in its file.
    pub risers: Vec<Riser>,
}

/// Reads one incident and diagnoses it.
pub fn report(directory: &Path, number: u64, verbose: bool) -> anyhow::Result<IncidentReport> {
    let incident = find(directory, number)?;
    let listed = Listed::new(directory, incident);
    let read = match &listed.file {
        None => Err("not frozen yet, or freezing failed".to_owned()),
        Some(file) => recording::read(file).map_err(|error| error.to_string()).map(|mut recording| {
            kernel_work::add(file, &mut recording.evidence);
            let mut diagnosis = diagnose(&recording.evidence);
            let verdicts = &mut diagnosis.conclusion.verdicts;
            verdicts.order_by_key(|verdict| {
                (std::cmp::Reverse(nearness(verdict, &listed.incident)), distance(verdict, &listed.incident))
            });
            let unexplained = &mut diagnosis.conclusion.unexplained;
            unexplained.order_by_key(|untold| {
                std::cmp::Reverse(near(untold.finding.code, &untold.finding.subject, &listed.incident))
            });
            let risers = recording::incident(file).ok().flatten().map(|(_, risers)| risers).unwrap_or_default();
            let about = harmless(&diagnosis, &listed.incident).cloned();
            let names_trigger = about.is_some() || names_trigger(&diagnosis, &listed.incident);
            ReadIncident { evidence: recording.evidence, diagnosis, about, names_trigger, risers }
        }),
    };
    Ok(IncidentReport { directory: directory.to_owned(), listed, read, verbose })
}

/// How closely a verdict matches what the incident was frozen for; the closest comes first.
fn nearness(verdict: &Verdict, incident: &Incident) -> u8 {
    let told = verdict.chain.iter().flat_map(|link| [&link.from, &link.to]).chain([&verdict.root_cause]);
    told.map(|told| near(told.code, &told.subject, incident)).max().unwrap_or(0)
}

/// The same for one finding.
fn near(code: Code, subject: &Subject, incident: &Incident) -> u8 {
    let name = subject.name.as_str();
    let core = incident.core.map(|core| core.to_string());
    let same_core = subject.kind == SubjectKind::Core && core.as_deref() == Some(name);
    let same_doer = subject.task.as_ref().is_some_and(|task| incident.by.as_ref() == Some(&task.comm));
    u8::from(code.as_str() == incident.code) * 2
        + u8::from(same_core || name == incident.subject)
        + u8::from(same_doer) * 4
}

/// The finding that the incident was frozen for, if it hurt nobody: harm appears in verdicts or as unexplained.
fn harmless<'d>(diagnosis: &'d Diagnosis, incident: &Incident) -> Option<&'d Finding> {
    /// The same code, and the same core, unit or thread.
    const THE_SAME: u8 = 3;
    let near = |finding: &&Finding| near(finding.code, &finding.subject, incident);
    let all = diagnosis.findings.iter().filter(|finding| near(finding) >= THE_SAME);
    all.max_by_key(|finding| (near(finding), finding.severity)).filter(|finding| finding.severity == Severity::Info)
}

/// Whether something that was found has the trigger's code, or is about the same core, unit or thread. A mark names nothing.
fn names_trigger(diagnosis: &Diagnosis, incident: &Incident) -> bool {
    let conclusion = &diagnosis.conclusion;
    let unexplained =
        conclusion.unexplained.iter().map(|untold| near(untold.finding.code, &untold.finding.subject, incident));
    let told = conclusion.verdicts.iter().map(|verdict| nearness(verdict, incident)).chain(unexplained).max();
    Code::parse(&incident.code).is_none() || told.is_some_and(|nearest| nearest > 0)
}

/// How far from the trigger it began: the tie-breaker between equally close verdicts.
fn distance(verdict: &Verdict, incident: &Incident) -> Duration {
    let began = verdict.timeline.iter().map(|moment| moment.at.abs_diff(incident.triggered));
    began.min().unwrap_or(Duration::MAX)
}

/// The incident with this number.
pub fn find(directory: &Path, number: u64) -> anyhow::Result<Incident> {
    if files::json(directory, number).exists() {
        return files::read(directory, number);
    }
    let numbers = files::numbers(directory).unwrap_or_default();
    match (numbers.first(), numbers.last()) {
        (Some(first), Some(last)) => bail!(
            "{}: there is no incident {number}; there are {first} to {last} (coroner incidents --dir {0} lists them)",
            directory.display()
        ),
        _ => bail!("{}: there is no incident {number}; there are none at all", directory.display()),
    }
}

/// Samples that are missing on a core.
pub struct Losses {
    pub core: u32,
    pub lost: u64,
    pub throttled: Duration,
}

pub fn losses(evidence: &Evidence) -> Vec<Losses> {
    let cores = evidence.counters.subjects(Source::Sampler);
    let mut losses: Vec<Losses> = cores
        .into_iter()
        .filter_map(|subject| {
            let moved = |name| evidence.counters.moved(Source::Sampler, subject, name).unwrap_or(0);
            let core = subject.strip_prefix("cpu")?.parse().ok()?;
            let throttled = Duration::from_micros(moved("throttled_us"));
            Some(Losses { core, lost: moved("lost"), throttled })
        })
        .filter(|l| l.lost > 0 || !l.throttled.is_zero())
        .collect();
    losses.order_by_key(|l| l.core);
    losses
}
