use super::tests::{KEEP, NOW, batch, concluded, opened, stored};
use super::*;
use crate::store::look::Moment;
use crate::store::read::wall;
use coroner_report::{Minute, NodeIdentity};

fn minute(at: i64, zombies: u64) -> Minute {
    Minute {
        minute: wall(at),
        zombies_dead: Some(zombies),
        busy_mean: Some(0.5),
        unit_restarts: Some(1),
        ..Minute::default()
    }
}

fn then(at: i64) -> Moment {
    Moment { at, is_live: false, minutes_from: NOW - KEEP.minutes_s }
}

/// Each minute of some hours, in one batch per hour, as a node sends them.
fn fill(db: &mut Connection, node: &str, boot: &str, hours: std::ops::Range<i64>, zombies: impl Fn(i64) -> u64) {
    for hour in hours {
        let mut said = batch(node, boot, hour as u64 + 1);
        let start = NOW / 3600 * 3600 - 200 * 3600 + hour * 3600;
        said.head.boot_id = boot.to_owned();
        said.head.sealed = wall(start + 3600);
        said.minutes = (0..60).map(|m| minute(start + m * 60, zombies(hour))).collect();
        stored(db, "k", &[said], start + 3605).unwrap();
    }
}

#[test]
fn minutes_become_hours_also_when_they_come_late_or_twice() {
    let (_dir, mut db) = opened();
    let hour = NOW / 3600 * 3600;
    let mut send = |sequence: u64, minutes: Vec<Minute>, now: i64| {
        let mut said = batch("n1", "s", sequence);
        said.minutes = minutes;
        stored(&mut db, "k", &[said], now).unwrap();
        let row = db.query_row(
            "SELECT minutes, zombies_dead, unit_restarts, busy_mean FROM hours WHERE hour = ?1",
            [hour],
            |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get::<_, i64>(3)?)),
        );
        row.ok()
    };
    assert_eq!(send(1, vec![minute(hour, 5)], hour + 65), None, "the hour and its quarter go on");
    assert_eq!(send(2, vec![minute(hour + 14 * 60, 7)], hour + 905), Some((2, 7, 2, 500)));
    // A spool that comes hours later, and a minute again, from a recorder that was restarted within it.
    let late = vec![minute(hour + 30 * 60, 9), minute(hour + 14 * 60, 8)];
    assert_eq!(send(3, late, hour + 9000), Some((3, 9, 3, 500)));
    while write::expire(&db, KEEP, hour + KEEP.minutes_s + 7200).unwrap() {}
    let left =
        |table: &str| db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((left("minutes"), left("hours")), (0, 1), "hours outlive minutes");
    while write::expire(&db, KEEP, hour + KEEP.hours_s + 7200).unwrap() {}
    assert_eq!(left("hours"), 0);
}

