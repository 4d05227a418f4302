//! Heatmaps in the terminal.
//!
//! By core: a row per core. If one thread had the core to itself, the cell shows that thread's letter, otherwise how busy the core
//! was. On a node where every core is full, a run of one letter in a row is what to look for.

use super::{footer, header, task};
use crate::output::terminal::{bold, by_load, dim, owned};
use coroner_evidence::Order;
use coroner_profile::model::TaskId;
use coroner_profile::views::cores::{Busy, CoreHeatmap};
use coroner_profile::views::heatmap::OffsetHeatmap;
use coroner_source::profile::ReadProfile;
use coroner_source::profile::heatmap::Asked;
use std::collections::HashMap;
use std::fmt::Write;

const MS: u64 = 1_000_000;
const STEPS: [u64; 20] = [
    MS,
    2 * MS,
    5 * MS,
    10 * MS,
    20 * MS,
    50 * MS,
    100 * MS,
    200 * MS,
    500 * MS,
    1000 * MS,
    2000 * MS,
    5000 * MS,
    10_000 * MS,
    30_000 * MS,
    60_000 * MS,
    120_000 * MS,
    300_000 * MS,
    600_000 * MS,
    1_800_000 * MS,
    3_600_000 * MS,
];
/// Height of the picture: with few cores, it is split into several blocks of rows.
const LINES: u64 = 24;
/// A thread with at least this share of the busy time has the core to itself.
const OWNS: f64 = 0.9;
/// With at least this share, a cell is mostly that thread's (lower-case letter).
const MOSTLY: f64 = 0.5;
/// A cell that is less busy than this has no owner.
const BUSY: f64 = 0.5;
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const MARGIN: usize = 9;

/// The time per column, so that `length` nanoseconds of `cores` cores fit the terminal. Either may be unknown.
pub fn step(length: Option<u64>, cores: Option<usize>, width: usize) -> u64 {
    let blocks = (LINES / (cores.unwrap_or(5) as u64 + 1)).max(1);
    let columns = width.saturating_sub(MARGIN).max(20) as u64 * blocks;
    let wanted = length.unwrap_or(60_000 * MS) / columns;
    // In a usual recording, narrower cells have too few samples to name an owner.
    STEPS.into_iter().filter(|step| *step >= 50 * MS).find(|step| *step >= wanted).unwrap_or(wanted)
}

pub fn by_core(
    read: &ReadProfile,
    map: &CoreHeatmap,
    mut asked: Option<Asked>,
    selection: &str,
    width: usize,
) -> String {
    let mut out = header(read, selection, width);
    let mut letters = letters(map);
    if let Some(somebody) = asked.as_mut().and_then(|asked| asked.somebody.as_mut()) {
        letters.retain(|task, _| somebody.has_task(&read.names, *task));
    }
    // What else ran on its cores was not recorded.
    let only = read.only_process();
    if only.is_some() {
        letters.clear();
    }
    let columns = width.saturating_sub(MARGIN).max(20);
    let what = match (only, &asked) {
        (Some(pid), _) => format!("only process {pid} was recorded: what else ran on these cores is unknown"),
        (None, Some(_)) => "height: share of the selected samples".to_owned(),
        (None, None) => "letter: one thread had the core to itself (lower case: mostly)".to_owned(),
    };
    let _ = writeln!(
        out,
        "
{}",
        bold(&format!("Each cell {} · {what}", duration(map.step)))
    );
    for first in (0..map.columns).step_by(columns) {
        let last = (first + columns).min(map.columns);
        let at = |column: usize| read.seconds(map.start + column as u64 * map.step).max(0.0);
        let _ = writeln!(out, "{}", dim(&format!("{:>7} {:.2} s … {:.2} s", "", at(first), at(last))));
        for (row, core) in map.cores.iter().enumerate() {
            let mut line = String::new();
            for column in first..last {
                line.push_str(&glyph(map, row, column, &letters, asked.as_ref()));
            }
            let _ = writeln!(out, "{core:>7} {line}");
        }
    }
    let _ = writeln!(
        out,
        "{}",
        dim(
            "        · idle  ▁▂▃▄▅▆▇█ busy, shared  ▒ mostly interrupts  - no samples on this core: idle or lost  (blank: none \
             on any core)"
        )
    );
    owners(read, map, &letters, &mut out);
    for (count, what) in [
        (map.left_out, "samples without a time or core, or with an implausible time, are not shown"),
        (map.other_events, "samples of events that are not clock-like are not counted"),
        (map.late, "samples came too late to determine an owner"),
    ] {
        if count > 0 {
            let _ = writeln!(out, "{}", dim(&format!("{} {what}", super::thousands(count))));
        }
    }
    out.push_str(&footer(read, width));
    out
}

