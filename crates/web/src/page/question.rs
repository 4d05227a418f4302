//! Turns URL parameters into what the commands take, with the same names.

use std::ops::RangeInclusive;

use super::axis::{Axis, AxisTime};
use super::shown::Shown;
use coroner_evidence::Order;
use coroner_http::{ApiQuery, Refusal};
use coroner_source::moment::{Moment, parse_band, parse_cores};
use coroner_source::profile::select::Selection;

/// A part of the axis.
pub type Range = std::ops::Range<AxisTime>;

fn wrong(name: &str, value: &str, expected: &str) -> Refusal {
    Refusal::bad(format!("{name}={value}: {expected}"), "see docs/api.md")
}

fn number<T: std::str::FromStr>(ask: &ApiQuery, name: &str, expected: &str) -> Result<Option<T>, Refusal> {
    ask.get(name).map(|value| value.parse().map_err(|_| wrong(name, value, expected))).transpose()
}

/// A whole number within bounds.
pub fn count(ask: &ApiQuery, name: &str, default: usize, within: RangeInclusive<usize>) -> Result<usize, Refusal> {
    let value = number::<usize>(ask, name, "expected a whole number")?.unwrap_or(default);
    Ok(value.clamp(*within.start(), *within.end()))
}

/// A share between 0 and 1.
pub fn share(ask: &ApiQuery, name: &str, default: f64) -> Result<f64, Refusal> {
    let value = number::<f64>(ask, name, "expected a share between 0 and 1")?.unwrap_or(default);
    match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => Err(wrong(name, &value.to_string(), "expected a share between 0 and 1")),
    }
}

const NS: &str = "expected nanoseconds after the start of the source (start_ns of /source)";

/// `from` and `to`, with a prefix for the baseline.
fn ends(ask: &ApiQuery, prefix: &str) -> Result<(Option<AxisTime>, Option<AxisTime>), Refusal> {
    // Negative times are clamped to the start.
    let end = |name: String| number::<i64>(ask, &name, NS).map(|ns| ns.map(|ns| AxisTime::START + ns.max(0) as u64));
    Ok((end(format!("{prefix}from"))?, end(format!("{prefix}to"))?))
}

/// The range from `from` to `to`; `None` if neither is given.
pub fn range(ask: &ApiQuery, shown: &Shown) -> Result<Option<Range>, Refusal> {
    let (from, to) = ends(ask, "")?;
    if from.is_none() && to.is_none() {
        return Ok(None);
    }
    let range = from.unwrap_or_default()..to.unwrap_or_else(|| shown.end());
    match range.is_empty() {
        true => Err(Refusal::bad("from must be before to", "choose a range that is not empty")),
        false => Ok(Some(range)),
    }
}

/// The selected samples; all times if none are given.
pub fn selection(ask: &ApiQuery, shown: &Shown, prefix: &str) -> Result<Selection, Refusal> {
    let axis = shown.axis();
    let name = |name: &str| format!("{prefix}{name}");
    let mut selection = Selection::default();
    let ranges = name("range");
    for value in ask.all(&ranges) {
        let parsed = value.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        let (from, to): (u64, u64) = parsed.filter(|(from, to)| from < to).ok_or_else(|| wrong(&ranges, value, NS))?;
        selection.range.push((axis.moment(AxisTime::START + from), axis.moment(AxisTime::START + to)));
    }
    if selection.range.is_empty() {
        let (from, to) = ends(ask, prefix)?;
        if from.is_some() || to.is_some() {
            selection.range.push((axis.moment(from.unwrap_or_default()), axis.moment(to.unwrap_or(AxisTime::MAX))));
        }
    }
    if let Some(band) = ask.get(&name("band")) {
        selection.band = Some(parse_band(band).map_err(|why| wrong("band", band, &why))?);
    }
    for cores in ask.all(&name("core")) {
        selection.core.extend(parse_cores(cores).map_err(|why| wrong("core", cores, &why))?);
    }
    for (ids, of) in [(&mut selection.pid, name("pid")), (&mut selection.tid, name("tid"))] {
        for value in ask.all(&of) {
            ids.push(value.parse().map_err(|_| wrong(&of, value, "expected a number"))?);
        }
    }
    selection.comm = ask.all(&name("comm")).map(str::to_owned).collect();
    selection.cgroup = ask.get(&name("cgroup")).map(str::to_owned);
    selection.symbol = ask.get(&name("symbol")).map(str::to_owned);
    selection.event = ask.get(&name("event")).map(str::to_owned);
    Ok(selection)
}

/// The time ranges of a selection, sorted and merged; everything if it has none.
pub fn stretches(selection: &Selection, axis: Axis, whole: Range) -> Vec<Range> {
    let end = |moment: &Moment| axis.of_moment(*moment).unwrap_or(whole.end);
    let mut ranges: Vec<Range> = selection.range.iter().map(|(from, to)| end(from)..end(to)).collect();
    ranges.order_by_key(|range| range.start);
    let mut merged: Vec<Range> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    if merged.is_empty() { vec![whole] } else { merged }
}

/// The complement of a selection: of its times, or of its band if it has one.
pub fn rest(selection: &Selection, axis: Axis, whole: Range) -> Selection {
    let mut rest = selection.clone();
    if let Some((from, to)) = selection.band {
        // The other part of each second, at the same times.
        rest.band = Some((to % 1_000_000_000, from)).filter(|(from, to)| from != to);
        return rest;
    }
    let mut at = whole.start;
    rest.range.clear();
    for range in stretches(selection, axis, whole.clone()) {
        if at < range.start {
            rest.range.push((axis.moment(at), axis.moment(range.start)));
        }
        at = at.max(range.end);
    }
    if at < whole.end {
        rest.range.push((axis.moment(at), axis.moment(whole.end)));
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_the_complement() {
        let axis = Axis::of(crate::page::axis::Clock::File(None));
        let clock = |(from, to)| (Moment::Clock(from), Moment::Clock(to));
        let whole = AxisTime::START..AxisTime::START + 100;
        let of = |ranges: &[(u64, u64)]| Selection {
            range: ranges.iter().copied().map(clock).collect(),
            ..Selection::default()
        };
        assert_eq!(
            rest(&of(&[(30, 40), (10, 20), (15, 35)]), axis, whole.clone()).range,
            [clock((0, 10)), clock((40, 100))]
        );
        assert_eq!(rest(&of(&[(0, 100)]), axis, whole.clone()).range, []);
        assert_eq!(stretches(&of(&[]), axis, whole.clone()).first(), Some(&whole));
        let band = Selection { band: Some((300_000_000, 1_000_000_000)), ..of(&[(10, 20)]) };
        assert_eq!(rest(&band, axis, whole.clone()).band, Some((0, 300_000_000)));
        assert_eq!(rest(&band, axis, whole.clone()).range, band.range);
    }
}
