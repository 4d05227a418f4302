//! `coroner fleet flame`.

use super::{ask, parse, printable, show};
use crate::args::FlameArgs;
use crate::stacks::{FleetStacks, FunctionShare};
use anyhow::{Context, ensure};
use std::io::Write;
use std::path::Path;

/// Functions that are named below the picture's name.
const NAMED: usize = 5;
/// Smaller differences are not worth a line.
const SMALLEST: f64 = 0.005;

pub fn run(args: &FlameArgs) -> anyhow::Result<()> {
    let since = args.since.as_secs().to_string();
    // Without --where: the others.
    let others = args.diff.as_ref().filter(|_| args.matching.is_none()).map(|diff| format!("not ({diff})"));
    let given = [
        ("since", Some(since.as_str())),
        ("where", args.matching.as_deref().or(others.as_deref())),
        ("diff_where", args.diff.as_deref()),
    ];
    let given: Vec<(&str, &str)> = given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let stacks = ask(&args.at, "stacks", &given)?;
    if args.at.json {
        return show(&args.at, &stacks, |_: &FleetStacks| String::new());
    }
    let to = args.output.as_deref().context("name the picture with -o FILE.svg, or ask for the stacks with --json")?;
    let svg = ask(&args.at, "flame", &given)?;
    ensure!(svg.trim_start().starts_with('<'), "the collector's answer is not a picture");
    if to == Path::new("-") {
        return super::written(std::io::stdout().lock().write_all(svg.as_bytes()));
    }
    std::fs::write(to, svg).with_context(|| format!("cannot write {}", to.display()))?;
    let stacks: FleetStacks = parse(&stacks)?;
    super::print(&super::safe_text(&text(to, &stacks)))
}

fn text(to: &Path, stacks: &FleetStacks) -> String {
    let mut text = format!("{}: {}\n", to.display(), stacks.a.words());
    if let Some(b) = &stacks.b {
        text.push_str(&format!("against {}\n", b.words()));
    }
    if stacks.one_slot_in > 1 {
        text.push_str(&format!("There are so many samples that one in {} was read.\n", stacks.one_slot_in));
    }
    let worth = |function: &&FunctionShare| match function.share_b {
        Some(b) => (function.share_a - b).abs() >= SMALLEST,
        None => function.share_a >= SMALLEST,
    };
    let named: Vec<&FunctionShare> = stacks.functions.iter().filter(worth).take(NAMED).collect();
    if !named.is_empty() {
        text.push_str(if stacks.b.is_some() {
            "\n    HERE   THERE  LARGEST DIFFERENCES\n"
        } else {
            "\n   SHARE  FUNCTION\n"
        });
    } else if stacks.b.is_some() {
        text.push_str("No function differs by half a percent of the samples.\n");
    }
    for function in named {
        let there = function.share_b.map_or_else(String::new, |share| format!("  {:>4.1} %", share * 100.0));
        text.push_str(&format!("{:>6.1} %{there}  {}\n", function.share_a * 100.0, printable(&function.function)));
    }
    text
}
