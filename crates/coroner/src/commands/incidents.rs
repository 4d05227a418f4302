//! `coroner incidents`, `coroner export --incident`, and the hidden command that freezes one.

use super::profile::out;
use crate::args::profile::ExportArgs;
use crate::args::recorder::{DirectoryArgs, FreezeArgs, IncidentsArgs, IncidentsCommand, ShowIncidentArgs};
use crate::exit::Exit;
use crate::output::incidents_text::Listed;
use crate::output::report::{self as markdown, Report as MarkdownReport};
use crate::output::{incidents_json, incidents_text, print, warn};
use anyhow::{Context, bail};
use coroner_diagnosis::finding::{Subject, SubjectKind};
use coroner_diagnosis::verdict::Verdict;
use coroner_diagnosis::{Code, Diagnosis, Finding, Severity, diagnose};
use coroner_evidence::Evidence;
use coroner_evidence::recording::{self, RiserRow};
use coroner_recorder::config::Config;
use coroner_recorder::freeze as freezer;
use coroner_source::directory;
use coroner_source::incident::{Incident, State};
use coroner_source::incident_files as files;
use coroner_source::kernel_work;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub fn run(args: IncidentsArgs) -> anyhow::Result<Exit> {
    let directory = directory_of(&args.directory)?;
    match &args.command {
        None => print(&list(&directory, args.json)?)?,
        Some(IncidentsCommand::Show(show)) => one(&directory, show, args.json)?,
    }
    Ok(Exit::NothingWrong)
}

/// The directory that was named, that of the recorder that runs, or where one would keep it.
fn directory_of(args: &DirectoryArgs) -> anyhow::Result<PathBuf> {
    let directory = match &args.dir {
        Some(dir) => dir.clone(),
        None => the_running_one()?.unwrap_or_else(|| Config::default().dir),
    };
    if !directory.is_dir() {
        let because = if args.dir.is_some() { String::new() } else { format!("{}, and ", none_runs()) };
        bail!(
            "{because}there is no directory {}; start a recorder (coroner record --dir DIR), or name its directory: --dir DIR",
            directory.display()
        );
    }
    std::path::absolute(&directory).with_context(|| directory.display().to_string())
}

/// The directory of a recorder that runs.
pub fn running_directory(args: &DirectoryArgs) -> anyhow::Result<PathBuf> {
    let running = match &args.dir {
        Some(dir) if directory::is_live(dir) => Some(dir.clone()),
        Some(dir) if directory::is_closed(dir) => {
            bail!("{}: permission denied; run as the user of its recorder (root)", dir.display())
        }
        Some(dir) => bail!("{}: no recorder runs here; start one: coroner record --dir {0}", dir.display()),
        None => the_running_one()?,
    };
    running.with_context(|| {
        format!("{}; start one (coroner record --dir DIR), or name its directory: --dir DIR", none_runs())
    })
}

pub fn none_runs() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => "no recorder runs on this node",
        false => "no recorder runs on this node that you may see (root sees all)",
    }
}

/// `None` if none runs. Of several nobody knows which is meant.
pub fn the_running_one() -> anyhow::Result<Option<PathBuf>> {
    let mut running = directory::running();
    if running.len() > 1 {
        let listed: Vec<String> = running.iter().map(|dir| dir.display().to_string()).collect();
        bail!("several recorders run here; say which one is meant: --dir {}", listed.join(", or --dir "));
    }
    Ok(running.pop())
}

fn list(directory: &Path, json: bool) -> anyhow::Result<String> {
    let listed = listed(directory)?;
    let is_live = directory::is_live(directory);
    if json {
        Ok(format!("{:#}\n", incidents_json::list(directory, is_live, &listed)))
    } else {
        Ok(incidents_text::list(directory, is_live, &listed))
    }
}

/// Newest first.
pub fn listed(directory: &Path) -> anyhow::Result<Vec<Listed>> {
    let sizes = files::listed(directory)
        .with_context(|| format!("{}: cannot be listed", directory::incidents(directory).display()))?;
    let mut listed = Vec::new();
    for number in sizes.keys().rev().copied() {
        match files::read(directory, number) {
            Ok(incident) => listed.push(Listed::new(directory, incident)),
            // Evicted since it was listed.
            Err(_) if !files::json(directory, number).exists() => {}
            Err(error) => warn(&format!("{error:#}")),
        }
    }
    Ok(listed)
}

