//! Turns --since, --core and the like into a filter.

use super::{ProfileSource, ReadProfile, words};
use crate::moment::Moment;
use crate::warn;
use anyhow::{Context, bail};
use coroner_profile::import::Format;
use coroner_profile::model::{Clock, Dictionary, Sample};
use coroner_profile::views::{Band, Filter, Selector};
use std::ops::Range;
use std::time::Duration;

/// Which samples; by default all of them.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Counted from the newest sample; see [`Selection::resolved`].
    pub last: Option<Duration>,
    pub since: Option<Moment>,
    pub until: Option<Moment>,
    pub range: Vec<(Moment, Moment)>,
    /// The same part of every second, in nanoseconds.
    pub band: Option<(u64, u64)>,
    pub core: Vec<u32>,
    pub pid: Vec<u32>,
    pub tid: Vec<u32>,
    pub comm: Vec<String>,
    pub cgroup: Option<String>,
    pub symbol: Option<String>,
    pub event: Option<String>,
}

/// Decides which samples are selected. Times may count from the first sample, so they are resolved when it is seen.
pub struct Select<'a> {
    selection: &'a Selection,
    selector: Option<Selector>,
    /// The time of the first sample, if known in advance.
    first: Option<u64>,
    pub problem: Option<String>,
}

impl<'a> Select<'a> {
    pub fn new(selection: &'a Selection) -> Select<'a> {
        Select { selection, selector: None, first: None, problem: None }
    }

    pub fn begins_at(&mut self, first: u64) {
        self.first = Some(first);
    }

    /// Whether a sample is selected; `None` if the selection makes no sense, see [`Select::problem`].
    pub fn has(&mut self, names: &Dictionary, sample: &Sample) -> Option<bool> {
        if self.selector.is_none() {
            if sample.time.is_none() && self.selection.has_times() {
                return Some(false);
            }
            let first = self.first.or(sample.time).unwrap_or(0);
            match filter(self.selection, first, names.clock) {
                Ok(filter) => self.selector = Some(Selector::new(filter)),
                Err(problem) => {
                    self.problem = Some(problem);
                    return None;
                }
            }
        }
        Some(self.selector.as_mut().is_some_and(|selector| selector.has(names, sample)))
    }
}

/// How much of a recorder's directory to show by default: it may hold days.
const OF_A_DIRECTORY: Duration = Duration::from_secs(600);

impl Selection {
    /// Turns --last into a moment, counted back from the newest sample.
    pub fn resolved(mut self, source: &ProfileSource) -> anyhow::Result<Selection> {
        if self.last.is_none() && !self.has_times() && source.file.is_dir() {
            self.last = Some(OF_A_DIRECTORY);
            warn(&format!(
                "{}: showing the last 10 minutes; use --last, --since or --until for more",
                source.file.display()
            ));
        }
        let Some(last) = self.last else { return Ok(self) };
        let file = source.file.display();
        if super::is_stream(&source.file) || super::format_of(source)? == Some(Format::Folded) {
            bail!("{file}: --last needs a file whose newest sample is known in advance; use --since");
        }
        let outline = coroner_profile::import::outline(&source.file)?;
        let outline =
            outline.with_context(|| format!("{file}: the time of its newest sample is unknown; use --since"))?;
        let since = outline.last.saturating_sub(last.as_nanos() as u64);
        // A number before the first sample would count from it.
        self.since = Some(Moment::Number(since)).filter(|_| since > outline.first);
        Ok(self)
    }

    pub fn has_times(&self) -> bool {
        self.since.is_some() || self.until.is_some() || !self.range.is_empty() || self.band.is_some()
    }

    /// Only where and when, not who: to tell who had a core, everybody's samples are needed.
    pub fn of_anybody(&self) -> Selection {
        let Selection { last, since, until, range, band, core, event, .. } = self.clone();
        Selection { last, since, until, range, band, core, event, ..Selection::default() }
    }

    /// Whether certain threads or functions are selected.
    pub fn asks_for_somebody(&self) -> bool {
        !(self.pid.is_empty() && self.tid.is_empty() && self.comm.is_empty())
            || self.cgroup.is_some()
            || self.symbol.is_some()
    }

    /// Matches the selected threads and functions.
    pub fn somebody(&self) -> Selector {
        Selector::new(Filter {
            pids: self.pid.clone(),
            tids: self.tid.clone(),
            comms: self.comm.clone(),
            cgroup: self.cgroup.clone(),
            symbol: self.symbol.clone(),
            ..Filter::default()
        })
    }

