//! What sick nodes have in common that healthy ones lack: the statistics behind `coroner fleet why`.
//!
//! Nodes with attributes go in, a short list of independent explanations comes out. No I/O. How it is done, and why:
//! - Candidates are attribute values that several nodes share and several lack, and pairs of them (`columns`, `pairs`).
//! - Exact tests, stratified by what was found before and by uptime: what merely correlates with a cause, or merely has older nodes, is
//!   explained away (`search`, `table`).
//! - Benjamini and Hochberg within a level; alpha covers the whole report: in a fleet without differences one in two hundred reports may name
//!   a cohort.
//! - What picks the same nodes is one line (`alias`).
//! - A cohort must also be worth telling: at [`Settings::min_odds_ratio`].
//!
//! Attributes must not follow from the sickness (such as "unit is crashlooping"): they would explain it perfectly and say nothing.

mod alias;
mod columns;
mod describe;
mod pairs;
mod search;
mod strata;
mod survival;
mod table;
mod words;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use survival::{Life, Point, kaplan_meier};
pub use table::{Ratio, Table, benjamini_hochberg, ln_tail, pooled_odds_ratio, pooled_risk_ratio, stratified_ln_p};
pub use words::words;

/// The name of uptime as an attribute. An attribute of that name is ignored: [`NodeRow::up_hours`] has it.
pub const UPTIME: &str = "uptime";

#[derive(Debug, Clone, Default)]
pub struct Population {
    pub nodes: Vec<NodeRow>,
}

#[derive(Debug, Clone, Default)]
pub struct NodeRow {
    pub id: String,
    /// A missing key or an empty value means unknown: the node is left out of comparisons by that attribute. What is known to be absent
    /// needs a value, such as `none`.
    pub attributes: BTreeMap<String, String>,
    /// `None`: not known. Such nodes are counted and otherwise ignored.
    pub sick: Option<bool>,
    /// The longest of its boots in the time that is asked about: whoever is healthy after a reboot may have been sick before it.
    pub up_hours: Option<f64>,
    pub lives: Vec<Life>,
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// The chance that a report names a cohort although nothing is different.
    pub alpha: f64,
    /// A cohort has at least so many nodes, and so have the rest.
    pub min_nodes: usize,
    /// A smaller difference is not worth telling, even if it is certain: with 10,000 nodes 10 % and 12 % differ.
    pub min_odds_ratio: f64,
    pub max_cohorts: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { alpha: 0.005, min_nodes: 4, min_odds_ratio: 2.0, max_cohorts: 6 }
    }
}

impl Settings {
    /// One node is never a cohort.
    fn least(&self) -> usize {
        self.min_nodes.max(2)
    }

    fn marked(&self, odds_ratio: f64) -> bool {
        odds_ratio >= self.min_odds_ratio || odds_ratio <= 1.0 / self.min_odds_ratio
    }
}

/// The answer, in the shape of the JSON of `coroner fleet why`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub nodes: Counts,
    /// The best explanation first. Each holds at the same membership of the others and, if uptime matters, at the same uptime.
    pub cohorts: Vec<Cohort>,
    pub uptime: Uptime,
    pub looked_at: LookedAt,
    /// Without a difference: what came closest, and is explained by chance.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub closest: Option<Closest>,
    pub conclusion: Conclusion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Conclusion {
    #[serde(rename = "difference")]
    Difference,
    #[serde(rename = "no difference")]
    NoDifference,
    /// Not even a cohort that holds all sick nodes and no other would be certain.
    #[serde(rename = "too few nodes")]
    TooFewNodes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub sick: usize,
    pub healthy: usize,
    pub unknown: usize,
}

/// How much was compared, and how strictly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LookedAt {
    pub attributes: usize,
    pub values: usize,
    pub pairs: usize,
    /// Attributes beyond the bound, those that the fewest nodes tell.
    pub attributes_left_out: usize,
    pub alpha: f64,
}

/// Attribute to value; of two attributes, both hold.
pub type Attributes = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cohort {
    pub attributes: Attributes,
    /// Pick (nearly) the same nodes; nothing tells which of them it is.
    pub aliases: Vec<Attributes>,
    /// Pick other nodes, yet the data do not tell which of them it is.
    pub rivals: Vec<Attributes>,
    /// Less sick than the rest.
    pub protective: bool,
    #[serde(flatten)]
    pub table: Table,
    /// Nodes that do not tell the attributes; they are neither in the cohort nor elsewhere.
    pub left_out: usize,
    pub risk_ratio: Ratio,
    /// At the same uptime and the same membership of the other cohorts (Mantel and Haenszel).
    pub risk_ratio_adjusted: Option<Ratio>,
    pub p_adjusted: f64,
    /// Nodes that are in the cohort but not in an alias, or the other way round.
    pub told_apart_by: Vec<String>,
    /// The comparison in which it shows, if that is not the whole fleet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub among: Option<Among>,
    /// What decides within the cohort who is sick.
    pub within: Vec<Within>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Among {
    pub nodes: AmongNodes,
    #[serde(flatten)]
    pub table: Table,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AmongNodes {
    #[serde(rename = "outside the other harmful cohorts")]
    Outside,
    #[serde(rename = "inside the harmful cohorts")]
    Inside,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Within {
    pub attributes: Attributes,
    /// Hardly a sick node of the cohort is without.
    pub only: bool,
    #[serde(flatten)]
    pub table: Table,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Closest {
    pub attributes: Attributes,
    #[serde(flatten)]
    pub table: Table,
    pub p: f64,
    pub p_adjusted: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Uptime {
    /// Whether nodes were compared at the same uptime, because sick ones have been up for longer or shorter.
    pub matters: bool,
    /// Until a quarter of the nodes of the best cohort is sick again after a boot.
    pub reboot_helps_for_days: Option<f64>,
    /// Why that cannot be said.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reboot_unknown_because: Option<String>,
    pub sick_median_days: Option<f64>,
    pub healthy_median_days: Option<f64>,
    /// Of the best harmful cohort and of the rest; of all nodes if there is no such cohort.
    pub curves: Vec<Curve>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pub of: CurveOf,
    pub nodes: usize,
    pub lives: usize,
    pub onsets: usize,
    /// After this, too few boots were watched to tell.
    pub watched_hours: f64,
    pub points: Vec<Point>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CurveOf {
    All,
    Cohort,
    Elsewhere,
}

/// What the sick nodes have in common.
pub fn explain(population: &Population, settings: &Settings) -> Explanation {
    describe::explanation(population, settings)
}
