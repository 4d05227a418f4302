//! The search for the fewest cohorts that explain who is sick.
//!
//! One cohort makes everything that correlates with it look guilty. So they are found one by one: the best one first, then whatever still
//! differs at the same membership of those found, and so on. Uptime is no cohort here but an exposure: if it matters, nodes are compared at
//! the same uptime. Only what uptime alone explains becomes a cohort of uptime, at the end.

use crate::Settings;
use crate::alias::{Named, parts};
use crate::columns::{Columns, Pick, Place, UPTIMES};
use crate::pairs::Pairs;
use crate::strata::{Score, Strata};
use crate::table::{benjamini_hochberg, ln_tail, pooled_odds_ratio};
use std::collections::BTreeSet;

/// Alpha is split between single values, pairs, and uptime. Pairs are many and seldom the answer.
pub(crate) const VALUES_SHARE: f64 = 0.6;
const PAIRS_SHARE: f64 = 0.2;
const UPTIME_SHARE: f64 = 0.2;
/// Uptime counts as an exposure already if it may matter. Comparing at the same uptime for nothing costs little.
const UPTIME_MAY_MATTER: f64 = 0.05;
/// A pair must be this much better than the best single value: a factor of a hundred. A pair has more freedom to fit.
const PAIR_MARGIN: f64 = 4.6;
/// A further cause must show among the nodes outside the causes found before with less than this chance; else it refines one of them.
const SHOWS_OUTSIDE: f64 = 0.01;
/// Each round settles at least one value; what comes later is of no interest to anybody.
const MOST_ROUNDS: usize = 16;
/// P-values this close are the same one: of a value and its complement, for example.
const TIE: f64 = 1e-6;

/// A cohort that differs, before it is described.
pub(crate) struct Found {
    pub score: Score,
    pub named: Named,
    /// The strata in which it was compared: earlier cohorts and, if it matters, uptime.
    pub strata: Strata,
    /// What only matters within it.
    pub within: Vec<Named>,
}

pub(crate) struct Search {
    pub found: Vec<Found>,
    pub pairs: usize,
    pub values: usize,
    pub uptime_matters: bool,
    /// The best of what was not good enough.
    pub closest: Option<Score>,
}

impl Search {
    pub fn run(columns: &Columns, settings: &Settings) -> Search {
        let everywhere = Strata::one(columns.sick.len());
        let (ln_values, ln_pairs) = ((settings.alpha * VALUES_SHARE).ln(), (settings.alpha * PAIRS_SHARE).ln());
        let exposure = best_uptime(columns, &everywhere, |_| true);
        let exposure = exposure.filter(|score| score.ln_adjusted < UPTIME_MAY_MATTER.ln());
        let mut strata = match exposure.map(|score| score.pick) {
            Some(Pick::Uptime { hours, .. }) => everywhere.split(&columns.uptime_buckets(hours)),
            _ => everywhere.clone(),
        };
        // The same without uptime, for the question whether uptime alone explains the rest.
        let mut any_uptime = everywhere;

        let pairs = Pairs::screened(columns, settings.least());
        let mut search = Search {
            found: Vec::new(),
            pairs: pairs.looked_at,
            values: columns.places().count(),
            uptime_matters: exposure.is_some(),
            closest: None,
        };
        let mut settled: BTreeSet<Place> = BTreeSet::new();
        for _ in 0..MOST_ROUNDS {
            if search.found.len() >= settings.max_cohorts {
                break;
            }
            let mut scores = columns.values_scored(&strata);
            adjust(&mut scores);
            scores.retain(|score| parts(&score.pick).all(|place| !settled.contains(&place)));
            let significant = |score: &Score| score.counts(ln_values, settings);
            let value = best(columns, scores.iter().filter(|score| significant(score)));
            let of_pairs = pairs.scored(columns, &strata, ln_pairs, settings.min_odds_ratio);
            let new = of_pairs.iter().filter(|pair| parts(&pair.pick).all(|place| !settled.contains(&place)));
            let pair = best(columns, new);
            let Some(score) = better(value, pair) else {
                search.closest = best(columns, scores.iter()).filter(|_| search.found.is_empty());
                break;
            };
            scores.extend(of_pairs);
            let named = columns.named(&score, &scores, significant, &strata);
            settled.extend(named.same.iter().copied());
            let compared = strata.clone();
            for pick in [score.pick, named.pick].iter().chain(&named.aliases) {
                settled.extend(parts(pick));
            }
            // A pair's parts are strata, too: what is left of their own effect must not make their correlates look guilty.
            for pick in parts(&score.pick).map(Pick::Value) {
                let members = columns.members(&pick);
                strata = strata.split(&members);
                any_uptime = any_uptime.split(&members);
            }
            search.add(columns, score, named, compared, settings);
        }
        search.add_uptime(columns, &any_uptime, settings);
        search.found.sort_by(|a, b| a.score.ln_p.total_cmp(&b.score.ln_p));
        search
    }

