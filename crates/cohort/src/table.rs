//! Statistics of 2×2 tables: nodes in a cohort and elsewhere, sick and healthy.
//!
//! P-values are natural logarithms: with 10,000 nodes they go far below what an `f64` can hold.

use serde::{Deserialize, Serialize};
use std::f64::consts::{LN_2, PI};

/// The normal quantile of a two-sided 95 % confidence interval.
const Z_95: f64 = 1.959_963_984_540_054;
/// Two probabilities that differ by less than this share are the same one, computed in another order.
const SAME_PROBABILITY: f64 = 1e-7;
/// Terms smaller than this share of their sum no longer change it.
const NEGLIGIBLE: f64 = 1e-17;

/// Nodes in a cohort and elsewhere, each with how many of them are sick.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub sick: u32,
    pub of: u32,
    pub elsewhere_sick: u32,
    pub elsewhere: u32,
}

/// How many times as likely, with its 95 % confidence interval. Always finite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Ratio {
    fn from_log(log: f64, error: f64) -> Ratio {
        let e = |x: f64| x.clamp(-690.0, 690.0).exp();
        Ratio { value: e(log), low: e(log - Z_95 * error), high: e(log + Z_95 * error) }
    }
}

impl Table {
    pub(crate) fn add(&mut self, inside: bool, sick: bool) {
        if inside {
            self.of += 1;
            self.sick += u32::from(sick);
        } else {
            self.elsewhere += 1;
            self.elsewhere_sick += u32::from(sick);
        }
    }

    fn nodes(&self) -> f64 {
        f64::from(self.of) + f64::from(self.elsewhere)
    }

    fn all_sick(&self) -> f64 {
        f64::from(self.sick) + f64::from(self.elsewhere_sick)
    }

    /// Whether it can say anything: nodes inside and elsewhere, sick and healthy.
    pub(crate) fn says_something(&self) -> bool {
        self.of > 0 && self.elsewhere > 0 && self.all_sick() > 0.0 && self.all_sick() < self.nodes()
    }

    /// The same table seen from elsewhere.
    fn mirrored(&self) -> Table {
        Table { sick: self.elsewhere_sick, of: self.elsewhere, elsewhere_sick: self.sick, elsewhere: self.of }
    }

    /// How many of the nodes inside are sick if being inside makes no difference.
    fn chance(&self) -> Hypergeometric {
        let (nodes, sick, of) = (self.nodes(), self.all_sick(), f64::from(self.of));
        Hypergeometric { nodes, sick, of, low: (of + sick - nodes).max(0.0), high: of.min(sick) }
    }

    /// Fisher's exact test, two-sided: the chance of a table that is no likelier than this one.
    pub fn fisher_ln_p(&self) -> f64 {
        if !self.says_something() {
            return 0.0;
        }
        let chance = self.chance();
        let limit = chance.ln_probability(f64::from(self.sick)) + SAME_PROBABILITY;
        let mode = chance.mode(1.0);
        if chance.ln_probability(mode) <= limit {
            return 0.0;
        }
        // The probabilities rise to the mode and fall behind it: on each side, everything beyond some border is unlikely enough.
        let side = |end: f64, outward: f64| {
            if chance.ln_probability(end) > limit {
                return f64::NEG_INFINITY;
            }
            let (mut unlikely, mut likely) = (end, mode);
            while (unlikely - likely).abs() > 1.0 {
                let middle = ((unlikely + likely) / 2.0).floor();
                *(if chance.ln_probability(middle) <= limit { &mut unlikely } else { &mut likely }) = middle;
            }
            chance.ln_sum_from(unlikely, outward)
        };
        ln_add(side(chance.low, -1.0), side(chance.high, 1.0)).min(0.0)
    }

    /// The risk inside divided by the risk elsewhere: Katz's logarithmic interval. If a cell that it divides by is zero, half a node is
    /// added to each cell (Haldane and Anscombe), so that the ratio stays finite; its interval is then wide.
    pub fn risk_ratio(&self) -> Ratio {
        let add = if self.sick == 0 || self.elsewhere_sick == 0 { 0.5 } else { 0.0 };
        let (a, n) = (f64::from(self.sick) + add, f64::from(self.of) + 2.0 * add);
        let (c, m) = (f64::from(self.elsewhere_sick) + add, f64::from(self.elsewhere) + 2.0 * add);
        if n == 0.0 || m == 0.0 {
            return Ratio { value: 1.0, low: 0.0, high: f64::MAX };
        }
        Ratio::from_log((a / n / (c / m)).ln(), (1.0 / a - 1.0 / n + 1.0 / c - 1.0 / m).max(0.0).sqrt())
    }
}

