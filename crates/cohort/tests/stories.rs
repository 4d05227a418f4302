//! What is said about small fleets that can be followed by hand.

mod fleet;

use coroner_cohort::{
    Attributes, Conclusion, Explanation, Life, NodeRow, Population, Settings, UPTIME, explain, words,
};
use fleet::{Rng, attributes, leak};

/// Nodes by number: their attributes, then whether they are sick.
fn population(nodes: usize, row: impl Fn(usize) -> (Vec<(&'static str, String)>, bool)) -> Population {
    let node = |id: usize| {
        let (told, sick) = row(id);
        let attributes: Attributes = told.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        NodeRow { id: format!("i-{id}"), attributes, sick: Some(sick), ..NodeRow::default() }
    };
    Population { nodes: (0..nodes).map(node).collect() }
}

fn answer(population: &Population) -> Explanation {
    explain(population, &Settings::default())
}

fn said(answer: &Explanation) -> String {
    words(answer, "zombie-memcgs").join("\n")
}

fn image(id: usize, bad: usize) -> String {
    if id < bad { "ami-0abc".to_owned() } else { format!("ami-{}", id % 3) }
}

#[test]
fn the_sentences_of_the_issue() {
    let mut rng = Rng(3);
    let mut fleet = population(10_000, |id| {
        let cluster = if id < 512 && id != 7 || id == 600 { "pc-a" } else { ["pc-b", "pc-c"][id % 2] };
        let told = vec![
            ("image", image(id, 512)),
            ("cluster", cluster.to_owned()),
            ("zone", ["a", "b", "c"][id / 7 % 3].to_owned()),
            ("host", format!("ip-{id}")),
        ];
        (told, id < 438 || (3_000..3_003).contains(&id))
    });
    for (id, node) in fleet.nodes.iter_mut().enumerate() {
        node.up_hours =
            Some(if !(438..=600).contains(&id) { rng.between(125.0, 400.0) } else { rng.between(1.0, 118.0) });
        node.lives = match id {
            0..438 => vec![leak(&mut rng, 160.0, 0.0)],
            _ => vec![Life { hours: 100.0, onset: false, entered_after_hours: 0.0 }],
        };
    }
    let answer = answer(&fleet);
    assert_eq!(
        said(&answer),
        "438 of 512 nodes in image ami-0abc have zombie-memcgs, 3 of 9,488 elsewhere (risk × 2,706, 872–8,392). Cannot be told apart from \
         cluster pc-a, which is nearly the same nodes. Within it, only nodes up for longer than 5 days; a reboot helps for about 6 days. \
         Nodes i-600 and i-7 would tell image from cluster apart."
    );
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!(json["nodes"], serde_json::json!({"sick": 441, "healthy": 9_559, "unknown": 0}));
    assert_eq!(json["conclusion"], "difference");
    let cohort = &json["cohorts"][0];
    assert_eq!(cohort["attributes"], serde_json::json!({"image": "ami-0abc"}));
    assert_eq!(cohort["aliases"], serde_json::json!([{"cluster": "pc-a"}]));
    assert_eq!((&cohort["sick"], &cohort["of"]), (&438.into(), &512.into()));
    assert_eq!((&cohort["elsewhere_sick"], &cohort["elsewhere"]), (&3.into(), &9_488.into()));
    assert_eq!(cohort["protective"], false);
    assert!(cohort["risk_ratio"]["low"].is_number() && cohort["p_adjusted"].is_number());
    assert!(json["uptime"]["reboot_helps_for_days"].as_f64().unwrap() > 5.0);
    let read: Explanation = serde_json::from_value(json).unwrap();
    assert_eq!(read, answer);
}

#[test]
fn what_can_be_changed_is_named_before_where_it_is() {
    // Cluster, zone and agent pick the same nodes as the kernel; only one line comes out, whatever their order.
    let fleet = population(300, |id| {
        let bad = id % 5 == 0;
        let told = ["agent", "cluster", "kernel", "label", "zone"]
            .map(|name| (name, if bad { "bad" } else { "good" }.to_owned()));
        (told.to_vec(), bad && id % 2 == 0)
    });
    let answer = answer(&fleet);
    let [cohort] = &answer.cohorts[..] else { panic!("{:?}", answer.cohorts) };
    assert_eq!(cohort.attributes, attributes(&[("kernel", "bad")]));
    let aliases: Vec<_> = cohort.aliases.iter().flat_map(|a| a.keys().cloned()).collect();
    assert_eq!(aliases, ["agent", "label", "zone", "cluster"]);
    assert!(cohort.told_apart_by.is_empty());
    assert!(said(&answer).contains("which are the same nodes."), "{}", said(&answer));
}

#[test]
fn nodes_that_tell_two_cohorts_apart_settle_it() {
    // Nearly the same nodes, but the twenty that differ speak clearly: only nodes with the driver are sick.
    let fleet = population(1_000, |id| {
        let driver = if id < 200 { "bad" } else { "good" };
        let zone = if (10..210).contains(&id) { "a" } else { "b" };
        (vec![("nic driver", driver.to_owned()), ("zone", zone.to_owned())], id < 200)
    });
    let answer = answer(&fleet);
    let [cohort] = &answer.cohorts[..] else { panic!("{:?}", answer.cohorts) };
    assert_eq!((&cohort.attributes, cohort.aliases.len()), (&attributes(&[("nic driver", "bad")]), 0));
}

#[test]
fn what_could_be_either_is_called_so() {
    // The zone has the bad kernel on half of its nodes; too few are sick to say which of the two it is.
    let fleet = population(400, |id| {
        let kernel = if id < 12 { "bad" } else { "good" };
        let zone = if id < 20 { "a" } else { ["b", "c"][id % 2] };
        (vec![("kernel", kernel.to_owned()), ("zone", zone.to_owned())], id < 7 || id == 15)
    });
    let answer = answer(&fleet);
    let [cohort] = &answer.cohorts[..] else { panic!("{:?}", answer.cohorts) };
    let named: Vec<&Attributes> = std::iter::once(&cohort.attributes).chain(&cohort.rivals).collect();
    assert!(
        named.contains(&&attributes(&[("kernel", "bad")])) && named.contains(&&attributes(&[("zone", "a")])),
        "{named:?}"
    );
    assert!(said(&answer).contains("do not rule out"), "{}", said(&answer));
}

#[test]
fn a_pair_hides_its_parts() {
    let fleet = population(2_000, |id| {
        let (kernel, instance) = (["5.4", "5.15", "6.1"][id % 3], ["m5", "p4d", "c5", "r5"][id / 3 % 4]);
        let told = vec![("kernel", kernel.to_owned()), ("instance type", instance.to_owned())];
        (told, kernel == "6.1" && instance == "p4d" && id % 5 != 0 || id % 400 == 0)
    });
    let answer = answer(&fleet);
    let told: Vec<_> = answer.cohorts.iter().map(|c| c.attributes.clone()).collect();
    assert_eq!(told, [attributes(&[("instance type", "p4d"), ("kernel", "6.1")])]);
    assert!(said(&answer).contains("nodes with instance type p4d and kernel 6.1 have"), "{}", said(&answer));
}

#[test]
fn what_matters_only_within_a_cohort_is_told_there() {
    // The image is bad everywhere, and worse on one instance type, which is innocent elsewhere.
    let mut rng = Rng(9);
    let chances: Vec<f64> = (0..4_000).map(|_| rng.share()).collect();
    let fleet = population(4_000, |id| {
        let bad = id % 4 == 0;
        let metal = id / 4 % 2 == 0;
        let told = vec![
            ("image", if bad { "bad" } else { "good" }.to_owned()),
            ("instance type", if metal { "metal" } else { "vm" }.to_owned()),
        ];
        (
            told,
            chances[id]
                < if !bad {
                    0.01
                } else if metal {
                    0.8
                } else {
                    0.5
                },
        )
    });
    let answer = answer(&fleet);
    let [cohort] = &answer.cohorts[..] else { panic!("{:?}", answer.cohorts) };
    assert_eq!(cohort.attributes, attributes(&[("image", "bad")]));
    assert_eq!(cohort.within[0].attributes, attributes(&[("instance type", "metal")]));
    assert!(said(&answer).contains("Within it, mostly nodes with instance type metal."), "{}", said(&answer));
}

#[test]
fn an_image_that_was_rolled_out_yesterday_is_not_hidden_by_uptime() {
    // All of its nodes have just booted, so that at the same uptime there is nothing to compare with.
    let mut fleet = population(600, |id| (vec![("image", image(id, 60))], id < 54));
    for (id, node) in fleet.nodes.iter_mut().enumerate() {
        node.up_hours = Some(if id < 60 { 2.0 + id as f64 / 4.0 } else { 30.0 + id as f64 });
    }
    let answer = answer(&fleet);
    let [cohort] = &answer.cohorts[..] else { panic!("{:?}", answer.cohorts) };
    assert_eq!(cohort.attributes, attributes(&[("image", "ami-0abc")]));
    assert_eq!(cohort.aliases, [attributes(&[(UPTIME, "shorter than 1 day")])]);
}

#[test]
fn older_nodes_do_not_make_their_zone_guilty() {
    let mut rng = Rng(21);
    let mut fleet = population(2_000, |id| (vec![("zone", ["old", "b", "c"][id % 3].to_owned())], false));
    for (id, node) in fleet.nodes.iter_mut().enumerate() {
        let hours = rng.between(0.0, if id % 3 == 0 { 600.0 } else { 200.0 });
        node.up_hours = Some(hours);
        node.sick = Some(hours > 144.0 && rng.chance(0.9));
    }
    let answer = answer(&fleet);
    let told: Vec<_> = answer.cohorts.iter().map(|c| c.attributes.clone()).collect();
    assert_eq!(told, [attributes(&[(UPTIME, "longer than 6 days")])]);
    assert!(said(&answer).contains("nodes up for longer than 6 days have zombie-memcgs, none of"), "{}", said(&answer));
}

#[test]
fn who_does_not_tell_is_left_out_and_counted() {
    let fleet = population(400, |id| {
        let told = if id < 300 {
            vec![("image", image(id, 40)), ("empty", String::new())]
        } else {
            vec![("empty", " ".to_owned())]
        };
        (told, id < 30)
    });
    let answer = answer(&fleet);
    let [cohort] = &answer.cohorts[..] else { panic!("{:?}", answer.cohorts) };
    assert_eq!((cohort.left_out, cohort.table.elsewhere), (100, 260));
    assert!(said(&answer).contains("100 nodes do not tell their image and are left out."), "{}", said(&answer));
}

#[test]
fn names_of_nodes_and_what_everybody_has_are_no_cohorts() {
    let fleet = population(500, |id| {
        let host = if id < 5 { "shared".to_owned() } else { format!("host-{id}") };
        let nearly = if id < 3 { "rare" } else { "all" };
        (vec![("host", host), ("os", "linux".to_owned()), ("nearly", nearly.to_owned())], id < 5)
    });
    let answer = answer(&fleet);
    assert_eq!((answer.conclusion, answer.looked_at.values), (Conclusion::NoDifference, 0));
}

#[test]
fn too_few_nodes_are_called_so() {
    let tiny = population(8, |id| (vec![("image", image(id, 4))], id < 4));
    let answer = answer(&tiny);
    assert_eq!(answer.conclusion, Conclusion::TooFewNodes);
    assert!(said(&answer).starts_with("4 of 8 nodes have zombie-memcgs: too few to tell"), "{}", said(&answer));
    let enough = population(24, |id| (vec![("image", image(id, 8))], id < 8));
    assert_eq!(explain(&enough, &Settings::default()).conclusion, Conclusion::Difference);
}

#[test]
fn nobody_and_everybody_sick_are_said() {
    let all = population(40, |id| (vec![("image", image(id, 9))], true));
    assert_eq!(said(&answer(&all)), "All 40 nodes have zombie-memcgs: nothing to compare with.");
    let none = population(40, |id| (vec![("image", image(id, 9))], false));
    assert_eq!(said(&answer(&none)), "None of 40 nodes has zombie-memcgs.");
    let mut unknown = none;
    unknown.nodes.iter_mut().for_each(|node| node.sick = None);
    assert_eq!(
        said(&answer(&unknown)),
        "No node was diagnosed in this time, so there is nothing to compare.\n40 nodes were not diagnosed in this time and are left out."
    );
    assert_eq!(
        said(&answer(&Population::default())),
        "No node was diagnosed in this time, so there is nothing to compare."
    );
}

#[test]
fn the_same_fleet_gives_the_same_answer() {
    let mut fleet = population(900, |id| {
        let told = ["a", "b", "c", "d"].map(|name| (name, format!("{}", (id * 7 + name.len()) % 9)));
        (told.to_vec(), id % 9 == 3)
    });
    let first = answer(&fleet);
    assert_eq!(answer(&fleet), first);
    fleet.nodes.reverse();
    assert_eq!(answer(&fleet).cohorts, first.cohorts);
}

#[test]
#[ignore = "prints what is said about some fleets, to be read aloud"]
fn read_aloud() {
    let mut fleet = fleet::Fleet::new(5, 5_000);
    fleet.plant("image", "ami-0abc", 0.1);
    fleet.plant("gpu driver", "550.54", 0.03);
    let spared = |f: &fleet::Fleet, n| f.has(n, "zone", "us-east-1c");
    let mut two = fleet.sicken(|f, n| match () {
        () if f.has(n, "image", "ami-0abc") && f.nodes[n].up_hours > Some(120.0) && !spared(f, n) => 0.9,
        () if f.has(n, "gpu driver", "550.54") => 0.4,
        () => 0.002,
    });
    let mut rng = Rng(4);
    for node in two.nodes.iter_mut().filter(|n| n.attributes["image"] == "ami-0abc" && n.sick == Some(true)) {
        node.lives = vec![leak(&mut rng, 150.0, 0.0)];
    }
    let mut pair = fleet::Fleet::new(6, 3_000);
    pair.plant("kernel", "6.1.0-21", 0.3);
    pair.plant("instance type", "p4d.24xlarge", 0.2);
    let pair = pair.sicken(|f, n| {
        if f.has(n, "kernel", "6.1.0-21") && f.has(n, "instance type", "p4d.24xlarge") { 0.5 } else { 0.01 }
    });
    let old = fleet::Fleet::new(7, 2_000).sicken(|f, n| if f.nodes[n].up_hours > Some(240.0) { 0.6 } else { 0.0 });
    let nothing = fleet::Fleet::new(8, 1_000).sicken(|_, _| 0.02);
    for population in [two, pair, old, nothing] {
        println!("{}\n", said(&answer(&population)));
    }
}
