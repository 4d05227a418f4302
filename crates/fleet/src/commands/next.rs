//! `coroner fleet next`

use super::{ago, grouped, plural, show};
use crate::answers::called;
use crate::args::NextArgs;
use crate::client::ask;
use crate::ingest::printable;
use crate::next::{Next, NextNode, Range};
use coroner_report::Wall;

pub fn run(args: &NextArgs) -> anyhow::Result<()> {
    let limit = if args.limit == 0 { u32::MAX } else { args.limit }.to_string();
    let given = [("where", args.matching.as_deref()), ("limit", Some(limit.as_str()))];
    let given: Vec<(&str, &str)> = given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    show(&args.at, &ask(&args.at, "next", &given)?, text)
}

fn number(number: f64) -> String {
    grouped(number.max(0.0).round() as u64)
}

fn text(next: &Next) -> String {
    let counts = &next.nodes;
    if counts.asked == 0 {
        return "No node matches.\n".to_owned();
    }
    let mut text = match (&next.level, next.seen_getting_hurt) {
        (Some(level), hurt) => format!(
            "{} got one of {} while watched: half of them below {} dead memory cgroups, one in ten below {}\n",
            plural(hurt, "node"),
            next.codes.iter().map(|code| printable(code)).collect::<Vec<_>>().join(", "),
            number(level.median),
            number(level.tenth)
        ),
        (None, 0) => {
            "No node was seen getting hurt by dead memory cgroups: what hurts is not known, only who grows\n".to_owned()
        }
        (None, hurt) => format!(
            "Only {} seen getting hurt by dead memory cgroups: too few to tell what hurts, only who grows\n",
            if hurt == 1 { "1 node was".to_owned() } else { format!("{} were", plural(hurt, "node")) }
        ),
    };
    let reached = match counts.reached {
        0 => String::new(),
        reached => format!(" ({} are past that number already)", grouped(reached)),
    };
    text.push_str(&format!(
        "{}: {} growing{reached}, {} steady, {} sick already, {} rebooted too recently to tell, {} silent\n",
        plural(counts.asked, "node"),
        grouped(counts.growing),
        grouped(counts.steady),
        grouped(counts.hurt),
        grouped(counts.unknown),
        grouped(counts.silent)
    ));
    if next.next.is_empty() {
        return text;
    }
    let reaches = next.level.map_or_else(String::new, |level| {
        format!("  {:<42}  REACHES {}", format!("REACHES {} (95 %)", number(level.median)), number(level.tenth))
    });
    text.push_str(&format!("\n{:<24}  {:<6}  {:>9}  {:<28}{reaches}\n", "NODE", "UP", "ZOMBIES", "MORE A DAY (95 %)"));
    for node in &next.next {
        text.push_str(line(node, next).trim_end());
        text.push('\n');
    }
    let hidden = counts.growing.saturating_sub(next.next.len() as u64);
    if hidden > 0 {
        text.push_str(&format!("and {} more (--limit)\n", grouped(hidden)));
    }
    text
}

fn line(node: &NextNode, next: &Next) -> String {
    let Range { value, low, high } = node.growth_per_day;
    let name = printable(called(&node.node, node.host.as_deref()));
    let up = node.booted.map_or_else(|| "?".to_owned(), |booted| ago(booted, next.at));
    let growth = format!("{} ({} to {})", number(value), number(low), number(high));
    let reaches = node.reaches.map_or_else(String::new, |reaches| {
        let latest = reaches.latest.map_or_else(|| "later than a year".to_owned(), |latest| ahead(latest, next.at));
        let range = match reaches.at <= next.at {
            true => "now".to_owned(),
            false => format!("{} ({} to {latest})", date(reaches.at), ahead(reaches.earliest, next.at)),
        };
        let tenth = node.reaches_tenth.map_or_else(String::new, |tenth| ahead(tenth, next.at));
        format!("  {range:<42}  {tenth}")
    });
    format!("{name:<24}  {up:<6}  {:>9}  {growth:<28}{reaches}", number(node.zombies))
}

/// `now`, or `in 3 d`.
fn ahead(at: Wall, now: Wall) -> String {
    if at <= now { "now".to_owned() } else { format!("in {}", ago(now, at)) }
}

/// `2026-11-21 14:00Z`
fn date(at: Wall) -> String {
    let text = at.to_string();
    text.get(..16).map_or_else(|| text.clone(), |minute| format!("{}Z", minute.replace('T', " ")))
}