#[test]
fn a_store_of_an_older_format_gets_its_hours() {
    let (dir, mut db) = opened();
    fill(&mut db, "n1", "boot-1", 0..3, |hour| hour as u64);
    let newer = ["starved_queues", "throttled_ms", "direct_reclaim_pages", "own_cpu_ms"];
    for column in newer {
        db.execute_batch(&format!("ALTER TABLE minutes DROP COLUMN {column}")).unwrap();
    }
    db.execute_batch("DROP TABLE hours; PRAGMA user_version=2;").unwrap();
    drop(db);
    let db = schema::open(&dir.path().join("fleet.db")).unwrap();
    let rows: (i64, i64) =
        db.query_row("SELECT count(*), sum(minutes) FROM hours", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(rows, (3, 180));
}

#[test]
fn the_fleet_of_a_past_moment_is_that_of_then() {
    let (_dir, mut db) = opened();
    let day = 86_400;
    let mut first = batch("n1", "s", 1);
    first.head.sealed = wall(NOW - 9 * day);
    first.node = Some(NodeIdentity {
        cluster: Some("old".to_owned()),
        booted: Some(wall(NOW - 10 * day)),
        ..NodeIdentity::default()
    });
    first.minutes = vec![minute(NOW - 9 * day, 5)];
    first.diagnoses = vec![
        concluded("boot-1", NOW - 9 * day, NOW - 8 * day, &["x"]),
        concluded("boot-1", NOW - 7 * day, NOW - 6 * day, &[]),
    ];
    let mut second = batch("n1", "s", 2);
    second.head.boot_id = "boot-2".to_owned();
    second.node = Some(NodeIdentity {
        cluster: Some("new".to_owned()),
        booted: Some(wall(NOW - day)),
        ..NodeIdentity::default()
    });
    second.minutes = vec![minute(NOW - day, 1), minute(NOW - 60, 2)];
    second.diagnoses = vec![concluded("boot-2", NOW - 600, NOW, &["y"])];
    // All of it arrives now, from a spool.
    stored(&mut db, "k", &[first, second], NOW).unwrap();
    let mut other = batch("n2", "s", 1);
    other.minutes = vec![minute(NOW - 3600, 3)];
    stored(&mut db, "k2", &[other], NOW).unwrap();

    let look = |moment: Moment| {
        let nodes = look::nodes(&db, moment).unwrap();
        let keys: Vec<String> = look::troubles(&db, moment).unwrap().into_iter().map(|trouble| trouble.key).collect();
        (nodes, keys)
    };
    let (nodes, keys) = look(then(NOW - 8 * day - 3600));
    assert_eq!((nodes.len(), keys.as_slice()), (1, &["x".to_owned()][..]), "the second node was not there yet");
    assert!(nodes[0].identity.as_deref().unwrap().contains("old") && nodes[0].is_diagnosed);
    let (nodes, keys) = look(then(NOW - 5 * day));
    assert!(keys.is_empty() && nodes[0].is_silent, "between two boots: {nodes:?}");
    let (nodes, keys) = look(Moment { at: NOW, is_live: true, minutes_from: 0 });
    assert_eq!((nodes.len(), keys.as_slice()), (2, &["y".to_owned()][..]));
    assert!(nodes[0].identity.as_deref().unwrap().contains("new") && !nodes[0].is_silent && !nodes[1].is_diagnosed);
    assert_eq!(nodes[0].booted, Some(NOW - day));

    let value = |moment: Moment| {
        let numbers = look::numbers(&db, moment, &["zombies", "busy"]).unwrap();
        numbers.get(&nodes[0].id).map(|row| serde_json::to_string(row).unwrap())
    };
    assert_eq!(value(then(NOW - day + 120)).as_deref(), Some("[1,0.5]"));
    assert_eq!(value(then(NOW - 5 * day)), None, "older numbers are not those of then");
    assert_eq!(value(then(NOW - 9 * day + 60)).as_deref(), Some("[5,0.5]"), "from the hour: minutes are gone by then");
    assert_eq!(value(Moment { at: NOW, is_live: true, minutes_from: 0 }).as_deref(), Some("[2,0.5]"));
    assert!(look::begins(&db).unwrap().unwrap() <= NOW - 9 * day);
}

#[test]
fn growth_is_that_since_boot() {
    let (_dir, mut db) = opened();
    // It leaked 100 an hour, rebooted, and leaks 10 an hour.
    fill(&mut db, "n1", "boot-1", 0..10, |hour| 1000 + hour as u64 * 100);
    fill(&mut db, "n1", "boot-2", 10..20, |hour| (hour as u64 - 10) * 10);
    fill(&mut db, "n2", "boot-3", 18..20, |_| 5);
    let start = NOW / 3600 * 3600 - 200 * 3600;
    let growth = |booted: i64| {
        hours::slopes(&db, "zombies_dead", start, start + 20 * 3600, |id| (id == 1).then_some(booted)).unwrap()
    };
    assert!((growth(start + 10 * 3600)[&1] - 10.0).abs() < 1e-6);
    assert_eq!(growth(start).keys().collect::<Vec<_>>(), [&1], "two hours say nothing");
    let series = hours::series(&db, 1, start, start + 3 * 3600, true).unwrap();
    assert_eq!((series.step_s, series.at_s.len(), series.numbers.contains_key("drops")), (3600, 4, false));
    assert_eq!(hours::series(&db, 1, start, start + 3600, false).unwrap().at_s.len(), 61);
}

#[test]
fn history_counts_sick_nodes_by_hour() {
    let (_dir, mut db) = opened();
    let start = NOW / 3600 * 3600 - 10 * 3600;
    for (node, keys, from, until) in [("n1", &["a:1", "a:2"][..], 0, 2), ("n2", &["a:1"], 1, 4), ("n3", &["b"], 4, 5)] {
        let mut said = batch(node, "s", 1);
        let (from, until) = (start + from * 3600, start + until * 3600);
        said.diagnoses = vec![concluded("boot-1", from, until, keys), concluded("boot-1", until, until + 60, &[])];
        stored(&mut db, node, &[said], NOW).unwrap();
    }
    let history = look::history(&db, start, start + 6 * 3600).unwrap();
    assert_eq!((history.step_s, history.from_s, history.sick.as_slice()), (3600, start, &[1, 2, 2, 1, 2, 1, 0][..]));
    let of: Vec<_> = history.problems.iter().map(|problem| (problem.code.as_str(), problem.nodes.as_slice())).collect();
    assert_eq!(of, [("a", &[1, 2, 2, 1, 1, 0, 0][..]), ("b", &[0, 0, 0, 0, 1, 1, 0])]);
    assert_eq!(look::history(&db, start - 60 * 86_400, start).unwrap().step_s, 6 * 3600);
}
