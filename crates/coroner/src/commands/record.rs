//! `coroner record`.

use super::stop_on_signals;
use crate::args::{RecordArgs, ReportToArgs};
use crate::exit::Exit;
use crate::output::progress::Progress;
use crate::output::safe::one_line;
use crate::output::{json_text, print, warn};
use coroner_diagnosis::{Diagnosis, Finding, diagnose};
use coroner_evidence::recording::{self, FindingRow, Writer};
use coroner_evidence::{Evidence, Wall};
use coroner_probes::watch::{NameZombies, Watch, WatchOptions};
use coroner_recorder as recorder;
use coroner_recorder::appender::Appender;
use coroner_recorder::config::{Config, parse_listen};
use coroner_recorder::freeze::finding_row;
use coroner_recorder::run::Outcome;
use coroner_recorder::stacks::Stacks;
use coroner_recorder::status::Status;
use coroner_source::audit_files::{KnownAgents, read_baseline};
use coroner_source::kernel_work;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A recording with more rows of core times is not diagnosed on the node itself: reading it back would take too much memory
/// (72 bytes each).
const MOST_CORE_ROWS_TO_DIAGNOSE: usize = 400_000;

/// Default length of a recording in one file.
const FILE_DURATION: Duration = Duration::from_secs(30);
const LONGEST_FILE: Duration = Duration::from_secs(24 * 3600);

pub fn run(args: RecordArgs) -> anyhow::Result<Exit> {
    let settings = args.max_size.is_some() || args.metrics.is_some() || args.fleet.is_given();
    if args.dir.is_some() || args.config.is_some() {
        return into_directory(&args);
    }
    anyhow::ensure!(!settings, "--max-size, --metrics and --report-to need --dir DIR");
    into_file(args)
}

/// The flight recorder.
fn into_directory(args: &RecordArgs) -> anyhow::Result<Exit> {
    let mut config = Config::read(args.config.as_deref())?;
    config.dir = args.dir.clone().unwrap_or(config.dir);
    config.max_size = args.max_size.unwrap_or(config.max_size);
    config.rate = args.rate.unwrap_or(config.rate);
    if let Some(listen) = &args.metrics {
        config.metrics.listen = parse_listen(listen).map_err(|why| anyhow::anyhow!("--metrics {listen}: {why}"))?;
    }
    let ReportToArgs { report_to, report_token_file, report_ca_file, label, cluster, report_as, report_no_files } =
        args.fleet.clone();
    let report = &mut config.report;
    report.to = report_to.or(report.to.take());
    report.token_file = report_token_file.or(report.token_file.take());
    report.ca_file = report_ca_file.or(report.ca_file.take());
    report.cluster = cluster.or(report.cluster.take());
    report.node = report_as.or(report.node.take());
    report.labels.extend(label);
    report.files &= !report_no_files;
    config.check()?;
    let stop = stop_on_signals()?;
    let Outcome { directory, status, lasted } = recorder::run::run(&config, &args.node.node(), args.duration, &stop)?;
    let own = &status.own;
    if args.json {
        let lost: u64 = own.lost_samples.values().sum();
        let document = json!({
            "schema": "coroner.record/1",
            "directory": directory,
            "seconds": lasted.as_secs_f64(),
            "bytes": own.disk_bytes,
            "segments": own.segments,
            "samples": own.samples,
            "lost_samples": lost,
            "lost_seconds": own.lost_seconds,
            "incidents": status.incidents,
            "cpu_seconds": own.cpu_seconds,
        });
        print(&json_text(&document))?;
    } else {
        print(&ended(&directory, &status, lasted))?;
    }
    Ok(Exit::NothingWrong)
}

fn ended(directory: &Path, status: &Status, lasted: Duration) -> String {
    let own = &status.own;
    let minutes = lasted.as_secs_f64() / 60.0;
    let share = 100.0 * own.cpu_seconds / lasted.as_secs_f64().max(0.001);
    let mut text = format!(
        "{}: {minutes:.1} min recorded, {} samples, {share:.2} % of one core; the directory has {} KiB in {} {}\n",
        directory.display(),
        own.samples,
        own.disk_bytes.div_ceil(1024),
        own.segments,
        if own.segments == 1 { "segment" } else { "segments" }
    );
    let lost: u64 = own.lost_samples.values().sum();
    if lost > 0 {
        text.push_str(&format!("{lost} samples were lost (by core: {:?})\n", own.lost_samples));
    }
    if own.lost_seconds > 0.0 {
        text.push_str(&format!("{:.0} seconds are missing: they could not be written\n", own.lost_seconds));
    }
    for (code, count) in &status.incidents {
        text.push_str(&format!("{count} × {code}: coroner incidents --dir {}\n", directory.display()));
    }
    text.push_str(&format!("diagnose it: coroner diagnose --from {} --last 10m\n", directory.display()));
    text
}

