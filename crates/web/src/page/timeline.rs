//! `coroner.timeline/1`: events and series on the axis.
//!
//! Series of a file, or of a short range of a directory, come from the counters; of a long range from the recorder's roll-ups.

use super::api::refused;
use super::axis::AxisTime;
use super::parallel;
use super::question::{Range, count, range};
use super::shown::{Part, Shown};
use super::source::{Gap, on_axis};
use coroner_diagnosis::log_events::{self, Event, Family, NicStep};
use coroner_evidence::recording::{self, RollupRow};
use coroner_evidence::{Clocks, Evidence, LogLine, Order, Source, UnitLogLine, Wall};
use coroner_http::{Answer, ApiQuery, Refusal};
use coroner_source::incident::MARK;
use coroner_source::incident_report;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};

const MINUTE: u64 = 60_000_000_000;
/// Longer ranges of a directory use its roll-ups.
const BY_COUNTERS: u64 = 15 * MINUTE;
/// The most events in an answer: the worst, then the latest.
const MOST_EVENTS: usize = 1000;
/// A counter is recorded when it changes, so the change happened within this time before.
const LOOKS_APART: u64 = 2_000_000_000;
/// Shorter columns are pointless for counters read once a second.
const SHORTEST: u64 = 1_000_000_000;
/// Kernel messages this shortly before the start of the source are included.
const JUST_BEFORE: u64 = 60_000_000_000;

#[derive(Default, Serialize)]
struct Happened {
    at: AxisTime,
    uncertainty_ns: u64,
    kind: &'static str,
    severity: &'static str,
    title: String,
    subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    finding_code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    incident: Option<u64>,
}

#[derive(Serialize)]
struct Series {
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    /// How a column is aggregated: maximum or sum.
    worst: &'static str,
    values: Vec<Option<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
}

pub fn answer(shown: &Shown, ask: &ApiQuery) -> Result<Answer, Refusal> {
    let asked = range(ask, shown)?;
    let whole = shown.whole();
    let range = asked.clone().unwrap_or_else(|| whole.clone());
    let columns = count(ask, "columns", 600, 1..=4000)?;
    let length = range.end.since(range.start);
    let by_minutes = shown.is_directory() && length > BY_COUNTERS;
    let least = if by_minutes { MINUTE } else { SHORTEST };
    let step = length.div_ceil(columns as u64).max(least);
    let steps = Steps { from: range.start, step, count: length.div_ceil(step).max(1) as usize };
    let (mut events, series) = if !shown.has_evidence() {
        (Vec::new(), Vec::new())
    } else if by_minutes {
        let (events, minutes) = of_parts(shown, &range, ask);
        (events, of_minutes(shown, &minutes, steps))
    } else {
        let evidence =
            shown.evidence(asked.or_else(|| shown.is_directory().then(|| whole.clone()))).map_err(refused)?;
        let events = told(shown, &evidence.log, &evidence.unit_log, evidence.clocks.last());
        (events, of_counters(shown, &evidence, steps))
    };
    events.extend(of_incidents(shown));
    events.extend(gaps(shown));
    let from_all = if range.start == whole.start { range.start - JUST_BEFORE } else { range.start };
    events.retain(|event| event.at >= from_all && event.at <= range.end);
    let left_out = cap(&mut events);
    Ok(Answer::json(&json!({
        "schema": "coroner.timeline/1",
        "from": range.start,
        "to": range.end,
        "step_ns": step,
        "columns": steps.count,
        "events": events,
        "events_left_out": left_out,
        "series": series,
    })))
}

/// Keeps the worst; returns how many are left out.
fn cap(events: &mut Vec<Happened>) -> usize {
    let left_out = events.len().saturating_sub(MOST_EVENTS);
    if left_out > 0 {
        let rank = |event: &Happened| match event.severity {
            "critical" => 0,
            "warning" => 1,
            _ => 2,
        };
        events.order_by_key(|event| (rank(event), std::cmp::Reverse(event.at)));
        events.truncate(MOST_EVENTS);
    }
    events.order_by_key(|event| event.at);
    left_out
}

