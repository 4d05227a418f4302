//! `coroner fleet export`

use super::{grouped, print};
use crate::args::ExportArgs;
use crate::client;
use crate::export::Format;
use crate::save::{Existing, save};
use anyhow::ensure;
use clap::ValueEnum;
use serde_json::json;
use std::io::{Read, Write};
use std::path::Path;

pub fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let since = args.since.as_secs().to_string();
    let (what, format) = (name(&args.what), name(&args.format));
    let mut given = vec![("what", what.as_str()), ("format", &format), ("since", &since)];
    given.extend(args.matching.as_deref().map(|matching| ("where", matching)));
    let output = args.output.as_deref().filter(|output| *output != Path::new("-"));
    let is_csv = args.format == Format::Csv;
    if let Some(ending) = output.and_then(|output| output.extension()?.to_str()) {
        let is_other = if is_csv { ending == "parquet" } else { ending == "csv" };
        ensure!(
            !is_other,
            "-o {}: --format {format} is not what its name says",
            args.output.as_deref().unwrap_or(Path::new("")).display()
        );
    }
    ensure!(is_csv || output.is_some(), "Parquet is written to a file: name it with -o FILE");
    ensure!(!args.at.json || output.is_some(), "--json describes the file that was written: name it with -o FILE");
    let mut body = client::open(&args.at, "export", &given)?.into_body();
    let Some(output) = output else { return to_stdout(&mut body) };
    let bytes = save(output, Existing::Replace, |file| Ok(std::io::copy(&mut body, file)?))?;
    let document =
        json!({ "schema": "coroner.fleet.export/1", "what": what, "format": format, "file": output, "bytes": bytes });
    match args.at.json {
        true => print(&format!("{document}\n")),
        false => print(&format!("{what}: {} bytes written to {}\n", grouped(bytes), output.display())),
    }
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Cells are plain text already: the collector writes them so.
fn to_stdout(body: &mut impl Read) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match std::io::copy(body, &mut stdout).and_then(|_| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