/// Letters for the threads that had a core to themselves, longest first.
fn letters(map: &CoreHeatmap) -> HashMap<TaskId, (char, u64)> {
    let mut times: HashMap<TaskId, u64> = HashMap::new();
    let cells = || (0..map.cores.len()).flat_map(|row| (0..map.columns).map(move |column| (row, column)));
    for (row, column) in cells() {
        if let Some(owner) = sole_owner(map, row, column) {
            times.entry(owner).or_default();
        }
    }
    // Their time, including cells that they shared.
    for (row, column) in cells() {
        let cell = map.cell(row, column);
        if let (Some(time), Some(busy)) = (cell.owner.and_then(|owner| times.get_mut(&owner)), busy(map, row, column)) {
            // A cell cannot be more than full: samples at its edges also stand for time in its neighbours.
            let busy_ns = match cell.busy_ns().filter(|_| !cell.idle_sampled) {
                Some(busy_ns) => busy_ns as f64,
                None => busy * map.step as f64,
            };
            *time += (f64::from(cell.owner_weight) / f64::from(cell.busy().max(1)) * busy_ns) as u64;
        }
    }
    let mut ranked: Vec<(TaskId, u64)> = times.into_iter().collect();
    ranked.order_by_key(|(task, time)| (std::cmp::Reverse(*time), *task));
    ranked.into_iter().zip(LETTERS.chars()).map(|((task, time), letter)| (task, (letter, time))).collect()
}

/// How busy a core was, if known.
fn busy(map: &CoreHeatmap, row: usize, column: usize) -> Option<f64> {
    match map.busy(row, column) {
        Busy::Measured(share) | Busy::Estimated(share) => Some(share),
        Busy::Silent | Busy::NotSampled => None,
    }
}

/// The thread that had at least `share` of a cell's busy time.
fn owner(map: &CoreHeatmap, row: usize, column: usize, share: f64) -> Option<TaskId> {
    let cell = map.cell(row, column);
    // One sample says nothing.
    let owns = cell.busy_samples >= 2 && f64::from(cell.owner_weight) >= share * f64::from(cell.busy());
    (owns && busy(map, row, column)? >= BUSY).then_some(cell.owner?)
}

fn sole_owner(map: &CoreHeatmap, row: usize, column: usize) -> Option<TaskId> {
    owner(map, row, column, OWNS)
}

fn glyph(
    map: &CoreHeatmap,
    row: usize,
    column: usize,
    letters: &HashMap<TaskId, (char, u64)>,
    asked: Option<&Asked>,
) -> String {
    let mut share = match map.busy(row, column) {
        Busy::Measured(share) | Busy::Estimated(share) => share,
        Busy::Silent => return dim("-"),
        Busy::NotSampled => return " ".to_owned(),
    };
    if let Some((letter, _)) = sole_owner(map, row, column).and_then(|owner| letters.get(&owner)) {
        return owned(*letter);
    }
    // Where a run of such a thread begins or ends.
    if let Some((letter, _)) = owner(map, row, column, MOSTLY).and_then(|owner| letters.get(&owner)) {
        return owned(letter.to_ascii_lowercase());
    }
    let cell = map.cell(row, column);
    if let Some(asked) = asked {
        let at = (map.cores[row], map.start / map.step + column as u64);
        let asked = asked.cells.get(&at).map_or(0, |asked| asked.weight);
        share *= f64::from(asked) / f64::from(cell.weight().max(1));
    } else if cell.busy() > 0 && cell.irq > cell.busy() / 2 {
        return by_load(share, "▒");
    }
    let level = (share * 8.0).round() as usize;
    if level == 0 {
        dim("·")
    } else {
        by_load(share, &"▁▂▃▄▅▆▇█".chars().nth(level - 1).unwrap_or('█').to_string())
    }
}