#[derive(Clone, Copy)]
struct Steps {
    from: AxisTime,
    step: u64,
    count: usize,
}

impl Steps {
    fn at(&self, time: AxisTime) -> Option<usize> {
        let at = (time.since(self.from) / self.step) as usize;
        (time >= self.from && at < self.count).then_some(at)
    }

    fn edge(&self, at: usize) -> AxisTime {
        self.from + self.step * at as u64
    }
}

/// Log lines, restarts and roll-ups of all parts: from plain tables only.
fn of_parts(shown: &Shown, range: &Range, ask: &ApiQuery) -> (Vec<Happened>, Vec<RollupRow>) {
    let (mut events, mut minutes) = (Vec::new(), Vec::new());
    let mut known = HashSet::new();
    let parts = shown.parts();
    let touched: Vec<&Part> =
        parts.iter().filter(|part| part.range.end >= range.start && part.range.start <= range.end).collect();
    let read = parallel::each(&touched, |part| match ask.is_cancelled() {
        true => (Vec::new(), None),
        false => (recording::rollups(&part.path).unwrap_or_default(), recording::logs(&part.path).ok()),
    });
    for (part, (rollups, logs)) in touched.into_iter().zip(read) {
        minutes.extend(rollups);
        let Some(logs) = logs else { continue };
        // Each segment repeats the messages from before its start.
        let mut log = logs.log;
        log.retain(|line| known.insert((part.outline.boot_id.clone(), line.sequence, line.stamp_us)));
        events.extend(told(shown, &log, &[], part.clocks()));
        let mut unit_log = logs.unit_log;
        unit_log.retain(|line| known.insert((Some(line.unit.clone()), line.at.0, 0)));
        events.extend(told(shown, &[], &unit_log, part.clocks()));
    }
    (events, minutes)
}

fn told(shown: &Shown, log: &[LogLine], unit_log: &[UnitLogLine], clocks: Option<&Clocks>) -> Vec<Happened> {
    let axis = shown.axis();
    let mut events = Vec::new();
    for line in log.iter().filter(|line| line.is_from_kernel()) {
        let Some(at) = axis.of_time(line.at, clocks) else { continue };
        if let Some((kind, severity, subject, code)) = meaning(line) {
            events.push(Happened {
                at,
                uncertainty_ns: line.uncertainty_ns,
                kind,
                severity,
                title: line.text.chars().take(400).collect(),
                subject,
                finding_code: code.map(str::to_owned),
                ..Happened::default()
            });
        }
    }
    for line in unit_log {
        let Some(at) = axis.of_wall(line.at) else { continue };
        let is_restart = line.restart.is_some();
        events.push(Happened {
            at,
            kind: if is_restart { "unit-restart" } else { "unit-log" },
            severity: if is_restart { "warning" } else { "info" },
            title: line.text.chars().take(400).collect(),
            subject: line.unit.clone(),
            finding_code: is_restart.then(|| "unit-crashloop".to_owned()),
            ..Happened::default()
        });
    }
    events
}

