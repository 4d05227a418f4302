//! `coroner.core-grid/1`: time × core, from the whole recording down to single samples.
//!
//! A core's busy time comes from its cumulative counters, read only at column edges; if columns are shorter than the polling
//! interval, or nothing was polled, from samples. Its owner comes from samples if there are any, else from the CPU time of
//! threads.

use super::api::refused;
use super::axis::{Axis, AxisTime};
use super::parallel;
use super::question::{Range, count, range};
use super::shown::{Part, Shown};
use coroner_diagnosis::cores::Cores;
use coroner_diagnosis::cores::timeline::{Saturation, Shares, Timeline, cut};
use coroner_evidence::recording::{self, Beside, CoreLooks};
use coroner_evidence::{CgroupOwner, CoreTimes, Evidence, Nic, Order, Time, Window};
use coroner_http::{Answer, ApiQuery, Refusal};
use coroner_profile::import::Picked;
use coroner_profile::model::{Dictionary, Sample, TaskId};
use coroner_profile::views::cores::{Busy, CoreCounter, CoreHeatmap};
use coroner_source::profile::select::Selection;
use coroner_source::profile::{self, ProfileSource};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The polling interval of the cores.
const LOOK: u64 = 100_000_000;
/// Steps at least this long need only one poll of each chunk, as a chunk covers at most this much time.
const CHUNK: u64 = 11_000_000_000;
/// The most rows of core times unpacked for one answer; beyond it columns become as long as chunks.
const MOST_ROWS: u64 = 3_000_000;
/// Limit for columns times cores if each column reads separate chunks.
const MOST_CELLS: u64 = 120_000;
/// The shortest column from samples.
const SHORTEST: u64 = 1_000_000;
/// Samples read to name owners. Of more, only some chunks are read, and columns between them have no owner.
const MOST_SAMPLES: u64 = 600_000;
/// Below this fraction most columns would have none: then owners are named only on request.
const LEAST_PART: f64 = 0.25;

#[derive(Serialize)]
struct Grid {
    schema: &'static str,
    from: AxisTime,
    to: AxisTime,
    step_ns: u64,
    columns: usize,
    /// `time` or `samples`.
    source: &'static str,
    /// Where owners come from: `samples`, `threads`, or `null` if none can be named.
    owner_source: Option<&'static str>,
    /// The fraction of samples read to name owners.
    owner_part: f64,
    /// Worst first.
    cores: Vec<Row>,
    owners: Vec<Owner>,
    /// Average of all cores.
    average: Vec<Option<u8>>,
}

impl Grid {
    fn without_owners(mut self) -> Grid {
        for row in &mut self.cores {
            row.owner = Vec::new();
            row.owner_share = Vec::new();
        }
        self
    }
}

/// All in percent, one per column; `null` if not polled.
#[derive(Serialize)]
struct Row {
    core: u32,
    serves: Vec<String>,
    score: f64,
    busy: Vec<Option<u8>>,
    user: Vec<Option<u8>>,
    system: Vec<Option<u8>>,
    /// Interrupts and softirqs.
    irq: Vec<Option<u8>>,
    steal: Vec<Option<u8>>,
    /// Position in `owners`, or -1; empty if owners are left out.
    owner: Vec<i32>,
    /// Share of the busy time.
    owner_share: Vec<u8>,
}

#[derive(Serialize, Clone, PartialEq, Eq, Hash)]
struct Owner {
    comm: String,
    pid: Option<u32>,
    tid: Option<u32>,
    unit: Option<String>,
    cgroup: Option<String>,
    /// Owners with the same key have the same colour.
    key: String,
}

impl Owner {
    fn nobody(comm: &str) -> Owner {
        Owner { comm: comm.to_owned(), pid: None, tid: None, unit: None, cgroup: None, key: comm.to_owned() }
    }
}

/// `kworker/3:1` and `kworker/5:0` share a key.
fn key(comm: &str) -> String {
    comm.split(['/', ':']).next().filter(|key| !key.is_empty()).unwrap_or(comm).to_owned()
}

/// Columns of equal length.
#[derive(Clone, Copy)]
struct Columns {
    from: AxisTime,
    step: u64,
    count: usize,
}

impl Columns {
    fn of(range: &Range, step: u64) -> Columns {
        let step = step.max(1);
        let count = range.end.since(range.start).div_ceil(step).clamp(1, 20_000) as usize;
        Columns { from: range.start, step, count }
    }

    fn end(&self) -> AxisTime {
        self.edge(self.count)
    }

    fn edge(&self, at: usize) -> AxisTime {
        self.from + self.step.saturating_mul(at as u64)
    }

