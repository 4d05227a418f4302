//! `coroner flame`.

use super::export::{self, Summary};
use super::out;
use crate::args::profile::{DiffArgs, FlameArgs, OutputArgs, OutputFormat};
use crate::exit::Exit;
use crate::output::profile::flame_text;
use crate::output::progress::reading;
use crate::output::{print, terminal, warn};
use anyhow::bail;
use coroner_profile::export::svg;
use coroner_profile::views::diff;
use coroner_source::profile::flame::{describe, find_risers, picture, read_side};
use coroner_source::profile::select::Selection;
use coroner_source::profile::{self, ProfileSource};
use coroner_web::documents;

pub fn run(args: FlameArgs) -> anyhow::Result<Exit> {
    let source = args.source.source();
    let selection = args.selection.selection().resolved(&source)?;
    let to = match (&args.output.output, args.output.to) {
        (None, None) => None,
        _ => Some(out::format(&args.output)?),
    };
    for input in [Some(&source.file), args.diff.diff.as_ref()].into_iter().flatten() {
        out::must_not_be(args.output.output.as_deref(), input)?;
    }
    if args.diff.is_asked() {
        return run_diff(&args, (source, selection), to);
    }
    match to {
        Some(OutputFormat::Coroner) => {
            bail!("a recording is not a flame graph; `coroner export FILE -o X.coroner` extracts one")
        }
        Some(OutputFormat::Svg) => {
            write_picture(&source, &selection, &args.output, args.invert)?.warn();
        }
        Some(OutputFormat::Folded) if args.invert => write_inverted(&source, &selection, &args.output)?.warn(),
        Some(_) if args.invert => {
            bail!("--invert is for SVG, folded stacks and the terminal; other tools invert by themselves")
        }
        Some(to) => export::write(&source, &selection, &args.output, to)?.warn(),
        None => {
            // The terminal leaves out idle time; JSON has everything.
            let side = reading(&source, || read_side(&source, &selection, args.json, true))?;
            let tree = side.tree(args.invert);
            let text = if args.json {
                documents::flame::flame(&side, &tree, args.invert)
            } else {
                flame_text::flame(&side, &tree, args.invert, terminal::width())
            };
            print(&text)?;
        }
    }
    Ok(Exit::NothingWrong)
}

fn run_diff(args: &FlameArgs, now: (ProfileSource, Selection), to: Option<OutputFormat>) -> anyhow::Result<Exit> {
    let (source, selection) = now;
    if profile::is_stream(&source.file) && args.diff.diff.as_deref().is_none_or(|file| file == source.file) {
        bail!("standard input can only be read once; compare files");
    }
    let (old_source, old_selection) = baseline(&args.diff, &source, &selection);
    let old_selection = old_selection.resolved(&old_source)?;
    let with_idle = to.is_some() || args.json;
    let before = reading(&old_source, || read_side(&old_source, &old_selection, with_idle, false))?;
    let after = reading(&source, || read_side(&source, &selection, with_idle, false))?;
    if before.read.selected == 0 && after.read.selected == 0 {
        bail!("no samples are selected, neither now nor in the baseline; nothing to compare");
    }
    if before.read.selected > 0 && after.read.selected > 0 && before.event_name() != after.event_name() {
        warn(&format!(
            "the two sides count different events ({} and {}): only shares can be compared",
            before.event_name(),
            after.event_name()
        ));
    }
    let tree = diff::diff(&before.tree(args.invert), &after.tree(args.invert));
    let risers = find_risers(&before, &after);
    match to {
        Some(OutputFormat::Svg) => {
            let title = format!("{} against {}", describe(&after), describe(&before));
            let options = svg::SvgOptions { title, icicle: args.invert, ..picture(&after) };
            out::write(args.output.output.as_deref(), |to| svg::write_diff(&tree, &options, to))?;
            Summary::of(after.read).warn();
        }
        Some(_) => bail!("a difference can only be written as .svg; --json has the numbers"),
        None if args.json => print(&documents::flame::difference(&before, &after, &tree, &risers))?,
        None => print(&flame_text::difference(&before, &after, &tree, &risers, terminal::width()))?,
    }
    Ok(Exit::NothingWrong)
}

/// The baseline: the same selection in another file or at another time.
fn baseline(diff: &DiffArgs, source: &ProfileSource, selection: &Selection) -> (ProfileSource, Selection) {
    let DiffArgs { diff, diff_since, diff_until } = diff.clone();
    let mut source = ProfileSource { bytes_read: Default::default(), ..source.clone() };
    let mut selection = selection.clone();
    if let Some(file) = diff {
        source.file = file;
        source.reading.input = None;
    }
    // The times of the selection do not apply to the baseline.
    selection.last = None;
    selection.since = diff_since;
    selection.until = diff_until;
    selection.range = Vec::new();
    (source, selection)
}

impl DiffArgs {
    fn is_asked(&self) -> bool {
        self.diff.is_some() || self.diff_since.is_some() || self.diff_until.is_some()
    }
}

pub fn write_picture(
    source: &ProfileSource,
    selection: &Selection,
    output: &OutputArgs,
    invert: bool,
) -> anyhow::Result<Summary> {
    let side = reading(source, || read_side(source, selection, true, true))?;
    let options = svg::SvgOptions { icicle: invert, ..picture(&side) };
    out::write(output.output.as_deref(), |to| svg::write(&side.tree(invert), &options, to))?;
    Ok(Summary::of(side.read))
}

/// Folded stacks with the leaf first.
fn write_inverted(source: &ProfileSource, selection: &Selection, output: &OutputArgs) -> anyhow::Result<Summary> {
    let side = reading(source, || read_side(source, selection, true, true))?;
    let tree = side.tree(true);
    out::write(output.output.as_deref(), |to| {
        // Node, and the length of its parent's path.
        let mut open: Vec<(u32, usize)> = vec![(0, 0)];
        let mut path = String::new();
        while let Some((at, parent)) = open.pop() {
            let node = &tree.nodes[at as usize];
            path.truncate(parent);
            if at != 0 {
                if parent > 0 {
                    path.push(';');
                }
                path.push_str(&tree.name(at).replace(';', ":"));
            }
            if node.own > 0 && at != 0 {
                writeln!(to, "{path} {}", node.own)?;
            }
            open.extend(node.children.iter().rev().map(|child| (*child, path.len())));
        }
        Ok(())
    })?;
    Ok(Summary::of(side.read))
}
