//! The per-core heatmap: time × core. Each cell says what the core did and who had it most. One starved core stands out here and
//! nowhere else: on a busy node the sum over all cores does not change when one thread takes one core for itself.

use std::collections::HashMap;

use serde::Serialize;

use super::{Kind, Kinds, Selection};
use crate::model::TaskId;

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

/// Counts the selected samples in columns of `step` nanoseconds (made wider if there would be too many cells).
pub fn heatmap(selection: &Selection<'_>, kinds: &Kinds<'_>, step: u64) -> CoreHeatmap {
    let mut cores: Vec<u32> = Vec::new();
    let (mut first, mut last) = (u64::MAX, 0);
    for sample in selection.samples() {
        if let (Some(core), Some(time)) = (sample.core, sample.time) {
            if let Err(at) = cores.binary_search(&core) {
                cores.insert(at, core);
            }
            first = first.min(time);
            last = last.max(time);
        }
    }
    let first = first.min(last);
    let most_columns = (MAX_CELLS / cores.len().max(1) as u64).max(1);
    let step = step.max(1).max((last - first) / most_columns + 1);
    let start = first / step * step;
    let columns = ((last - start) / step + 1) as usize;
    let cells = vec![Cell::default(); columns * cores.len()];
    let mut map = CoreHeatmap { start, step, columns, cores, cells, left_out: 0 };
    // Who had how much of the column at hand; samples come in order of time.
    let mut owners: HashMap<(usize, TaskId), u32> = HashMap::new();
    let mut at = 0;
    for sample in selection.samples() {
        let (Some(core), Some(time)) = (sample.core, sample.time) else {
            map.left_out += 1;
            continue;
        };
        let column = ((time - start) / step) as usize;
        if column != at {
            settle(&mut map, &mut owners, at);
            at = column;
        }
        let Ok(row) = map.cores.binary_search(&core) else { continue };
        let cell = &mut map.cells[row * columns + column];
        match kinds.kind(&sample) {
            Kind::User => cell.user += 1,
            Kind::Kernel => cell.kernel += 1,
            Kind::Irq => cell.irq += 1,
            Kind::Idle => {
                cell.idle += 1;
                continue;
            }
        }
        *owners.entry((row, sample.task)).or_default() += 1;
    }
    settle(&mut map, &mut owners, at);
    map
}

fn settle(map: &mut CoreHeatmap, owners: &mut HashMap<(usize, TaskId), u32>, column: usize) {
    for ((row, task), samples) in owners.drain() {
        let cell = &mut map.cells[row * map.columns + column];
        // The smaller id wins a tie: the same file gives the same picture.
        if (samples, std::cmp::Reverse(task))
            > (cell.owner_samples, std::cmp::Reverse(cell.owner.unwrap_or(TaskId(u32::MAX))))
        {
            cell.owner = Some(task);
            cell.owner_samples = samples;
        }
    }
}