    /// The columns that a time range touches.
    fn touched(&self, from: AxisTime, to: AxisTime) -> std::ops::Range<usize> {
        let at = |time: AxisTime| (time.since(self.from) / self.step).min(self.count as u64) as usize;
        let end = to.since(self.from).div_ceil(self.step).min(self.count as u64) as usize;
        at(from)..end.max(at(from))
    }
}

pub fn answer(shown: &Shown, ask: &ApiQuery) -> Result<Answer, Refusal> {
    let whole = shown.whole();
    let range = range(ask, shown)?.unwrap_or_else(|| whole.clone());
    let range = range.start.max(whole.start)..range.end.min(whole.end);
    if range.is_empty() {
        return Err(Refusal::absent("nothing was recorded in this range", "choose a range within the source's length"));
    }
    let wanted = count(ask, "columns", 1200, 1..=8000)?;
    let length = range.end.since(range.start);
    let step = length.div_ceil(wanted as u64);
    let parts = shown.parts();
    let with_looks =
        parts.iter().any(|part| part.outline.looks.is_some() && part.window(&range, shown.axis()).is_some());
    let interval = sample_interval(shown, &range);
    let by_samples = interval.is_some_and(|interval| !with_looks || (step < LOOK && interval < LOOK));
    if !by_samples && !with_looks {
        return Err(Refusal::absent("the cores were not recorded in this range", "choose another range"));
    }
    let nics = nics(&parts);
    let mut grid = if by_samples {
        let step = step.max(interval.unwrap_or(SHORTEST)).max(SHORTEST);
        from_samples(shown, ask, Columns::of(&range, step))?
    } else {
        let cores = parts.iter().map(|part| part.outline.cores.len() as u64).max().unwrap_or(1);
        let rows = length / LOOK * cores.max(1);
        // Each such column costs a chunk with polls of all cores.
        let coarse = CHUNK.max(length / (MOST_CELLS / cores.max(1)).max(1));
        let step = step.max(if rows > MOST_ROWS { coarse } else { LOOK });
        from_time(shown, ask, &parts, Columns::of(&range, step), &range)?
    };
    for row in &mut grid.cores {
        row.serves = serves(&nics, row.core);
    }
    grid.cores.order_by(|a, b| b.score.total_cmp(&a.score).then(a.core.cmp(&b.core)));
    Ok(Answer::json(&grid))
}

/// The distance between samples of a core; `None` if there are none.
fn sample_interval(shown: &Shown, range: &Range) -> Option<u64> {
    if let Some(kept) = Some(shown).filter(|shown| shown.has_samples() && !shown.is_directory()).and_then(Shown::kept) {
        let (from, to) = kept.samples.span()?;
        let (start, end) = (shown.axis().sample(range.start), shown.axis().sample(range.end));
        let within = kept.samples.between(start, end).count().max(1) as u64;
        let length = end.min(to.saturating_add(1)).saturating_sub(start.max(from)).max(1);
        return Some((u128::from(length) * kept.cores.len().max(1) as u128 / u128::from(within)) as u64);
    }
    let parts = shown.parts();
    let (mut samples, mut time) = (0, 0);
    for part in parts.iter().filter(|part| part.outline.samples.is_some()) {
        let within = range.end.min(part.range.end).since(range.start.max(part.range.start));
        samples += part.samples_in(range);
        time += u128::from(within) * part.outline.cores.len().max(1) as u128;
    }
    (samples > 0).then(|| (time / u128::from(samples)) as u64)
}

/// The network devices of the newest part.
fn nics(parts: &[Part]) -> Vec<Nic> {
    let newest = parts.iter().rev().find(|part| part.outline.looks.is_some());
    newest.and_then(|part| recording::nics(&part.path).ok()).unwrap_or_default()
}

fn serves(nics: &[Nic], core: u32) -> Vec<String> {
    let queues = nics.iter().flat_map(|nic| nic.queues.iter().map(move |queue| (nic, queue)));
    let needed = queues.filter(|(_, queue)| queue.needs_core(core));
    needed.map(|(nic, queue)| format!("{} {}", nic.display_name(), queue.label())).collect()
}

fn percent(share: f64) -> u8 {
    (share * 100.0).round().clamp(0.0, 100.0) as u8
}

