//! Pictures of stacks: the flame graph of some nodes, or the difference between two sets of them.

use crate::commands::{grouped, plural};
use crate::stacks::{FleetStacks, StackShare};
use coroner_profile::export::svg::{self, SvgOptions};
use coroner_profile::import::folded;
use coroner_profile::model::Profile;
use coroner_profile::views::diff;
use coroner_profile::views::flame::{self, FlameTree};
use std::fmt::Write as _;

/// What is not listed, so that widths are shares of all samples.
const OTHERS: &str = "[other stacks]";

pub fn picture(stacks: &FleetStacks) -> std::io::Result<Vec<u8>> {
    let minutes = stacks.at.since(stacks.from).as_secs() / 60;
    let a = tree(stacks, stacks.a.samples, |stack| stack.a.samples)?;
    let mut options =
        SvgOptions { subtitle: format!("{}; last {minutes} min", stacks.a.words()), ..SvgOptions::default() };
    let mut to = Vec::new();
    match &stacks.b {
        None => {
            options.title = format!("Flame graph of {}", plural(stacks.a.nodes, "node"));
            svg::write(&a, &options, &mut to)?;
        }
        Some(b) => {
            options.title = format!("{} against {}", plural(stacks.a.nodes, "node"), grouped(b.nodes));
            options.subtitle = format!("{}; against {}; last {minutes} min", stacks.a.words(), b.words());
            let b = tree(stacks, b.samples, |stack| stack.b.map_or(0, |b| b.samples))?;
            svg::write_diff(&diff::diff(&b, &a), &options, &mut to)?;
        }
    }
    Ok(to)
}

fn tree(stacks: &FleetStacks, all: u64, samples: impl Fn(&StackShare) -> u64) -> std::io::Result<FlameTree> {
    let mut text = String::new();
    let mut rest = all;
    for stack in &stacks.stacks {
        let samples = samples(stack);
        if samples > 0 {
            let _ = writeln!(text, "{} {samples}", stack.stack);
            rest = rest.saturating_sub(samples);
        }
    }
    if rest > 0 {
        let _ = writeln!(text, "{OTHERS} {rest}");
    }
    let read = Profile::collect(|take| folded::read(text.as_bytes(), take));
    let (profile, _) = read.map_err(std::io::Error::other)?;
    let sums = profile.sums();
    let Some((event, _)) = sums.events().first().copied() else { return Ok(FlameTree::default()) };
    Ok(flame::tree(&profile.names, &sums, event, &flame::FlameOptions::default()))
}