/// The meaning of a kernel log line: kind, severity, subject, and the finding it may lead to. `None` if it is irrelevant.
fn meaning(line: &LogLine) -> Option<(&'static str, &'static str, String, Option<&'static str>)> {
    let event = Family::ALL.iter().find_map(|family| log_events::parse(&line.text, *family));
    Some(match event {
        Some(Event::Nic(nic)) => {
            let subject = nic.device.interface.or(nic.device.bus).unwrap_or_default();
            match nic.step {
                NicStep::ResetDone => ("nic-reset", "info", subject, Some("nic-reset")),
                step if step.is_outage() => ("nic-reset", "critical", subject, Some("nic-reset")),
                _ => ("nic", "warning", subject, Some("nic-reset")),
            }
        }
        Some(Event::Stall(_)) => ("lockup", "critical", String::new(), Some("kernel-stall")),
        Some(Event::Oom(log_events::OomEvent::Killed { comm, .. })) => ("oom-kill", "critical", comm, Some("oom-kill")),
        Some(Event::Oom(_)) => return None,
        Some(Event::Xid(xid)) => ("gpu-xid", "critical", xid.bus, Some("gpu-xid")),
        Some(Event::ConntrackFull { .. }) => ("log", "critical", "conntrack".to_owned(), Some("conntrack-full")),
        None if line.level <= 3 => ("log", "warning", String::new(), None),
        None if line.level == 4 => ("log", "info", String::new(), None),
        None => return None,
    })
}

fn of_incidents(shown: &Shown) -> Vec<Happened> {
    let event = |triggered: Wall, code: &str, subject: &str, text: &str, number: u64| {
        Some(Happened {
            at: on_axis(shown, triggered)?,
            kind: if code == MARK { "mark" } else { "incident" },
            severity: if code == MARK { "info" } else { "critical" },
            title: text.to_owned(),
            subject: subject.to_owned(),
            finding_code: (code != MARK).then(|| code.to_owned()),
            incident: Some(number),
            ..Happened::default()
        })
    };
    match shown.directory() {
        Some(directory) => {
            let listed =
                incident_report::listed(directory).unwrap_or_default().into_iter().map(|listed| listed.incident);
            listed.filter_map(|i| event(i.triggered, &i.code, &i.subject, &i.text, i.number)).collect()
        }
        None => {
            let parts = shown.parts();
            let rows = parts.iter().filter_map(|part| part.outline.incident.as_ref());
            rows.filter_map(|i| event(i.triggered, &i.code, &i.subject, &i.text, i.number)).collect()
        }
    }
}

fn gaps(shown: &Shown) -> Vec<Happened> {
    let gap = |Gap { from: at, why, .. }: Gap| Happened {
        at,
        kind: "gap",
        severity: "info",
        title: why.to_owned(),
        ..Happened::default()
    };
    super::source::gaps(shown).into_iter().map(gap).collect()
}

/// Values of columns; `None` if unknown.
struct Values {
    steps: Steps,
    values: Vec<Option<f64>>,
}

impl Values {
    fn new(steps: Steps) -> Values {
        Values { steps, values: vec![None; steps.count] }
    }

    /// Sets unknown columns in this range to zero.
    fn known(&mut self, from: AxisTime, to: AxisTime) {
        for at in 0..self.steps.count {
            if self.steps.edge(at + 1) > from && self.steps.edge(at) <= to {
                self.values[at].get_or_insert(0.0);
            }
        }
    }

    fn largest(&mut self, time: AxisTime, value: f64) {
        if let Some(at) = self.steps.at(time) {
            let known = self.values[at].get_or_insert(value);
            *known = known.max(value);
        }
    }

    /// Spreads an amount evenly over a time range.
    fn spread(&mut self, from: AxisTime, to: AxisTime, amount: f64) {
        if to <= from {
            if let Some(at) = self.steps.at(to) {
                *self.values[at].get_or_insert(0.0) += amount;
            }
            return;
        }
        let first = from.since(self.steps.from) / self.steps.step;
        for at in first as usize..self.steps.count {
            let (begin, end) = (self.steps.edge(at), self.steps.edge(at + 1));
            if begin >= to {
                break;
            }
            let part = end.min(to).since(begin.max(from)) as f64 / to.since(from) as f64;
            *self.values[at].get_or_insert(0.0) += amount * part;
        }
    }

    fn series(
        self,
        id: &'static str,
        title: &'static str,
        unit: &'static str,
        worst: &'static str,
        per: f64,
    ) -> Series {
        let round = |value: f64| (value * per * 1000.0).round() / 1000.0;
        let values = self.values.into_iter().map(|value| value.map(round)).collect();
        Series { id, title, unit, worst, values, subject: None }
    }

