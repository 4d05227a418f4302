//! `coroner diagnose`.

use super::audit_files::{Known, read_baseline};
use super::{read_recording, watch};
use crate::args::DiagnoseArgs;
use crate::exit::Exit;
use crate::output::{diagnosis_json, diagnosis_text, print};
use coroner_diagnosis::{Diagnosis, Severity, diagnose};
use coroner_evidence::Evidence;
use coroner_probes::watch::NameZombies;

pub fn run(args: DiagnoseArgs) -> anyhow::Result<Exit> {
    if let Some(code) = args.explain {
        print(code.page())?;
        return Ok(Exit::NothingWrong);
    }
    let evidence = examine(&args)?;
    let diagnosis = diagnose(&evidence);
    let text = if args.json {
        diagnosis_json::render(&diagnosis)? + "\n"
    } else {
        diagnosis_text::render(&diagnosis, &evidence, args.verbose)
    };
    print(&text)?;
    Ok(exit_of(&diagnosis, args.strict))
}

fn examine(args: &DiagnoseArgs) -> anyhow::Result<Evidence> {
    let known = Known::read(&args.catalogue)?;
    let Some(file) = &args.from else {
        let baseline = read_baseline(args.baseline.as_deref())?;
        let options = args.node.watch_options(NameZombies::IfMany, Some(known.audit_options(baseline.clone())));
        let mut evidence = watch(args.node.root(), options, args.duration)?;
        // Also where the files that it is compared with could not be read: then that is said.
        evidence.baseline = baseline;
        return Ok(evidence);
    };
    let mut evidence = read_recording(file)?;
    // A recording brings its node's own; what is named here takes their place.
    if !args.catalogue.catalogue.is_empty() {
        evidence.catalogues = known.added;
    }
    if args.baseline.is_some() {
        evidence.baseline = read_baseline(args.baseline.as_deref())?;
    }
    Ok(evidence)
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