/// Everything that is told of one incident. What is derived is derived anew, from its file.
pub struct Report {
    pub directory: PathBuf,
    pub listed: Listed,
    /// `None` if there is no file to read, with the reason.
    pub read: Result<Read, String>,
    pub verbose: bool,
}

pub struct Read {
    pub evidence: Evidence,
    pub diagnosis: Diagnosis,
    /// What it was frozen for, if that hurt nobody: then no verdict tells of it.
    pub about: Option<Finding>,
    /// As they were found when the window was over: the hour before is not in the file.
    pub risers: Vec<RiserRow>,
}

fn one(directory: &Path, show: &ShowIncidentArgs, json: bool) -> anyhow::Result<()> {
    show.report.check(json, Some(&files::recording(directory, show.number)))?;
    let report = report(directory, show.number, show.verbose)?;
    if json {
        print(&format!("{:#}\n", incidents_json::report(&report)?))?;
    } else if !show.report.is_stdout() {
        print(&incidents_text::report(&report))?;
    }
    write_report(&report, show)?;
    if !json {
        print(&show.report.told())?;
    }
    Ok(())
}

/// Reads one incident and judges it.
pub fn report(directory: &Path, number: u64, verbose: bool) -> anyhow::Result<Report> {
    let incident = find(directory, number)?;
    let listed = Listed::new(directory, incident);
    let read = match &listed.file {
        None => Err("its minutes are not frozen yet, or could not be".to_owned()),
        Some(file) => recording::read(file).map_err(|error| error.to_string()).map(|mut recording| {
            kernel_work::add(file, &mut recording.evidence);
            let mut diagnosis = diagnose(&recording.evidence);
            let verdicts = &mut diagnosis.conclusion.verdicts;
            verdicts.sort_by_key(|verdict| {
                (std::cmp::Reverse(nearness(verdict, &listed.incident)), distance_ns(verdict, &listed.incident))
            });
            let unexplained = &mut diagnosis.conclusion.unexplained;
            unexplained.sort_by_key(|untold| {
                std::cmp::Reverse(near(untold.finding.code, &untold.finding.subject, &listed.incident))
            });
            let risers = recording::incident(file).ok().flatten().map(|(_, risers)| risers).unwrap_or_default();
            let about = harmless(&diagnosis, &listed.incident).cloned();
            Read { evidence: recording.evidence, diagnosis, about, risers }
        }),
    };
    Ok(Report { directory: directory.to_owned(), listed, read, verbose })
}

/// How much a verdict is about what the incident was frozen for; the nearest is told first.
fn nearness(verdict: &Verdict, incident: &Incident) -> u8 {
    let told = verdict.chain.iter().flat_map(|link| [&link.from, &link.to]).chain([&verdict.root_cause]);
    told.map(|told| near(told.code, &told.subject, incident)).max().unwrap_or(0)
}

/// The same of one finding.
fn near(code: Code, subject: &Subject, incident: &Incident) -> u8 {
    let name = subject.name.as_str();
    let core = incident.core.map(|core| core.to_string());
    let same_core = subject.kind == SubjectKind::Core && core.as_deref() == Some(name);
    let same_doer = incident.by.as_ref().is_some_and(|by| name.starts_with(&format!("{by}[")));
    u8::from(code.as_str() == incident.code) * 2
        + u8::from(same_core || name == incident.subject)
        + u8::from(subject.kind == SubjectKind::Process && same_doer) * 4
}

/// The finding that the incident was frozen for, if it hurt nobody: what hurts is told by verdicts and what is unexplained.
fn harmless<'d>(diagnosis: &'d Diagnosis, incident: &Incident) -> Option<&'d Finding> {
    /// The same code, and the same core, unit or thread.
    const THE_SAME: u8 = 3;
    let near = |finding: &&Finding| near(finding.code, &finding.subject, incident);
    let all = diagnosis.findings.iter().filter(|finding| near(finding) >= THE_SAME);
    all.max_by_key(|finding| (near(finding), finding.severity)).filter(|finding| finding.severity == Severity::Info)
}