fn into_file(args: RecordArgs) -> anyhow::Result<Exit> {
    let duration = args.duration.unwrap_or(FILE_DURATION);
    anyhow::ensure!(duration <= LONGEST_FILE, "--for: one file holds at most a day; to record longer, use --dir DIR");
    let path = args.output.clone().unwrap_or_else(default_name);
    let stop = stop_on_signals()?;

    let audit = KnownAgents::read(&[])?.audit_options(read_baseline(None)?);
    let mut recorder = Appender::new(Writer::create(&path)?);
    let mut progress = Progress::new("recording:");
    progress.show(Duration::ZERO, duration, &Evidence::default());
    let node = args.node.node();
    let mut first = Evidence::default();
    let mut stacks = Stacks::start(&node, args.rate.unwrap_or(Config::default().rate), &mut first);
    recorder.hold(first);
    // As in a directory, stacks say more about the kernel's work than its own sampler does.
    let options =
        WatchOptions { kernel_work: stacks.is_none(), ..node.watch_options(NameZombies::Always, Some(audit)) };
    let mut watch = Watch::start(node.root(), options, duration);
    let mut core_rows = 0;
    while let Some(fragment) = watch.next_turn() {
        progress.show(watch.elapsed(), duration, &fragment);
        core_rows += fragment.core_times.iter().map(|t| t.cores.len()).sum::<usize>();
        match &mut stacks {
            Some(stacks) => {
                recorder.hold(fragment);
                stacks.turn(&mut recorder);
            }
            None => recorder.take(fragment),
        }
        if stop.load(Ordering::Relaxed) {
            watch.stop();
        }
    }
    // Without room for them, the evidence may still fit.
    let stored = stacks.as_mut().map_or(Ok(()), |stacks| stacks.finish(&mut recorder));
    let samples = stacks.map_or(0, |stacks| stacks.taken);
    let told = recorder.take_leave().and(stored);
    drop(progress);

    let (lost, looks) = (recorder.lost, recorder.looks);
    let diagnosis = if core_rows <= MOST_CORE_ROWS_TO_DIAGNOSE { diagnosis_of(&path) } else { None };
    let rows: Vec<FindingRow> = diagnosis.iter().flat_map(|d| &d.findings).map(finding_row).collect();
    let sealed = recorder.finish(&rows);
    if looks == 0 {
        sealed?;
        anyhow::bail!("{}: no core times were recorded; no diagnosis is possible", path.display());
    }

    let bytes = std::fs::metadata(&path).map(|m| m.len()).unwrap_or(0);
    let window = diagnosis.as_ref().and_then(|d| d.window);
    let lost_seconds = lost.as_secs_f64().ceil() as u64;
    if args.json {
        let document = json!({
            "schema": "coroner.record/1",
            "file": path,
            "bytes": bytes,
            "window": coroner_web::documents::diagnosis::window(window),
            "findings": diagnosis.as_ref().map(|d| d.findings.iter().map(|f| json!({"code": f.code, "severity": f.severity, "title": f.title})).collect::<Vec<_>>()),
            "samples": samples,
            "lost_commits": lost_seconds,
        });
        print(&json_text(&document))?;
    } else {
        let findings = diagnosis.as_ref().map(|d| d.findings.as_slice());
        print(&summary(&path, bytes, window, findings, lost_seconds))?;
    }
    sealed?;
    told?;
    if lost_seconds > 0 {
        anyhow::bail!("{}: {lost_seconds} seconds are missing: they could not be written", path.display());
    }
    Ok(Exit::NothingWrong)
}

/// Stored beside the evidence for readers of the file; the recording is complete without it.
fn diagnosis_of(path: &Path) -> Option<Diagnosis> {
    match recording::read(path) {
        Ok(mut recording) => {
            kernel_work::add(path, &mut recording.evidence);
            Some(diagnose(&recording.evidence))
        }
        Err(error) => {
            warn(&format!("{error}; the recording has no findings, but `coroner diagnose --from` derives them"));
            None
        }
    }
}

fn summary(
    path: &Path,
    bytes: u64,
    window: Option<(Wall, Wall)>,
    findings: Option<&[Finding]>,
    lost_seconds: u64,
) -> String {
    let mut text = format!("{}: {} KiB", path.display(), bytes.div_ceil(1024));
    if let Some((from, to)) = window {
        text.push_str(&format!(", {from} to {to}"));
    }
    text.push('\n');
    if lost_seconds > 0 {
        text.push_str(&format!("{lost_seconds} seconds are missing: they could not be written\n"));
    }
    match findings {
        // Nothing can be said about missing seconds.
        Some([]) if lost_seconds > 0 => {}
        Some([]) => text.push_str("nothing wrong in what was seen\n"),
        Some(findings) => {
            for f in findings {
                text.push_str(&format!("{:<8}  {}  ({})\n", f.severity.as_str(), one_line(&f.title), f.code));
            }
        }
        None => {}
    }
    text.push_str(&format!(
        "diagnose it anywhere: coroner diagnose --from {0}; see it: coroner view {0}\n",
        path.display()
    ));
    text
}

fn default_name() -> PathBuf {
    let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "-");
    PathBuf::from(format!("{host}-{}.coroner", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ")))
}
