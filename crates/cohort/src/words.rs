//! The answer in plain English.
//!
//! Attributes, values and node names come from the fleet and may be hostile: they are shortened, control and direction characters are escaped,
//! and whatever is not a plain word stands in quotation marks.

use crate::{AmongNodes, Attributes, Cohort, Conclusion, Explanation, Table, UPTIME, Within};

/// A name of the fleet is cut after so many characters.
const LONGEST: usize = 64;
/// "In image x", but "with driver y".
const PLACES: [&str; 7] = ["image", "zone", "region", "cluster", "rack", "pool", "datacenter"];

/// One paragraph per cohort, then what holds for all. `condition` is what the sick nodes have, such as `zombie-memcgs`.
pub fn words(explanation: &Explanation, condition: &str) -> Vec<String> {
    let condition = quoted(condition);
    let nodes = &explanation.nodes;
    let judged = nodes.sick + nodes.healthy;
    let mut lines = Vec::new();
    for (index, cohort) in explanation.cohorts.iter().enumerate() {
        lines.push(paragraph(explanation, cohort, index, &condition));
    }
    if explanation.cohorts.is_empty() {
        let looked = looked_at(explanation);
        lines.push(match (nodes.sick, nodes.healthy, explanation.conclusion) {
            (0, 0, _) => "No node was diagnosed in this time, so there is nothing to compare.".to_owned(),
            (0, ..) => format!("None of {} has {condition}.", many(judged, "node")),
            (_, 0, _) => match judged {
                1 => format!("The only node that was diagnosed has {condition}: nothing to compare with."),
                _ => format!("All {} have {condition}: nothing to compare with.", many(judged, "node")),
            },
            (sick, _, Conclusion::TooFewNodes) => format!(
                "{} of {} {} {condition}: too few to tell what sick nodes have in common.",
                number(sick),
                many(judged, "node"),
                if sick == 1 { "has" } else { "have" }
            ),
            (sick, ..) => format!(
                "{} of {} have {condition}. No difference found: the sick nodes have nothing in common that the healthy ones lack. {looked}",
                number(sick),
                many(judged, "node")
            ),
        });
        if let Some(closest) = &explanation.closest {
            lines.push(format!(
                "Closest: {} of {} {}, {} of {} elsewhere. With so many comparisons chance alone gives as much.",
                number(closest.table.sick as usize),
                many(closest.table.of as usize, "node"),
                which(&closest.attributes),
                number(closest.table.elsewhere_sick as usize),
                number(closest.table.elsewhere as usize),
            ));
        }
        if let Some(days) = explanation.uptime.reboot_helps_for_days {
            lines.push(format!("After a reboot a node stays well for about {}.", days_in_words(days)));
        }
    }
    if nodes.unknown > 0 {
        lines.push(format!(
            "{} {} not diagnosed in this time and {} left out.",
            many(nodes.unknown, "node"),
            if nodes.unknown == 1 { "was" } else { "were" },
            is(nodes.unknown)
        ));
    }
    lines
}

fn looked_at(explanation: &Explanation) -> String {
    let seen = &explanation.looked_at;
    let [attributes, values, pairs] = [(seen.attributes, "attribute"), (seen.values, "value"), (seen.pairs, "pair")]
        .map(|(number, name)| many(number, name));
    format!("Looked at {attributes}: {values} and {pairs} that enough nodes share.")
}