    fn harmful(&self) -> impl Iterator<Item = &Found> {
        self.found.iter().filter(|found| !found.score.protective())
    }

    /// Whether a node is in none of the harmful cohorts.
    fn spared(&self, node: usize) -> bool {
        self.harmful().all(|found| found.named.members[node] != Some(true))
    }

    fn add(&mut self, columns: &Columns, score: Score, named: Named, strata: Strata, settings: &Settings) {
        if !score.protective() && self.harmful().next().is_some() {
            let outside = columns.compare(&named.members, &strata, |node| self.spared(node));
            let shows = ln_tail(&outside, true) < SHOWS_OUTSIDE.ln() && settings.marked(pooled_odds_ratio(&outside));
            if !shows {
                let chance = |found: &Found| {
                    columns.ln_chance(&named.members, &strata, false, |node| found.named.members[node] == Some(true))
                };
                let harmful = self.found.iter_mut().filter(|found| !found.score.protective());
                if let Some(found) = harmful.min_by(|a, b| chance(a).total_cmp(&chance(b))) {
                    found.within.push(named);
                }
                return;
            }
        }
        self.found.push(Found { score, named, strata, within: Vec::new() });
    }

    /// Uptime as a cohort, if it matters outside the harmful cohorts. Within them it is told with the cohort.
    fn add_uptime(&mut self, columns: &Columns, strata: &Strata, settings: &Settings) {
        let score = best_uptime(columns, strata, |node| self.spared(node));
        let ln_alpha = (settings.alpha * UPTIME_SHARE).ln();
        let Some(score) = score.filter(|score| score.counts(ln_alpha, settings)) else { return };
        let mut others = columns.values_scored(strata);
        adjust(&mut others);
        let significant = |score: &Score| score.counts((settings.alpha * VALUES_SHARE).ln(), settings);
        let named = columns.named(&score, &others, significant, strata);
        self.found.push(Found { score, named, strata: strata.clone(), within: Vec::new() });
    }
}

/// Benjamini and Hochberg within the level.
fn adjust(scores: &mut [Score]) {
    let ln_p: Vec<f64> = scores.iter().map(|score| score.ln_p).collect();
    for (score, adjusted) in scores.iter_mut().zip(benjamini_hochberg(&ln_p, ln_p.len())) {
        score.ln_adjusted = adjusted;
    }
}

/// The smallest p-value. Of equal ones the harmful one: a value and its complement say the same.
fn best<'s>(columns: &Columns, scores: impl Iterator<Item = &'s Score> + Clone) -> Option<Score> {
    let least = scores.clone().map(|score| score.ln_p).min_by(f64::total_cmp)?;
    let tied = scores.filter(|score| score.ln_p <= least + TIE * least.abs().max(1.0));
    tied.min_by_key(|score| (score.protective(), columns.naming(&score.pick))).copied()
}

fn better(value: Option<Score>, pair: Option<Score>) -> Option<Score> {
    match (value, pair) {
        (Some(value), Some(pair)) if pair.ln_p + PAIR_MARGIN < value.ln_p => Some(pair),
        (Some(value), _) => Some(value),
        (None, pair) => pair,
    }
}

/// The uptime that separates sick from healthy nodes best, adjusted for the number of uptimes that were tried. Always the harmful side.
fn best_uptime(columns: &Columns, strata: &Strata, among: impl Fn(usize) -> bool) -> Option<Score> {
    let side = |hours: f64, longer: bool| {
        let pick = Pick::Uptime { hours, longer };
        Score::new(pick, &columns.compare(&columns.members(&pick), strata, &among))
    };
    let score =
        |&hours: &f64| Some(side(hours, true)).filter(|s| !s.protective()).unwrap_or_else(|| side(hours, false));
    let best = UPTIMES.iter().map(score).min_by(|a, b| a.ln_p.total_cmp(&b.ln_p))?;
    let ln_adjusted = (best.ln_p + (UPTIMES.len() as f64).ln()).min(0.0);
    Some(Score { ln_adjusted, ..best })
}