/// Mantel and Haenszel's risk ratio over strata, with the interval of Greenland and Robins. `None`: nobody sick on one side.
pub fn pooled_risk_ratio(tables: &[Table]) -> Option<Ratio> {
    let (mut inside, mut elsewhere, mut spread) = (0.0, 0.0, 0.0);
    for table in tables.iter().filter(|t| t.of > 0 && t.elsewhere > 0) {
        let (n, of, rest) = (table.nodes(), f64::from(table.of), f64::from(table.elsewhere));
        let (a, c) = (f64::from(table.sick), f64::from(table.elsewhere_sick));
        inside += a * rest / n;
        elsewhere += c * of / n;
        spread += (of * rest * (a + c) - a * c * n) / (n * n);
    }
    let found = inside > 0.0 && elsewhere > 0.0;
    found.then(|| Ratio::from_log((inside / elsewhere).ln(), (spread / (inside * elsewhere)).max(0.0).sqrt()))
}

/// Mantel and Haenszel's odds ratio over strata; infinite if nobody elsewhere is sick, NaN if the tables say nothing.
pub fn pooled_odds_ratio(tables: &[Table]) -> f64 {
    let (mut more, mut less) = (0.0, 0.0);
    for table in tables.iter().filter(|t| t.says_something()) {
        let (a, c) = (f64::from(table.sick), f64::from(table.elsewhere_sick));
        more += a * (f64::from(table.elsewhere) - c) / table.nodes();
        less += c * (f64::from(table.of) - a) / table.nodes();
    }
    more / less
}

/// By how many standard deviations more of the nodes inside are sick than expected, over strata (Cochran, Mantel, Haenszel). Rough
/// where few are expected: only good for choosing what is worth an exact test.
pub(crate) fn deviation(tables: &[Table]) -> f64 {
    let (mut excess, mut variance) = (0.0, 0.0);
    for table in tables.iter().filter(|t| t.says_something()) {
        let (n, sick, of) = (table.nodes(), table.all_sick(), f64::from(table.of));
        excess += f64::from(table.sick) - of * sick / n;
        variance += of * (n - of) * sick * (n - sick) / (n * n * (n - 1.0));
    }
    if variance > 0.0 { excess / variance.sqrt() } else { 0.0 }
}

/// The exact two-sided test over strata: Fisher's for one, else twice the smaller tail of the sum.
pub fn stratified_ln_p(tables: &[Table]) -> f64 {
    match tables {
        [] => 0.0,
        [one] => one.fisher_ln_p(),
        _ => (LN_2 + ln_tail(tables, true).min(ln_tail(tables, false))).min(0.0),
    }
}

/// The chance that at least (`more`) or at most as many nodes inside are sick, given how many are sick in each stratum.
///
/// The sum of hypergeometric numbers by the saddlepoint of Lugannani and Rice, with Daniels' second continuity correction: within a few
/// per cent of the exact sum, also far out, where the normal approximation of the usual test would be wrong by orders of magnitude.
pub fn ln_tail(tables: &[Table], more: bool) -> f64 {
    let kept = tables.iter().filter(|t| t.says_something());
    // Few sick nodes inside are many elsewhere.
    let kept: Vec<Table> = if more { kept.copied().collect() } else { kept.map(Table::mirrored).collect() };
    let strata: Vec<Hypergeometric> = kept.iter().map(Table::chance).collect();
    let seen: f64 = kept.iter().map(|t| f64::from(t.sick)).sum();
    let target = seen - 0.5;
    if target <= strata.iter().map(|s| s.of * s.sick / s.nodes).sum() {
        return 0.0;
    }
    if seen >= strata.iter().map(|s| s.high).sum() {
        return strata.iter().map(|s| s.ln_probability(s.high)).sum();
    }
    // Tilt the strata by t so that what was seen is what is expected. The mean rises with t: Newton, kept between brackets.
    let (mut low, mut high) = (0.0_f64, 60.0_f64);
    let start = pooled_odds_ratio(&kept).ln();
    let mut t = if start > low && start < high { start } else { 1.0 };
    let mut variance = 1.0;
    for _ in 0..100 {
        let (mut mean, mut spread) = (0.0, 0.0);
        for stratum in &strata {
            let (_, m, v) = stratum.tilted(t);
            mean += m;
            spread += v;
        }
        variance = spread;
        *(if mean < target { &mut low } else { &mut high }) = t;
        if (mean - target).abs() < 1e-9 * target.max(1.0) || high - low < 1e-12 {
            break;
        }
        let next = t - (mean - target) / spread;
        t = if next > low && next < high { next } else { (low + high) / 2.0 };
    }
    let growth: f64 = strata.iter().map(|s| s.tilted(t).0).sum();
    let w = (2.0 * (t * target - growth)).max(0.0).sqrt();
    let u = 2.0 * (t / 2.0).sinh() * variance.sqrt();
    if w < 0.5 {
        return -LN_2;
    }
    let correction = mills(w) + 1.0 / u - 1.0 / w;
    let factor = if correction > 0.0 { correction } else { mills(w) };
    (-w * w / 2.0 - (2.0 * PI).ln() / 2.0 + factor.ln()).min(0.0)
}

