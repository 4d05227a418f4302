//! `coroner diagnose`.

use super::{WATCH_FOR, watch};
use crate::args::DiagnoseArgs;
use crate::exit::Exit;
use crate::output::report::{self, MarkdownReport};
use crate::output::{diagnosis_text, from_recording, json_text, print};
use coroner_diagnosis::{Diagnosis, Severity, diagnose};
use coroner_evidence::Evidence;
use coroner_probes::watch::{NameZombies, WatchOptions};
use coroner_probes::zombies::Bpf;
use coroner_source::audit_files::{KnownAgents, read_baseline};
use coroner_source::recorded::{self, Recorded, with_recorder};
use coroner_web::documents;

pub fn run(args: DiagnoseArgs) -> anyhow::Result<Exit> {
    if let Some(code) = args.explain {
        print(code.page())?;
        return Ok(Exit::NothingWrong);
    }
    args.report.check(args.json, args.recorded.from.as_deref())?;
    let (evidence, recorded) = examine(&args)?;
    let mut diagnosis = diagnose(&evidence);
    let from = args.recorded.as_arguments();
    let source = recorded.as_ref().map_or(String::new(), Recorded::lines);
    if args.json {
        let document = with_recorder(documents::diagnosis::document(&diagnosis)?, recorded.as_ref());
        print(&json_text(&document))?;
    }
    // For people: the document is the same wherever the evidence was read.
    if let Some(from) = &from {
        from_recording::carry(&mut diagnosis, from);
    }
    if !args.json && !args.report.is_stdout() {
        let told =
            diagnosis_text::Told { source: &source, from: from.as_deref(), is_incident: false, verbose: args.verbose };
        print(&diagnosis_text::render(&diagnosis, &evidence, &told))?;
    }
    // Last, so that a failed write does not lose what was seen.
    args.report.write(|command| {
        let (diagnosis, evidence) = (&diagnosis, &evidence);
        report::render(&MarkdownReport { diagnosis, evidence, source: &source, incident: None, command })
    })?;
    if !args.json {
        print(&args.report.told())?;
    }
    Ok(exit_of(&diagnosis, args.strict))
}

fn examine(args: &DiagnoseArgs) -> anyhow::Result<(Evidence, Option<Recorded>)> {
    let known = KnownAgents::read(&args.catalogue.catalogue)?;
    let is_watch = args.duration.is_some() || args.no_bpf || args.node.is_asked();
    let Some(mut recorded) = recorded::read(&args.recorded.query(), is_watch)? else {
        let baseline = read_baseline(args.baseline.as_deref())?;
        let audit = Some(known.audit_options(baseline.clone()));
        let bpf = if args.no_bpf { Bpf::No } else { Bpf::Best };
        let options = WatchOptions { bpf, ..args.node.node().watch_options(NameZombies::IfMany, audit) };
        let mut evidence = watch(args.node.node().root(), options, args.duration.unwrap_or(WATCH_FOR))?;
        // Also if the unit files could not be read: the diagnosis then says so.
        evidence.baseline = baseline;
        return Ok((evidence, None));
    };
    args.node.must_not_be_asked()?;
    let mut evidence = std::mem::take(&mut recorded.evidence);
    // A recording has its node's own; those named here replace them.
    if !args.catalogue.catalogue.is_empty() {
        evidence.catalogues = known.added;
    }
    if args.baseline.is_some() {
        evidence.baseline = read_baseline(args.baseline.as_deref())?;
    }
    Ok((evidence, Some(recorded)))
}

fn exit_of(diagnosis: &Diagnosis, strict: bool) -> Exit {
    if strict && !diagnosis.unseen.is_empty() {
        Exit::CouldNotExamine
    } else if diagnosis.worst() >= Some(Severity::Warning) {
        Exit::Findings
    } else {
        Exit::NothingWrong
    }
}
