//! Pairs of attribute values, such as a kernel on an instance type.
//!
//! A pair counts only if it beats both its parts: within either of them, the nodes that also have the other one are sicker than those that do
//! not. The larger of these two p-values is the pair's.

use crate::columns::{Columns, Pick, Place, has, rank};
use crate::strata::{FEWEST_SICK, Score, Strata};
use crate::table::{Table, benjamini_hochberg, deviation};

/// So many standard deviations within both parts are worth a closer look. It only saves work: thousands of pairs make nothing below 4 count.
const WORTH_A_LOOK: f64 = 2.5;
/// More pairs than this never get a closer look; the most striking ones do.
const MOST_PAIRS: usize = 2_000;
/// Attributes with more values than this (racks), or beyond so many attributes, are not paired: the work grows with the square.
const MOST_VALUES: usize = 512;
const MOST_PAIRED: usize = 64;

pub(crate) struct Pairs {
    /// How many pairs have enough nodes to be compared.
    pub looked_at: usize,
    striking: Vec<(Place, Place)>,
}

impl Pairs {
    pub fn screened(columns: &Columns, min_nodes: usize) -> Pairs {
        let few_values = |c: &usize| columns.attributes[*c].values.len() <= MOST_VALUES;
        let mut paired: Vec<usize> = (0..columns.attributes.len()).filter(few_values).collect();
        paired.sort_by_key(|&c| (rank(columns.attributes[c].name), c));
        paired.truncate(MOST_PAIRED);
        let mut pairs = Pairs { looked_at: 0, striking: Vec::new() };
        let mut striking = Vec::new();
        let mut cells: Vec<(u32, u32)> = Vec::new();
        let sick: Vec<u32> =
            columns.judged.iter().map(|&n| u32::from(columns.sick[n as usize] == Some(true))).collect();
        let values = |c: usize| columns.attributes[c].values.len();
        // Judged nodes only, in a row: this is the innermost loop. Values that are no cohort share the last index; untold ones have none.
        let dense = |c: usize| -> Vec<u32> {
            let place = Place { column: c, value: 0 };
            let index = |of: u32| has(of, place).map_or(u32::MAX, |_| of.min(values(c) as u32));
            columns.judged.iter().map(|&n| index(columns.attributes[c].of[n as usize])).collect()
        };
        let dense: Vec<Vec<u32>> = paired.iter().map(|&c| dense(c)).collect();
        for (i, first) in dense.iter().enumerate() {
            for (j, second) in dense.iter().enumerate().skip(i + 1) {
                let (rows, width) = (values(paired[i]), values(paired[j]) + 1);
                cells.clear();
                cells.resize((rows + 1) * width, (0, 0));
                for ((&a, &b), &sick) in first.iter().zip(second).zip(&sick) {
                    if a != u32::MAX && b != u32::MAX {
                        let cell = &mut cells[a as usize * width + b as usize];
                        cell.0 += 1;
                        cell.1 += sick;
                    }
                }
                let (mut by_row, mut by_column) = (vec![(0, 0); rows + 1], vec![(0, 0); width]);
                let mut all = (0, 0);
                for (row, sum) in cells.chunks(width).zip(&mut by_row) {
                    for (cell, column) in row.iter().zip(&mut by_column) {
                        add(sum, *cell);
                        add(column, *cell);
                    }
                    add(&mut all, *sum);
                }
                for (a, row) in cells.chunks(width).take(rows).enumerate() {
                    for (b, &both) in row[..width - 1].iter().enumerate() {
                        let enough = |part: (u32, u32)| (part.0 - both.0) as usize >= min_nodes;
                        if (both.0 as usize) < min_nodes || !enough(by_row[a]) || !enough(by_column[b]) {
                            continue;
                        }
                        pairs.looked_at += 1;
                        if let Some(z) = striking_by(both, by_row[a], by_column[b], all) {
                            let place = |column: usize, value: usize| Place { column, value };
                            striking.push((z, place(paired[i], a), place(paired[j], b)));
                        }
                    }
                }
            }
        }
        striking.sort_by(|x, y| y.0.total_cmp(&x.0).then((x.1, x.2).cmp(&(y.1, y.2))));
        pairs.striking = striking.into_iter().take(MOST_PAIRS).map(|(_, a, b)| (a, b)).collect();
        pairs
    }

    /// The pairs that beat both their parts within the strata. Their p-value is that of the pair against all other nodes, their adjusted one
    /// that of beating the parts.
    pub fn scored(&self, columns: &Columns, strata: &Strata, ln_alpha: f64, min_odds_ratio: f64) -> Vec<Score> {
        let within = |&(part, other): &(Place, Place)| {
            let of = &columns.column(other).of;
            let nodes = columns.column(part).values[part.value].nodes.iter();
            let told = nodes.filter_map(|&n| Some((n, has(of[n as usize], other)?)));
            let score = Score::new(Pick::Pair(part, other), &columns.tables(strata, told));
            if score.odds_ratio >= min_odds_ratio { score.ln_p } else { 0.0 }
        };
        let ln_p: Vec<f64> = self.striking.iter().map(|&(a, b)| within(&(a, b)).max(within(&(b, a)))).collect();
        let adjusted = benjamini_hochberg(&ln_p, self.looked_at);
        let beating = self.striking.iter().zip(adjusted).filter(|(_, ln_adjusted)| *ln_adjusted <= ln_alpha);
        let scores = beating.map(|(&(a, b), ln_adjusted)| {
            let pick = Pick::Pair(a, b);
            let tables = columns.compare(&columns.members(&pick), strata, |_| true);
            Score { ln_adjusted, ..Score::new(pick, &tables) }
        });
        scores.filter(|score| score.odds_ratio >= min_odds_ratio).collect()
    }
}

fn add(sum: &mut (u32, u32), cell: (u32, u32)) {
    sum.0 += cell.0;
    sum.1 += cell.1;
}

/// By how much a pair beats the part that it beats less, if it is worth a closer look. Counts are (nodes, sick ones).
fn striking_by(both: (u32, u32), a: (u32, u32), b: (u32, u32), all: (u32, u32)) -> Option<f64> {
    let z = |inside: (u32, u32), of: (u32, u32)| {
        let (elsewhere, elsewhere_sick) = (of.0 - inside.0, of.1 - inside.1);
        deviation(&[Table { sick: inside.1, of: inside.0, elsewhere_sick, elsewhere }])
    };
    if both.1 < FEWEST_SICK {
        return None;
    }
    let beats = z(both, a).min(z(both, b));
    // It must also say more about the fleet than its parts do.
    (beats >= WORTH_A_LOOK && z(both, all) > z(a, all).max(z(b, all))).then_some(beats)
}
