//! Freezes an incident: copies its window from the segments into its own file. Runs in a child process
//! (`coroner freeze-incident`), which the recorder starts, watches and, if it hangs, kills.

mod risers;

use anyhow::Context;
use coroner_diagnosis::{Finding, diagnose};
use coroner_source::incident::Incident;
use coroner_source::incident_files as files;
use coroner_source::kernel_work;

use coroner_evidence::recording::{FindingRow, IncidentRow, Span, Writer, read_span, segments};
use coroner_evidence::{Clocks, Evidence, KernelWork, Time, Wall};
use coroner_profile::import::ImportError;
use coroner_profile::model::Clock;
use coroner_profile::recording::{Origin, SampleWriter};
use coroner_profile::views::kernel_work::WorkSums;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Writes `N.coroner`: what there is of the window so far or, if `whole`, all of it with findings and risers.
pub fn freeze(directory: &Path, number: u64, whole: bool) -> anyhow::Result<()> {
    let incident = files::read(directory, number)?;
    files::remove_part(directory, number);
    let written = write_part(directory, &incident, whole);
    if written.is_err() {
        files::remove_part(directory, number);
    }
    written?;
    let (part, place) = (files::part(directory, number), files::recording(directory, number));
    std::fs::rename(&part, &place).with_context(|| format!("cannot rename a file to {}", place.display()))
}

fn write_part(directory: &Path, incident: &Incident, whole: bool) -> anyhow::Result<()> {
    let now = Wall::from(SystemTime::now());
    // A clock that was set back must not empty the window.
    let until = incident.until.min(now.max(incident.triggered + SETTLE));
    let from = incident.from.max(first_recorded(directory)?);
    let span = Span::Between { from, to: until };
    let mut evidence = read_span(directory, &span)?.evidence;
    let clocks =
        *evidence.clocks.last().context("nothing was recorded in the incident's window (no clock readings)")?;
    only_lines_of(&mut evidence, clocks, incident);
    let mut file = Writer::create(&files::part(directory, incident.number))?;
    file.append(&evidence)?;
    let work = copy_samples(directory, from..until, clocks, &evidence, &mut file)?;
    // For the diagnosis only. The file has the stacks, which are smaller than the rows derived from them.
    if evidence.kernel_work.is_empty() {
        evidence.kernel_work = work;
    }
    file.set_incident(&incident_row(incident, until))?;
    let mut findings = Vec::new();
    if whole {
        findings = diagnose(&evidence).findings.iter().map(finding_row).collect();
        file.set_risers(&risers::find(directory, incident)?.risers)?;
    }
    file.finish(&findings)?;
    Ok(())
}

/// A recording begins with the kernel log of the day before. An incident holds only its minutes: a reset an hour earlier is not
/// part of it.
fn only_lines_of(evidence: &mut Evidence, clocks: Clocks, incident: &Incident) {
    if let Some(from) = clocks.time_of(incident.from) {
        evidence.log.retain(|line| line.at + Duration::from_nanos(line.uncertainty_ns) >= from);
    }
}

/// When the oldest segment begins: that nothing was recorded before is neither worth a note nor damage.
fn first_recorded(directory: &Path) -> anyhow::Result<Wall> {
    let (segments, _) = segments::list(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    Ok(segments.first().map_or(Wall(0), |first| first.start))
}

/// Longer than evidence takes to reach the segments.
const SETTLE: Duration = Duration::from_secs(5);

/// Copies the window's samples, with times on the evidence's clock; returns the kernel work they show.
fn copy_samples(
    directory: &Path,
    range: Range<Wall>,
    clocks: Clocks,
    evidence: &Evidence,
    file: &mut Writer,
) -> anyhow::Result<Vec<KernelWork>> {
    let mut samples = SampleWriter::default();
    let mut work = WorkSums::default();
    let mut failed = None;
    let read =
        coroner_profile::recording::read(directory, Some(range.start.0..range.end.0), &mut |names, mut sample| {
            // In a directory, times are wall-clock times.
            sample.time = sample.time.and_then(|wall| clocks.time_of(Wall(wall))).map(|time| time.0);
            if let Some(at) = sample.time {
                work.add(names, &sample, Time(at));
            }
            match samples.take(file, names, sample) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
    if let Some(error) = failed {
        return Err(error.into());
    }
    let (names, report) = match read {
        Ok(read) => read,
        // The recorder takes no samples.
        Err(ImportError::NoSamples { .. } | ImportError::NoSegments { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    if report.samples == 0 {
        return Ok(Vec::new());
    }
    samples.commit(file)?;
    let host = evidence.node.as_ref().and_then(|node| node.host.clone());
    let origin = Origin { kind: "coroner record".to_owned(), file: None, host };
    let clock = Clock { clock_ns: clocks.at.0, wall: clocks.wall };
    file.set_profile_source(&origin.row(Some(clock), Some(&report)))?;
    Ok(if work.is_nameless() { Vec::new() } else { work.finish(&names, &kernel_work::sampled(evidence)) })
}

/// Says which incident the file is, in case it is copied elsewhere.
fn incident_row(incident: &Incident, until: Wall) -> IncidentRow {
    let Incident { number, code, subject, core, text, triggered, from, .. } = incident.clone();
    IncidentRow { number, code, subject, core, text, triggered, from, until }
}

/// A finding, for readers who only have sqlite3.
pub fn finding_row(finding: &Finding) -> FindingRow {
    FindingRow {
        code: finding.code.as_str().to_owned(),
        severity: finding.severity.as_str().to_owned(),
        subject_kind: finding.subject.kind.as_str().to_owned(),
        subject: finding.subject.name.clone(),
        title: finding.title.clone(),
        detail: finding.detail.clone(),
        remedy: finding.remedy.clone(),
    }
}

#[cfg(test)]
mod tests;