fn owners(read: &ReadProfile, map: &CoreHeatmap, letters: &HashMap<TaskId, (char, u64)>, out: &mut String) {
    let mut listed: Vec<(&TaskId, &(char, u64))> = letters.iter().collect();
    listed.order_by_key(|(_, (letter, _))| *letter);
    for (id, (letter, time)) in listed.into_iter().take(12) {
        let on: Vec<u32> = (0..map.cores.len())
            .filter(|row| (0..map.columns).any(|column| sole_owner(map, *row, column) == Some(*id)))
            .map(|row| map.cores[row])
            .collect();
        let _ = writeln!(
            out,
            "{:>7} {} on core {}, about {} in total",
            owned(*letter),
            task(&read.names, *id),
            super::cores(&on),
            duration(*time / MS * MS)
        );
    }
}

pub fn duration(ns: u64) -> String {
    match ns {
        ns if ns >= 60_000 * MS => format!("{:.1} min", ns as f64 / 60e9),
        ns if ns >= 1000 * MS => {
            format!("{:.4}", ns as f64 / 1e9).trim_end_matches('0').trim_end_matches('.').to_owned() + " s"
        }
        ns => format!("{} ms", ns as f64 / 1e6),
    }
}

pub fn by_offset(read: &ReadProfile, map: &OffsetHeatmap, idle: u64, selection: &str, width: usize) -> String {
    let mut out = header(read, selection, width);
    let _ = writeln!(
        out,
        "\n{}",
        bold(&format!(
            "One column per second, rows are parts of it · fullest cell: {} samples",
            (f64::from(map.largest) * 10.0).round() / 10.0
        ))
    );
    let columns = width.saturating_sub(MARGIN).max(20);
    for first in (0..map.columns).step_by(columns) {
        let last = (first + columns).min(map.columns);
        let _ = writeln!(
            out,
            "{}",
            dim(&format!(
                "{:>7} second {} … {} of the recording's clock",
                "",
                map.first_second + first as u64,
                map.first_second + last as u64 - 1
            ))
        );
        // As in FlameScope, the end of the second is at the top.
        for row in (0..map.rows).rev() {
            let offset = row * 1000 / map.rows;
            let mut line = String::new();
            for column in first..last {
                let share = f64::from(map.count(column, row) / map.largest.max(f32::MIN_POSITIVE));
                let level = (share * 4.0).ceil() as usize;
                line.push_str(&by_load(share, &" ░▒▓█".chars().nth(level.min(4)).unwrap_or('█').to_string()));
            }
            let _ = writeln!(out, "{offset:>4} ms {line}");
        }
    }
    if idle > 0 {
        let _ = writeln!(out, "{}", dim(&format!("{} samples of idle cores are not counted", super::thousands(idle))));
    }
    if let (true, Some(ns)) = (map.is_weighed, map.sample_ns) {
        let what = format!(
            "samples have several rates: each counts by the time it stands for ({:.1} ms of a core count as one)",
            ns as f64 / 1e6
        );
        let _ = writeln!(out, "{}", dim(&what));
    }
    if map.left_out > 0 {
        let _ = writeln!(
            out,
            "{}",
            dim(&format!("{} samples without a time, or with an implausible time, are not shown", map.left_out))
        );
    }
    out.push_str(&footer(read, width));
    out
}
