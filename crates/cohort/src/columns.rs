//! The population by attribute instead of by node, and what can be a cohort in it.
//!
//! A node that does not tell an attribute (no such key, or an empty value) is left out of every comparison by that attribute: it is neither
//! in the cohort nor elsewhere, and each cohort says how many were left out. Known absence needs a value of its own, such as `none`.

use crate::{Population, Settings, UPTIME};
use std::collections::{BTreeMap, HashMap};

/// The node does not tell the attribute.
const UNTOLD: u32 = u32::MAX;
/// The node has a value that too few or nearly all nodes have.
const NO_COHORT: u32 = u32::MAX - 1;
/// More attributes than this are labels gone wild; those that the fewest nodes tell are left out, and counted.
const MOST_ATTRIBUTES: usize = 256;
/// If less than this share of the nodes that tell an attribute lacks a value, nearly everybody has the value: it is no cohort.
const NEARLY_EVERYBODY: f64 = 0.01;
/// An attribute with fewer nodes per value than this is a name, like a host name, even if some nodes share one.
const NAME_NODES_PER_VALUE: usize = 2;
/// Ends of uptime in hours that a person would say. Cohorts of uptime are the nodes above or below one of these.
pub(crate) const UPTIMES: [f64; 22] = [
    1.0, 3.0, 6.0, 12.0, 24.0, 48.0, 72.0, 96.0, 120.0, 144.0, 168.0, 192.0, 240.0, 288.0, 336.0, 504.0, 672.0, 1080.0,
    1440.0, 2160.0, 4320.0, 8760.0,
];
/// Buckets of uptime for comparing at the same uptime hold about so many nodes, and there are at most so many of them. Fine buckets leave
/// no difference of uptime within a bucket; the test over strata copes with small ones.
const BUCKET_NODES: usize = 25;
const MOST_BUCKETS: usize = 64;

/// What is named first if cohorts cannot be told apart: what a person can change, before where a node happens to be. The first entry that
/// the attribute's name contains decides; names without one stand at the gap (`""`).
const NAMED_FIRST: &[&str] = &[
    "image",
    "kernel",
    "driver",
    "agent",
    "package",
    "unit",
    "runtime",
    "kubelet",
    "systemd",
    "distribution",
    "cgroup",
    "instance",
    "type",
    "",
    "cpu",
    "cores",
    "memory",
    "gpu",
    "rack",
    "zone",
    "region",
    "cluster",
    UPTIME,
];

pub(crate) struct Columns<'a> {
    pub ids: Vec<&'a str>,
    pub sick: Vec<Option<bool>>,
    pub up_hours: Vec<Option<f64>>,
    /// The nodes of which it is known whether they are sick.
    pub judged: Vec<u32>,
    pub attributes: Vec<Column<'a>>,
    /// Attributes that were looked at, cohorts in them or not, and those beyond the bound.
    pub looked_at: usize,
    pub left_out: usize,
}

pub(crate) struct Column<'a> {
    pub name: &'a str,
    /// What can be a cohort, in alphabetical order.
    pub values: Vec<Value<'a>>,
    /// For each node the index of its value, or `UNTOLD` or `NO_COHORT`.
    pub of: Vec<u32>,
}

pub(crate) struct Value<'a> {
    pub text: &'a str,
    /// The judged nodes that have it.
    pub nodes: Vec<u32>,
}

/// A set of nodes that can be said in words.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pick {
    Value(Place),
    Pair(Place, Place),
    Uptime { hours: f64, longer: bool },
}

/// A column and a value in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub column: usize,
    pub value: usize,
}

/// Per node: inside a cohort or not; `None` if the node does not tell.
pub(crate) type Members = Vec<Option<bool>>;