    fn is_unknown(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }
}

fn of_counters(shown: &Shown, evidence: &Evidence, steps: Steps) -> Vec<Series> {
    let axis = shown.axis();
    let clocks = evidence.clocks.last();
    let at = |time| axis.of_time(time, clocks).unwrap_or(AxisTime::MAX);
    let Some(window) = evidence.window().map(|window| (at(window.from), at(window.to))) else { return Vec::new() };
    let seconds = steps.step as f64 / 1e9;
    let mut series = Vec::new();
    // Sums all subjects of a source, for the matching names.
    let moved = |source: Source, wanted: &dyn Fn(&str, &str) -> bool| {
        let mut values = Values::new(steps);
        let of = evidence.counters.iter().filter(|(s, _)| s.source == source && wanted(&s.subject, &s.name));
        for (_, points) in of {
            values.known(window.0, window.1);
            for pair in points.windows(2) {
                let (before, after) = (at(pair[0].at), at(pair[1].at));
                let amount = pair[1].value.saturating_sub(pair[0].value) as f64;
                if amount > 0.0 {
                    values.spread(before.max(after - LOOKS_APART), after, amount);
                }
            }
        }
        values
    };
    let mut zombies = Values::new(steps);
    let censuses = evidence.cgroup_censuses.iter().map(|census| (census.at, census.dying));
    for (time, dead) in censuses.chain(evidence.zombie_scans.iter().map(|scan| (scan.at, scan.dead))) {
        if let Some(dead) = dead {
            zombies.largest(at(time), dead as f64);
        }
    }
    let mut add = |values: Values, id, title, unit, worst, per| {
        if !values.is_unknown() {
            series.push(values.series(id, title, unit, worst, per));
        }
    };
    add(zombies, "zombies", "dead memory cgroups", "cgroups", "max", 1.0);
    add(waits(evidence, steps, &at), "runqueue-delay", "threads waiting for a core", "s/s", "max", 1e-9 / seconds);
    let dropped = moved(Source::Softnet, &|_, name| name == "dropped");
    add(dropped, "softnet-drops", "packets dropped (softnet)", "packets", "sum", 1.0);
    let squeezed = moved(Source::Softnet, &|_, name| name == "time_squeeze");
    add(squeezed, "softnet-squeezes", "softnet budget exhausted", "times", "sum", 1.0);
    let drops = ["rx_dropped", "tx_dropped", "rx_missed_errors", "rx_over_errors", "rx_fifo_errors", "tx_fifo_errors"];
    let dropped = moved(Source::NicStatistics, &|_, name| drops.contains(&name));
    add(dropped, "nic-drops", "packets dropped by NICs", "packets", "sum", 1.0);
    add(moved(Source::TxTimeout, &|_, _| true), "nic-tx-timeouts", "NIC transmit timeouts", "times", "sum", 1.0);
    // µs per column to percent.
    let percent = 1e-4 / seconds;
    for (id, title, what) in [
        ("pressure-cpu", "CPU pressure (some)", "cpu"),
        ("pressure-memory", "memory pressure (some)", "memory"),
        ("pressure-io", "I/O pressure (some)", "io"),
    ] {
        let stalled = moved(Source::Pressure, &|subject, name| subject == what && name == "some_us");
        add(stalled, id, title, "%", "max", percent);
    }
    let throttled = moved(Source::CgroupCpu, &|_, name| name == "throttled_us");
    add(throttled, "throttled", "cgroups throttled by their CPU quota", "ms", "sum", 1e-3);
    let mut restarts = Values::new(steps);
    let mut counted: HashMap<&str, u32> = HashMap::new();
    for unit in &evidence.units {
        restarts.known(window.0, window.1);
        if let Some(now) = unit.restarts
            && let Some(before) = counted.insert(&unit.name, now)
            && now > before
        {
            restarts.spread(at(unit.at), at(unit.at), f64::from(now - before));
        }
    }
    add(restarts, "unit-restarts", "unit restarts", "restarts", "sum", 1.0);
    series
}

