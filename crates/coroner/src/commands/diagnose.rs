//! `coroner diagnose`.

use super::gather;
use crate::args::DiagnoseArgs;
use crate::exit::Exit;
use crate::output::{diagnosis_json, diagnosis_text, print};
use coroner_diagnosis::{Diagnosis, Severity, diagnose};

pub fn run(args: DiagnoseArgs) -> anyhow::Result<Exit> {
    if let Some(code) = args.explain {
        print(code.page())?;
        return Ok(Exit::NothingWrong);
    }
    let evidence = gather(args.from.as_deref(), args.duration, &args.node)?;
    let diagnosis = diagnose(&evidence);
    let text = if args.json {
        diagnosis_json::render(&diagnosis)? + "\n"
    } else {
        diagnosis_text::render(&diagnosis, &evidence, args.verbose)
    };
    print(&text)?;
    Ok(exit_of(&diagnosis, args.strict))
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