/// How bad a core was: by its share of full time, then kernel time, then busy time.
fn score(strip: &[Option<Shares>]) -> f64 {
    let seen: Vec<&Shares> = strip.iter().flatten().collect();
    let mean = |of: &dyn Fn(&Shares) -> f64| seen.iter().map(|s| of(s)).sum::<f64>() / seen.len().max(1) as f64;
    let full = mean(&|s| f64::from(u8::from(s.is_full(Saturation::Busy))));
    let score = 100.0 * full + 20.0 * mean(&Shares::kernel) + 10.0 * mean(&|s| s.steal) + mean(&Shares::busy);
    (score * 1000.0).round() / 1000.0
}

fn row(core: u32, strip: &[Option<Shares>]) -> Row {
    let of = |part: &dyn Fn(&Shares) -> f64| strip.iter().map(|s| s.as_ref().map(|s| percent(part(s)))).collect();
    Row {
        core,
        serves: Vec::new(),
        score: score(strip),
        busy: of(&Shares::busy),
        user: of(&|s| s.user),
        system: of(&|s| s.system),
        irq: of(&Shares::interrupts),
        steal: of(&|s| s.steal),
        owner: vec![-1; strip.len()],
        owner_share: vec![0; strip.len()],
    }
}

fn grid(columns: Columns, source: &'static str, strips: &BTreeMap<u32, Vec<Option<Shares>>>) -> Grid {
    let average = (0..columns.count).map(|at| {
        let seen: Vec<f64> = strips.values().filter_map(|strip| strip[at].as_ref()).map(Shares::busy).collect();
        (!seen.is_empty()).then(|| percent(seen.iter().sum::<f64>() / seen.len() as f64))
    });
    Grid {
        schema: "coroner.core-grid/1",
        from: columns.from,
        to: columns.end(),
        step_ns: columns.step,
        columns: columns.count,
        source,
        owner_source: None,
        owner_part: 1.0,
        cores: strips.iter().map(|(core, strip)| row(*core, strip)).collect(),
        owners: Vec::new(),
        average: average.collect(),
    }
}

fn from_time(shown: &Shown, ask: &ApiQuery, parts: &[Part], columns: Columns, range: &Range) -> Result<Grid, Refusal> {
    let axis = shown.axis();
    let apart = if columns.step >= CHUNK { Duration::from_nanos(columns.step) } else { Duration::ZERO };
    let touched: Vec<(&Part, Window)> =
        parts.iter().filter_map(|part| Some((part, part.window(range, axis)?))).collect();
    let places: Vec<usize> = (0..touched.len()).collect();
    let read = parallel::each(&places, |place| {
        let (part, window) = touched[*place];
        let (before, after) = (place.checked_sub(1).map(|before| touched[before].0), touched.get(place + 1));
        let beside = Beside {
            cores: part.outline.cores.len(),
            before: before.is_some_and(|before| part.goes_on_after(before)),
            after: after.is_some_and(|(after, _)| after.goes_on_after(part)),
        };
        let clocks = part.clocks();
        let at = |time: Time| axis.of_time(time, clocks);
        let column = |time: Time| at(time).map_or(0, |at| at.since(columns.from) / columns.step);
        // A segment that was just evicted, or is damaged, has no polls.
        let found = match ask.is_cancelled() {
            true => CoreLooks::default(),
            false => recording::core_looks(&part.path, window, beside, apart, &column).unwrap_or_default(),
        };
        let covered = found.covered.iter().filter_map(|window| Some(at(window.from)?..at(window.to)?));
        let looks = found.looks.into_iter().filter_map(|look| Some(CoreTimes { at: at(look.at)?.as_time(), ..look }));
        (looks.collect::<Vec<_>>(), covered.collect::<Vec<Range>>())
    });
    if ask.is_cancelled() {
        return Err(Refusal::failed("cancelled: the client disconnected"));
    }
    let (looks, covered): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    let (looks, covered) = (looks.concat(), covered.concat());
    let timeline = Timeline::of(&Evidence { core_times: looks, ..Evidence::default() });
    let window = Window { from: columns.from.as_time(), to: columns.end().as_time() };
    let seen: Vec<bool> = (0..columns.count).map(|at| is_covered(&covered, columns, at, range.end)).collect();
    let strips: BTreeMap<u32, Vec<Option<Shares>>> = timeline
        .lines
        .iter()
        .map(|(core, line)| {
            let parts = cut(window, columns.count).zip(&seen);
            (*core, parts.map(|(part, seen)| line.shares(part).filter(|_| *seen)).collect())
        })
        .collect();
    let mut grid = grid(columns, "time", &strips);
    if ask.get("owners") == Some("0") {
        return Ok(grid.without_owners());
    }
    if shown.has_samples() {
        let (_, part) = shown.samples(&all_of(columns, axis), MOST_SAMPLES);
        if part < LEAST_PART && !ask.is_set("owners") {
            grid.owner_part = part;
            return Ok(grid.without_owners());
        }
        let (counted, part) = count_samples(shown, ask, columns)?;
        if let Some(Counted { map, names }) = counted {
            name_owners(&mut grid, columns, &map, &names);
            grid.owner_source = Some("samples");
        }
        grid.owner_part = part;
    } else if !shown.is_directory() {
        let evidence = shown.evidence(None).map_err(refused)?;
        owners_of_threads(&mut grid, columns, shown, &evidence);
        grid.owner_source = Some("threads");
    }
    Ok(grid)
}

