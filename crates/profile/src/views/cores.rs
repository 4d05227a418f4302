//! The per-core heatmap: time × core. Each cell shows what the core did and who used it most. Only here does one starved core
//! stand out: on a busy node the sum over all cores does not change when one thread monopolises one.
//!
//! Samples are weighted by their period: a core's rate may change, even within a cell. A core's busy share is the non-idle part
//! of the weight. If it was never seen idle, it is the time of its busy samples: from their periods if those are times, else
//! relative to a fully busy core. Only one event per core counts: the clock with the most samples.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::clocks::{Clocks, Ticking};
use super::usual::Usual;
use super::window::densest;
use super::{Kinds, SampleKind};
use crate::model::{Dictionary, EventId, Sample, Seeded, TaskId};

/// A day of seconds on 230 cores. Samples beyond it are counted as left out.
const MAX_CELLS: u64 = 20_000_000;
/// From `ALWAYS_CELLS` on, about one in `SPREAD` shown cells must be near a sample.
const SPREAD: u64 = 16;
const ALWAYS_CELLS: u64 = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Weight of its samples: microseconds of a timer, thousands of cycles, or the number of samples.
    pub user: u32,
    pub kernel: u32,
    pub irq: u32,
    /// Always 0 if idle cores are not sampled.
    pub idle: u32,
    /// Who had most of the non-idle weight.
    #[serde(skip)]
    pub owner: Option<TaskId>,
    /// The owner's part of it.
    pub owner_weight: u32,
    /// Number of samples, and of those that are not idle.
    pub samples: u32,
    pub busy_samples: u32,
    /// Whether this core was sampled while it was idle.
    pub idle_sampled: bool,
    /// Weights are microseconds.
    #[serde(skip)]
    pub is_timed: bool,
}

impl Cell {
    pub fn busy(&self) -> u32 {
        self.user.saturating_add(self.kernel).saturating_add(self.irq)
    }

    /// Busy or idle.
    pub fn weight(&self) -> u32 {
        self.busy().saturating_add(self.idle)
    }

    /// Time of the busy samples in nanoseconds, if their event tells.
    pub fn busy_ns(&self) -> Option<u64> {
        (self.is_timed && self.busy() > 0).then(|| u64::from(self.busy()) * 1000)
    }

    /// Between 0 and 1; `None` if nothing was sampled or idle time is not sampled, which is not the same as idle.
    pub fn busy_share(&self) -> Option<f64> {
        let all = self.weight();
        (all > 0 && self.idle_sampled).then(|| f64::from(self.busy()) / f64::from(all))
    }
}

/// How busy a core was, and how that is known. Shares are between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Busy {
    /// Measured: idle time was sampled too.
    Measured(f64),
    /// From the time of its samples, or their number relative to a busy core: an idle core has none.
    Estimated(f64),
    /// No samples, while other cores had some: idle (if idle time is not sampled), lost, or offline.
    Silent,
    /// No core had samples.
    NotSampled,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoreHeatmap {
    /// Start of the first column, in nanoseconds.
    pub start: u64,
    /// Width of a column.
    pub step: u64,
    pub columns: usize,
    /// The cores with samples; one row each.
    pub cores: Vec<u32>,
    /// For each row, the weight of a fully busy core in a column.
    pub full: Vec<f64>,
    /// Row after row.
    pub cells: Vec<Cell>,
    /// Samples without a time or core, or outside what is shown.
    pub left_out: u64,
    /// Samples of unused events: not a clock, or fewer samples than the one used.
    pub other_events: u64,
    /// Samples that came after their cell's owner was decided: counted, but the owner may be wrong.
    pub late: u64,
}

impl CoreHeatmap {
    pub fn cell(&self, row: usize, column: usize) -> &Cell {
        &self.cells[row * self.columns + column]
    }

    pub fn busy(&self, row: usize, column: usize) -> Busy {
        let cell = self.cell(row, column);
        match cell.busy_share() {
            Some(share) => Busy::Measured(share),
            None if let Some(busy_ns) = cell.busy_ns() => Busy::Estimated((busy_ns as f64 / self.step as f64).min(1.0)),
            None if cell.samples > 0 => Busy::Estimated((f64::from(cell.busy()) / self.full[row].max(1.0)).min(1.0)),
            None if (0..self.cores.len()).any(|row| self.cell(row, column).samples > 0) => Busy::Silent,
            None => Busy::NotSampled,
        }
    }
}

