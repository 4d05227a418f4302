//! Heatmaps as JSON.

use super::{SourceJson, TaskJson, source_json, task_json};
use crate::page::axis::{Axis, AxisTime};
use coroner_profile::views::cores::{Busy, CoreHeatmap};
use coroner_profile::views::heatmap::OffsetHeatmap;
use coroner_source::profile::ReadProfile;
use coroner_source::profile::heatmap::Asked;
use serde::{Serialize, Serializer};

#[derive(Serialize)]
struct ByCore<'a> {
    schema: &'static str,
    by: &'static str,
    source: SourceJson<'a>,
    start_ns: u64,
    /// Where it is on the page's axis; only there.
    #[serde(skip_serializing_if = "Option::is_none")]
    axis_ns: Option<AxisTime>,
    step_ns: u64,
    columns: usize,
    left_out: u64,
    /// Samples of events that are not a clock.
    other_events: u64,
    /// Samples that came too late to decide the owner.
    late: u64,
    cores: Vec<Core<'a>>,
}

#[derive(Serialize)]
struct Core<'a> {
    core: u32,
    /// One per column; `null` if nothing was sampled, which is not the same as idle.
    cells: Vec<Option<CellJson<'a>>>,
}

#[derive(Serialize)]
struct CellJson<'a> {
    samples: u32,
    /// Samples of the requested threads and functions; `null` without such a filter.
    asked: Option<u32>,
    /// Busy share of the time, between 0 and 1.
    busy: f64,
    /// Relative to a fully busy core, as the event does not tick on an idle one.
    busy_estimated: bool,
    /// Shares of the sampled time, between 0 and 1.
    user: f64,
    kernel: f64,
    irq: f64,
    /// `null` if idle cores are not sampled.
    idle: Option<f64>,
    owner: Option<TaskJson<'a>>,
    /// The owner's share of the non-idle time.
    owner_share: Option<f64>,
}

pub fn by_core(read: &ReadProfile, map: &CoreHeatmap, asked: Option<&Asked>, axis: Option<Axis>) -> String {
    let row = |row: usize| (0..map.columns).map(|column| cell(read, map, row, column, asked)).collect();
    super::long_document(&ByCore {
        schema: "coroner.heatmap/1",
        by: "core",
        source: source_json(read),
        start_ns: map.start,
        axis_ns: axis.map(|axis| axis.of_sample(map.start)),
        step_ns: map.step,
        columns: map.columns,
        left_out: map.left_out,
        other_events: map.other_events,
        late: map.late,
        cores: map.cores.iter().enumerate().map(|(at, core)| Core { core: *core, cells: row(at) }).collect(),
    })
}

fn cell<'a>(
    read: &'a ReadProfile,
    map: &CoreHeatmap,
    row: usize,
    column: usize,
    asked: Option<&Asked>,
) -> Option<CellJson<'a>> {
    let cell = map.cell(row, column);
    let share = |part: u32| f64::from(part) / f64::from(cell.weight().max(1));
    let (busy, busy_estimated) = match map.busy(row, column) {
        Busy::Measured(share) => (share, false),
        Busy::Estimated(share) => (share, true),
        Busy::Silent | Busy::NotSampled => return None,
    };
    Some(CellJson {
        samples: cell.samples,
        asked: asked.map(|asked| {
            let at = (map.cores[row], map.start / map.step + column as u64);
            asked.cells.get(&at).map_or(0, |asked| asked.samples)
        }),
        busy,
        busy_estimated,
        user: share(cell.user),
        kernel: share(cell.kernel),
        irq: share(cell.irq),
        idle: cell.idle_sampled.then(|| share(cell.idle)),
        owner: cell.owner.map(|owner| task_json(&read.names, owner)),
        owner_share: cell.owner.map(|_| f64::from(cell.owner_weight) / f64::from(cell.busy().max(1))),
    })
}

#[derive(Serialize)]
struct ByOffset<'a> {
    schema: &'static str,
    by: &'static str,
    source: SourceJson<'a>,
    /// The first column's second on the recording's clock.
    first_second: u64,
    /// Where it is on the page's axis; only there.
    #[serde(skip_serializing_if = "Option::is_none")]
    axis_ns: Option<AxisTime>,
    rows: usize,
    largest: Count,
    /// Core time in nanoseconds of a sample at the usual rate; `null` if unknown.
    sample_ns: Option<u64>,
    /// Samples of idle cores, which are not counted.
    idle: u64,
    left_out: u64,
    /// Column after column: the samples of each part of that second, from its start. Samples at another than the usual rate are
    /// weighted by the time they represent.
    columns: Vec<Counts<'a>>,
}

/// An integer unless samples have different weights.
#[derive(Clone, Copy)]
struct Count(f32);

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            whole if whole.fract() == 0.0 => to.serialize_u64(whole as u64),
            part => to.serialize_f64((f64::from(part) * 1000.0).round() / 1000.0),
        }
    }
}

struct Counts<'a>(&'a [f32]);

impl Serialize for Counts<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(|count| Count(*count)))
    }
}

pub fn by_offset(read: &ReadProfile, map: &OffsetHeatmap, idle: u64, axis: Option<Axis>) -> String {
    super::long_document(&ByOffset {
        schema: "coroner.heatmap/1",
        by: "offset",
        source: source_json(read),
        first_second: map.first_second,
        axis_ns: axis.map(|axis| axis.of_sample(map.first_second.saturating_mul(1_000_000_000))),
        rows: map.rows,
        largest: Count(map.largest),
        sample_ns: map.sample_ns,
        idle,
        left_out: map.left_out,
        columns: map.counts.chunks(map.rows.max(1)).map(Counts).collect(),
    })
}
