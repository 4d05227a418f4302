//! From what the search found to the answer.

use crate::columns::{Columns, Members, Pick, UPTIMES};
use crate::search::{Found, Search, VALUES_SHARE};
use crate::strata::{FEWEST_SICK, Score, Strata};
use crate::survival::{Life, kaplan_meier, reboot_helps, thinned, watched_hours, well_watched};
use crate::table::{Table, pooled_odds_ratio, pooled_risk_ratio};
use crate::{
    Among, AmongNodes, Closest, Cohort, Conclusion, Counts, Curve, CurveOf, Explanation, LookedAt, Population,
    Settings, Uptime, Within,
};

/// Smaller p-values are told as this one: nobody tells them apart, and zero would be wrong.
const LEAST_P: f64 = 1e-300;
/// Uptime within a cohort is told if chance explains it with less than this, over all uptimes tried.
const WITHIN_CHANCE: f64 = 0.001;
/// "Only nodes up for longer" may be wrong about this share of the sick nodes.
const EXCEPTIONS: f64 = 0.03;
/// What came closest is told if it would have counted had nothing else been looked at.
const CLOSE: f64 = 0.01;

pub(crate) fn explanation(population: &Population, settings: &Settings) -> Explanation {
    let columns = Columns::new(population, settings);
    let sick = columns.sick.iter().filter(|s| **s == Some(true)).count();
    let healthy = columns.judged.len() - sick;
    let nodes = Counts { sick, healthy, unknown: columns.sick.len() - columns.judged.len() };
    let search = (sick > 0 && healthy > 0).then(|| Search::run(&columns, settings));
    let found: &[Found] = search.as_ref().map_or(&[], |search| &search.found);
    let values = search.as_ref().map_or(0, |search| search.values);
    let cohorts: Vec<Cohort> = (0..found.len()).map(|index| cohort(&columns, found, index, settings)).collect();
    let closest = search.as_ref().and_then(|search| search.closest).filter(|score| score.ln_p < CLOSE.ln());
    let conclusion = match () {
        () if !cohorts.is_empty() => Conclusion::Difference,
        () if too_few(sick, healthy, values, settings) => Conclusion::TooFewNodes,
        () => Conclusion::NoDifference,
    };
    let looked_at = LookedAt {
        attributes: columns.looked_at,
        values,
        pairs: search.as_ref().map_or(0, |search| search.pairs),
        attributes_left_out: columns.left_out,
        alpha: settings.alpha,
    };
    let matters = search.as_ref().is_some_and(|search| search.uptime_matters);
    Explanation {
        nodes,
        uptime: uptime(&columns, population, found, matters),
        cohorts,
        looked_at,
        closest: closest.map(|score| Closest {
            attributes: columns.said(&score.pick),
            table: columns.table(&columns.members(&score.pick), |_| true),
            p: p(score.ln_p),
            p_adjusted: p(score.ln_adjusted),
        }),
        conclusion,
    }
}

/// Whether not even a cohort with all sick nodes, and with no other if it is large enough, would be certain.
fn too_few(sick: usize, healthy: usize, values: usize, settings: &Settings) -> bool {
    let (least, nodes) = (settings.least(), sick + healthy);
    if sick == 0 || healthy == 0 {
        // More nodes would not help: there is nothing to compare with.
        return nodes < least.saturating_mul(2);
    }
    let of = sick.max(least).min(nodes);
    let perfect = Table { sick: sick as u32, of: of as u32, elsewhere_sick: 0, elsewhere: (nodes - of) as u32 };
    let ln_alpha = (settings.alpha * VALUES_SHARE / values.max(1) as f64).ln();
    sick < FEWEST_SICK as usize || perfect.fisher_ln_p() > ln_alpha
}

fn p(ln_p: f64) -> f64 {
    ln_p.exp().clamp(LEAST_P, 1.0)
}