/// How far from the trigger it began: of two that are alike, it was the nearer one.
fn distance_ns(verdict: &Verdict, incident: &Incident) -> u64 {
    let began = verdict.timeline.iter().map(|moment| moment.real_ns.abs_diff(incident.triggered_real_ns));
    began.min().unwrap_or(u64::MAX)
}

fn write_report(report: &Report, show: &ShowIncidentArgs) -> anyhow::Result<()> {
    let read = match (&report.read, &show.report.report) {
        (_, None) => return Ok(()),
        (Ok(read), _) => read,
        (Err(why), _) => bail!("no report of incident {}: {why}", show.number),
    };
    let (diagnosis, evidence) = (&read.diagnosis, &read.evidence);
    let incident = incidents_text::plain_head(report);
    show.report.write(|command| {
        markdown::render(&MarkdownReport { diagnosis, evidence, source: "", incident: Some(&incident), command })
    })
}

fn find(directory: &Path, number: u64) -> anyhow::Result<Incident> {
    if files::json(directory, number).exists() {
        return files::read(directory, number);
    }
    let numbers = files::numbers(directory).unwrap_or_default();
    match (numbers.first(), numbers.last()) {
        (Some(first), Some(last)) => bail!(
            "{}: there is no incident {number}; there are {first} to {last} (coroner incidents --dir {0} lists them)",
            directory.display()
        ),
        _ => bail!("{}: there is no incident {number}, nor any other", directory.display()),
    }
}

/// `coroner export --incident`: the file as it is at this moment. A new one takes its place by its name, so what was opened is whole.
pub fn export(number: u64, args: &ExportArgs) -> anyhow::Result<Exit> {
    let directory = directory_of(&DirectoryArgs { dir: args.dir.clone() })?;
    if !args.selection.selection().is_everything() || args.output.to.is_some() {
        bail!(
            "an incident is copied whole; to write a part of its profile: coroner export {} …",
            files::recording(&directory, number).display()
        );
    }
    let output = args.output.output.as_deref().context("say where to: -o incident.coroner")?;
    if output != Path::new("-") && output.extension().is_none_or(|extension| extension != "coroner") {
        bail!(
            "{}: an incident is written as a recording, X.coroner; for a picture of it: coroner flame {} -o x.svg",
            output.display(),
            files::recording(&directory, number).display()
        );
    }
    let incident = find(&directory, number)?;
    let path = files::recording(&directory, number);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let why = match (incident.state, &incident.error) {
                (State::Open, _) => "its minutes are not frozen yet; try again in a second".to_owned(),
                (_, Some(error)) => error.clone(),
                (_, None) => "its file was removed".to_owned(),
            };
            bail!("incident {number} has no file: {why}");
        }
        Err(error) => return Err(error).with_context(|| format!("{}: cannot be opened", path.display())),
    };
    if output != Path::new("-") && output.exists() {
        bail!(
            "{}: already exists; recordings are never overwritten: remove it or choose another name",
            output.display()
        );
    }
    out::write(Some(output), |to| std::io::copy(&mut file, to).map(drop))?;
    if output != Path::new("-") {
        // As private as the original: it holds the kernel log and everybody's processes.
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(output, private).with_context(|| output.display().to_string())?;
    }
    if incident.state == State::Open {
        warn(&format!(
            "incident {number} is still open: this file ends before its window does; export it again in a minute"
        ));
    }
    if output != Path::new("-") {
        let bytes = std::fs::metadata(output).map_or(0, |about| about.len());
        if args.json {
            print(&incidents_json::exported(&Listed::new(&directory, incident), output, bytes)?)?;
        } else {
            print(&incidents_text::exported(number, output, bytes))?;
        }
    }
    Ok(Exit::NothingWrong)
}

pub fn freeze(args: FreezeArgs) -> anyhow::Result<Exit> {
    freezer::be_a_guest(args.recorder, args.whole)?;
    freezer::freeze(&args.directory, args.number, args.whole)?;
    Ok(Exit::NothingWrong)
}