fn paragraph(explanation: &Explanation, cohort: &Cohort, index: usize, condition: &str) -> String {
    let (table, among) = match &cohort.among {
        Some(among) if index > 0 => (&among.table, Some(among.nodes)),
        _ => (&cohort.table, None),
    };
    let lead = match (among, cohort.protective, index) {
        (Some(AmongNodes::Outside), false, _) => "Apart from the nodes above: ",
        (Some(AmongNodes::Outside), true, _) => "Spared apart from the nodes above: ",
        (Some(AmongNodes::Inside), ..) => "Spared among the nodes above: ",
        (None, true, 0) => "Spared: ",
        (None, true, _) => "Also spared: ",
        (None, false, 0) => "",
        (None, false, _) => "Also: ",
    };
    let mut text = format!(
        "{lead}{} of {} {} {} {condition}, {} of {} elsewhere ({}).",
        number(table.sick as usize),
        many(table.of as usize, "node"),
        which(&cohort.attributes),
        if table.sick == 1 { "has" } else { "have" },
        if table.elsewhere_sick == 0 { "none".to_owned() } else { number(table.elsewhere_sick as usize) },
        number(table.elsewhere as usize),
        risk(table),
    );
    if let Some(adjusted) = at_same_uptime(explanation, cohort) {
        text += &adjusted;
    }
    if cohort.left_out > 0 {
        let names: Vec<String> = cohort.attributes.keys().map(|name| quoted(name)).collect();
        let whose = if cohort.left_out == 1 { "does not tell its" } else { "do not tell their" };
        text += &format!(
            " {} {whose} {} and {} left out.",
            many(cohort.left_out, "node"),
            listed(&names, "or"),
            is(cohort.left_out)
        );
    }
    if !cohort.aliases.is_empty() {
        let aliases: Vec<String> = cohort.aliases.iter().map(|alias| alias_of(&cohort.attributes, alias)).collect();
        let nearly = if cohort.told_apart_by.is_empty() { "" } else { "nearly " };
        let which = if aliases.len() == 1 { "which is" } else { "which are" };
        let here = shared_with_all(cohort);
        let here = if here.is_empty() { here } else { format!(" (all with {here})") };
        text +=
            &format!(" Cannot be told apart from {}{here}, {which} {nearly}the same nodes.", listed(&aliases, "and"));
    }
    if !cohort.rivals.is_empty() {
        let rivals: Vec<String> = cohort.rivals.iter().map(name).collect();
        text += &format!(" These nodes do not rule out that it is {} instead.", listed(&rivals, "or"));
    }
    let within: Vec<String> = cohort.within.iter().map(within_it).collect();
    let first_harmful = explanation.cohorts.iter().position(|c| !c.protective) == Some(index);
    let helps = explanation.uptime.reboot_helps_for_days.filter(|_| first_harmful);
    let helps = helps.map(|days| format!("a reboot helps for about {}", days_in_words(days)));
    match (within.is_empty(), helps) {
        (false, Some(helps)) => text += &format!(" Within it, {}; {helps}.", listed(&within, "and")),
        (false, None) => text += &format!(" Within it, {}.", listed(&within, "and")),
        (true, Some(helps)) => text += &format!(" A{}.", &helps[1..]),
        (true, None) => {}
    }
    if !cohort.told_apart_by.is_empty() {
        let nodes: Vec<String> = cohort.told_apart_by.iter().map(|id| quoted(id)).collect();
        let names = |attributes: &Attributes| listed(&attributes.keys().map(|k| quoted(k)).collect::<Vec<_>>(), "and");
        let what = match &cohort.aliases[..] {
            [alias] => format!("{} from {}", names(&cohort.attributes), names(alias)),
            _ => "them".to_owned(),
        };
        let s = if nodes.len() == 1 { "" } else { "s" };
        text += &format!(" Node{s} {} would tell {what} apart.", listed(&nodes, "and"));
    }
    text
}

/// An alias without what it shares with the cohort: of a pair, often only one half differs.
fn alias_of(cohort: &Attributes, alias: &Attributes) -> String {
    let differs: Attributes = alias
        .iter()
        .filter(|(name, value)| cohort.get(*name) != Some(value))
        .map(|(n, v)| (n.clone(), v.clone()))
        .collect();
    if differs.is_empty() { name(alias) } else { name(&differs) }
}

/// What the cohort shares with each alias.
fn shared_with_all(cohort: &Cohort) -> String {
    let is_shared =
        |(name, value): &(&String, &String)| cohort.aliases.iter().all(|alias| alias.get(*name) == Some(value));
    let shared: Attributes =
        cohort.attributes.iter().filter(is_shared).map(|(name, value)| (name.clone(), value.clone())).collect();
    if shared.is_empty() { String::new() } else { name(&shared) }
}

