//! `coroner record`.

use super::audit_files::{Known, read_baseline};
use super::recorder::Recorder;
use super::stop_on_signals;
use crate::args::{CatalogueArgs, RecordArgs};
use crate::exit::Exit;
use crate::output::diagnosis_json::timestamp;
use crate::output::progress::Progress;
use crate::output::{print, warn};
use coroner_diagnosis::{Diagnosis, Finding, diagnose};
use coroner_evidence::Evidence;
use coroner_evidence::recording::{self, FindingRow, Writer};
use coroner_probes::watch::{NameZombies, Watch};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A recording with more rows of core times than this is not diagnosed on the node that made it: reading it back would cost
/// more memory than a guest should take (72 bytes each).
const MOST_CORE_ROWS_TO_DIAGNOSE: usize = 400_000;

pub fn run(args: RecordArgs) -> anyhow::Result<Exit> {
    let path = args.output.clone().unwrap_or_else(default_name);
    let stop = stop_on_signals()?;

    let audit = Known::read(&CatalogueArgs::default())?.audit_options(read_baseline(None)?);
    let mut recorder = Recorder::new(Writer::create(&path)?);
    let mut progress = Progress::new("recording:");
    progress.show(Duration::ZERO, args.duration, &Evidence::default());
    let mut watch =
        Watch::start(args.node.root(), args.node.watch_options(NameZombies::Always, Some(audit)), args.duration);
    let mut core_rows = 0;
    while let Some(fragment) = watch.next_turn() {
        progress.show(watch.elapsed(), args.duration, &fragment);
        core_rows += fragment.core_times.iter().map(|t| t.cores.len()).sum::<usize>();
        recorder.take(fragment);
        if stop.load(Ordering::Relaxed) {
            watch.stop();
        }
    }
    let told = recorder.take_leave();
    drop(progress);

    let (lost, looks) = (recorder.lost, recorder.looks);
    let diagnosis = if core_rows <= MOST_CORE_ROWS_TO_DIAGNOSE { diagnosis_of(&path) } else { None };
    let rows: Vec<FindingRow> = diagnosis.iter().flat_map(|d| &d.findings).map(finding_row).collect();
    let sealed = recorder.finish(&rows);
    if looks == 0 {
        sealed?;
        anyhow::bail!("{}: no look at the cores was recorded; nothing can be said from it", path.display());
    }

    let bytes = std::fs::metadata(&path).map(|m| m.len()).unwrap_or(0);
    let window = diagnosis.as_ref().and_then(|d| d.window_real_ns);
    let lost_seconds = lost.as_secs_f64().ceil() as u64;
    if args.json {
        let document = json!({
            "schema": "coroner.record/1",
            "file": path,
            "bytes": bytes,
            "window": crate::output::diagnosis_json::window(window),
            "findings": diagnosis.as_ref().map(|d| d.findings.iter().map(|f| json!({"code": f.code, "severity": f.severity, "title": f.title})).collect::<Vec<_>>()),
            "lost_commits": lost_seconds,
        });
        print(&format!("{document:#}\n"))?;
    } else {
        let findings = diagnosis.as_ref().map(|d| d.findings.as_slice());
        print(&summary(&path, bytes, window, findings, lost_seconds))?;
    }
    sealed?;
    told?;
    if lost_seconds > 0 {
        anyhow::bail!("{}: {lost_seconds} seconds could not be written and are missing from the file", path.display());
    }
    Ok(Exit::NothingWrong)
}

/// The diagnosis that is stored beside the evidence, for people. The recording is as good without it.
fn diagnosis_of(path: &Path) -> Option<Diagnosis> {
    match recording::read(path) {
        Ok(recording) => Some(diagnose(&recording.evidence)),
        Err(error) => {
            warn(&format!("{error}; the recording gets no findings, `coroner diagnose --from` derives them"));
            None
        }
    }
}

fn summary(
    path: &Path,
    bytes: u64,
    window: Option<(u64, u64)>,
    findings: Option<&[Finding]>,
    lost_seconds: u64,
) -> String {
    let mut text = format!("{}: {} KiB", path.display(), bytes.div_ceil(1024));
    if let Some((from, to)) = window {
        text.push_str(&format!(", {} to {}", timestamp(from), timestamp(to)));
    }
    text.push('\n');
    if lost_seconds > 0 {
        text.push_str(&format!("{lost_seconds} seconds are missing: they could not be written\n"));
    }
    match findings {
        // Of seconds that are missing nothing can be said.
        Some([]) if lost_seconds > 0 => {}
        Some([]) => text.push_str("nothing wrong in what was seen\n"),
        Some(findings) => {
            for f in findings {
                text.push_str(&format!(
                    "{:<8}  {}  ({})\n",
                    f.severity.as_str(),
                    crate::output::terminal::printable(&f.title),
                    f.code
                ));
            }
        }
        None => {}
    }
    text.push_str(&format!("diagnose it anywhere: coroner diagnose --from {}\n", path.display()));
    text
}

fn finding_row(finding: &Finding) -> FindingRow {
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

fn default_name() -> PathBuf {
    let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "-");
    PathBuf::from(format!("{host}-{}.coroner", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ")))
}