/// Whether at least half of the requested part of a column was polled.
fn is_covered(covered: &[Range], columns: Columns, at: usize, end: AxisTime) -> bool {
    let from = columns.edge(at);
    let to = (from + columns.step).min(end).max(from + 1);
    let seen = |range: &Range| (range.end + LOOK).min(to).since((range.start - LOOK).max(from));
    covered.iter().map(seen).sum::<u64>() >= to.since(from).div_ceil(2)
}

fn all_of(columns: Columns, axis: Axis) -> Selection {
    let range = vec![(axis.moment(columns.from), axis.moment(columns.end()))];
    Selection { range, ..Selection::default() }
}

/// Counted samples.
struct Counted {
    map: CoreHeatmap,
    names: Arc<Dictionary>,
}

/// Counts the samples of the columns. Times are shifted so that the first column starts at 0.
fn count_samples(shown: &Shown, ask: &ApiQuery, columns: Columns) -> Result<(Option<Counted>, f64), Refusal> {
    let axis = shown.axis();
    let selection = all_of(columns, axis);
    let (source, part) = shown.samples(&selection, MOST_SAMPLES);
    // Within a chunk each core's samples are sorted, which is enough for counting.
    let picked = Picked { in_any_order: true, ..source.picked };
    let source = ProfileSource { stop: Some(ask.stop()), picked, ..source };
    let mut counter = CoreCounter::new(columns.step);
    let read = profile::read_any(&source, &selection, &mut |names, sample| {
        let time = sample.time.map(|time| axis.of_sample(time).since(columns.from));
        counter.add(names, &Sample { time, ..*sample });
    });
    match read {
        Ok(read) => Ok((Some(Counted { map: counter.finish(), names: read.names }), part)),
        // Segments without samples, or none at all.
        Err(_) if !ask.is_cancelled() => Ok((None, part)),
        Err(error) => Err(refused(error)),
    }
}

fn from_samples(shown: &Shown, ask: &ApiQuery, columns: Columns) -> Result<Grid, Refusal> {
    let (counted, part) = count_samples(shown, ask, columns)?;
    let Some(Counted { map, names }) = counted else {
        return Err(Refusal::absent("no core was sampled in this range", "choose another range"));
    };
    if map.columns == 0 {
        return Err(Refusal::absent(
            "no sample in this range has a core, or no event is clock-like",
            "record cpu-clock or cycles of all cores: perf record -a",
        ));
    }
    let first = (map.start / map.step) as usize;
    let mut strips: BTreeMap<u32, Vec<Option<Shares>>> = BTreeMap::new();
    for (at, core) in map.cores.iter().enumerate() {
        let mut strip = vec![None; columns.count];
        for column in 0..map.columns.min(columns.count.saturating_sub(first)) {
            strip[first + column] = shares(&map, at, column);
        }
        strips.insert(*core, strip);
    }
    let mut grid = grid(columns, "samples", &strips);
    name_owners(&mut grid, columns, &map, &names);
    grid.owner_source = Some("samples");
    grid.owner_part = part;
    Ok(grid)
}

/// A core's time shares from the samples of a cell; `None` if there are none.
fn shares(map: &CoreHeatmap, row: usize, column: usize) -> Option<Shares> {
    let cell = map.cell(row, column);
    let busy = match map.busy(row, column) {
        Busy::Measured(share) | Busy::Estimated(share) => share,
        // Others were sampled and this one was not: an idle core has no cycles samples.
        Busy::Silent if !cell.idle_sampled => 0.0,
        Busy::Silent | Busy::NotSampled => return None,
    };
    let part = |weight: u32| busy * f64::from(weight) / f64::from(cell.busy().max(1));
    Some(Shares {
        user: part(cell.user),
        system: part(cell.kernel),
        irq: part(cell.irq),
        idle: 1.0 - busy,
        ..Shares::default()
    })
}

/// Numbers owners in order of first use.
#[derive(Default)]
struct Numbers {
    known: HashMap<Owner, i32>,
}

