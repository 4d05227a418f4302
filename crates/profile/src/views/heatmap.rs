//! FlameScope's heatmap: one column per second, one row per part of a second, and the number of samples in each cell.
//!
//! A core that is sampled faster for a while must not look busier. So samples are weighted by their period and converted to
//! samples at the usual rate: with a constant rate that is their number.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use super::clocks::{Clocks, Ticking};
use super::window::densest;
use crate::model::{Dictionary, EventId, Sample};
use coroner_evidence::Order;

const SECOND: u64 = 1_000_000_000;
/// A day of seconds at 200 rows. If a file spans more, the part with the most samples is shown.
const MAX_CELLS: u64 = 20_000_000;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OffsetHeatmap {
    /// The first column's second.
    pub first_second: u64,
    pub columns: usize,
    pub rows: usize,
    /// Column after column, row 0 is the start of the second. In samples at the usual rate; fractional if the rate changes.
    pub counts: Vec<f32>,
    pub largest: f32,
    /// Number of samples shown, unweighted.
    pub samples: u64,
    /// Samples without a time, or outside what is shown.
    pub left_out: u64,
    /// The core time in nanoseconds of a sample at the usual rate, if the event is a clock.
    pub sample_ns: Option<u64>,
    /// Samples have different periods.
    pub is_weighed: bool,
}

impl OffsetHeatmap {
    pub fn count(&self, column: usize, row: usize) -> f32 {
        self.counts[column * self.rows + row]
    }

    /// The time range of a cell, in nanoseconds; a filter with it selects the same samples.
    pub fn times(&self, column: usize, row: usize) -> Range<u64> {
        let second = self.first_second.saturating_add(column as u64).saturating_mul(SECOND);
        // The first offset whose row, rounded down, is this one.
        let offset = |row: usize| (row as u64 * SECOND).div_ceil(self.rows.max(1) as u64);
        second.saturating_add(offset(row))..second.saturating_add(offset(row + 1))
    }
}

#[derive(Clone, Debug)]
struct Column {
    samples: u64,
    weights: Vec<u64>,
}

/// The periods of an event's samples, similar ones merged, with their total weight.
#[derive(Clone, Debug, Default)]
struct Periods {
    known: Vec<(u32, u64, u64)>,
    latest: usize,
}

/// Share of the weight with the usual period or a longer one. Below half, as one of two cores may be sampled faster all the time.
const USUAL: f64 = 0.4;

impl Periods {
    fn add(&mut self, period: u64) {
        // Eight buckets per doubling.
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
        known.order_by_key(|(alike, ..)| std::cmp::Reverse(*alike));
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
    /// The column of the latest sample; moved to `columns` when another begins.
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
        // Samples of other events count 1 each: what matters is how often something happens.
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
    /// Makes `second` the current column, if there is room.
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
