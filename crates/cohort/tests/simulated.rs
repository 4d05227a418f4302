//! Fleets with a known cause, and fleets without any: how often is the answer right?

mod fleet;

use coroner_cohort::{Attributes, Conclusion, Population, Settings, UPTIME, explain};
use fleet::{Fleet, attributes, first_is};

/// A story: who is sick, and what the answer must begin with.
type Story = fn(seed: u64) -> (Population, Attributes);

/// Size of the fleet, sick share within the cohort, and elsewhere; always enough sick nodes for a difference to show.
fn shape(seed: u64) -> (usize, f64, f64) {
    let size = [700, 1_000, 2_000, 4_000][(seed % 4) as usize];
    let sick = [0.3, 0.5, 0.7, 0.95][(seed / 4 % 4) as usize];
    let background = [0.0, 0.005, 0.01, 0.02][((seed + seed / 4 + seed / 16) % 4) as usize];
    (size, sick, background)
}

fn planted(seed: u64, attribute: &str, value: &str, share: f64) -> (Population, Attributes) {
    let (size, sick, background) = shape(seed);
    let mut fleet = Fleet::new(seed, size);
    fleet.plant(attribute, value, share);
    (fleet.sicken(|f, n| if f.has(n, attribute, value) { sick } else { background }), attributes(&[(attribute, value)]))
}

fn one_image(seed: u64) -> (Population, Attributes) {
    planted(seed, "image", "ami-bad", 0.06)
}

fn bad_driver(seed: u64) -> (Population, Attributes) {
    planted(seed, "nic driver", "ena-bad", 0.15)
}

/// The bad kernel runs mostly in one zone, and that zone mostly has the bad kernel.
fn kernel_with_confounded_zone(seed: u64) -> (Population, Attributes) {
    let (size, sick, background) = shape(seed);
    let mut fleet = Fleet::new(seed, size);
    for n in 0..size {
        if fleet.has(n, "zone", "us-east-1b") && fleet.rng.chance(0.7) || fleet.rng.chance(0.05) {
            fleet.nodes[n].attributes.insert("kernel".into(), "6.1-bad".into());
        }
    }
    (
        fleet.sicken(|f, n| if f.has(n, "kernel", "6.1-bad") { sick } else { background }),
        attributes(&[("kernel", "6.1-bad")]),
    )
}

/// One cluster runs the bad image, and nobody else does, but for a node or two.
fn planted_alias(seed: u64) -> (Population, Attributes) {
    let (size, sick, background) = shape(seed);
    let mut fleet = Fleet::new(seed, size);
    fleet.plant("image", "ami-bad", 0.08);
    for n in 0..size {
        if fleet.has(n, "image", "ami-bad") {
            fleet.nodes[n].attributes.insert("cluster".into(), "pc-a".into());
        }
    }
    for _ in 0..seed % 3 {
        let n = fleet.rng.below(size);
        fleet.nodes[n].attributes.insert("cluster".into(), "pc-a".into());
    }
    (
        fleet.sicken(|f, n| if f.has(n, "image", "ami-bad") { sick } else { background }),
        attributes(&[("image", "ami-bad")]),
    )
}

fn kernel_on_instance_type(seed: u64) -> (Population, Attributes) {
    let (size, sick, background) = shape(seed);
    let mut fleet = Fleet::new(seed, size);
    fleet.plant("kernel", "6.1-bad", 0.3);
    fleet.plant("instance type", "p4d", 0.3);
    let truth = [("instance type", "p4d"), ("kernel", "6.1-bad")];
    let bad = move |f: &Fleet, n: usize| truth.iter().all(|(a, v)| f.has(n, a, v));
    (fleet.sicken(move |f, n| if bad(f, n) { sick } else { background }), attributes(&truth))
}

/// Every node leaks; it has nothing to do with where or what it is.
fn uptime_only(seed: u64) -> (Population, Attributes) {
    let (size, sick, background) = shape(seed);
    let fleet = Fleet::new(seed, size);
    let limit = [120.0, 240.0, 504.0][(seed % 3) as usize];
    let truth = format!("longer than {} days", limit / 24.0);
    let chance = move |f: &Fleet, n: usize| if f.nodes[n].up_hours.unwrap() > limit { sick } else { background };
    (fleet.sicken(chance), attributes(&[(UPTIME, &truth)]))
}

/// One image leaks: only its nodes that have been up for days are sick.
fn leaking_image(seed: u64) -> (Population, Attributes) {
    let (size, sick, background) = shape(seed);
    let mut fleet = Fleet::new(seed, size);
    fleet.plant("image", "ami-bad", if seed.is_multiple_of(2) { 0.1 } else { 0.6 });
    let old = |f: &Fleet, n: usize| f.nodes[n].up_hours.unwrap() > 120.0;
    let chance = move |f: &Fleet, n: usize| if f.has(n, "image", "ami-bad") && old(f, n) { sick } else { background };
    (fleet.sicken(chance), attributes(&[("image", "ami-bad")]))
}

