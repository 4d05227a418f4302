//! How long after boot nodes get sick: Kaplan and Meier's curve, with boots that were watched only from some hour on.

use serde::{Deserialize, Serialize};

/// Fewer onsets than this say nothing about how long a reboot helps.
const FEWEST_ONSETS: usize = 8;
/// While fewer boots are watched than this, one of them moves the curve too much. Such hours are passed over when a quantile is read.
const FEWEST_AT_RISK: usize = 5;
/// A reboot helps until this share of the nodes is sick again.
const SICK_AGAIN: f64 = 0.25;
/// A reboot helps only if the trouble needs time to build up. If it strikes at any hour alike, half of the hazard lies in the first half of
/// that time; for a leak hardly any does.
const EARLY_HAZARD: f64 = 1.0 / 3.0;
/// A curve for drawing needs no more points.
const MOST_POINTS: usize = 200;

/// One boot of a node, as far as it was watched.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Life {
    /// From boot to the first onset, or to the end of what was seen of this boot.
    pub hours: f64,
    /// Whether it ended with an onset.
    pub onset: bool,
    /// How long the node had been up when watching began. An onset before that hour would not have been seen.
    pub entered_after_hours: f64,
}

/// The share of boots without trouble after `hours`, and how many were watched and got sick at that hour.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub hours: f64,
    pub survival: f64,
    pub at_risk: usize,
    pub onsets: usize,
}

impl Life {
    fn is_usable(&self) -> bool {
        let sane = |hours: f64| hours.is_finite() && hours >= 0.0;
        let watched = self.hours > self.entered_after_hours || self.entered_after_hours == 0.0;
        sane(self.hours) && sane(self.entered_after_hours) && watched
    }
}

/// Kaplan and Meier's curve: one point per hour with an onset. A boot counts as watched after the hour when watching began, and from 0 on if
/// it was watched from its start. Lives with impossible hours are left out.
pub fn kaplan_meier(lives: &[Life]) -> Vec<Point> {
    let usable: Vec<&Life> = lives.iter().filter(|life| life.is_usable()).collect();
    let sorted = |mut hours: Vec<f64>| {
        hours.sort_unstable_by(f64::total_cmp);
        hours
    };
    let ends = sorted(usable.iter().map(|life| life.hours).collect());
    // Watched from the start means watched at hour 0, too.
    let entry = |life: &&Life| if life.entered_after_hours == 0.0 { -1.0 } else { life.entered_after_hours };
    let entries = sorted(usable.iter().map(entry).collect());
    let onsets = sorted(usable.iter().filter(|life| life.onset).map(|life| life.hours).collect());
    let mut survival = 1.0;
    let mut points = Vec::new();
    for same in onsets.chunk_by(|a, b| a == b) {
        let (hours, onsets) = (same[0], same.len());
        let at_risk = entries.partition_point(|e| *e < hours) - ends.partition_point(|e| *e < hours);
        survival *= 1.0 - onsets as f64 / at_risk.max(onsets) as f64;
        points.push(Point { hours, survival, at_risk, onsets });
    }
    points
}

/// The number of days that a reboot helps for, or why that cannot be said.
pub(crate) fn reboot_helps(curve: &[Point]) -> Result<f64, &'static str> {
    if curve.iter().map(|p| p.onsets).sum::<usize>() < FEWEST_ONSETS {
        return Err("too few onsets were seen");
    }
    let mut survival = 1.0;
    let mut hazards: Vec<(f64, f64)> = Vec::new();
    for point in curve.iter().filter(|p| p.at_risk >= FEWEST_AT_RISK) {
        survival *= 1.0 - point.onsets as f64 / point.at_risk as f64;
        let before = hazards.last().map_or(0.0, |(_, sum)| *sum);
        hazards.push((point.hours, before + point.onsets as f64 / point.at_risk as f64));
        if survival <= 1.0 - SICK_AGAIN {
            break;
        }
    }
    let Some(&(hours, all)) = hazards.last().filter(|_| survival <= 1.0 - SICK_AGAIN) else {
        return Err("most nodes stay healthy for as long as they were watched");
    };
    let early = hazards.iter().rev().find(|(h, _)| *h <= hours / 2.0).map_or(0.0, |(_, sum)| *sum);
    if early > EARLY_HAZARD * all { Err("it strikes soon after boot as well as later") } else { Ok(hours / 24.0) }
}

/// The curve over the hours in which enough boots are watched. With one boot watched, its onset would take the curve to 0 for good.
pub(crate) fn well_watched(curve: Vec<Point>) -> Vec<Point> {
    let mut survival = 1.0;
    let watched = curve.into_iter().filter(|point| point.at_risk >= FEWEST_AT_RISK);
    let again = watched.map(|point| {
        survival *= 1.0 - point.onsets as f64 / point.at_risk as f64;
        Point { survival, ..point }
    });
    again.collect()
}

/// The last hour at which enough boots were watched.
pub(crate) fn watched_hours(lives: &[Life]) -> f64 {
    let mut ends: Vec<f64> = lives.iter().filter(|life| life.is_usable()).map(|life| life.hours).collect();
    ends.sort_unstable_by(f64::total_cmp);
    ends.len().checked_sub(FEWEST_AT_RISK).map_or(0.0, |at| ends[at])
}

/// Evenly chosen points of a long curve, always with its last one.
pub(crate) fn thinned(curve: Vec<Point>) -> Vec<Point> {
    let every = curve.len().div_ceil(MOST_POINTS).max(1);
    let last = curve.len().saturating_sub(1);
    curve.into_iter().enumerate().filter(|(i, _)| i % every == 0 || *i == last).map(|(_, point)| point).collect()
}

#[cfg(test)]
mod tests;
