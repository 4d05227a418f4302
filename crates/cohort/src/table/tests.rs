use super::*;

fn table(sick: u32, of: u32, elsewhere_sick: u32, elsewhere: u32) -> Table {
    Table { sick, of, elsewhere_sick, elsewhere }
}

fn close(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * b.abs()
}

fn choose(n: u32, k: u32) -> f64 {
    (0..k).map(|i| f64::from(n - i) / f64::from(i + 1)).product()
}

/// The probability of each number of sick nodes inside.
fn probabilities(t: &Table) -> Vec<f64> {
    let (nodes, sick) = (t.of + t.elsewhere, t.sick + t.elsewhere_sick);
    let one = |k| {
        if k > t.of || t.of - k > nodes - sick {
            0.0
        } else {
            choose(sick, k) * choose(nodes - sick, t.of - k) / choose(nodes, t.of)
        }
    };
    (0..=sick).map(one).collect()
}

#[test]
fn fisher_is_right_for_known_tables() {
    // Fisher's tea: 3 of 4 cups, 1 of 4; two-sided 0.4857.
    assert!(close(table(3, 4, 1, 4).fisher_ln_p().exp(), 0.485_714_285_714, 1e-10));
    // R: fisher.test(matrix(c(1, 9, 11, 3), 2)): 0.002759456.
    assert!(close(table(1, 10, 11, 14).fisher_ln_p().exp(), 0.002_759_456_185, 1e-8));
}

#[test]
fn fisher_is_right_for_all_small_tables() {
    for of in 0..=9 {
        for elsewhere in 0..=9 {
            for sick in 0..=of {
                for elsewhere_sick in 0..=elsewhere {
                    let t = table(sick, of, elsewhere_sick, elsewhere);
                    let all = probabilities(&t);
                    let seen = all[sick as usize] * (1.0 + 1e-7);
                    let expected: f64 = all.iter().filter(|p| **p <= seen).sum();
                    assert!(close(t.fisher_ln_p().exp(), expected.min(1.0), 1e-9), "{t:?}: {expected}");
                }
            }
        }
    }
}

#[test]
fn fisher_holds_far_out_and_for_many_nodes() {
    // All sick nodes in one cohort: one table in C(10000, 500).
    let perfect = table(500, 500, 0, 9_500);
    assert!(close(perfect.fisher_ln_p(), -ln_choose(10_000.0, 500.0), 1e-9));
    let huge = table(u32::MAX / 4, u32::MAX / 2, u32::MAX / 4, u32::MAX / 2);
    assert!(huge.fisher_ln_p() <= 0.0);
    assert_eq!(table(0, 0, 0, 0).fisher_ln_p(), 0.0);
    assert_eq!(table(5, 5, 5, 5).fisher_ln_p(), 0.0);
}

/// The exact tail of a sum over strata, term by term.
fn exact_tail(tables: &[Table], more: bool) -> f64 {
    let mut sum = vec![1.0];
    for t in tables {
        let one = probabilities(t);
        let mut next = vec![0.0; sum.len() + one.len() - 1];
        for (i, a) in sum.iter().enumerate() {
            for (j, b) in one.iter().enumerate() {
                next[i + j] += a * b;
            }
        }
        sum = next;
    }
    let seen: u32 = tables.iter().map(|t| t.sick).sum();
    if more { sum[seen as usize..].iter().sum() } else { sum[..=seen as usize].iter().sum() }
}

#[test]
fn the_tail_over_strata_is_nearly_exact() {
    let mut state = 7u64;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as u32) % below
    };
    let mut checked = 0;
    for _ in 0..4_000 {
        let tables: Vec<Table> = (0..2 + random(8))
            .map(|_| {
                let (of, elsewhere) = (1 + random(12), 1 + random(60));
                table(random(of + 1), of, random(elsewhere + 1) / (1 + random(6)), elsewhere)
            })
            .collect();
        for more in [true, false] {
            let exact = exact_tail(&tables, more);
            let ours = ln_tail(&tables, more).exp();
            if exact < 0.05 {
                checked += 1;
                assert!(close(ours, exact, 0.08), "{tables:?} {more}: {ours} instead of {exact}");
            } else {
                assert!(ours > 0.04, "{tables:?} {more}: {ours} instead of {exact}");
            }
        }
    }
    assert!(checked > 1_000, "{checked}");
}

#[test]
fn one_stratum_gives_fishers_one_sided_test() {
    let t = table(8, 10, 5, 60);
    assert!(close(ln_tail(&[t], true).exp(), exact_tail(&[t], true), 0.03));
    // At the end of what is possible it is exact.
    let t = table(10, 10, 5, 60);
    assert!(close(ln_tail(&[t], true).exp(), exact_tail(&[t], true), 1e-9));
}

#[test]
fn risk_ratios_stay_finite() {
    let r = table(438, 512, 3, 9_488).risk_ratio();
    assert!(close(r.value, 2_705.56, 1e-4), "{r:?}");
    for t in [table(0, 5, 3, 10), table(5, 5, 0, 10), table(0, 5, 0, 10), table(5, 5, 10, 10), table(0, 0, 1, 2)] {
        let r = t.risk_ratio();
        assert!(r.value.is_finite() && r.low.is_finite() && r.high.is_finite() && r.low <= r.value, "{t:?} {r:?}");
    }
}

#[test]
fn pooled_ratios_of_one_table_are_its_own() {
    let t = table(30, 60, 10, 80);
    let pooled = pooled_risk_ratio(&[t]).unwrap();
    assert!(close(pooled.value, 4.0, 1e-12) && close(pooled.low, t.risk_ratio().low, 1e-9));
    assert!(close(pooled_odds_ratio(&[t]), 7.0, 1e-12));
    assert_eq!(pooled_odds_ratio(&[table(3, 5, 0, 8)]), f64::INFINITY);
    assert!(pooled_odds_ratio(&[]).is_nan());
    assert_eq!(pooled_risk_ratio(&[table(3, 5, 0, 8)]), None);
}

#[test]
fn benjamini_and_hochberg_adjust() {
    let p = [0.01, 0.04, 0.03, 0.005];
    let ln: Vec<f64> = p.iter().map(|p: &f64| p.ln()).collect();
    let adjusted: Vec<f64> = benjamini_hochberg(&ln, 4).iter().map(|p| p.exp()).collect();
    for (ours, expected) in adjusted.iter().zip([0.02, 0.04, 0.04, 0.02]) {
        assert!(close(*ours, expected, 1e-12), "{adjusted:?}");
    }
    // Tests that were made but are not listed count as well.
    assert!(close(benjamini_hochberg(&ln[..1], 10)[0].exp(), 0.1, 1e-12));
    assert!(benjamini_hochberg(&[], 0).is_empty());
}