impl<'a> Columns<'a> {
    pub fn new(population: &'a Population, settings: &Settings) -> Columns<'a> {
        let nodes = &population.nodes[..population.nodes.len().min(u32::MAX as usize)];
        let sick: Vec<_> = nodes.iter().map(|n| n.sick).collect();
        let judged: Vec<u32> = (0..nodes.len()).filter(|&n| sick[n].is_some()).map(|n| n as u32).collect();
        let up_hours = nodes.iter().map(|n| n.up_hours.filter(|h| h.is_finite() && *h >= 0.0)).collect();

        let mut tellers: HashMap<&str, usize> = HashMap::new();
        for name in nodes.iter().flat_map(|n| n.attributes.keys()).filter(|name| *name != UPTIME) {
            *tellers.entry(name).or_default() += 1;
        }
        let enough = tellers.into_iter().filter(|(_, n)| *n >= settings.least().saturating_mul(2));
        let mut names: Vec<(usize, &str)> = enough.map(|(name, n)| (usize::MAX - n, name)).collect();
        names.sort_unstable();
        let left_out = names.len().saturating_sub(MOST_ATTRIBUTES);
        names.truncate(MOST_ATTRIBUTES);
        let mut names: Vec<&str> = names.into_iter().map(|(_, name)| name).collect();
        names.sort_unstable();

        let attributes = columns(population, &names).into_iter().filter_map(|c| c.cohorts(&sick, settings)).collect();
        let ids = nodes.iter().map(|n| n.id.as_str()).collect();
        Columns { ids, sick, up_hours, judged, attributes, looked_at: names.len(), left_out }
    }

    pub fn members(&self, pick: &Pick) -> Members {
        match *pick {
            Pick::Value(place) => self.column(place).of.iter().map(|&v| has(v, place)).collect(),
            Pick::Pair(a, b) => {
                let both = self.column(a).of.iter().zip(&self.column(b).of);
                both.map(|(&x, &y)| Some(has(x, a)? & has(y, b)?)).collect()
            }
            Pick::Uptime { hours, longer } => {
                self.up_hours.iter().map(|up| up.map(|h| (h > hours) == longer)).collect()
            }
        }
    }

    pub fn column(&self, place: Place) -> &Column<'a> {
        &self.attributes[place.column]
    }

    pub fn places(&self) -> impl Iterator<Item = Place> {
        let columns = self.attributes.iter().enumerate();
        columns.flat_map(|(column, c)| (0..c.values.len()).map(move |value| Place { column, value }))
    }

    /// The pick in words: attribute to value.
    pub fn said(&self, pick: &Pick) -> BTreeMap<String, String> {
        let one = |p: Place| (self.column(p).name.to_owned(), self.column(p).values[p.value].text.to_owned());
        match *pick {
            Pick::Value(place) => BTreeMap::from([one(place)]),
            Pick::Pair(a, b) => BTreeMap::from([one(a), one(b)]),
            Pick::Uptime { hours, longer } => {
                let than = if longer { "longer than" } else { "shorter than" };
                BTreeMap::from([(UPTIME.to_owned(), format!("{than} {}", span(hours)))])
            }
        }
    }

    /// Lower is named first: fewer attributes, then by `NAMED_FIRST`, then alphabetically.
    pub fn naming(&self, pick: &Pick) -> (usize, usize, BTreeMap<String, String>) {
        let said = self.said(pick);
        let rank = said.keys().map(|name| rank(name)).max().unwrap_or_default();
        (said.len(), rank, said)
    }

    /// Nodes with about the same uptime; those that do not tell it are a bucket of their own. `cut` is always a border.
    pub fn uptime_buckets(&self, cut: f64) -> Vec<u32> {
        let mut hours: Vec<f64> = self.judged.iter().filter_map(|&n| self.up_hours[n as usize]).collect();
        hours.sort_unstable_by(f64::total_cmp);
        let buckets = (hours.len() / BUCKET_NODES).clamp(1, MOST_BUCKETS);
        let mut borders: Vec<f64> = (1..buckets).map(|b| hours[b * hours.len() / buckets]).collect();
        borders.insert(borders.partition_point(|b| *b < cut), cut);
        let bucket = |up: &Option<f64>| up.map_or(0, |h| 1 + borders.partition_point(|b| *b < h) as u32);
        self.up_hours.iter().map(bucket).collect()
    }
}

