//! Which other cohorts explain the same nodes.
//!
//! *Aliases* pick (nearly) the same nodes, and nothing in the data tells them apart. *Rivals* pick other nodes, yet the data do not tell
//! which of the two it is: at the same value of the rival, the cohort is no longer clearly different.

use crate::columns::{Columns, Members, Pick, Place, has};
use crate::strata::{Score, Strata};
use std::cmp::Ordering;

/// From this correlation (phi) on, two sets are nearly the same nodes.
const SAME_NODES: f64 = 0.9;
/// Two cohorts are told apart if one still differs at the same value of the other with less than this chance.
const TOLD_APART: f64 = 0.01;
/// Fewer nodes that differ tell nothing apart, however they fare: one node may be sick for a reason of its own.
const FEWEST_TELLING: usize = 5;
/// An alias is named first only if what speaks for it is no weaker than this factor: ten.
const NO_WEAKER: f64 = 2.3;
/// At most so many are looked at and told.
const MOST_LOOKED_AT: usize = 48;
const MOST_ALIASES: usize = 10;
const MOST_RIVALS: usize = 3;
const MOST_TOLD_APART_BY: usize = 5;

/// A cohort under the name that says most, with what else it could be.
pub(crate) struct Named {
    pub pick: Pick,
    pub members: Members,
    pub aliases: Vec<Pick>,
    pub rivals: Vec<Pick>,
    /// Picks the same nodes, or just the others: no separate explanation, whether or not it is told apart.
    pub same: Vec<Place>,
    pub told_apart_by: Vec<String>,
}

impl Columns<'_> {
    /// `others` are the scores of what was looked at together with `best`.
    pub fn named(
        &self,
        best: &Score,
        others: &[Score],
        significant: impl Fn(&Score) -> bool,
        strata: &Strata,
    ) -> Named {
        let members = self.members(&best.pick);
        let protective = best.protective();
        let mut same = Vec::new();
        let mut twins: Vec<(Pick, f64)> = Vec::new();
        let told_apart = |other: &Pick| {
            let other = self.members(other);
            let differ = self.judged.iter().map(|n| *n as usize).filter(|&n| differs(members[n], other[n]));
            let strata = strata.split(&other);
            differ.count() >= FEWEST_TELLING
                && self.ln_chance(&members, &strata, protective, |_| true) < TOLD_APART.ln()
        };
        for (place, correlation) in self.places().zip(self.correlations(&members)) {
            let own = parts(&best.pick).any(|p| p == place);
            if own || correlation.abs() < SAME_NODES {
                continue;
            }
            same.push(place);
            let pick = Pick::Value(place);
            if correlation > 0.0 && twins.len() < MOST_LOOKED_AT && !told_apart(&pick) {
                twins.push((pick, self.weight(&pick, strata)));
            }
        }
        // Pairs have aliases, too: the same pair under the alias of one part.
        let pairs = others.iter().filter(|o| matches!(o.pick, Pick::Pair(..)) && o.pick != best.pick);
        for other in pairs.take(MOST_LOOKED_AT) {
            if phi(&members, &self.members(&other.pick)) >= SAME_NODES && !told_apart(&other.pick) {
                twins.push((other.pick, other.ln_p));
            }
        }

        let mut rivals: Vec<&Score> =
            others.iter().filter(|o| significant(o) && o.protective() == protective).collect();
        rivals.retain(|o| match o.pick {
            Pick::Value(place) => !same.contains(&place) && parts(&best.pick).all(|p| p.column != place.column),
            _ => false,
        });
        rivals.sort_by(|a, b| a.ln_p.total_cmp(&b.ln_p));
        let rivals =
            rivals.iter().take(MOST_LOOKED_AT).map(|o| o.pick).filter(|o| !told_apart(o)).take(MOST_RIVALS).collect();

        let weight = self.weight(&best.pick, strata);
        let mut group = vec![best.pick];
        let (close, weaker): (Vec<_>, Vec<_>) = twins.into_iter().partition(|(_, ln_p)| *ln_p <= weight + NO_WEAKER);
        group.extend(close.into_iter().map(|(pick, _)| pick));
        group.sort_by_cached_key(|pick| self.naming(pick));
        group.extend(weaker.into_iter().map(|(pick, _)| pick));
        let pick = group.remove(0);
        let members = self.members(&pick);
        group.truncate(MOST_ALIASES);
        let mut told_apart_by: Vec<&str> = Vec::new();
        for alias in &group {
            let differ = self.members(alias).into_iter().enumerate().filter(|(n, is)| differs(members[*n], *is));
            told_apart_by.extend(differ.map(|(n, _)| self.ids[n]));
        }
        told_apart_by.sort_unstable();
        told_apart_by.dedup();
        let told_apart_by = told_apart_by.into_iter().take(MOST_TOLD_APART_BY).map(str::to_owned).collect();
        Named { pick, members, aliases: group, rivals, same, told_apart_by }
    }

    /// How unlikely a pick's difference is by chance.
    fn weight(&self, pick: &Pick, strata: &Strata) -> f64 {
        Score::new(*pick, &self.compare(&self.members(pick), strata, |_| true)).ln_p
    }

    /// Phi between a set and each value, in the order of `places`.
    fn correlations(&self, members: &Members) -> Vec<f64> {
        let mut found = Vec::new();
        for (column, attribute) in self.attributes.iter().enumerate() {
            let mut counts = vec![(0u32, 0u32); attribute.values.len()];
            let (mut all, mut inside) = (0, 0);
            for (&value, member) in attribute.of.iter().zip(members) {
                if let (Some(member), Some(_)) = (member, has(value, Place { column, value: 0 })) {
                    all += 1;
                    inside += u32::from(*member);
                    if let Some(count) = counts.get_mut(value as usize) {
                        count.0 += 1;
                        count.1 += u32::from(*member);
                    }
                }
            }
            found.extend(counts.into_iter().map(|(of, both)| correlation(all, inside, of, both)));
        }
        found
    }
}

/// The values that a pick is made of.
pub(crate) fn parts(pick: &Pick) -> impl Iterator<Item = Place> + use<> {
    let (a, b) = match *pick {
        Pick::Value(a) => (Some(a), None),
        Pick::Pair(a, b) => (Some(a), Some(b)),
        Pick::Uptime { .. } => (None, None),
    };
    a.into_iter().chain(b)
}

/// In one but not in the other.
fn differs(a: Option<bool>, b: Option<bool>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

fn phi(a: &Members, b: &Members) -> f64 {
    let (mut all, mut of_a, mut of_b, mut both) = (0, 0, 0, 0);
    for (a, b) in a.iter().zip(b).filter_map(|(a, b)| Some(((*a)?, (*b)?))) {
        all += 1;
        of_a += u32::from(a);
        of_b += u32::from(b);
        both += u32::from(a && b);
    }
    correlation(all, of_a, of_b, both)
}

/// Phi of two sets, from their sizes and that of what they share.
fn correlation(all: u32, a: u32, b: u32, both: u32) -> f64 {
    let [all, a, b, both] = [all, a, b, both].map(f64::from);
    let spread = (a * (all - a) * b * (all - b)).sqrt();
    match spread.partial_cmp(&0.0) {
        Some(Ordering::Greater) => (both * all - a * b) / spread,
        _ => 0.0,
    }
}
