//! Large, odd and hostile fleets.

mod fleet;

use coroner_cohort::{Conclusion, Explanation, Life, NodeRow, Population, Settings, explain, words};
use fleet::{Fleet, Rng, attributes};
use std::time::Duration;

/// So many attributes with up to `values` values each, many of them correlated, and one bad image.
fn wide(nodes: usize, attributes: usize, values: usize) -> Population {
    let mut rng = Rng(40);
    let row = |id: usize| {
        let mut node = NodeRow { id: format!("i-{id}"), up_hours: Some(rng.exponential(300.0)), ..NodeRow::default() };
        let base = rng.skewed(values);
        for a in 0..attributes {
            let value = if rng.chance(0.4) {
                base % (2 + a * values / attributes)
            } else {
                rng.skewed(2 + a * values / attributes)
            };
            node.attributes.insert(format!("attribute {a:02}"), format!("value-{value}"));
        }
        let bad = node.attributes["attribute 10"] == "value-3";
        node.sick = Some(rng.chance(if bad { 0.6 } else { 0.01 }));
        node.lives = vec![Life { hours: 150.0 + rng.between(0.0, 50.0), onset: bad, entered_after_hours: 0.0 }];
        node
    };
    Population { nodes: (0..nodes).map(row).collect() }
}

/// How long this thread had a core: a busy machine makes no test slower.
fn on_core() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

fn quickest(population: &Population, runs: usize) -> (Duration, Explanation) {
    let timed = || {
        let start = on_core();
        let answer = explain(population, &Settings::default());
        (on_core() - start, answer)
    };
    (0..runs).map(|_| timed()).min_by_key(|(time, _)| *time).unwrap()
}

#[test]
fn ten_thousand_nodes_with_forty_attributes() {
    let (time, answer) = quickest(&wide(10_000, 40, 200), 3);
    println!("10,000 nodes × 40 attributes: {time:?}, {:?}", answer.looked_at);
    assert_eq!(answer.cohorts[0].attributes, attributes(&[("attribute 10", "value-3")]));
}

#[test]
fn a_hundred_thousand_nodes_are_no_problem() {
    let (time, answer) = quickest(&wide(100_000, 12, 50), 1);
    println!("100,000 nodes × 12 attributes: {time:?}");
    assert_eq!(answer.conclusion, Conclusion::Difference);
}

#[test]
fn a_million_values_and_labels_are_bounded() {
    let row = |id: usize| {
        let mut node = NodeRow { id: id.to_string(), sick: Some(id.is_multiple_of(50)), ..NodeRow::default() };
        for a in 0..100 {
            node.attributes.insert(format!("unique {a}"), format!("{id}-{a}"));
            node.attributes.insert(format!("label {}", id * 100 + a), "x".to_owned());
        }
        node.attributes.insert("image".to_owned(), if id.is_multiple_of(50) { "bad" } else { "good" }.to_owned());
        node
    };
    let population = Population { nodes: (0..5_000).map(row).collect() };
    let (time, answer) = quickest(&population, 1);
    println!("half a million values and as many labels: {time:?}");
    assert_eq!(answer.cohorts[0].attributes, attributes(&[("image", "bad")]));
    assert!(answer.looked_at.attributes <= 256 && answer.looked_at.attributes > 1, "{:?}", answer.looked_at);
}

#[test]
fn odd_hours_do_no_harm() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, -0.0, f64::MAX, f64::MIN_POSITIVE];
    let mut population = Fleet::new(8, 200).sicken(|f, n| if f.has(n, "image", "ami-0") { 0.8 } else { 0.01 });
    for (id, node) in population.nodes.iter_mut().enumerate() {
        let pick = |shift: usize| odd[(id / (1 + shift) + shift) % odd.len()];
        node.up_hours = (id % 5 > 0).then_some(pick(0));
        node.lives = vec![Life { hours: pick(1), onset: id % 2 == 0, entered_after_hours: pick(2) }; id % 3];
    }
    let answer = explain(&population, &Settings::default());
    assert_eq!(answer.cohorts[0].attributes, attributes(&[("image", "ami-0")]));
    // Everything in the JSON is finite: it can be read back.
    let text = serde_json::to_string(&answer).unwrap();
    assert_eq!(serde_json::from_str::<Explanation>(&text).unwrap().cohorts.len(), answer.cohorts.len());
}

#[test]
fn odd_settings_do_no_harm() {
    let population = Fleet::new(8, 120).sicken(|f, n| if f.has(n, "image", "ami-0") { 0.8 } else { 0.01 });
    for alpha in [0.0, 1.0, f64::NAN, -1.0] {
        for min_nodes in [0, 1, usize::MAX] {
            for max_cohorts in [0, 100] {
                let settings = Settings { alpha, min_nodes, min_odds_ratio: 0.0, max_cohorts };
                words(&explain(&population, &settings), "x");
            }
        }
    }
}

#[test]
fn random_small_fleets_do_not_panic() {
    let mut rng = Rng(77);
    for _ in 0..1_500 {
        let size = rng.below(30);
        let (attributes, values) = (1 + rng.below(4), 1 + rng.below(4));
        let row = |id: usize| {
            let mut node = NodeRow { id: id.to_string(), ..NodeRow::default() };
            for a in 0..attributes {
                if rng.chance(0.9) {
                    node.attributes.insert(format!("a{a}"), ["", "x", "y", "z"][rng.below(values)].to_owned());
                }
            }
            node.sick = (!rng.chance(0.1)).then(|| rng.chance(0.4));
            node.up_hours = rng.chance(0.8).then(|| rng.exponential(100.0));
            node.lives = vec![Life {
                hours: rng.between(0.0, 9.0),
                onset: rng.chance(0.5),
                entered_after_hours: rng.between(-1.0, 5.0),
            }];
            node
        };
        let population = Population { nodes: (0..size).map(row).collect() };
        let settings = Settings { alpha: 0.5, min_nodes: 2, min_odds_ratio: 1.1, max_cohorts: 9 };
        let answer = explain(&population, &settings);
        assert!(!words(&answer, "x").is_empty() && serde_json::to_string(&answer).is_ok());
    }
}
