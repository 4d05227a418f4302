//! `coroner units`.

use super::{WATCH_FOR, watch};
use crate::args::UnitsArgs;
use crate::exit::Exit;
use crate::output::{json_text, print, units_text, with_line};
use anyhow::{Context, bail};
use coroner_diagnosis::agents::Need;
use coroner_diagnosis::agents::baseline::Baseline;
use coroner_diagnosis::units::{Audit, audit};
use coroner_evidence::{Evidence, UnitFile};
use coroner_probes::watch::{NameZombies, WatchOptions};
use coroner_probes::{Root, image};
use coroner_source::audit_files::{KnownAgents, read_baseline};
use coroner_source::recorded::{self, Recorded, with_recorder};
use coroner_web::documents;
use std::io::Write;
use std::path::Path;

pub fn run(args: UnitsArgs) -> anyhow::Result<Exit> {
    let known = KnownAgents::read(&args.catalogue.catalogue)?;
    // Fail before watching.
    let stores = args.baseline.as_deref().is_some_and(|path| !path.exists());
    let baseline = if stores { None } else { read_baseline(args.baseline.as_deref())? };
    if let Some(file) = &baseline {
        Baseline::parse(&file.text).with_context(|| file.path.clone())?;
    }
    let is_watch = args.duration.is_some() || args.bus.is_some() || args.root.is_some();
    let mut recorded = recorded::read(&args.recorded.query(), is_watch)?;
    let mut evidence = match (&mut recorded, &args.root) {
        (Some(recorded), _) => std::mem::take(&mut recorded.evidence),
        (None, Some(dir)) => read_image(dir, &known)?,
        (None, None) => {
            let audit = known.audit_options(baseline.clone());
            let options = WatchOptions {
                zombies: NameZombies::Always,
                bus: args.bus.clone(),
                audit: Some(audit),
                ..WatchOptions::default()
            };
            watch(Root::live(), options, args.duration.unwrap_or(WATCH_FOR))?
        }
    };
    // A recording has its node's own catalogues.
    if recorded.is_none() || !args.catalogue.catalogue.is_empty() {
        evidence.catalogues = known.added;
    }
    if baseline.is_some() {
        evidence.baseline = baseline;
    }
    let audit = audit(&evidence);
    if let Err(error) = &audit.judgements {
        bail!("{error}");
    }
    nothing_seen(&audit, recorded.as_ref())?;
    if let Some(file) = args.baseline.as_deref().filter(|_| !stores && evidence.unit_files.is_empty()) {
        bail!("{}: cannot compare, no unit files were seen: {}", file.display(), why_no_files(&evidence));
    }

    let mut stored = None;
    if let Some(path) = args.baseline.as_deref().filter(|_| stores || args.update_baseline) {
        store(path, &evidence)?;
        stored = Some(path);
    }
    let text = if args.json {
        let document = documents::units::document(&audit, &evidence, args.bus.as_deref(), stored);
        json_text(&with_recorder(document, recorded.as_ref()))
    } else {
        let shown = units_text::Shown { all: args.all, verbose: args.verbose, bus: args.bus.as_deref() };
        with_line(units_text::render(&audit, &evidence, stored, &shown), recorded.as_ref())
    };
    print(&text)?;
    let drifted = matches!(&audit.drift, Some(Ok(drift)) if !drift.new.is_empty() || !drift.changed.is_empty());
    // What was just stored is the new normal.
    Ok(if drifted && args.baseline.is_some() && stored.is_none() { Exit::Findings } else { Exit::NothingWrong })
}

pub fn read_image(dir: &Path, known: &KnownAgents) -> anyhow::Result<Evidence> {
    let questions = |units: &[UnitFile]| {
        let names = units.iter().map(|u| u.name.as_str());
        let of_agents = names.filter_map(|n| known.catalogue.agent_of(n)).flat_map(|a| &a.needs);
        let mut questions: Vec<_> = of_agents.flat_map(Need::questions).collect();
        questions.sort_unstable();
        questions.dedup();
        questions
    };
    let evidence =
        image::read(&Root::at(dir), &dir.display().to_string(), questions).map_err(|e| anyhow::anyhow!("{e}"))?;
    if evidence.unit_files.is_empty() {
        let why =
            evidence.why_unseen(coroner_evidence::probe::UNIT_FILES).map_or("no unit files were found", |u| &u.why);
        bail!("{}: {why}. Is this the root directory of the image?", dir.display());
    }
    Ok(evidence)
}

/// An empty list would be a lie if neither units nor processes were seen.
fn nothing_seen(audit: &Audit, recorded: Option<&Recorded>) -> anyhow::Result<()> {
    if !audit.units.is_empty() || !audit.cgroups.is_empty() {
        return Ok(());
    }
    let why = audit.unseen.iter().map(|u| format!("{}: {}", u.what, u.why)).collect::<Vec<_>>().join("; ");
    match recorded {
        Some(Recorded { path, .. }) => {
            bail!("{}: the recording has neither units nor processes. {why}", path.display())
        }
        None => bail!("neither units nor processes could be seen. {why}"),
    }
}

fn why_no_files(evidence: &Evidence) -> &str {
    evidence.why_unseen(coroner_evidence::probe::UNIT_FILES).map_or("there are none", |u| &u.why)
}

/// Writes beside it and renames, so that a full disk or a crash leaves the old one intact.
fn store(path: &Path, evidence: &Evidence) -> anyhow::Result<()> {
    if evidence.unit_files.is_empty() {
        bail!("{}: not stored, no unit files were seen: {}", path.display(), why_no_files(evidence));
    }
    if let Some(blind) = evidence.why_unseen(coroner_evidence::probe::UNIT_FILES) {
        bail!("{}: not stored, not all unit files were seen: {} ({})", path.display(), blind.why, blind.how_to_see);
    }
    let os = evidence.node.as_ref().and_then(|n| n.os.clone());
    let baseline = Baseline::of(&evidence.unit_files, os, Some(std::time::SystemTime::now().into()));
    let write = || -> std::io::Result<()> {
        let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".coroner-baseline-").tempfile_in(dir)?;
        file.write_all(baseline.to_json().as_bytes())?;
        file.as_file().sync_all()?;
        use std::os::unix::fs::PermissionsExt;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("{}: cannot store the baseline", path.display()))
}