fn cohort(columns: &Columns, found: &[Found], index: usize, settings: &Settings) -> Cohort {
    let Found { score, named, strata, within } = &found[index];
    let members = &named.members;
    let others = found.iter().enumerate().filter(|(i, _)| *i != index);
    // At the same membership of all others, also of those that were found later.
    let strata = others.clone().fold(strata.clone(), |strata, (_, other)| strata.split(&other.named.members));
    let table = columns.table(members, |_| true);
    let harmful: Vec<&Members> =
        others.filter(|(_, other)| !other.score.protective()).map(|(_, other)| &other.named.members).collect();
    let in_harmful = |node: usize| harmful.iter().any(|members| members[node] == Some(true));
    let among = (!harmful.is_empty()).then(|| {
        let outside = columns.table(members, |node| !in_harmful(node));
        let inside = columns.table(members, in_harmful);
        if score.protective() && inside.fisher_ln_p() < outside.fisher_ln_p() {
            Among { nodes: AmongNodes::Inside, table: inside }
        } else {
            Among { nodes: AmongNodes::Outside, table: outside }
        }
    });
    let mut told: Vec<Within> = Vec::new();
    if !score.protective() && !matches!(named.pick, Pick::Uptime { .. }) {
        told.extend(uptime_within(columns, members));
    }
    for part in within {
        let table = columns.table(&part.members, |node| members[node] == Some(true));
        told.push(Within { attributes: columns.said(&part.pick), only: nearly_all(&table), table });
    }
    told.retain(|within| settings.marked(pooled_odds_ratio(&[within.table])));
    Cohort {
        attributes: columns.said(&named.pick),
        aliases: named.aliases.iter().map(|pick| columns.said(pick)).collect(),
        rivals: named.rivals.iter().map(|pick| columns.said(pick)).collect(),
        protective: score.protective(),
        left_out: columns.judged.len() - (table.of + table.elsewhere) as usize,
        risk_ratio: table.risk_ratio(),
        risk_ratio_adjusted: pooled_risk_ratio(&columns.compare(members, &strata, |_| true)),
        table,
        p_adjusted: p(score.ln_adjusted),
        told_apart_by: named.told_apart_by.clone(),
        among,
        within: told,
    }
}

fn nearly_all(table: &Table) -> bool {
    f64::from(table.elsewhere_sick) <= EXCEPTIONS * f64::from(table.sick)
}

/// The uptime below which hardly a node of the cohort is sick, or else the one that separates best.
fn uptime_within(columns: &Columns, members: &Members) -> Option<Within> {
    let strata = Strata::one(members.len());
    let inside = |node: usize| members[node] == Some(true);
    let tried = UPTIMES.iter().map(|&hours| {
        let pick = Pick::Uptime { hours, longer: true };
        let up = columns.members(&pick);
        let table = columns.table(&up, inside);
        (Score::new(pick, &columns.compare(&up, &strata, inside)), table)
    });
    let ln_limit = (WITHIN_CHANCE / UPTIMES.len() as f64).ln();
    let clear: Vec<_> = tried.filter(|(score, _)| score.ln_p <= ln_limit && score.odds_ratio > 1.0).collect();
    let only = clear.iter().rev().find(|(_, table)| nearly_all(table));
    let (score, table) = only.or_else(|| clear.iter().min_by(|a, b| a.0.ln_p.total_cmp(&b.0.ln_p)))?;
    Some(Within { attributes: columns.said(&score.pick), only: only.is_some(), table: *table })
}

fn uptime(columns: &Columns, population: &Population, found: &[Found], matters: bool) -> Uptime {
    let best = found.iter().find(|f| !f.score.protective() && !matches!(f.named.pick, Pick::Uptime { .. }));
    let curve = |of: CurveOf, inside: &dyn Fn(usize) -> bool| {
        let nodes: Vec<usize> = (0..columns.sick.len()).filter(|n| inside(*n)).collect();
        let lives: Vec<Life> = nodes.iter().flat_map(|&n| population.nodes[n].lives.iter().copied()).collect();
        let points = kaplan_meier(&lives);
        let onsets = points.iter().map(|point| point.onsets).sum();
        let watched_hours = watched_hours(&lives);
        Curve { of, nodes: nodes.len(), lives: lives.len(), onsets, watched_hours, points }
    };
    let mut curves = match best {
        Some(found) => {
            let members = &found.named.members;
            let elsewhere = curve(CurveOf::Elsewhere, &|node| members[node] == Some(false));
            vec![curve(CurveOf::Cohort, &|node| members[node] == Some(true)), elsewhere]
        }
        None => vec![curve(CurveOf::All, &|_| true)],
    };
    let helps = reboot_helps(&curves[0].points);
    for curve in &mut curves {
        curve.points = thinned(well_watched(std::mem::take(&mut curve.points)));
    }
    Uptime {
        matters,
        reboot_helps_for_days: helps.ok(),
        reboot_unknown_because: helps.err().map(str::to_owned),
        sick_median_days: median_days(columns, true),
        healthy_median_days: median_days(columns, false),
        curves,
    }
}

fn median_days(columns: &Columns, sick: bool) -> Option<f64> {
    let asked = columns.judged.iter().map(|n| *n as usize).filter(|n| columns.sick[*n] == Some(sick));
    let mut hours: Vec<f64> = asked.filter_map(|n| columns.up_hours[n]).collect();
    hours.sort_unstable_by(f64::total_cmp);
    hours.get(hours.len() / 2).map(|h| h / 24.0)
}