/// One image leaks, runs mostly in one zone, and that zone has older nodes.
fn leak_with_confounded_zone(seed: u64) -> (Population, Attributes) {
    let (size, sick, background) = shape(seed);
    let mut fleet = Fleet::new(seed, size);
    for n in 0..size {
        if fleet.has(n, "zone", "us-east-1b") {
            fleet.nodes[n].up_hours = fleet.nodes[n].up_hours.map(|hours| hours * 2.0);
            if fleet.rng.chance(0.7) {
                fleet.nodes[n].attributes.insert("image".into(), "ami-bad".into());
            }
        } else if fleet.rng.chance(0.08) {
            fleet.nodes[n].attributes.insert("image".into(), "ami-bad".into());
        }
    }
    let old = |f: &Fleet, n: usize| f.nodes[n].up_hours.unwrap() > 120.0;
    let chance = move |f: &Fleet, n: usize| if f.has(n, "image", "ami-bad") && old(f, n) { sick } else { background };
    (fleet.sicken(chance), attributes(&[("image", "ami-bad")]))
}

/// A zone that is too hot, with one cluster in it; images and clusters of other zones are nearly tied to their zones as well.
fn hot_zone(seed: u64) -> (Population, Attributes) {
    let (size, sick, background) = shape(seed);
    let mut fleet = Fleet::new(seed, size);
    for n in 0..size {
        let zone = fleet.nodes[n].attributes["zone"].clone();
        fleet.nodes[n].attributes.insert("cluster".into(), format!("pc-{zone}"));
        if fleet.rng.chance(0.6) {
            fleet.nodes[n].attributes.insert("image".into(), format!("ami-{zone}"));
        }
    }
    let chance = move |f: &Fleet, n: usize| if f.has(n, "zone", "us-east-1a") { sick } else { background };
    (fleet.sicken(chance), attributes(&[("zone", "us-east-1a")]))
}

const STORIES: [(&str, Story); 9] = [
    ("one image", one_image),
    ("bad driver", bad_driver),
    ("kernel with confounded zone", kernel_with_confounded_zone),
    ("planted alias", planted_alias),
    ("kernel on instance type", kernel_on_instance_type),
    ("uptime only", uptime_only),
    ("leaking image", leaking_image),
    ("leak with confounded zone", leak_with_confounded_zone),
    ("hot zone", hot_zone),
];

struct Score {
    right: usize,
    seeds: usize,
    /// Cohorts beyond the true one.
    extra: usize,
}

fn score(story: Story, seeds: std::ops::Range<u64>) -> Score {
    let mut score = Score { right: 0, seeds: 0, extra: 0 };
    for seed in seeds {
        let (population, truth) = story(seed);
        let answer = explain(&population, &Settings::default());
        let right = if truth.contains_key(UPTIME) {
            // Neighbouring uptimes separate equally well by chance.
            answer.cohorts.first().is_some_and(|c| c.attributes.get(UPTIME).is_some_and(|v| v.starts_with("longer")))
        } else {
            first_is(&answer, &truth)
        };
        if !right || answer.cohorts.len() > 1 {
            let seen: Vec<_> =
                answer.cohorts.iter().map(|c| (&c.attributes, c.protective, c.table, c.p_adjusted)).collect();
            println!("seed {seed} {:?}: {truth:?}, but {seen:?} {:?}", shape(seed), answer.closest);
        }
        score.right += usize::from(right);
        score.seeds += 1;
        score.extra += answer.cohorts.len().saturating_sub(1);
    }
    score
}

fn check_stories(seeds: std::ops::Range<u64>) {
    let mut all = Score { right: 0, seeds: 0, extra: 0 };
    for (name, story) in STORIES {
        let one = score(story, seeds.clone());
        println!("{name}: {} of {} right, {} cohorts too many", one.right, one.seeds, one.extra);
        assert!(one.right * 100 >= one.seeds * 93, "{name}: {} of {}", one.right, one.seeds);
        all = Score { right: all.right + one.right, seeds: all.seeds + one.seeds, extra: all.extra + one.extra };
    }
    println!("all: {} of {} right, {} cohorts too many", all.right, all.seeds, all.extra);
    assert!(all.right * 100 >= all.seeds * 98, "{} of {}", all.right, all.seeds);
    assert!(all.extra * 50 <= all.seeds, "{} cohorts too many", all.extra);
}

/// Nothing is different: sick nodes are drawn by chance, or by uptime alone, which also differs between zones.
fn false_alarms(seeds: std::ops::Range<u64>) -> usize {
    let mut alarms = 0;
    for seed in seeds {
        let size = [60, 200, 500, 1_000][(seed % 4) as usize];
        let sick = [0.004, 0.03, 0.15, 0.5][(seed / 4 % 4) as usize];
        let by_uptime = seed % 3;
        let population = Fleet::new(seed + 1_000_000, size).sicken(|f, n| {
            let hours = f.nodes[n].up_hours.unwrap();
            match by_uptime {
                0 => sick,
                // A leak that shows at once after days, or ever more likely.
                1 => {
                    if hours > 150.0 {
                        sick
                    } else {
                        0.0
                    }
                }
                _ => sick * (1.0 - (-hours / 200.0).exp()),
            }
        });
        let answer = explain(&population, &Settings::default());
        let blamed = |c: &coroner_cohort::Cohort| by_uptime == 0 || !c.attributes.contains_key(UPTIME);
        if answer.cohorts.iter().any(blamed) {
            let seen: Vec<_> = answer.cohorts.iter().map(|c| (&c.attributes, c.table, c.p_adjusted)).collect();
            println!("false alarm: seed {seed}, {size} nodes: {seen:?}");
            alarms += 1;
        }
    }
    alarms
}

