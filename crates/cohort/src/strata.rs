//! Groups of nodes within which cohorts are compared, and the comparison itself.

use crate::Settings;
use crate::columns::{Column, Columns, Members, Pick, Place, has};
use crate::table::{Table, deviation, ln_tail, pooled_odds_ratio, stratified_ln_p};
use std::collections::HashMap;

/// Fewer sick nodes in a cohort are an anecdote, however unlikely.
pub(crate) const FEWEST_SICK: u32 = 3;
/// Below this many standard deviations no exact test is made; its result could not matter.
const WORTH_A_TEST: f64 = 2.0;

/// For each node its stratum. Nodes are compared only with nodes of the same stratum.
#[derive(Clone)]
pub(crate) struct Strata {
    of: Vec<u32>,
    count: usize,
}

impl Strata {
    pub fn one(nodes: usize) -> Strata {
        Strata { of: vec![0; nodes], count: 1 }
    }

    /// Split further by any other grouping.
    pub fn split<T: std::hash::Hash + Eq + Copy>(&self, by: &[T]) -> Strata {
        let mut seen: HashMap<(u32, T), u32> = HashMap::new();
        let both = self.of.iter().zip(by);
        let of = both.map(|(&old, &new)| {
            let next = seen.len() as u32;
            *seen.entry((old, new)).or_insert(next)
        });
        let of = of.collect();
        Strata { of, count: seen.len() }
    }
}

/// How strongly a pick differs from the nodes outside it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Score {
    pub pick: Pick,
    pub ln_p: f64,
    pub ln_adjusted: f64,
    pub odds_ratio: f64,
    /// Sick nodes inside.
    pub sick: u32,
}

impl Score {
    pub fn new(pick: Pick, tables: &[Table]) -> Score {
        let worth = deviation(tables).abs() >= WORTH_A_TEST;
        let ln_p = if worth { stratified_ln_p(tables) } else { 0.0 };
        let sick = tables.iter().map(|table| table.sick).sum();
        Score { pick, ln_p, ln_adjusted: ln_p, odds_ratio: pooled_odds_ratio(tables), sick }
    }

    pub fn protective(&self) -> bool {
        self.odds_ratio < 1.0
    }

    /// Certain, and worth telling.
    pub fn counts(&self, ln_alpha: f64, settings: &Settings) -> bool {
        let enough = self.protective() || self.sick >= FEWEST_SICK;
        enough && self.ln_adjusted <= ln_alpha && settings.marked(self.odds_ratio)
    }
}

impl Columns<'_> {
    /// The tables of some nodes, each of which is inside or not; only those that say something.
    pub fn tables(&self, strata: &Strata, nodes: impl Iterator<Item = (u32, bool)>) -> Vec<Table> {
        let mut tables = vec![Table::default(); strata.count];
        for (node, inside) in nodes {
            if let Some(sick) = self.sick[node as usize] {
                tables[strata.of[node as usize] as usize].add(inside, sick);
            }
        }
        tables.retain(Table::says_something);
        tables
    }

    pub fn compare(&self, members: &Members, strata: &Strata, among: impl Fn(usize) -> bool) -> Vec<Table> {
        let told = self.judged.iter().filter(|n| among(**n as usize));
        self.tables(strata, told.filter_map(|&n| Some((n, members[n as usize]?))))
    }

    /// One table for all nodes.
    pub fn table(&self, members: &Members, among: impl Fn(usize) -> bool) -> Table {
        let mut table = Table::default();
        for &node in self.judged.iter().filter(|n| among(**n as usize)) {
            if let (Some(inside), Some(sick)) = (members[node as usize], self.sick[node as usize]) {
                table.add(inside, sick);
            }
        }
        table
    }

    /// The logarithm of the chance that a pick looks so harmful (or so protective) although it makes no difference.
    pub fn ln_chance(
        &self,
        members: &Members,
        strata: &Strata,
        protective: bool,
        among: impl Fn(usize) -> bool,
    ) -> f64 {
        ln_tail(&self.compare(members, strata, among), !protective)
    }

    /// All values, each compared with the other nodes that tell the attribute.
    pub fn values_scored(&self, strata: &Strata) -> Vec<Score> {
        let mut scores = Vec::new();
        let mut inside = vec![(0u32, 0u32); strata.count];
        let mut touched: Vec<u32> = Vec::new();
        let mut tables = Vec::new();
        for (column, attribute) in self.attributes.iter().enumerate() {
            let all = self.totals(attribute, strata);
            for (value, cohort) in attribute.values.iter().enumerate() {
                for &node in &cohort.nodes {
                    let stratum = strata.of[node as usize];
                    let count = &mut inside[stratum as usize];
                    if count.0 == 0 {
                        touched.push(stratum);
                    }
                    count.0 += 1;
                    count.1 += u32::from(self.sick[node as usize] == Some(true));
                }
                tables.clear();
                for stratum in touched.drain(..) {
                    let (of, sick) = std::mem::take(&mut inside[stratum as usize]);
                    let (nodes, all_sick) = all[stratum as usize];
                    let table = Table { sick, of, elsewhere_sick: all_sick - sick, elsewhere: nodes - of };
                    tables.extend(Some(table).filter(Table::says_something));
                }
                scores.push(Score::new(Pick::Value(Place { column, value }), &tables));
            }
        }
        scores
    }

    /// Per stratum the judged nodes that tell the attribute, and how many of them are sick.
    fn totals(&self, attribute: &Column, strata: &Strata) -> Vec<(u32, u32)> {
        let mut totals = vec![(0, 0); strata.count];
        let anything = Place { column: 0, value: 0 };
        for &node in self.judged.iter().filter(|n| has(attribute.of[**n as usize], anything).is_some()) {
            let total = &mut totals[strata.of[node as usize] as usize];
            total.0 += 1;
            total.1 += u32::from(self.sick[node as usize] == Some(true));
        }
        totals
    }
}