/// The normal tail divided by the density, as a continued fraction; for `x` of 0.5 and more.
fn mills(x: f64) -> f64 {
    1.0 / (x + (1..=150).rev().fold(0.0, |fraction, k| f64::from(k) / (x + fraction)))
}

/// Benjamini and Hochberg's adjusted p-values of tests of which these are the smallest, all as logarithms. `tests` is how many were made.
pub fn benjamini_hochberg(ln_p: &[f64], tests: usize) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ln_p.len()).collect();
    order.sort_by(|&a, &b| ln_p[a].total_cmp(&ln_p[b]));
    let mut adjusted = vec![0.0; ln_p.len()];
    let mut least: f64 = 0.0;
    for (rank, &test) in order.iter().enumerate().rev() {
        least = least.min(ln_p[test] + (tests.max(ln_p.len()) as f64 / (rank + 1) as f64).ln());
        adjusted[test] = least;
    }
    adjusted
}

/// The number of sick nodes among `of` that were drawn from `nodes` with `sick` sick ones.
struct Hypergeometric {
    nodes: f64,
    sick: f64,
    of: f64,
    low: f64,
    high: f64,
}

impl Hypergeometric {
    fn ln_probability(&self, k: f64) -> f64 {
        ln_choose(self.sick, k) + ln_choose(self.nodes - self.sick, self.of - k) - ln_choose(self.nodes, self.of)
    }

    /// By how much `k + 1` is likelier than `k`.
    fn step(&self, k: f64) -> f64 {
        (self.sick - k) * (self.of - k) / ((k + 1.0) * (self.nodes - self.sick - self.of + k + 1.0))
    }

    /// The likeliest number if the odds of sick nodes to be inside are multiplied.
    fn mode(&self, odds: f64) -> f64 {
        // p(k) ≥ p(k − 1) up to the root of a quadratic equation; divided by `odds`, which may be huge.
        let a = 1.0 - 1.0 / odds;
        let b = self.sick + self.of + 2.0 + (self.nodes - self.sick - self.of) / odds;
        let c = (self.sick + 1.0) * (self.of + 1.0);
        (2.0 * c / (b + (b * b - 4.0 * a * c).max(0.0).sqrt())).floor().clamp(self.low, self.high)
    }

    /// ln E(e^(t·k)), and the mean and variance under that tilt.
    fn tilted(&self, t: f64) -> (f64, f64, f64) {
        let odds = t.exp();
        let mode = self.mode(odds);
        let (mut sum, mut first, mut second) = (1.0, 0.0, 0.0);
        for outward in [1.0, -1.0] {
            let (mut k, mut term) = (mode, 1.0);
            while term > NEGLIGIBLE * sum && if outward > 0.0 { k < self.high } else { k > self.low } {
                term *= if outward > 0.0 { self.step(k) * odds } else { 1.0 / (self.step(k - 1.0) * odds) };
                k += outward;
                sum += term;
                first += term * (k - mode);
                second += term * (k - mode) * (k - mode);
            }
        }
        let mean = first / sum;
        (self.ln_probability(mode) + t * mode + f64::ln(sum), mode + mean, (second / sum - mean * mean).max(0.0))
    }

    /// The logarithm of the probability of `k` and everything further out.
    fn ln_sum_from(&self, start: f64, outward: f64) -> f64 {
        let (mut k, mut term, mut sum) = (start, 1.0, 1.0);
        while term > NEGLIGIBLE * sum && if outward > 0.0 { k < self.high } else { k > self.low } {
            term *= if outward > 0.0 { self.step(k) } else { 1.0 / self.step(k - 1.0) };
            k += outward;
            sum += term;
        }
        self.ln_probability(start) + f64::ln(sum)
    }
}

fn ln_add(a: f64, b: f64) -> f64 {
    let (small, large) = if a < b { (a, b) } else { (b, a) };
    if large == f64::NEG_INFINITY { large } else { large + (small - large).exp().ln_1p() }
}

fn ln_choose(n: f64, k: f64) -> f64 {
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

/// Exact for small numbers, then Stirling's series, which is good to 1e-14 from there on.
fn ln_factorial(n: f64) -> f64 {
    if n < 32.0 {
        return (2..=n as u32).map(f64::from).product::<f64>().ln();
    }
    let r = 1.0 / (n * n);
    n * n.ln() - n + (2.0 * PI * n).ln() / 2.0 + (1.0 / 12.0 - r * (1.0 / 360.0 - r * (1.0 / 1260.0 - r / 1680.0))) / n
}

#[cfg(test)]
mod tests;
