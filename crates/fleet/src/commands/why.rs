//! `coroner fleet why`: the words first, then the table, the curves, and what to do.

use super::{grouped, plural, show};
use crate::args::WhyArgs;
use crate::client::ask;
use crate::ingest::printable;
use crate::why::{Why, WhyAnswer};
use coroner_cohort::{Attributes, Cohort, Curve, CurveOf, Point};

/// Days after boot for which the curves are told.
const DAYS: [f64; 12] = [0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 21.0, 30.0, 60.0];
const MOST_DAYS: usize = 7;
const WIDEST_COHORT: usize = 40;

pub fn run(args: &WhyArgs) -> anyhow::Result<()> {
    let since = args.since.as_secs().to_string();
    let mut given = vec![("since", since.as_str())];
    given.extend(args.condition.as_deref().map(|condition| ("condition", condition)));
    show(&args.at, &ask(&args.at, "why", &given)?, why_text)
}

fn why_text(answer: &WhyAnswer) -> String {
    match answer {
        WhyAnswer::One(why) => one_why(why),
        WhyAnswer::All(all) if all.why.is_empty() => {
            "No node that was diagnosed had a problem of severity warning or critical in this time.\n".to_owned()
        }
        WhyAnswer::All(all) => all.why.iter().map(one_why).collect::<Vec<_>>().join("\n"),
    }
}

fn one_why(why: &Why) -> String {
    let mut text = printable(&why.condition.asked);
    if why.condition.kind == "problem" {
        let time = format!("{:.0}", why.condition.since_hours / 24.0);
        let time = match why.condition.since_hours {
            hours if hours >= 48.0 => format!("{time} days"),
            hours if hours >= 2.0 => format!("{hours:.0} h"),
            hours => format!("{:.0} min", hours * 60.0),
        };
        text.push_str(&format!(", now or in the last {time}: {}", plural(why.explanation.nodes.sick as u64, "node")));
    }
    text.push('\n');
    for sentence in &why.words {
        text.push_str(&format!("  {sentence}\n"));
    }
    text.push_str(&table(&why.explanation.cohorts));
    text.push_str(&curves(&why.explanation.uptime.curves));
    if let Some(remedy) = &why.remedy {
        let mut sentences = remedy.words.iter();
        text.push('\n');
        sentences.by_ref().take(1).for_each(|first| text.push_str(&format!("  What to do: {}\n", printable(first))));
        remedy.image_lines.iter().for_each(|line| text.push_str(&format!("      {}\n", printable(line))));
        sentences.for_each(|sentence| text.push_str(&format!("  {}\n", printable(sentence))));
    }
    text
}

fn named(attributes: &Attributes) -> String {
    let named: Vec<String> = attributes.iter().map(|(name, value)| format!("{name} {value}")).collect();
    printable(&named.join(", "))
}

fn table(cohorts: &[Cohort]) -> String {
    if cohorts.is_empty() {
        return String::new();
    }
    let names: Vec<String> = cohorts.iter().map(|cohort| named(&cohort.attributes)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).clamp(6, WIDEST_COHORT);
    let mut text = format!(
        "\n  {:<width$}  {:>17}  {:>17}  {:>20}  {:>10}\n",
        "NODES WITH", "SICK", "ELSEWHERE", "RISK × (95 %)", "ADJUSTED P"
    );
    for (name, cohort) in names.iter().zip(cohorts) {
        let of = |sick: u32, of: u32| format!("{} of {}", grouped(sick.into()), grouped(of.into()));
        let table = &cohort.table;
        text.push_str(&format!(
            "  {name:<width$}  {:>17}  {:>17}  {:>20}  {:>10}\n",
            of(table.sick, table.of),
            of(table.elsewhere_sick, table.elsewhere),
            risk(cohort),
            chance(cohort.p_adjusted)
        ));
        for alias in &cohort.aliases {
            text.push_str(&format!("    or {}: the same nodes\n", named(alias)));
        }
    }
    text
}

/// Without a sick node on one side the ratio is a guess.
fn risk(cohort: &Cohort) -> String {
    let figure = |value: f64| match value {
        value if value >= 10.0 => grouped(value.min(1e9).round() as u64),
        value if value >= 0.1 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    };
    let ratio = cohort.risk_ratio;
    match (cohort.table.sick, cohort.table.elsewhere_sick) {
        (_, 0) => format!("≥ {}", figure(ratio.low)),
        (0, _) => format!("≤ {}", figure(ratio.high)),
        _ => format!("{} ({}–{})", figure(ratio.value), figure(ratio.low), figure(ratio.high)),
    }
}

fn chance(p: f64) -> String {
    if p < 1e-4 { "< 0.0001".to_owned() } else { format!("{p:.4}") }
}

/// The share of boots without the problem so long after boot.
fn curves(curves: &[Curve]) -> String {
    if curves.iter().all(|curve| curve.points.is_empty()) {
        return String::new();
    }
    let longest = curves.iter().map(|curve| curve.watched_hours / 24.0).fold(0.0, f64::max);
    let mut days: Vec<f64> = DAYS.into_iter().filter(|day| *day <= longest).collect();
    if days.is_empty() {
        return String::new();
    }
    days.drain(..days.len().saturating_sub(MOST_DAYS));
    let told = |day: &f64| if *day < 1.0 { format!("{:.0} h", day * 24.0) } else { format!("{day:.0} d") };
    let mut text = format!("\n  {:<40}", "WITHOUT THE PROBLEM, AFTER BOOT");
    days.iter().for_each(|day| text.push_str(&format!("{:>7}", told(day))));
    text.push('\n');
    for curve in curves {
        let name = match curve.of {
            CurveOf::All => "all nodes",
            CurveOf::Cohort => "nodes of the first cohort",
            CurveOf::Elsewhere => "elsewhere",
        };
        text.push_str(&format!("  {:<40}", format!("{name} ({})", plural(curve.lives as u64, "boot"))));
        for day in &days {
            let is_watched = day * 24.0 <= curve.watched_hours;
            let share = match is_watched {
                true => format!("{:.0} %", survival(&curve.points, day * 24.0) * 100.0),
                false => "–".to_owned(),
            };
            text.push_str(&format!("{share:>7}"));
        }
        text.push('\n');
    }
    text
}

fn survival(points: &[Point], hours: f64) -> f64 {
    points.iter().take_while(|point| point.hours <= hours).last().map_or(1.0, |point| point.survival)
}
