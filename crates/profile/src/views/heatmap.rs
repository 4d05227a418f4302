//! FlameScope's heatmap: a column for each second, a row for each part of a second, in each cell how many samples there are.

use serde::Serialize;

use super::Selection;

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

/// Counts the selected samples. `rows` is at least 1 and at most 1000.
pub fn offsets(selection: &Selection<'_>, rows: usize) -> OffsetHeatmap {
    let rows = rows.clamp(1, 1000);
    let (first, last) = selection.profile().samples.span().unwrap_or((0, 0));
    let first_second = first / SECOND;
    let columns = (last / SECOND - first_second + 1).min(MAX_CELLS / rows as u64) as usize;
    let mut map =
        OffsetHeatmap { first_second, columns, rows, counts: vec![0; columns * rows], largest: 0, left_out: 0 };
    for sample in selection.samples() {
        let column = sample.time.map(|time| (time / SECOND).saturating_sub(first_second));
        match (sample.time, column) {
            (Some(time), Some(column)) if column < columns as u64 => {
                let row = (time % SECOND) as usize * rows / SECOND as usize;
                let count = &mut map.counts[column as usize * rows + row];
                *count = count.saturating_add(1);
                map.largest = map.largest.max(*count);
            }
            _ => map.left_out += 1,
        }
    }
    map
}
