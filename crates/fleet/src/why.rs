//! Which nodes are sick, which are healthy, and what `coroner-cohort` makes of it.

use crate::answers::{Boot, NodeSummary};
use crate::commands::grouped;
use crate::query::{self, Expr, known_code};
use crate::remedy::{Remedy, UNUSED, remedy};
use crate::store::Reader;
use crate::store::growth::Onset;
use crate::store::read::NodeLives;
use coroner_cohort::{Explanation, Life, NodeRow, Population, Settings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

pub const SCHEMA: &str = "coroner.fleet.why/1";
pub const SCHEMA_ALL: &str = "coroner.fleet.why-all/1";
/// Without a condition, so many problems are explained.
const MOST_CONDITIONS: usize = 12;

#[derive(Debug)]
pub enum WhyError {
    Bad(String),
    Db(anyhow::Error),
}

impl From<anyhow::Error> for WhyError {
    fn from(error: anyhow::Error) -> WhyError {
        WhyError::Db(error)
    }
}

/// What the sick nodes have, in words and as it was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    pub asked: String,
    /// `problem` (a code or key) or `expression`.
    pub kind: String,
    pub since_hours: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Why {
    pub schema: String,
    pub condition: Condition,
    #[serde(flatten)]
    pub explanation: Explanation,
    /// The same in words.
    pub words: Vec<String>,
    /// What to do; `None` if no node has the problem now, or an expression was asked about.
    #[serde(default)]
    pub remedy: Option<Remedy>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WhyAll {
    pub schema: String,
    pub why: Vec<Why>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WhyAnswer {
    One(Box<Why>),
    All(WhyAll),
}

pub fn why(reader: &Reader, condition: Option<&str>, since: i64, now: i64) -> Result<WhyAnswer, WhyError> {
    let nodes = reader.nodes(now)?;
    match condition {
        Some(condition) => Ok(WhyAnswer::One(Box::new(one(reader, &nodes, condition, since, now)?))),
        None => {
            let codes = reader.codes(since)?;
            let why = codes.iter().take(MOST_CONDITIONS).map(|code| one(reader, &nodes, code, since, now));
            Ok(WhyAnswer::All(WhyAll { schema: SCHEMA_ALL.to_owned(), why: why.collect::<Result<_, _>>()? }))
        }
    }
}

fn one(reader: &Reader, nodes: &[NodeSummary], asked: &str, since: i64, now: i64) -> Result<Why, WhyError> {
    // A key may have what an expression has: names come from nodes.
    let expr = if reader.is_problem(asked)? { None } else { expression(asked)? };
    if expr.is_none() && !reader.is_problem(asked)? {
        known_code(asked).map_err(WhyError::Bad)?;
    }
    if let Some(expr) = &expr {
        expr.check(nodes.iter()).map_err(|bad| WhyError::Bad(bad.to_string()))?;
    }
    let mut lives = reader.lives(asked, since)?;
    let agents: BTreeSet<&String> =
        nodes.iter().flat_map(|node| node.attributes.keys()).filter(|name| name.starts_with("agent:")).collect();
    let rows = nodes.iter().map(|node| {
        let of_node = lives.remove(&node.node).unwrap_or_default();
        let is_known = node.diagnosed_until.is_some_and(|until| crate::store::write::seconds(until) >= since);
        let sick = match &expr {
            Some(expr) => expr.matches(node, now),
            None => (is_known || of_node.had_it).then_some(of_node.had_it),
        };
        let mut attributes = node.attributes.clone();
        // What an agent does may follow from the sickness; whether its image brought it does not.
        attributes.retain(|name, _| !name.starts_with("agent_state:") && !name.starts_with(UNUSED));
        // What was asked about explains itself.
        if let Some(expr) = &expr {
            let asked_about = expr.fields();
            attributes.retain(|name, _| {
                !asked_about.contains(&name.trim_start_matches("label:")) && !asked_about.contains(&name.as_str())
            });
        }
        if node.diagnosed_until.is_some() {
            for agent in &agents {
                attributes.entry((*agent).clone()).or_insert_with(|| "none".to_owned());
            }
        }
        let up_hours = match &expr {
            None => longest_uptime(node, &of_node.boots, now),
            // It speaks of the present; what was asked about explains itself.
            Some(expr) if !expr.fields().contains(&"up") => longest_uptime(node, &[], now),
            Some(_) => None,
        };
        NodeRow {
            id: node.name().to_owned(),
            attributes,
            sick,
            up_hours,
            lives: if expr.is_some() { Vec::new() } else { lives_of(&of_node) },
        }
    });
    let population = Population { nodes: rows.collect() };
    let explanation = coroner_cohort::explain(&population, &Settings::default());
    let mut words = coroner_cohort::words(&explanation, asked);
    let silent = nodes.iter().filter(|node| node.is_silent).count() as u64;
    if silent * 2 > nodes.len() as u64 {
        words.push(format!("{} of these nodes are silent: this is what they said last.", grouped(silent)));
    }
    let remedy = if expr.is_none() { remedy(nodes, asked, &explanation) } else { None };
    Ok(Why {
        schema: SCHEMA.to_owned(),
        condition: Condition {
            asked: asked.to_owned(),
            kind: if expr.is_some() { "expression" } else { "problem" }.to_owned(),
            since_hours: (now - since) as f64 / 3600.0,
        },
        explanation,
        words,
        remedy,
    })
}

/// Of the boots in the time that is asked about. The present uptime says nothing about what was before a reboot.
fn longest_uptime(node: &NodeSummary, boots: &[Boot], now: i64) -> Option<f64> {
    let seconds = crate::store::write::seconds;
    let last = if node.is_silent { seconds(node.last_seen) } else { now };
    let now_up = node.booted.map(|booted| last - seconds(booted));
    let of_boot = |boot: &Boot| Some(seconds(boot.last_seen) - seconds(boot.booted?));
    boots.iter().filter_map(of_boot).chain(now_up).max().map(|up| up.max(0) as f64 / 3600.0)
}

/// `None`: it is a code or a key.
fn expression(asked: &str) -> Result<Option<Expr>, WhyError> {
    match query::parse(asked) {
        // `silent`, `not silent`; no problem is called like this.
        Ok(expr) => Ok(Some(expr)),
        Err(bad) if asked.contains(['=', '<', '>']) => Err(WhyError::Bad(bad.to_string())),
        Err(_) => Ok(None),
    }
}

/// From each boot to its first onset, or to when it was last seen. A boot whose onset nobody saw says nothing of when it came.
fn lives_of(of_node: &NodeLives) -> Vec<Life> {
    let seconds = crate::store::write::seconds;
    let hours = |s: i64| s.max(0) as f64 / 3600.0;
    let life = |boot: &Boot| {
        let booted = seconds(boot.booted?);
        let (first, last) = (seconds(boot.first_seen), seconds(boot.last_seen));
        let onset = of_node.onsets.iter().copied().find(|onset| *onset >= booted && *onset <= last.max(first));
        let was_seen = |began| Onset { began, first_seen: Some(first), booted: Some(booted) }.was_seen();
        if !onset.is_none_or(was_seen) {
            return None;
        }
        let until = onset.unwrap_or(last).max(booted);
        Some(Life {
            hours: hours(until - booted),
            onset: onset.is_some(),
            entered_after_hours: hours(first - booted).min(hours(until - booted)),
        })
    };
    of_node.boots.iter().filter_map(life).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::read::wall;

    const HOUR: i64 = 3600;

    fn lives(first_seen: i64, onsets: &[i64]) -> Vec<Life> {
        let (boot_id, booted, last_seen) = ("b".to_owned(), Some(wall(0)), wall(100 * HOUR));
        let boots = vec![Boot { boot_id, booted, first_seen: wall(first_seen), last_seen }];
        lives_of(&NodeLives { boots, onsets: onsets.to_vec(), had_it: !onsets.is_empty() })
    }

    #[test]
    fn a_life_ends_with_its_first_onset_if_that_was_seen() {
        let life = |hours, onset, entered_after_hours| Life { hours, onset, entered_after_hours };
        assert_eq!(lives(60, &[]), [life(100.0, false, 60.0 / 3600.0)]);
        assert_eq!(lives(60, &[30 * HOUR, 50 * HOUR]), [life(30.0, true, 60.0 / 3600.0)]);
        assert_eq!(lives(20 * HOUR, &[30 * HOUR]), [life(30.0, true, 20.0)]);
        // There when coroner was installed: nobody knows since when.
        assert_eq!(lives(20 * HOUR, &[20 * HOUR + 30, 50 * HOUR]), []);
    }

    #[test]
    fn what_can_be_read_as_an_expression_is_one() {
        assert!(expression("not silent").unwrap().is_some() && expression("(silent)").unwrap().is_some());
        assert!(expression("zombie-memcgs").unwrap().is_none() && expression("nic-reset:eth0").unwrap().is_none());
        assert!(expression("zombies>").is_err());
    }
}
