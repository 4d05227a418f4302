//! FlameScope's heatmap: a column for each second, a row for each part of a second, in each cell how many samples there are.

use std::collections::VecDeque;

use serde::Serialize;

use crate::model::Sample;

const SECOND: u64 = 1_000_000_000;
/// A day of seconds at 200 rows. A file whose times span more is shown up to there.
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
    /// Samples without a time, or beyond the last column.
    pub left_out: u64,
}

impl OffsetHeatmap {
    pub fn count(&self, column: usize, row: usize) -> u32 {
        self.counts[column * self.rows + row]
    }
}

/// Counts samples.
#[derive(Clone, Debug)]
pub struct OffsetCounter {
    rows: usize,
    first_second: u64,
    /// A column for each second from the first one on.
    columns: VecDeque<Vec<u32>>,
    left_out: u64,
}

impl OffsetCounter {
    /// `rows` is at least 1 and at most 1000.
    pub fn new(rows: usize) -> OffsetCounter {
        OffsetCounter { rows: rows.clamp(1, 1000), first_second: 0, columns: VecDeque::new(), left_out: 0 }
    }

    pub fn add(&mut self, sample: &Sample) {
        let Some(count) = sample.time.and_then(|time| self.cell(time)) else {
            self.left_out += 1;
            return;
        };
        *count = count.saturating_add(1);
    }

    fn cell(&mut self, time: u64) -> Option<&mut u32> {
        let second = time / SECOND;
        if self.columns.is_empty() {
            self.first_second = second;
        }
        let most = MAX_CELLS / self.rows as u64;
        let missing = self.first_second.saturating_sub(second);
        if missing + self.columns.len() as u64 > most || second.saturating_sub(self.first_second) >= most {
            return None;
        }
        for _ in 0..missing {
            self.columns.push_front(vec![0; self.rows]);
        }
        self.first_second -= missing;
        let column = (second - self.first_second) as usize;
        while self.columns.len() <= column {
            self.columns.push_back(vec![0; self.rows]);
        }
        let row = (time % SECOND) as usize * self.rows / SECOND as usize;
        Some(&mut self.columns[column][row])
    }

    pub fn finish(self) -> OffsetHeatmap {
        let counts: Vec<u32> = self.columns.iter().flatten().copied().collect();
        OffsetHeatmap {
            first_second: self.first_second,
            columns: self.columns.len(),
            rows: self.rows,
            largest: counts.iter().copied().max().unwrap_or(0),
            counts,
            left_out: self.left_out,
        }
    }
}