#[test]
fn the_true_cause_comes_first() {
    check_stories(0..16);
}

#[test]
fn where_nothing_is_different_nothing_is_blamed() {
    let alarms = false_alarms(0..300);
    assert!(alarms <= 3, "{alarms} of 300");
}

#[test]
#[ignore = "a minute: prints the score over many seeds, for docs/benchmarks"]
fn the_score_over_many_seeds() {
    check_stories(1_000..1_160);
    let alarms = false_alarms(10_000..12_000);
    println!("{alarms} false alarms in 2,000 fleets");
    assert!(alarms <= 20);
}

/// Two causes at the same time, and a zone that one of them spares.
#[test]
fn several_causes_are_all_told() {
    for seed in 0..12 {
        let mut fleet = Fleet::new(seed, 4_000);
        fleet.plant("image", "ami-bad", 0.15);
        fleet.plant("gpu driver", "bad", 0.04);
        let population = fleet.sicken(|f, n| match (f.has(n, "image", "ami-bad"), f.has(n, "gpu driver", "bad")) {
            (true, true) => 0.9,
            (true, false) => 0.8,
            (false, true) => 0.5,
            _ => 0.005,
        });
        let answer = explain(&population, &Settings::default());
        let told: Vec<_> = answer.cohorts.iter().map(|c| c.attributes.clone()).collect();
        assert_eq!(told, [attributes(&[("image", "ami-bad")]), attributes(&[("gpu driver", "bad")])], "seed {seed}");
    }
}

#[test]
fn a_cause_that_only_shows_beside_the_larger_one_is_told() {
    // Half of the fleet is sick because of its image; the driver's nodes are less sick than that, but far sicker than their like.
    let mut fleet = Fleet::new(5, 3_000);
    fleet.plant("image", "ami-bad", 0.5);
    for n in 0..3_000 {
        if !fleet.has(n, "image", "ami-bad") && fleet.rng.chance(0.1) {
            fleet.nodes[n].attributes.insert("gpu driver".into(), "bad".into());
        }
    }
    let population = fleet.sicken(|f, n| match (f.has(n, "image", "ami-bad"), f.has(n, "gpu driver", "bad")) {
        (true, _) => 0.9,
        (_, true) => 0.4,
        _ => 0.01,
    });
    let answer = explain(&population, &Settings::default());
    let told: Vec<_> = answer.cohorts.iter().map(|c| (c.attributes.clone(), c.protective)).collect();
    assert_eq!(told, [(attributes(&[("image", "ami-bad")]), false), (attributes(&[("gpu driver", "bad")]), false)]);
}

#[test]
fn a_spared_zone_is_told() {
    for seed in 0..12 {
        let mut fleet = Fleet::new(seed, 3_000);
        fleet.plant("image", "ami-bad", 0.3);
        let bad = |f: &Fleet, n| f.has(n, "image", "ami-bad") && !f.has(n, "zone", "us-east-1c");
        let answer = explain(&fleet.sicken(|f, n| if bad(f, n) { 0.8 } else { 0.003 }), &Settings::default());
        let told: Vec<_> = answer.cohorts.iter().map(|c| (c.attributes.clone(), c.protective)).collect();
        assert_eq!(
            told,
            [(attributes(&[("image", "ami-bad")]), false), (attributes(&[("zone", "us-east-1c")]), true)],
            "seed {seed}"
        );
    }
}

#[test]
fn the_complement_of_a_cause_is_not_told_again() {
    for seed in 0..12 {
        let mut fleet = Fleet::new(seed, 1_000);
        for n in 0..1_000 {
            let cgroup = if fleet.rng.chance(0.5) { "v1" } else { "v2" };
            fleet.nodes[n].attributes.insert("cgroup version".into(), cgroup.into());
        }
        let answer = explain(
            &fleet.sicken(|f, n| if f.has(n, "cgroup version", "v1") { 0.4 } else { 0.01 }),
            &Settings::default(),
        );
        let told: Vec<_> = answer.cohorts.iter().map(|c| (c.attributes.clone(), c.protective)).collect();
        assert_eq!(told, [(attributes(&[("cgroup version", "v1")]), false)], "seed {seed}");
    }
}

#[test]
fn nobody_sick_is_no_difference() {
    let answer = explain(&Fleet::new(1, 300).sicken(|_, _| 0.0), &Settings::default());
    assert_eq!((answer.conclusion, answer.cohorts.len()), (Conclusion::NoDifference, 0));
}
