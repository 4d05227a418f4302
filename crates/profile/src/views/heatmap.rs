//! FlameScope's heatmap: a column for each second, a row for each part of a second, in each cell how many samples there are.
//!
//! A core may be sampled more often for a while, and must not look busier then. So samples weigh what they stand for, and are counted as
//! as many as there would have been at the usual rate: where all are of one rate that is their number.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use super::clocks::{Clocks, Ticking};
use super::window::densest;
use crate::model::{Dictionary, EventId, Sample};

const SECOND: u64 = 1_000_000_000;
/// A day of seconds at 200 rows. Of a file whose times span more the part with most samples is shown.
const MAX_CELLS: u64 = 20_000_000;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OffsetHeatmap {
    /// The first column's second.
    pub first_second: u64,
    pub columns: usize,
    pub rows: usize,
    /// Column after column, row 0 is the start of the second. Samples of the usual rate; not whole where the rate changes.
    pub counts: Vec<f32>,
    pub largest: f32,
    /// Samples that are shown, each as one.
    pub samples: u64,
    /// Samples without a time, or beyond what is shown.
    pub left_out: u64,
    /// The nanoseconds of a core that a sample of the usual rate stands for, where a clock says so.
    pub sample_ns: Option<u64>,
    /// Not all samples stand for the same.
    pub is_weighed: bool,
}

impl OffsetHeatmap {
    pub fn count(&self, column: usize, row: usize) -> f32 {
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

#[derive(Clone, Debug)]
struct Column {
    samples: u64,
    weights: Vec<u64>,
}

/// The periods of an event's samples, those that are nearly the same as one, with what all of their samples stand for.
#[derive(Clone, Debug, Default)]
struct Periods {
    known: Vec<(u32, u64, u64)>,
    latest: usize,
}

/// Of all weight so much is of samples that stand for the usual period or for more. Of two cores one may be sampled faster all the time.
const USUAL: f64 = 0.4;

impl Periods {
    fn add(&mut self, period: u64) {
        // Eight for each doubling.
        let power = period.max(1).ilog2();
        let alike = power * 8 + ((u128::from(period) * 8) >> power) as u32 % 8;
        if self.known.get(self.latest).is_none_or(|(known, ..)| *known != alike) {
            self.latest = self.known.iter().position(|(known, ..)| *known == alike).unwrap_or_else(|| {
                self.known.push((alike, period, 0));
                self.known.len() - 1
            });
        }
        let weight = &mut self.known[self.latest].2;
        *weight = weight.saturating_add(period);
    }

    fn usual(&self) -> u64 {
        let mut known = self.known.clone();
        known.sort_unstable_by_key(|(alike, ..)| std::cmp::Reverse(*alike));
        let all: f64 = known.iter().map(|(.., weight)| *weight as f64).sum();
        let mut sum = 0.0;
        let reaches = |(_, _, weight): &&(u32, u64, u64)| {
            sum += *weight as f64;
            sum >= USUAL * all
        };
        known.iter().find(reaches).map_or(1, |(_, period, _)| (*period).max(1))
    }
}

/// One event.
#[derive(Clone, Debug)]
struct Layer {
    event: EventId,
    ticking: Ticking,
    periods: Periods,
    columns: BTreeMap<u64, Column>,
    /// The column of the latest sample; in `columns` when another one's turn comes.
    latest: Option<(u64, Column)>,
}

/// Counts samples. Memory follows the seconds that have samples.
#[derive(Clone, Debug)]
pub struct OffsetCounter {
    rows: u64,
    clocks: Clocks,
    layers: Vec<Layer>,
    /// The layer of the latest sample.
    at: usize,
    columns: u64,
    left_out: u64,
}

impl OffsetCounter {
    /// `rows` is at least 1 and at most 1000.
    pub fn new(rows: usize) -> OffsetCounter {
        let rows = rows.clamp(1, 1000) as u64;
        OffsetCounter { rows, clocks: Clocks::default(), layers: Vec::new(), at: 0, columns: 0, left_out: 0 }
    }

    pub fn add(&mut self, names: &Dictionary, sample: &Sample) {
        let Some(time) = sample.time else {
            self.left_out += 1;
            return;
        };
        if self.layers.get(self.at).is_none_or(|layer| layer.event != sample.event) {
            self.at = self.layers.iter().position(|layer| layer.event == sample.event).unwrap_or_else(|| {
                let (event, ticking) = (sample.event, self.clocks.of(names, sample.event));
                let (periods, columns) = (Periods::default(), BTreeMap::new());
                self.layers.push(Layer { event, ticking, periods, columns, latest: None });
                self.layers.len() - 1
            });
        }
        let layer = &mut self.layers[self.at];
        let second = time / SECOND;
        if layer.latest.as_ref().is_none_or(|(latest, _)| *latest != second)
            && !layer.turn_to(second, self.rows, &mut self.columns)
        {
            self.left_out += 1;
            return;
        }
        // Of what does not tick each sample is one: it is about how often something happens.
        let weight = if layer.ticking == Ticking::Not { 1 } else { sample.period.max(1) };
        layer.periods.add(weight);
        if let Some((_, column)) = &mut layer.latest {
            column.samples += 1;
            let cell = &mut column.weights[(time % SECOND * self.rows / SECOND) as usize];
            *cell = cell.saturating_add(weight);
        }
    }

    pub fn finish(mut self) -> OffsetHeatmap {
        let mut samples: BTreeMap<u64, u64> = BTreeMap::new();
        for layer in &mut self.layers {
            layer.columns.extend(layer.latest.take());
            for (second, column) in &layer.columns {
                *samples.entry(*second).or_default() += column.samples;
            }
        }
        let columns: Vec<(u64, u64)> = samples.into_iter().collect();
        let most = MAX_CELLS / self.rows;
        let first_second = densest(&columns, most);
        let shown = |second: u64| second.checked_sub(first_second).filter(|at| *at < most);
        let width = columns.iter().filter_map(|(second, _)| shown(*second)).max().map_or(0, |at| at as usize + 1);
        let rows = self.rows as usize;
        let mut map = OffsetHeatmap {
            first_second,
            columns: width,
            rows,
            counts: vec![0.0; width * rows],
            largest: 0.0,
            samples: 0,
            left_out: self.left_out,
            sample_ns: None,
            is_weighed: self.layers.iter().any(|layer| layer.periods.known.len() > 1),
        };
        if let [layer] = &self.layers[..] {
            map.sample_ns = layer.ticking.time_of_period(layer.periods.usual());
        }
        for layer in &self.layers {
            let usual = layer.periods.usual() as f64;
            for (second, column) in &layer.columns {
                let Some(at) = shown(*second) else {
                    map.left_out += column.samples;
                    continue;
                };
                map.samples += column.samples;
                for (count, weight) in map.counts[at as usize * rows..][..rows].iter_mut().zip(&column.weights) {
                    *count += (*weight as f64 / usual) as f32;
                }
            }
        }
        map.largest = map.counts.iter().copied().fold(0.0, f32::max);
        map
    }
}

impl Layer {
    /// Makes `second` the column at hand, if there is room.
    fn turn_to(&mut self, second: u64, rows: u64, columns: &mut u64) -> bool {
        self.columns.extend(self.latest.take());
        let known = self.columns.remove(&second);
        if known.is_none() {
            if (*columns + 1) * rows > MAX_CELLS {
                return false;
            }
            *columns += 1;
        }
        let column = known.unwrap_or_else(|| Column { samples: 0, weights: vec![0; rows as usize] });
        self.latest = Some((second, column));
        true
    }
}