/// If sick nodes are older or younger, the plain ratio may hide the cohort, or exaggerate it.
fn at_same_uptime(explanation: &Explanation, cohort: &Cohort) -> Option<String> {
    let adjusted = cohort.risk_ratio_adjusted.filter(|_| explanation.uptime.matters && cohort.among.is_none())?;
    let differs = adjusted.value / cohort.risk_ratio.value;
    let ratio = format!("{}, {}–{}", digits(adjusted.value), digits(adjusted.low), digits(adjusted.high));
    (!(0.67..=1.5).contains(&differs)).then(|| format!(" At the same uptime the risk is × {ratio}."))
}

fn within_it(within: &Within) -> String {
    let only = if within.only { "only" } else { "mostly" };
    format!("{only} nodes {}", which(&within.attributes))
}

/// "risk × 2,705, 1,900–3,800". Without a sick node on one side the ratio is a guess; then only its safe end is told.
fn risk(table: &Table) -> String {
    let ratio = table.risk_ratio();
    match (table.sick, table.elsewhere_sick) {
        (_, 0) => format!("risk at least × {}", digits(ratio.low)),
        (0, _) => format!("risk at most × {}", digits(ratio.high)),
        _ => format!("risk × {}, {}–{}", digits(ratio.value), digits(ratio.low), digits(ratio.high)),
    }
}

/// What follows "nodes": "in image x", "with driver y and kernel z", "up for longer than 5 days".
fn which(attributes: &Attributes) -> String {
    if let (1, Some(uptime)) = (attributes.len(), attributes.get(UPTIME)) {
        return format!("up for {}", cleaned(uptime));
    }
    let place = attributes.keys().all(|name| PLACES.iter().any(|place| name.to_lowercase().contains(place)));
    format!("{} {}", if place { "in" } else { "with" }, name(attributes))
}

fn name(attributes: &Attributes) -> String {
    let one = |(name, value): (&String, &String)| match name.as_str() {
        UPTIME => format!("uptime {}", cleaned(value)),
        name => format!("{} {}", quoted(name), quoted(value)),
    };
    listed(&attributes.iter().map(one).collect::<Vec<_>>(), "and")
}

fn listed(items: &[String], and: &str) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} {and} {last}", first.join(", ")),
    }
}

/// Plain words as they are, anything else in quotation marks.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_.:/@+~".contains(c);
    // Attribute names of two or three words, such as "instance type", are plain, too.
    let words: Vec<&str> = text.split(' ').collect();
    let lower = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase());
    let is_plain = !text.is_empty() && (text.chars().all(plain) || words.len() <= 3 && words.iter().all(lower));
    if is_plain { cleaned(text) } else { format!("\"{}\"", cleaned(text)) }
}

/// Short, and without characters that could forge a line, a colour or a direction.
fn cleaned(text: &str) -> String {
    let mut clean = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == LONGEST {
            clean.push('…');
            break;
        }
        let hidden = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{ffff}' | '\u{e0000}'..='\u{e0fff}');
        match c {
            '"' | '\\' => clean.extend(['\\', c]),
            c if c.is_control() || hidden => clean.extend(c.escape_unicode()),
            c => clean.push(c),
        }
    }
    clean
}

fn is(number: usize) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

fn many(count: usize, name: &str) -> String {
    format!("{} {name}{}", number(count), if count == 1 { "" } else { "s" })
}

/// 9488 as "9,488".
fn number(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A ratio with as many digits as are worth reading.
fn digits(x: f64) -> String {
    match x {
        x if x >= 9.95 => number(x.min(1e15).round() as usize),
        x if x >= 0.995 => format!("{x:.1}"),
        x if x >= 0.0995 => format!("{x:.2}"),
        x => format!("{x:.3}"),
    }
}

fn days_in_words(days: f64) -> String {
    match days {
        d if d >= 1.5 => format!("{} days", number(d.round() as usize)),
        d if d >= 0.95 => "1 day".to_owned(),
        d if d * 24.0 >= 1.5 => format!("{} hours", (d * 24.0).round()),
        _ => "an hour".to_owned(),
    }
}

#[cfg(test)]
mod tests;
