use super::*;
use crate::ingest;
use crate::store::stacks::SLOT_S;
use crate::store::tests::{NOW, batch, opened, stored};
use coroner_report::{Concluded, HeaviestStacks, NodeIdentity, Problem, StackSamples};
use rusqlite::Connection;

fn row(until: i64, samples: u64, stacks: &[(&str, u64)]) -> HeaviestStacks {
    let stack = |(stack, samples): &(&str, u64)| StackSamples { stack: (*stack).to_owned(), samples: *samples };
    let from = wall(until - SLOT_S);
    HeaviestStacks { from, until: wall(until), samples, stacks: stacks.iter().map(stack).collect() }
}

/// A node that reports now, with this zone and these stacks.
fn said(db: &mut Connection, node: &str, zone: &str, rows: Vec<HeaviestStacks>) {
    let mut said = batch(node, "s", 1);
    said.node = Some(NodeIdentity {
        host: Some(format!("host-{node}")),
        attributes: [("zone".to_owned(), zone.to_owned())].into(),
        ..NodeIdentity::default()
    });
    let problem = Problem { key: "x".into(), code: "x".into(), severity: "warning".into(), ..Problem::default() };
    let problems = if zone == "a" { vec![problem] } else { Vec::new() };
    said.diagnoses = vec![Concluded { from: wall(NOW - 60), until: wall(NOW), problems, ..Concluded::default() }];
    said.stacks = rows;
    stored(db, node, &[said], NOW).unwrap();
}

fn reader(dir: &tempfile::TempDir) -> Reader {
    Reader::Sqlite(crate::store::open_to_read(dir.path()).unwrap())
}

fn asked(a: &str, b: Option<&str>) -> Asked {
    let a = (!a.is_empty()).then(|| a.to_owned());
    Asked { a, b: b.map(str::to_owned), since: NOW - 3600, most: 1000, with_nodes: true }
}

#[test]
fn shares_are_of_each_sides_samples_whatever_their_number() {
    let (dir, mut db) = opened();
    let (walk, work) = ("kubelet;read_[k];mem_cgroup_nr_lru_pages_[k]", "python3;main;step");
    // Zone a: two nodes with a tenth of the samples in the walk, one of them in two rows of the same slot.
    said(&mut db, "n1", "a", vec![row(NOW, 50, &[(walk, 5), (work, 45)]), row(NOW - 1, 50, &[(walk, 5), (work, 40)])]);
    said(&mut db, "n2", "a", vec![row(NOW - 1200, 900, &[(walk, 90), (work, 800)])]);
    // Zone b: a hundred times the samples, none in the walk.
    said(&mut db, "n3", "b", vec![row(NOW, 100_000, &[(work, 99_000), ("sshd;main", 1000)])]);
    said(&mut db, "n4", "b", Vec::new());
    let found = stacks(&reader(&dir), &asked("zone=a", Some("zone=b")), NOW).unwrap();
    assert_eq!((found.a.matched, found.a.nodes, found.a.samples), (2, 2, 1000));
    let b = found.b.clone().unwrap();
    assert_eq!((b.matched, b.nodes, b.samples), (2, 1, 100_000));
    let of = |stack: &str| found.stacks.iter().find(|one| one.stack == stack).unwrap().clone();
    let walked = of(walk);
    assert_eq!(walked.a, Part { share: 0.1, samples: 100, nodes: Some(2) });
    assert_eq!(walked.b, Some(Part { share: 0.0, samples: 0, nodes: Some(0) }));
    assert_eq!((of(work).a.samples, of(work).b.unwrap().nodes), (885, Some(1)));
    assert_eq!(found.stacks[0].stack, work, "the heaviest first");
    // 15 samples of zone a were of stacks that the nodes did not name.
    assert!(
        (found.left_out.share_a - 0.015).abs() < 1e-9 && found.left_out.share_b.unwrap() < 1e-9,
        "{:?}",
        found.left_out
    );
    assert_eq!(found.functions[0].function, "step", "it differs most: 88.5 % against 99 %");
    assert_eq!(found.functions[1].function, "mem_cgroup_nr_lru_pages_[k]");
    let alone = stacks(&reader(&dir), &asked("", None), NOW).unwrap();
    assert_eq!((alone.a.matched, alone.a.nodes, alone.a.samples, alone.b.is_none()), (4, 3, 101_000, true));
    let few = stacks(&reader(&dir), &Asked { most: 1, ..asked("zone=a", None) }, NOW).unwrap();
    assert_eq!((few.stacks.len(), few.left_out.stacks), (1, 1));
    assert!((few.left_out.share_a - 0.115).abs() < 1e-9, "{:?}", few.left_out);
}

