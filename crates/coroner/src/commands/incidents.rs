//! `coroner incidents`, `coroner export --incident`, and the hidden command that freezes one.

use super::profile::out;
use crate::args::profile::ExportArgs;
use crate::args::recorder::{DirectoryArgs, FreezeArgs, IncidentsArgs, IncidentsCommand, ShowIncidentArgs};
use crate::exit::Exit;
use crate::output::report::{self as markdown, MarkdownReport};
use crate::output::{incidents_text, json_text, print, warn};
use anyhow::{Context, bail};
use coroner_recorder::config::Config;
use coroner_recorder::{freeze as freezer, guest};
use coroner_source::directory::{self, none_runs, the_running_one};
use coroner_source::incident::IncidentState;
use coroner_source::incident_files as files;
use coroner_source::incident_report::{IncidentReport, Listed, find, listed, report};
use coroner_web::documents;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub fn run(args: IncidentsArgs) -> anyhow::Result<Exit> {
    let directory = directory_of(args.directory.dir.as_deref(), "--dir")?;
    match &args.command {
        None => print(&list(&directory, args.json)?)?,
        Some(IncidentsCommand::Show(show)) => one(&directory, show, args.json)?,
    }
    Ok(Exit::NothingWrong)
}

/// The directory named by `flag`, that of the running recorder, or the default one.
pub fn directory_of(named: Option<&Path>, flag: &str) -> anyhow::Result<PathBuf> {
    let directory = match named {
        Some(dir) => dir.to_owned(),
        None => the_running_one().map_err(|several| several.choose("--dir"))?.unwrap_or_else(|| Config::default().dir),
    };
    if !directory.is_dir() {
        let because = if named.is_some() { String::new() } else { format!("{}, and ", none_runs()) };
        bail!(
            "{because}there is no directory {}; start a recorder (coroner record --dir DIR) or name its directory with {flag} DIR",
            directory.display()
        );
    }
    std::path::absolute(&directory).with_context(|| directory.display().to_string())
}

/// The directory of the running recorder.
pub fn running_directory(args: &DirectoryArgs) -> anyhow::Result<PathBuf> {
    let running = match &args.dir {
        Some(dir) if directory::is_live(dir) => Some(dir.clone()),
        Some(dir) if directory::is_closed(dir) => {
            bail!("{}: permission denied; run as the recorder's user (root)", dir.display())
        }
        Some(dir) => bail!("{}: no recorder is running here; start one: coroner record --dir {0}", dir.display()),
        None => the_running_one().map_err(|several| several.choose("--dir"))?,
    };
    running.with_context(|| {
        format!("{}; start one (coroner record --dir DIR) or name its directory with --dir DIR", none_runs())
    })
}

fn list(directory: &Path, json: bool) -> anyhow::Result<String> {
    let listed = listed(directory)?;
    let is_live = directory::is_live(directory);
    if json {
        Ok(json_text(&documents::incidents::list(directory, is_live, &listed)))
    } else {
        Ok(incidents_text::list(directory, is_live, &listed))
    }
}

fn one(directory: &Path, show: &ShowIncidentArgs, json: bool) -> anyhow::Result<()> {
    show.report.check(json, Some(&files::recording(directory, show.number)))?;
    let report = report(directory, show.number, show.verbose)?;
    if json {
        print(&json_text(&documents::incidents::report(&report)?))?;
    } else if !show.report.is_stdout() {
        print(&incidents_text::report(&report))?;
    }
    write_report(&report, show)?;
    if !json {
        print(&show.report.told())?;
    }
    Ok(())
}

fn write_report(report: &IncidentReport, show: &ShowIncidentArgs) -> anyhow::Result<()> {
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

/// `coroner export --incident`: the file as it is now. The recorder replaces it by rename, so an open file is complete.
pub fn export(number: u64, args: &ExportArgs) -> anyhow::Result<Exit> {
    let directory = directory_of(args.dir.as_deref(), "--dir")?;
    if !args.selection.selection().is_everything() || args.output.to.is_some() {
        bail!(
            "an incident is copied as a whole; to write part of its profile: coroner export {} …",
            files::recording(&directory, number).display()
        );
    }
    let output = args.output.output.as_deref().context("name the output file: -o incident.coroner")?;
    if output != Path::new("-") && output.extension().is_none_or(|extension| extension != "coroner") {
        bail!(
            "{}: an incident is written as a recording, X.coroner; for a flame graph: coroner flame {} -o x.svg",
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
                (IncidentState::Open, _) => "it is not frozen yet; try again in a second".to_owned(),
                (_, Some(error)) => error.clone(),
                (_, None) => "its file was removed".to_owned(),
            };
            bail!("incident {number} has no file: {why}");
        }
        Err(error) => return Err(error).with_context(|| format!("{}: cannot open it", path.display())),
    };
    if output != Path::new("-") && output.exists() {
        bail!(
            "{}: already exists; recordings are never overwritten: remove it or choose another name",
            output.display()
        );
    }
    out::write(Some(output), |to| std::io::copy(&mut file, to).map(drop))?;
    if output != Path::new("-") {
        // As private as the original: it contains the kernel log and everybody's processes.
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(output, private).with_context(|| output.display().to_string())?;
    }
    if incident.state == IncidentState::Open {
        warn(&format!(
            "incident {number} is still open: this file ends before its window; export it again in a minute"
        ));
    }
    if output != Path::new("-") {
        let bytes = std::fs::metadata(output).map_or(0, |about| about.len());
        if args.json {
            print(&documents::incidents::exported(&Listed::new(&directory, incident), output, bytes)?)?;
        } else {
            print(&incidents_text::exported(number, output, bytes))?;
        }
    }
    Ok(Exit::NothingWrong)
}

pub fn freeze(args: FreezeArgs) -> anyhow::Result<Exit> {
    guest::be_a_guest(args.recorder, !args.whole)?;
    freezer::freeze(&args.directory, args.number, args.whole)?;
    Ok(Exit::NothingWrong)
}
