//! Exports the selection for other tools.

use super::api::{refused, samples};
use super::question::selection;
use super::shown::Shown;
use anyhow::Context;
use coroner_http::{Answer, ApiQuery, Refusal};
use coroner_profile::export::{folded, pprof, speedscope, svg};
use coroner_profile::views::StackSums;
use coroner_source::profile::flame::{picture, read_side};
use coroner_source::profile::select::Selection;
use coroner_source::profile::{self, ProfileSource, copy};
use std::path::Path;
use std::sync::atomic::AtomicBool;

pub fn answer(shown: &Shown, ask: &ApiQuery) -> Result<Answer, Refusal> {
    let selection = selection(ask, shown, "")?;
    let (source, _) = samples(shown, ask, &selection, u64::MAX)?;
    let name = Path::new(&shown.name).file_stem().map_or("profile".into(), |name| name.to_string_lossy());
    let format = ask.get("format").unwrap_or("folded");
    let inverted = ask.is_set("invert");
    if inverted && format != "svg" {
        return Err(Refusal::bad("invert needs format=svg", "other tools can invert it"));
    }
    let mut body = Vec::new();
    let written = match format {
        "svg" => {
            let side = read_side(&source, &selection, true, true).map_err(refused)?;
            let options = svg::SvgOptions { icicle: inverted, ..picture(&side) };
            svg::write(&side.tree(inverted), &options, &mut body)
        }
        "coroner" => {
            let bytes = recording(&source, &selection).map_err(refused)?;
            return Ok(Answer::file(format!("{name}.coroner"), "application/vnd.sqlite3", bytes));
        }
        "folded" | "pprof" | "speedscope" => {
            let mut sums = if format == "pprof" { StackSums::by_thread() } else { StackSums::by_command() };
            let read =
                profile::read(&source, &selection, &mut |names, sample| sums.add(names, sample)).map_err(refused)?;
            match format {
                "pprof" => pprof::write(&read.names, &sums, &mut body),
                "speedscope" => speedscope::write(&read.names, &sums, &shown.name, &mut body),
                _ => folded::write(&read.names, &sums, &mut body),
            }
        }
        _ => {
            return Err(Refusal::bad(
                format!("format={format}: unknown"),
                "expected folded, pprof, speedscope, svg or coroner",
            ));
        }
    };
    written.map_err(|error| refused(error.into()))?;
    let (extension, content_type) = match format {
        "svg" => ("svg", "image/svg+xml"),
        "pprof" => ("pb.gz", "application/octet-stream"),
        "speedscope" => ("speedscope.json", "application/json"),
        _ => ("folded", "text/plain; charset=utf-8"),
    };
    Ok(Answer::file(format!("{name}.{extension}"), content_type, body))
}

/// Writes a recording to a temporary file and returns its bytes.
fn recording(source: &ProfileSource, selection: &Selection) -> anyhow::Result<Vec<u8>> {
    let directory = tempfile::Builder::new().prefix("coroner-view-").tempdir().context("no temporary directory")?;
    let path = directory.path().join("selection.coroner");
    // Frames in memory have only names; the file has their build ids and offsets.
    let source = ProfileSource { kept: None, ..source.clone() };
    let never = AtomicBool::new(false);
    copy::write_until(&source, selection, &path, source.stop.as_deref().unwrap_or(&never))?;
    std::fs::read(&path).with_context(|| path.display().to_string())
}