#[test]
fn questions_without_an_answer_say_why() {
    let (dir, mut db) = opened();
    said(&mut db, "n1", "a", vec![row(NOW, 10, &[("x", 10)])]);
    said(&mut db, "n2", "b", Vec::new());
    let why = |a: &str, b: Option<&str>| stacks(&reader(&dir), &asked(a, b), NOW).unwrap_err();
    assert!(matches!(why("zone=z", None), NoStacks::NoNode { known: 2, .. }));
    assert!(
        matches!(why("zone=a", Some("zone=z")), NoStacks::NoNode { expression: Some(which), .. } if which == "zone=z")
    );
    assert!(matches!(why("zone=b", None), NoStacks::NoneSent { matched: 1, minutes: 60, .. }));
    assert!(
        matches!(why("zone=a", Some("zone=b")), NoStacks::NoneSent { expression: Some(which), .. } if which == "zone=b")
    );
    assert!(matches!(why("zone", None), NoStacks::Bad(..)));
    match why("problem=x", Some("zone=a or zone=b")) {
        NoStacks::Overlap { count: 1, example } => assert_eq!(example, "n1"),
        other => panic!("{other:?}"),
    }
    // What was sent two hours ago is not of the last hour.
    said(&mut db, "n3", "c", vec![row(NOW - 7300, 10, &[("x", 10)])]);
    let old = stacks(&reader(&dir), &asked("zone=c", None), NOW).unwrap_err();
    assert!(matches!(old, NoStacks::NoneSent { .. }));
    assert!(stacks(&reader(&dir), &Asked { since: NOW - 10_800, ..asked("zone=c", None) }, NOW).is_ok());
}

#[test]
fn a_node_brings_a_bounded_number_of_texts_and_they_go_with_their_samples() {
    let (dir, mut db) = opened();
    let names: Vec<String> = (0..30_000).map(|n| format!("evil;f{n}")).collect();
    let mut sent = 0;
    let rows: Vec<HeaviestStacks> = names
        .chunks(100)
        .enumerate()
        .map(|(at, names)| {
            sent += names.len();
            let stacks: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
            // Some in each of 144 slots.
            row(NOW / 86_400 * 86_400 - (at as i64 % 144) * SLOT_S, 100, &stacks)
        })
        .collect();
    let mut hostile = batch("n1", "s", 1);
    hostile.stacks = rows;
    let told = stored(&mut db, "k", &[hostile], NOW).unwrap();
    let texts = |db: &Connection| db.query_row("SELECT count(*) FROM stacks", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((sent, texts(&db)), (30_000, 10_000));
    assert!(told.refused_stacks >= 20_000, "{told:?}");
    let all: i64 = db.query_row("SELECT texts FROM stack_texts_all", [], |row| row.get(0)).unwrap();
    assert_eq!(all, 10_000);
    // Another node is not hindered.
    said(&mut db, "n2", "a", vec![row(NOW, 10, &[("innocent;f", 10)])]);
    assert_eq!(texts(&db), 10_001);
    while crate::store::stacks::expire(&db, NOW - 3600, 5000).unwrap() {}
    let left: i64 = db.query_row("SELECT count(*) FROM stack_samples", [], |row| row.get(0)).unwrap();
    assert!((1..=8).contains(&left), "{left}");
    assert!(stacks(&reader(&dir), &asked("zone=a", None), NOW).is_ok());
    while crate::store::stacks::expire(&db, NOW + 100_000, 5000).unwrap() {}
    let all: i64 = db.query_row("SELECT texts FROM stack_texts_all", [], |row| row.get(0)).unwrap();
    assert_eq!((texts(&db), all), (0, 0));
}

#[test]
fn hostile_rows_are_refused_or_made_plain() {
    let why = |row: HeaviestStacks| ingest::checked_stacks(row).unwrap_err().0;
    assert!(why(row(NOW, 5, &[("a", 6)])).contains("more than all"));
    assert!(why(row(NOW, 5, &[("a", u64::MAX), ("b", 1)])).contains("more than all"));
    assert!(why(row(NOW, u64::MAX, &[])).contains("samples in"));
    assert!(why(row(NOW, 5, &[("x".repeat(3000).as_str(), 1)])).contains("3000 bytes"));
    assert!(why(row(NOW, 5, &[("a;".repeat(1000).as_str(), 1)])).contains("1001 frames"));
    assert!(why(row(NOW, 500, &[("a", 1); 101])).contains("101 in one row"));
    let plain = ingest::checked_stacks(row(NOW, 5, &[("# a\u{1b}[2J;b\nc 7\u{202e}", 1), (" ", 1)])).unwrap();
    assert_eq!(plain.stacks[0].stack, "_ a\u{fffd}[2J;b\u{fffd}c 7\u{fffd}");
    assert_eq!(plain.stacks[1].stack, "[unknown]");
}

#[test]
fn pictures_say_who_is_on_each_side_and_inject_nothing() {
    let (dir, mut db) = opened();
    said(&mut db, "n1", "a", vec![row(NOW, 10, &[("evil;</svg><script>alert(1)</script>;f_[k]", 9)])]);
    said(&mut db, "n2", "b", vec![row(NOW, 2000, &[("calm;main", 2000)])]);
    let picture = |found: &FleetStacks| String::from_utf8(crate::flame::picture(found).unwrap()).unwrap();
    let one = picture(&stacks(&reader(&dir), &asked("zone=a", None), NOW).unwrap());
    assert!(
        one.contains("Flame graph of 1 node") && one.contains("1 node with zone=a, 10 samples; last 60 min"),
        "{one}"
    );
    assert!(one.contains("[other stacks]") && one.contains("evil") && !one.contains("<script>alert"));
    let two = picture(&stacks(&reader(&dir), &asked("zone=a", Some("zone=b")), NOW).unwrap());
    assert!(two.contains("1 node against 1") && two.contains("against 1 node with zone=b, 2,000 samples"), "{two}");
    assert!(two.contains("Only in the baseline: calm"));
}