/// A cell while it is counted.
#[derive(Clone, Copy, Debug)]
struct Count {
    kinds: [u32; 4],
    owner: u32,
    owner_weight: u32,
    samples: u32,
    busy_samples: u32,
}

const NOBODY: u32 = u32::MAX;
const EMPTY: Count = Count { kinds: [0; 4], owner: NOBODY, owner_weight: 0, samples: 0, busy_samples: 0 };
/// Columns per block: gaps in time cost nothing, and a cell hardly more than its counts.
const CHUNK: usize = 64;
/// Columns per core with an undecided owner: samples come nearly in time order.
const OPEN: usize = 4;

/// One core under one event.
#[derive(Clone, Debug, Default)]
struct Row {
    chunks: BTreeMap<u64, Box<[Count; CHUNK]>>,
    /// The weights per thread in the latest columns.
    open: Vec<(u64, HashMap<u32, Had, Seeded>)>,
    last: Option<u64>,
    samples: u64,
    late: u64,
    /// It was seen idle.
    idle: bool,
    /// Some samples do not tell how much time they represent.
    is_untimed: bool,
}

/// A thread's part of a cell.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    weight: u32,
    samples: u32,
}

impl Row {
    fn open(&mut self, column: u64) -> &mut HashMap<u32, Had, Seeded> {
        let at = match self.open.iter().rposition(|(open, _)| *open == column) {
            Some(at) => at,
            None => {
                if self.open.len() == OPEN {
                    self.settle_first();
                }
                self.open.push((column, HashMap::default()));
                self.open.len() - 1
            }
        };
        &mut self.open[at].1
    }

    /// Decides the owner of the oldest open column.
    fn settle_first(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let (column, mut tasks) = self.open.remove(0);
        let Some(count) =
            self.chunks.get_mut(&(column / CHUNK as u64)).map(|chunk| &mut chunk[column as usize % CHUNK])
        else {
            return;
        };
        if count.owner != NOBODY {
            // Already decided: these came late.
            self.late += tasks.values().map(|had| u64::from(had.samples)).sum::<u64>();
            if let Some(had) = tasks.get_mut(&count.owner) {
                had.weight = had.weight.saturating_add(count.owner_weight);
            }
        }
        // The smaller id wins a tie, so that the same file gives the same picture.
        let most = tasks.into_iter().max_by_key(|(task, had)| (had.weight, std::cmp::Reverse(*task)));
        if let Some((task, had)) = most.filter(|(_, had)| had.weight > count.owner_weight) {
            count.owner = task;
            count.owner_weight = had.weight;
        }
    }
}

/// The unit for cycles, so that an hour's fit into a cell.
const CYCLES: u64 = 1 << 14;

/// The weight of a sample in a cell, and whether it is time.
fn weight(ticking: Ticking, sample: &Sample) -> (u32, bool) {
    let (weight, is_time) = match ticking.time_of(sample) {
        Some(ns) => (ns / 1000, true),
        None => (sample.period / CYCLES, false),
    };
    (u32::try_from(weight.max(1)).unwrap_or(u32::MAX), is_time)
}

/// Counts samples. Memory follows the cells: 32 bytes each while counting, 40 in the result.
#[derive(Clone, Debug, Default)]
pub struct CoreCounter {
    step: u64,
    kinds: Kinds,
    clocks: Clocks,
    usual: HashMap<EventId, Usual>,
    rows: BTreeMap<(u32, EventId), Row>,
    chunks: u64,
    left_out: u64,
    other_events: u64,
}

impl CoreCounter {
    /// Columns are `step` nanoseconds wide.
    pub fn new(step: u64) -> CoreCounter {
        CoreCounter { step: step.max(1), ..CoreCounter::default() }
    }