/// Whether a node with this value is inside; `None` if it does not tell.
pub(crate) fn has(value: u32, place: Place) -> Option<bool> {
    (value != UNTOLD).then_some(value as usize == place.value)
}

pub(crate) fn rank(name: &str) -> usize {
    let name = name.to_lowercase();
    let found = NAMED_FIRST.iter().position(|first| !first.is_empty() && name.contains(first));
    found.or(NAMED_FIRST.iter().position(|first| first.is_empty())).unwrap_or_default()
}

/// "5 days", "1 day", "12 hours".
pub(crate) fn span(hours: f64) -> String {
    let (number, unit) = if hours < 24.0 { (hours, "hour") } else { (hours / 24.0, "day") };
    format!("{number} {unit}{}", if number == 1.0 { "" } else { "s" })
}

/// All values of an attribute, cohorts or not.
struct Raw<'a> {
    name: &'a str,
    indices: HashMap<&'a str, u32>,
    texts: Vec<&'a str>,
    of: Vec<u32>,
}

fn columns<'a>(population: &'a Population, names: &[&'a str]) -> Vec<Raw<'a>> {
    let raw =
        |&name| Raw { name, indices: HashMap::new(), texts: Vec::new(), of: vec![UNTOLD; population.nodes.len()] };
    let mut columns: Vec<Raw> = names.iter().map(raw).collect();
    let mut next = 0;
    for (n, node) in population.nodes.iter().enumerate() {
        for (name, text) in node.attributes.iter().filter(|(_, text)| !text.trim().is_empty()) {
            // Nodes have much the same attributes, in alphabetical order: the next one is usually right.
            if names.get(next) != Some(&name.as_str()) {
                match names.binary_search(&name.as_str()) {
                    Ok(found) => next = found,
                    Err(_) => continue,
                }
            }
            let Raw { indices, texts, of, .. } = &mut columns[next];
            of[n] = *indices.entry(text).or_insert_with(|| {
                texts.push(text);
                texts.len() as u32 - 1
            });
            next = (next + 1) % names.len();
        }
    }
    columns
}

impl<'a> Raw<'a> {
    /// The column if it has a cohort at all.
    fn cohorts(mut self, sick: &[Option<bool>], settings: &Settings) -> Option<Column<'a>> {
        let mut nodes: Vec<Vec<u32>> = vec![Vec::new(); self.texts.len()];
        for (node, &value) in self.of.iter().enumerate().filter(|(n, v)| **v != UNTOLD && sick[*n].is_some()) {
            nodes[value as usize].push(node as u32);
        }
        let told: usize = nodes.iter().map(Vec::len).sum();
        let least = settings.least();
        if nodes.iter().filter(|n| !n.is_empty()).count() * NAME_NODES_PER_VALUE > told {
            return None;
        }
        let least_elsewhere = least.max((NEARLY_EVERYBODY * told as f64) as usize);
        let cohort = |n: &Vec<u32>| n.len() >= least && told - n.len() >= least_elsewhere;
        let mut kept: Vec<usize> = (0..nodes.len()).filter(|&v| cohort(&nodes[v])).collect();
        kept.sort_unstable_by_key(|&v| self.texts[v]);
        let mut renamed = vec![NO_COHORT; nodes.len()];
        let value = |(new, &old): (usize, &usize)| {
            renamed[old] = new as u32;
            Value { text: self.texts[old], nodes: std::mem::take(&mut nodes[old]) }
        };
        let values: Vec<Value> = kept.iter().enumerate().map(value).collect();
        for of in self.of.iter_mut().filter(|of| **of != UNTOLD) {
            *of = renamed[*of as usize];
        }
        (!values.is_empty()).then_some(Column { name: self.name, values, of: self.of })
    }
}