/// Total run queue wait of all threads, in nanoseconds.
fn waits(evidence: &Evidence, steps: Steps, at: &dyn Fn(coroner_evidence::Time) -> AxisTime) -> Values {
    let mut values = Values::new(steps);
    let mut last = HashMap::new();
    for sample in &evidence.thread_samples {
        let Some(sched) = sample.sched else { continue };
        let time = at(sample.at);
        if let Some((before, wait)) = last.insert(sample.key, (time, sched.wait_ns)) {
            let waited = sched.wait_ns.saturating_sub(wait);
            values.spread(before, time, waited as f64);
        }
    }
    values
}

fn of_minutes(shown: &Shown, minutes: &[RollupRow], steps: Steps) -> Vec<Series> {
    let axis = shown.axis();
    let mut series = Vec::new();
    let mut add = |of: &dyn Fn(&RollupRow) -> Option<u64>, id, title, unit, worst, per: f64| {
        let mut values = Values::new(steps);
        for minute in minutes {
            if let (Some(value), Some(at)) = (of(minute), axis.of_wall(minute.minute)) {
                match worst {
                    "max" => values.largest(at, value as f64),
                    _ => values.spread(at, at, value as f64),
                }
            }
        }
        if !values.is_unknown() {
            series.push(values.series(id, title, unit, worst, per));
        }
    };
    // µs per minute to percent.
    let percent = 100.0 / 60e6;
    add(&|m| m.zombies_dead, "zombies", "dead memory cgroups", "cgroups", "max", 1.0);
    add(&|m| m.softnet_drops, "softnet-drops", "packets dropped (softnet)", "packets", "sum", 1.0);
    add(&|m| m.nic_resets, "nic-resets", "NIC resets", "resets", "sum", 1.0);
    add(&|m| m.cpu_stall_us, "pressure-cpu", "CPU pressure (some)", "%", "max", percent);
    add(&|m| m.memory_stall_us, "pressure-memory", "memory pressure (some)", "%", "max", percent);
    add(&|m| m.io_stall_us, "pressure-io", "I/O pressure (some)", "%", "max", percent);
    add(&|m| m.unit_restarts, "unit-restarts", "unit restarts", "restarts", "sum", 1.0);
    add(&|m| m.oom_kills, "oom-kills", "OOM kills", "kills", "sum", 1.0);
    series
}

/// Growth of the dead memory cgroups, on the axis.
pub fn growth(shown: &Shown, ask: &ApiQuery) -> Result<Value, Refusal> {
    let axis = shown.axis();
    let mut counts: BTreeMap<AxisTime, (Option<u64>, Option<u64>)> = BTreeMap::new();
    if shown.is_directory() {
        for minutes in parallel::each(&shown.parts(), |part| recording::rollups(&part.path).unwrap_or_default()) {
            for minute in minutes {
                if let Some(at) = axis.of_wall(minute.minute)
                    && (minute.zombies_dead.is_some() || minute.zombies_tracked.is_some())
                {
                    counts.insert(at, (minute.zombies_dead, minute.zombies_tracked));
                }
            }
        }
    }
    if counts.is_empty() && shown.has_evidence() {
        let evidence = shown.evidence(range(ask, shown)?).map_err(refused)?;
        for census in &evidence.cgroup_censuses {
            if let Some(at) = shown.on_axis(census.at, &evidence) {
                counts.insert(at, (census.dying, census.tracked));
            }
        }
    }
    let at: Vec<AxisTime> = counts.keys().copied().collect();
    let (dead, tracked): (Vec<_>, Vec<_>) = counts.into_values().unzip();
    Ok(json!({ "at": at, "dead": dead, "tracked": tracked }))
}