impl Numbers {
    fn of(&mut self, grid_owners: &mut Vec<Owner>, owner: Owner) -> i32 {
        *self.known.entry(owner).or_insert_with_key(|owner| {
            grid_owners.push(owner.clone());
            grid_owners.len() as i32 - 1
        })
    }
}

fn task_owner(names: &Dictionary, id: TaskId) -> Owner {
    let task = names.task(id);
    let comm = names.strings.get(task.comm);
    let cgroup = task.cgroup.map(|cgroup| names.strings.get(cgroup));
    Owner {
        comm: comm.to_owned(),
        pid: task.pid,
        tid: task.tid,
        unit: cgroup.and_then(|cgroup| CgroupOwner::of_path(cgroup).unit),
        cgroup: cgroup.map(str::to_owned),
        key: key(comm),
    }
}

fn name_owners(grid: &mut Grid, columns: Columns, map: &CoreHeatmap, names: &Dictionary) {
    let first = (map.start / map.step) as usize;
    let rows: HashMap<u32, usize> = map.cores.iter().enumerate().map(|(at, core)| (*core, at)).collect();
    let mut tasks: HashMap<TaskId, i32> = HashMap::new();
    let mut numbers = Numbers::default();
    for row in &mut grid.cores {
        let Some(at) = rows.get(&row.core) else { continue };
        for column in 0..map.columns.min(columns.count.saturating_sub(first)) {
            let cell = map.cell(*at, column);
            let Some(task) = cell.owner else { continue };
            let owners = &mut grid.owners;
            let number = *tasks.entry(task).or_insert_with(|| numbers.of(owners, task_owner(names, task)));
            row.owner[first + column] = number;
            row.owner_share[first + column] = percent(f64::from(cell.owner_weight) / f64::from(cell.busy().max(1)));
        }
    }
}

/// Distributes each thread's CPU time between two polls over the busy time of its core, and names the largest in each column.
fn owners_of_threads(grid: &mut Grid, columns: Columns, shown: &Shown, evidence: &Evidence) {
    let cores = Cores::of(evidence);
    let mut numbers = Numbers::default();
    let mut lines: HashMap<usize, i32> = HashMap::new();
    for row in &mut grid.cores {
        let mut by_column: Vec<HashMap<usize, f64>> = vec![HashMap::new(); columns.count];
        let busy = |at: usize| f64::from(row.busy[at].unwrap_or(0)) + 0.01;
        for (line, window, run_ns) in cores.charges.on_core(row.core) {
            let (Some(from), Some(to)) = (shown.on_axis(window.from, evidence), shown.on_axis(window.to, evidence))
            else {
                continue;
            };
            let touched = columns.touched(from, to);
            let overlap = |at: usize| to.min(columns.edge(at + 1)).since(from.max(columns.edge(at))) as f64;
            let length = to.since(from).max(1) as f64;
            let inside: f64 = touched.clone().map(overlap).sum();
            let weight: f64 = touched.clone().map(|at| overlap(at) * busy(at)).sum();
            for at in touched {
                let part = overlap(at) * busy(at) / weight.max(1e-9) * (inside / length);
                *by_column[at].entry(line).or_default() += run_ns * part;
            }
        }
        for (at, by_line) in by_column.into_iter().enumerate() {
            let Some(all) = row.busy[at].filter(|busy| *busy > 0) else { continue };
            let (irq, steal) = (row.irq[at].unwrap_or(0), row.steal[at].unwrap_or(0));
            let busy_ns = f64::from(all) / 100.0 * columns.step as f64;
            let owners = &mut grid.owners;
            let most = by_line.into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
            let (number, share) = if 2 * irq >= all {
                (numbers.of(owners, Owner::nobody("interrupts")), f64::from(irq) / f64::from(all))
            } else if 2 * steal >= all {
                (numbers.of(owners, Owner::nobody("the hypervisor")), f64::from(steal) / f64::from(all))
            } else if let Some((line, run_ns)) = most {
                let number = *lines.entry(line).or_insert_with(|| {
                    let who = cores.threads.lines[line].who();
                    let owner = Owner {
                        key: key(&who.comm),
                        comm: who.comm,
                        pid: who.pid,
                        tid: Some(who.tid),
                        unit: who.unit,
                        cgroup: None,
                    };
                    numbers.of(owners, owner)
                });
                (number, run_ns / busy_ns)
            } else {
                continue;
            };
            row.owner[at] = number;
            row.owner_share[at] = percent(share);
        }
    }
}

#[cfg(test)]
mod tests;
