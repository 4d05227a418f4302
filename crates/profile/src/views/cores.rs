//! The per-core heatmap: time × core. Each cell says what the core did and who had it most. One starved core stands out here and
//! nowhere else: on a busy node the sum over all cores does not change when one thread takes one core for itself.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Kind, Kinds};
use crate::model::{Dictionary, Sample, TaskId};

const MAX_CELLS: u64 = 20_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cell {
    pub user: u32,
    pub kernel: u32,
    pub irq: u32,
    pub idle: u32,
    /// Who had most of the samples that are not idle.
    #[serde(skip)]
    pub owner: Option<TaskId>,
    /// How many of them were the owner's.
    pub owner_samples: u32,
}

impl Cell {
    pub fn busy(&self) -> u32 {
        self.user + self.kernel + self.irq
    }

    /// Between 0 and 1; `None` if nothing was sampled: that is not the same as idle.
    pub fn busy_share(&self) -> Option<f64> {
        let all = self.busy() + self.idle;
        (all > 0).then(|| f64::from(self.busy()) / f64::from(all))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CoreHeatmap {
    /// Start of the first column, in nanoseconds.
    pub start: u64,
    /// Width of a column.
    pub step: u64,
    pub columns: usize,
    /// The cores that have samples; a row for each.
    pub cores: Vec<u32>,
    /// Row after row.
    pub cells: Vec<Cell>,
    /// Samples without a time or a core.
    pub left_out: u64,
}

impl CoreHeatmap {
    pub fn cell(&self, row: usize, column: usize) -> &Cell {
        &self.cells[row * self.columns + column]
    }
}

/// Counts samples. Who had a cell is settled when the time is well past it, so that memory follows the cells.
#[derive(Clone, Debug)]
pub struct CoreCounter {
    step: u64,
    kinds: Kinds,
    /// By core, then by column from the start of time on.
    cells: BTreeMap<u32, BTreeMap<u64, Cell>>,
    /// Who had how many samples of a column that is still open: column, core, task.
    open: BTreeMap<(u64, u32, TaskId), u32>,
    newest: u64,
    count: u64,
    left_out: u64,
}

/// Columns that stay open behind the newest: samples come nearly in order of time.
const OPEN: u64 = 64;

impl CoreCounter {
    /// Columns are `step` nanoseconds wide.
    pub fn new(step: u64) -> CoreCounter {
        CoreCounter {
            step: step.max(1),
            kinds: Kinds::default(),
            cells: BTreeMap::new(),
            open: BTreeMap::new(),
            newest: 0,
            count: 0,
            left_out: 0,
        }
    }

    pub fn add(&mut self, names: &Dictionary, sample: &Sample) {
        let (Some(core), Some(time)) = (sample.core, sample.time) else {
            self.left_out += 1;
            return;
        };
        let column = time / self.step;
        if column > self.newest {
            self.newest = column;
            self.settle(column.saturating_sub(OPEN));
        }
        let columns = self.cells.entry(core).or_default();
        if !columns.contains_key(&column) {
            if self.count >= MAX_CELLS {
                self.left_out += 1;
                return;
            }
            self.count += 1;
        }
        let cell = columns.entry(column).or_default();
        match self.kinds.kind(names, sample) {
            Kind::User => cell.user += 1,
            Kind::Kernel => cell.kernel += 1,
            Kind::Irq => cell.irq += 1,
            Kind::Idle => {
                cell.idle += 1;
                return;
            }
        }
        *self.open.entry((column, core, sample.task)).or_default() += 1;
    }

    /// Names the owners of the columns before `until`.
    fn settle(&mut self, until: u64) {
        while let Some(entry) = self.open.first_entry().filter(|entry| entry.key().0 < until) {
            let ((column, core, task), samples) = entry.remove_entry();
            let Some(cell) = self.cells.get_mut(&core).and_then(|columns| columns.get_mut(&column)) else { continue };
            // The smaller number wins a tie: the same file gives the same picture.
            if samples > cell.owner_samples {
                cell.owner = Some(task);
                cell.owner_samples = samples;
            }
        }
    }

    pub fn finish(mut self) -> CoreHeatmap {
        self.settle(u64::MAX);
        let ends = |columns: &BTreeMap<u64, Cell>| Some((*columns.keys().next()?, *columns.keys().next_back()?));
        let spans: Vec<(u64, u64)> = self.cells.values().filter_map(ends).collect();
        let first = spans.iter().map(|(first, _)| *first).min().unwrap_or(0);
        let last = spans.iter().map(|(_, last)| *last).max().unwrap_or(0);
        let cores: Vec<u32> = self.cells.keys().copied().collect();
        let most = MAX_CELLS / cores.len().max(1) as u64;
        let columns = if cores.is_empty() { 0 } else { (last - first + 1).min(most) as usize };
        let mut map = CoreHeatmap {
            start: first * self.step,
            step: self.step,
            columns,
            cells: vec![Cell::default(); columns * cores.len()],
            cores,
            left_out: self.left_out,
        };
        for (row, cells) in self.cells.into_values().enumerate() {
            for (column, cell) in cells {
                match usize::try_from(column - first) {
                    Ok(column) if column < columns => map.cells[row * columns + column] = cell,
                    _ => map.left_out += u64::from(cell.busy()) + u64::from(cell.idle),
                }
            }
        }
        map
    }
}
