//! FlameScope's heatmap: a column for each second, a row for each part of a second, in each cell how many samples there are.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use super::window::densest;
use crate::model::Sample;

const SECOND: u64 = 1_000_000_000;
/// A day of seconds at 200 rows. Of a file whose times span more the part with most samples is shown.
const MAX_CELLS: u64 = 20_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OffsetHeatmap {
    /// The first column's second.
    pub first_second: u64,
    pub columns: usize,
    pub rows: usize,
    /// Column after column, row 0 is the start of the second.
    pub counts: Vec<u32>,
    pub largest: u32,
    /// Samples without a time, or beyond what is shown.
    pub left_out: u64,
}

impl OffsetHeatmap {
    pub fn count(&self, column: usize, row: usize) -> u32 {
        self.counts[column * self.rows + row]
    }

    /// The times that are counted in a cell, in nanoseconds: what a filter must have to give the same samples.
    pub fn times(&self, column: usize, row: usize) -> Range<u64> {
        let second = self.first_second.saturating_add(column as u64).saturating_mul(SECOND);
        // The first offset of a row is the first whose part of the second, rounded down, is the row.
        let offset = |row: usize| (row as u64 * SECOND).div_ceil(self.rows.max(1) as u64);
        second.saturating_add(offset(row))..second.saturating_add(offset(row + 1))
    }
}

/// Counts samples. Memory follows the seconds that have samples.
#[derive(Clone, Debug)]
pub struct OffsetCounter {
    rows: u64,
    columns: BTreeMap<u64, Vec<u32>>,
    /// The column of the latest sample; in `columns` when another one's turn comes.
    second: u64,
    column: Vec<u32>,
    left_out: u64,
}

impl OffsetCounter {
    /// `rows` is at least 1 and at most 1000.
    pub fn new(rows: usize) -> OffsetCounter {
        let rows = rows.clamp(1, 1000) as u64;
        OffsetCounter { rows, columns: BTreeMap::new(), second: 0, column: Vec::new(), left_out: 0 }
    }

    pub fn add(&mut self, sample: &Sample) {
        let Some(time) = sample.time else {
            self.left_out += 1;
            return;
        };
        let second = time / SECOND;
        if (second != self.second || self.column.is_empty()) && !self.turn_to(second) {
            self.left_out += 1;
            return;
        }
        let count = &mut self.column[(time % SECOND * self.rows / SECOND) as usize];
        *count = count.saturating_add(1);
    }

    /// Makes `second` the column at hand, if there is room.
    fn turn_to(&mut self, second: u64) -> bool {
        if !self.column.is_empty() {
            self.columns.insert(self.second, std::mem::take(&mut self.column));
        }
        let known = self.columns.remove(&second);
        if known.is_none() && (self.columns.len() as u64 + 1) * self.rows > MAX_CELLS {
            return false;
        }
        self.second = second;
        self.column = known.unwrap_or_else(|| vec![0; self.rows as usize]);
        true
    }

    pub fn finish(mut self) -> OffsetHeatmap {
        if !self.column.is_empty() {
            self.columns.insert(self.second, self.column);
        }
        let sum = |counts: &Vec<u32>| counts.iter().map(|n| u64::from(*n)).sum::<u64>();
        let columns: Vec<(u64, u64)> = self.columns.iter().map(|(second, counts)| (*second, sum(counts))).collect();
        let most = MAX_CELLS / self.rows;
        let first_second = densest(&columns, most);
        let shown = |second: u64| second.checked_sub(first_second).filter(|at| *at < most);
        let width = columns.iter().filter_map(|(second, _)| shown(*second)).max().map_or(0, |at| at as usize + 1);
        let rows = self.rows as usize;
        let mut map = OffsetHeatmap {
            first_second,
            columns: width,
            rows,
            counts: vec![0; width * rows],
            largest: 0,
            left_out: self.left_out,
        };
        for ((second, counts), (_, samples)) in self.columns.iter().zip(&columns) {
            match shown(*second) {
                Some(at) => map.counts[at as usize * rows..][..rows].copy_from_slice(counts),
                None => map.left_out += samples,
            }
        }
        map.largest = map.counts.iter().copied().max().unwrap_or(0);
        map
    }
}
