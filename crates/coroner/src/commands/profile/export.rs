//! `coroner export`, and the files that `coroner flame` writes.

use super::{flame, out};
use crate::args::profile::{ExportArgs, OutputArgs, OutputFormat};
use crate::exit::Exit;
use crate::output::profile::notes;
use crate::output::progress::reading;
use crate::output::{json_text, print, warn};
use anyhow::{Context, bail};
use coroner_profile::export::{folded, pprof, speedscope};
use coroner_profile::import::perf_script::fold;
use coroner_profile::import::{Format, ImportReport, Oddity};
use coroner_profile::views::StackSums;
use coroner_source::profile::select::Selection;
use coroner_source::profile::{self, ProfileSource, ReadProfile, format_of};
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};

/// What was read to write a file.
pub struct Summary {
    pub file: PathBuf,
    pub format: &'static str,
    /// Samples in the output.
    pub selected: u64,
    pub report: ImportReport,
    /// Why functions have no names.
    pub unnamed: Vec<String>,
}

/// The part of a JSON `source` that is known without decoding each sample.
#[derive(Serialize)]
struct SummaryJson<'a> {
    file: String,
    format: &'static str,
    samples: u64,
    selected: u64,
    lost: u64,
    out_of_order: u64,
    truncated: bool,
    unused: &'a [Oddity],
    unnamed: &'a [String],
}

impl Summary {
    pub fn of(read: ReadProfile) -> Summary {
        let ReadProfile { file, format, selected, report, unnamed, .. } = read;
        Summary { file, format: format.id(), selected, report, unnamed }
    }

    /// The JSON document of a command that wrote `output`.
    pub fn document(&self, schema: &str, output: Option<&Path>) -> String {
        let source = SummaryJson {
            file: self.file.display().to_string(),
            format: self.format,
            samples: self.report.samples,
            selected: self.selected,
            lost: self.report.lost,
            out_of_order: self.report.out_of_order,
            truncated: self.report.truncated,
            unused: &self.report.oddities,
            unnamed: &self.unnamed,
        };
        let bytes = output.and_then(|output| std::fs::metadata(output).ok()).map(|about| about.len());
        let output = output.map(|output| output.display().to_string());
        json_text(&serde_json::json!({ "schema": schema, "output": output, "bytes": bytes, "source": source }))
    }

    /// Warns about what could not be used.
    pub fn warn(&self) {
        for note in notes(&self.report, &self.unnamed) {
            warn(&format!("{}: {note}", self.file.display()));
        }
    }
}

pub fn run(args: ExportArgs) -> anyhow::Result<Exit> {
    if let Some(number) = args.incident {
        return crate::commands::incidents::export(number, &args);
    }
    let source = args.source.source();
    let selection = args.selection.selection().resolved(&source)?;
    let to = out::format(&args.output)?;
    let path = args.output.output.as_deref();
    if args.json && path.is_none_or(|path| path == Path::new("-")) {
        bail!("--json prints a summary to standard output, so the export needs a file: -o FILE");
    }
    out::must_not_be(path, &source.file)?;
    let summary = match to {
        OutputFormat::Svg => flame::write_picture(&source, &selection, &args.output, false)?,
        OutputFormat::Coroner => {
            let path = path.context("a recording cannot be written to standard output; use -o X.coroner")?;
            Summary::of(super::import::write(&source, &selection, path)?)
        }
        _ => write(&source, &selection, &args.output, to)?,
    };
    summary.warn();
    if args.json {
        print(&summary.document("coroner.export/1", path))?;
    }
    Ok(Exit::NothingWrong)
}

/// Writes the selected samples for another tool.
pub fn write(
    source: &ProfileSource,
    selection: &Selection,
    output: &OutputArgs,
    to: OutputFormat,
) -> anyhow::Result<Summary> {
    if to == OutputFormat::Folded && selection.is_everything() && format_of(source)? == Some(Format::PerfScript) {
        return fold_text(source, output);
    }
    let mut sums = if to == OutputFormat::Pprof { StackSums::by_thread() } else { StackSums::by_command() };
    let read = reading(source, || profile::read(source, selection, &mut |names, sample| sums.add(names, sample)))?;
    let name = read.file.display().to_string();
    out::write(output.output.as_deref(), |to_file| match to {
        OutputFormat::Pprof => pprof::write(&read.names, &sums, to_file),
        OutputFormat::Speedscope => speedscope::write(&read.names, &sums, &name, to_file),
        _ => folded::write(&read.names, &sums, to_file),
    })?;
    Ok(Summary::of(read))
}

/// A whole perf script file to folded stacks: the fast path, which keeps no samples and may use several threads.
fn fold_text(source: &ProfileSource, output: &OutputArgs) -> anyhow::Result<Summary> {
    let name = source.file.display();
    let file = File::open(&source.file).with_context(|| format!("{name}: cannot open it"))?;
    let options = fold::FoldOptions { threads: usize::from(output.threads), ..fold::FoldOptions::default() };
    let (folded, report) =
        reading(source, || fold::file(&file, &options)).with_context(|| format!("{name}: cannot read it"))?;
    if folded.is_empty() {
        bail!("{name}: no samples");
    }
    out::write(output.output.as_deref(), |to| folded.write(to))?;
    let format = Format::PerfScript.id();
    Ok(Summary { file: source.file.clone(), format, selected: report.samples, report, unnamed: Vec::new() })
}