    /// Returns the sample's weight in its cell, if it counts.
    pub fn add(&mut self, names: &Dictionary, sample: &Sample) -> Option<u32> {
        if !self.clocks.wants(names, sample.event) {
            self.other_events += 1;
            return None;
        }
        let (Some(core), Some(time)) = (sample.core, sample.time) else {
            self.left_out += 1;
            return None;
        };
        let (weight, is_time) = weight(self.clocks.ticking(sample.event), sample);
        let column = time / self.step;
        let row = self.rows.entry((core, sample.event)).or_default();
        let chunk = column / CHUNK as u64;
        if !row.chunks.contains_key(&chunk) {
            if (self.chunks + 1) * CHUNK as u64 > MAX_CELLS {
                self.left_out += 1;
                return None;
            }
            self.chunks += 1;
        }
        if let Some(distance) = row.last.replace(time).and_then(|last| time.checked_sub(last)) {
            self.usual.entry(sample.event).or_default().add(distance / u64::from(weight));
        }
        row.samples += 1;
        row.is_untimed |= !is_time;
        let count = &mut row.chunks.entry(chunk).or_insert_with(|| Box::new([EMPTY; CHUNK]))[column as usize % CHUNK];
        let kind = self.kinds.kind(names, sample);
        let counted = &mut count.kinds[kind as usize];
        *counted = counted.saturating_add(weight);
        count.samples = count.samples.saturating_add(1);
        if kind == SampleKind::Idle {
            row.idle = true;
            return Some(weight);
        }
        count.busy_samples = count.busy_samples.saturating_add(1);
        let had = row.open(column).entry(sample.task.0).or_default();
        had.weight = had.weight.saturating_add(weight);
        had.samples = had.samples.saturating_add(1);
        Some(weight)
    }

    pub fn finish(mut self) -> CoreHeatmap {
        let mut best: BTreeMap<u32, (EventId, Row)> = BTreeMap::new();
        for ((core, event), mut row) in self.rows {
            while !row.open.is_empty() {
                row.settle_first();
            }
            match best.get_mut(&core) {
                Some(other) if other.1.samples < row.samples => {
                    self.other_events += other.1.samples;
                    *other = (event, row);
                }
                Some(_) => self.other_events += row.samples,
                None => {
                    best.insert(core, (event, row));
                }
            }
        }
        let cores: Vec<u32> = best.keys().copied().collect();
        // Two samples a year apart must not allocate a year of cells.
        let cells = (self.chunks * CHUNK as u64).saturating_mul(SPREAD).saturating_add(ALWAYS_CELLS).min(MAX_CELLS);
        let most = (cells / cores.len().max(1) as u64).max(1);
        let (start, columns) = window(best.values().map(|(_, row)| row), most);
        let mut map = CoreHeatmap {
            start: start.saturating_mul(self.step),
            step: self.step,
            columns,
            cells: Vec::with_capacity(columns * cores.len()),
            cores,
            full: Vec::new(),
            left_out: self.left_out,
            other_events: self.other_events,
            late: 0,
        };
        for (event, row) in best.into_values() {
            let interval = self.usual.get(&event).map_or(0, Usual::interval);
            map.full.push(if interval == 0 { 0.0 } else { self.step as f64 / interval as f64 });
            map.late += row.late;
            let idle_sampled = row.idle && self.clocks.ticking(event) == Ticking::Always;
            let is_timed = !row.is_untimed;
            let from = map.cells.len();
            map.cells.resize(from + columns, Cell { idle_sampled, is_timed, ..Cell::default() });
            for (chunk, counts) in row.chunks {
                for (at, count) in counts.iter().enumerate() {
                    let [user, kernel, irq, idle] = count.kinds;
                    let column = (chunk * CHUNK as u64 + at as u64).checked_sub(start).map(|column| column as usize);
                    let Some(column) = column.filter(|column| *column < columns) else {
                        map.left_out += u64::from(count.samples);
                        continue;
                    };
                    let owner = Some(count.owner).filter(|owner| *owner != NOBODY).map(TaskId);
                    let Count { owner_weight, samples, busy_samples, .. } = *count;
                    map.cells[from + column] = Cell {
                        user,
                        kernel,
                        irq,
                        idle,
                        owner,
                        owner_weight,
                        samples,
                        busy_samples,
                        idle_sampled,
                        is_timed,
                    };
                }
            }
        }
        map
    }
}

/// The first column and the number of columns.
fn window<'r>(rows: impl Iterator<Item = &'r Row>, most: u64) -> (u64, usize) {
    let mut columns: BTreeMap<u64, u64> = BTreeMap::new();
    for (chunk, counts) in rows.flat_map(|row| &row.chunks) {
        for (at, count) in counts.iter().enumerate() {
            if count.samples > 0 {
                *columns.entry(chunk * CHUNK as u64 + at as u64).or_default() += u64::from(count.samples);
            }
        }
    }
    let columns: Vec<(u64, u64)> = columns.into_iter().collect();
    let start = densest(&columns, most);
    let last = columns.iter().rev().map(|(at, _)| *at).find(|at| at.saturating_sub(start) < most);
    (start, last.map_or(0, |last| (last.saturating_sub(start) + 1) as usize))
}