    /// Whether nothing is left out.
    pub fn is_everything(&self) -> bool {
        !self.has_times()
            && self.core.is_empty()
            && self.pid.is_empty()
            && self.tid.is_empty()
            && self.comm.is_empty()
            && self.cgroup.is_none()
            && self.symbol.is_none()
            && self.event.is_none()
    }

    /// The selection in words, as it was written; empty if it is everything.
    pub fn words(&self) -> String {
        let mut words = Vec::new();
        let moment = |moment: &Moment| match moment {
            Moment::Number(ns) | Moment::FromStart(ns) | Moment::Clock(ns) => format!("{} s", *ns as f64 / 1e9),
            Moment::Wall(wall) => wall.to_string(),
            Moment::TimeOfDay(ns) => {
                let s = ns / 1_000_000_000;
                format!("{:02}:{:02}:{:02} UTC", s / 3600, s / 60 % 60, s % 60)
            }
        };
        let mut named = |what: &str, values: Vec<String>| {
            if !values.is_empty() {
                words.push(format!("{what} {}", values.join(", ")));
            }
        };
        named("the last", self.last.iter().map(|last| format!("{} s", last.as_secs_f64())).collect());
        named("since", self.since.iter().filter(|_| self.last.is_none()).map(moment).collect());
        named("until", self.until.iter().map(moment).collect());
        named("in", self.range.iter().map(|(from, to)| format!("{}..{}", moment(from), moment(to))).collect());
        let ms = |ns: u64| format!("{}", ns as f64 / 1e6);
        named("in each second", self.band.iter().map(|(from, to)| format!("{}..{} ms", ms(*from), ms(*to))).collect());
        named("core", self.core.iter().map(u32::to_string).collect());
        named("pid", self.pid.iter().map(u32::to_string).collect());
        named("tid", self.tid.iter().map(u32::to_string).collect());
        named("command", self.comm.clone());
        named("cgroup", self.cgroup.iter().cloned().collect());
        named("function", self.symbol.iter().cloned().collect());
        named("event", self.event.iter().cloned().collect());
        words.join("; ")
    }
}

/// The time range that holds everything selected, for a profile whose first sample is at `first`; `None` if it is unknown, or is
/// everything.
pub fn bounds(selection: &Selection, first: u64, clock: Option<Clock>) -> Option<Range<u64>> {
    let ranges = filter(selection, first, clock).ok()?.ranges;
    let start = ranges.iter().map(|range| range.start).min()?;
    Some(start..ranges.iter().map(|range| range.end).max()?)
}

/// `first` is the time of the first sample.
fn filter(selection: &Selection, first: u64, clock: Option<Clock>) -> Result<Filter, String> {
    // Two plain numbers are both clock readings if one of them can be nothing else.
    let stretch = |from: Option<Moment>, to: Option<Moment>| -> Result<Range<u64>, String> {
        let is_clock = |moment: &Moment| matches!(moment, Moment::Number(ns) if *ns >= first);
        let on_clock = first > 0 && from.iter().chain(to.iter()).any(is_clock);
        let at = |moment: Moment| match moment {
            Moment::Number(ns) if on_clock => Ok(ns),
            moment => time(moment, first, clock),
        };
        Ok(from.map_or(Ok(0), at)?..to.map_or(Ok(u64::MAX), at)?)
    };
    let mut ranges = Vec::new();
    for (from, to) in &selection.range {
        ranges.push(stretch(Some(*from), Some(*to))?);
    }
    if selection.since.is_some() || selection.until.is_some() {
        ranges.push(stretch(selection.since, selection.until)?);
    }
    if let Some(empty) = ranges.iter().find(|range| range.is_empty()) {
        let seconds = |time: u64| (time as f64 - first as f64) / 1e9;
        return Err(format!(
            "the range from {} s to {} s after the first sample is empty: it ends before it begins",
            seconds(empty.start),
            seconds(empty.end)
        ));
    }
    let everywhere = 0..u64::MAX;
    Ok(Filter {
        ranges,
        band: selection.band.map(|(from, to)| Band { offsets: from..to, within: everywhere }),
        cores: selection.core.clone(),
        pids: selection.pid.clone(),
        tids: selection.tid.clone(),
        comms: selection.comm.clone(),
        cgroup: selection.cgroup.clone(),
        symbol: selection.symbol.clone(),
        event: selection.event.clone(),
    })
}

const DAY: i128 = 24 * 3600 * 1_000_000_000;

/// A moment on the recording's clock.
fn time(moment: Moment, first: u64, clock: Option<Clock>) -> Result<u64, String> {
    match moment {
        Moment::Clock(ns) => Ok(ns),
        Moment::Number(ns) if ns >= first => Ok(ns),
        Moment::Number(ns) | Moment::FromStart(ns) => Ok(first.saturating_add(ns)),
        Moment::Wall(_) | Moment::TimeOfDay(_) => {
            let clock = clock.ok_or(
                "the file has no wall-clock times (perf record -k CLOCK_MONOTONIC stores them); use seconds from the first \
                 sample",
            )?;
            // Wall clock minus recording's clock.
            let ahead = i128::from(clock.wall.0) - i128::from(clock.clock_ns);
            let wall = match moment {
                Moment::Wall(wall) => i128::from(wall.0),
                Moment::TimeOfDay(time) => {
                    let midnight = (i128::from(first) + ahead).div_euclid(DAY) * DAY;
                    // The next such time after the first sample, which may be tomorrow.
                    let today = midnight + i128::from(time);
                    if today + DAY / 2 < i128::from(first) + ahead { today + DAY } else { today }
                }
                Moment::Number(ns) | Moment::FromStart(ns) | Moment::Clock(ns) => i128::from(ns),
            };
            Ok(u64::try_from((wall - ahead).max(0)).unwrap_or(u64::MAX))
        }
    }
}

/// Why nothing was selected.
pub fn nothing(read: &ReadProfile, selection: &Selection) -> String {
    let file = read.file.display();
    if read.report.samples == 0 && read.span.is_none() && read.first.is_some() {
        return format!("{file}: none of its samples match {}", selection.words());
    }
    if read.report.samples == 0 {
        let mut why = format!("{file}: no samples");
        if read.report.truncated {
            why.push_str("; the file is truncated");
        }
        for oddity in &read.report.oddities {
            why.push_str(&format!("; {}", words::oddity(oddity)));
        }
        return why;
    }
    let mut has = Vec::new();
    if let Some((first, last)) = read.span {
        has.push(format!("{:.3} s", (last - first) as f64 / 1e9));
    } else if selection.has_times() {
        return format!("{file}: its samples have no times; select without --since, --until, --range and --band");
    }
    if read.cores.is_empty() {
        if !selection.core.is_empty() {
            return format!("{file}: its samples do not say on which core they were taken; select without --core");
        }
    } else {
        has.push(format!("cores {}", words::cores(&read.cores)));
    }
    if selection.cgroup.is_some() && read.names.tasks().all(|(_, task)| task.cgroup.is_none()) {
        return format!("{file}: its samples have no cgroups; record with perf record --all-cgroups");
    }
    let events: Vec<&str> = read.names.events.iter().map(|event| event.name.as_str()).collect();
    has.push(format!("events {}", events.join(", ")));
    format!(
        "{file}: none of its {} samples match {}; it has {}",
        read.report.samples,
        selection.words(),
        has.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::Wall;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_number_counts_from_the_first_sample_or_is_the_clocks() {
        assert_eq!(time(Moment::Number(2 * S), 1000 * S, None), Ok(1002 * S));
        assert_eq!(time(Moment::Number(1001 * S), 1000 * S, None), Ok(1001 * S));
        assert_eq!(time(Moment::FromStart(1001 * S), 1000 * S, None), Ok(2001 * S));
        let clock = Some(Clock { clock_ns: 1000 * S, wall: Wall(1_700_000_000 * S) });
        assert_eq!(time(Moment::Wall(Wall(1_700_000_003 * S)), 1000 * S, clock), Ok(1003 * S));
        assert!(time(Moment::Wall(Wall(S)), 0, None).is_err());
        // 1,700,000,000 is 22:13:20 UTC.
        let of_day = |h: u64, m: u64, s: u64| time(Moment::TimeOfDay((h * 3600 + m * 60 + s) * S), 1000 * S, clock);
        assert_eq!((of_day(22, 13, 25), of_day(0, 0, 0)), (Ok(1005 * S), Ok((1000 + 6400) * S)));
    }
}
