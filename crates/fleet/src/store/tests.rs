use super::*;
use crate::store::episodes::{Observed, spans};
use crate::store::read::wall;
use coroner_report::{BatchHead, Concluded, Minute, NodeIdentity, Problem};
use proptest::prelude::*;

pub const NOW: i64 = 1_790_000_000;
pub const KEEP: Retention = Retention { minutes_s: 7 * 86_400, hours_s: 90 * 86_400, episodes_s: 400 * 86_400 };

pub fn batch(node: &str, stream: &str, sequence: u64) -> Batch {
    let head = BatchHead {
        node: node.to_owned(),
        stream: stream.to_owned(),
        sequence,
        boot_id: "boot-1".to_owned(),
        sealed: wall(NOW),
        ..BatchHead::default()
    };
    Batch { head, node: None, minutes: vec![], diagnoses: vec![], incidents: vec![], stacks: vec![], unknown: 0 }
}

fn minute(at: i64) -> Minute {
    Minute { minute: wall(at), zombies_dead: Some(at as u64 % 1000), cores: Some(2), ..Minute::default() }
}

pub fn concluded(boot: &str, from: i64, until: i64, keys: &[&str]) -> Concluded {
    let problem = |key: &&str| Problem {
        key: (*key).to_owned(),
        code: key.split(':').next().unwrap_or_default().to_owned(),
        severity: "warning".to_owned(),
        title: format!("{key} here"),
        ..Problem::default()
    };
    Concluded {
        boot_id: boot.to_owned(),
        from: wall(from),
        until: wall(until),
        diagnoses: 1,
        conclusion: "cause found".to_owned(),
        problems: keys.iter().map(problem).collect(),
    }
}

pub fn opened() -> (tempfile::TempDir, Connection) {
    let dir = tempfile::tempdir().unwrap();
    let db = schema::open(&dir.path().join("fleet.db")).unwrap();
    (dir, db)
}

pub fn stored(db: &mut Connection, key: &str, batches: &[Batch], now: i64) -> Result<Stored, StoreError> {
    let mut tx = db.transaction().unwrap();
    let stored = write::store(&mut tx, key, batches, now)?;
    tx.commit().unwrap();
    Ok(stored)
}

fn count(db: &Connection, table: &str) -> i64 {
    db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn a_batch_is_stored_once_however_often_it_comes() {
    let (_dir, mut db) = opened();
    let mut one = batch("n1", "s1", 1);
    one.minutes = vec![minute(NOW - 60), minute(NOW)];
    let again = [one.clone(), one.clone()];
    assert_eq!(
        stored(&mut db, "k", &again, NOW).unwrap(),
        Stored { batches: 1, repeated: 1, rows: 2, ..Stored::default() }
    );
    assert_eq!(stored(&mut db, "k", &[one], NOW).unwrap(), Stored { repeated: 1, ..Stored::default() });
    // An older batch of the stream after a newer one is known, another stream is not.
    let mut other = batch("n1", "s2", 1);
    other.minutes = vec![minute(NOW + 60)];
    assert_eq!(stored(&mut db, "k", &[batch("n1", "s1", 5), batch("n1", "s1", 3), other], NOW).unwrap().batches, 2);
    assert_eq!((count(&db, "nodes"), count(&db, "minutes"), count(&db, "streams")), (1, 3, 2));
}

#[test]
fn nobody_speaks_for_another_node() {
    let (_dir, mut db) = opened();
    stored(&mut db, "key of n1", &[batch("n1", "s1", 1)], NOW).unwrap();
    let mut forged = batch("n1", "evil", 1);
    forged.minutes = vec![minute(NOW)];
    let innocent = batch("n2", "s1", 1);
    let refused = stored(&mut db, "other key", &[innocent, forged.clone()], NOW + 60).unwrap_err();
    assert!(matches!(refused, StoreError::NotItself(why) if why.contains("n1")));
    assert_eq!((count(&db, "nodes"), count(&db, "minutes")), (1, 0), "all or nothing of a request");
    // A replaced disk has a new key; an hour later it is taken.
    stored(&mut db, "other key", &[forged], NOW + 3700).unwrap();
}

#[test]
fn problems_are_episodes() {
    let (_dir, mut db) = opened();
    let mut say = |sequence: u64, boot: &str, from: i64, until: i64, keys: &[&str]| {
        let mut said = batch("n1", "s", sequence);
        said.diagnoses = vec![concluded(boot, from, until, keys)];
        stored(&mut db, "k", &[said], NOW).unwrap();
        let mut rows = db.prepare("SELECT key, began, seen_until, ended FROM episodes ORDER BY began, key").unwrap();
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))).unwrap();
        rows.collect::<rusqlite::Result<Vec<(String, i64, i64, Option<i64>)>>>().unwrap()
    };
    let key = || "nic-reset:ena".to_owned();
    assert_eq!(say(1, "a", 1000, 1180, &["nic-reset:ena"]), [(key(), 1000, 1180, None)]);
    assert_eq!(say(2, "a", 1120, 1360, &["nic-reset:ena"]), [(key(), 1000, 1360, None)]);
    assert_eq!(say(3, "a", 1300, 1540, &[]), [(key(), 1000, 1360, Some(1360))], "it ended when it was last seen");
    assert_eq!(say(4, "a", 1500, 1700, &["nic-reset:ena"]), [(key(), 1000, 1700, None)], "gone for minutes: the same");
    say(5, "a", 1700, 1900, &[]);
    let after_an_hour = say(6, "a", 5000, 5200, &["nic-reset:ena", "oom-kill"]);
    assert_eq!(after_an_hour.len(), 3, "{after_an_hour:?}");
    // A late diagnosis ends nothing that a newer one saw; another boot is another episode.
    assert_eq!(say(7, "a", 4000, 4100, &[]), after_an_hour);
    let rebooted = say(8, "b", 5300, 5500, &["oom-kill"]);
    assert_eq!(rebooted.iter().filter(|(_, _, _, ended)| ended.is_none()).count(), 1, "{rebooted:?}");
}

#[test]
fn status_counts_nodes_and_problems() {
    let (_dir, mut db) = opened();
    for (n, keys) in [&["a"][..], &["a", "b"], &[]].into_iter().enumerate() {
        let mut said = batch(&format!("n{n}"), "s", 1);
        said.node = Some(NodeIdentity { host: Some(format!("host-{n}")), ..NodeIdentity::default() });
        said.diagnoses = vec![concluded("boot-1", NOW - 200, NOW, keys)];
        said.minutes = vec![minute(NOW)];
        stored(&mut db, "k", &[said], NOW - if n == 0 { 700 } else { 0 }).unwrap();
    }
    stored(&mut db, "k", &[batch("n9", "s", 1)], NOW).unwrap();
    let status = read::status(&db, NOW).unwrap();
    let nodes = status.nodes;
    assert_eq!((nodes.known, nodes.reporting, nodes.silent, nodes.sick, nodes.undiagnosed), (4, 3, 1, 2, 1));
    assert_eq!(
        status.problems.iter().map(|p| (p.key.as_str(), p.nodes, p.silent)).collect::<Vec<_>>(),
        [("a", 2, 1), ("b", 1, 0)]
    );
    assert!(status.problems.iter().all(|problem| problem.is_new));
    let all = read::nodes(&db, NOW).unwrap();
    assert_eq!(all.len(), 4);
    let of_zero = &all.iter().find(|(_, node)| node.node == "n0").unwrap().1;
    assert!(of_zero.is_silent && of_zero.problems.len() == 1 && of_zero.numbers.contains_key("zombies"));
    assert!(!of_zero.numbers.contains_key("busy"), "what was not seen is absent");
    assert_eq!(read::find(&db, "host-1").unwrap().len(), 1);
    let detail = read::detail(&db, read::find(&db, "n1").unwrap()[0].0, NOW).unwrap();
    assert_eq!((detail.history.len(), detail.boots.len()), (2, 1));
}

#[test]
fn old_rows_expire() {
    let (_dir, mut db) = opened();
    let mut said = batch("n1", "s", 1);
    said.minutes = (0..10).map(|day| minute(NOW + 60 - day * 86_400)).collect();
    said.diagnoses = vec![
        concluded("a", NOW - 500 * 86_400, NOW - 500 * 86_400 + 100, &["x"]),
        concluded("a", NOW - 9, NOW, &["y"]),
    ];
    stored(&mut db, "k", &[said], NOW).unwrap();
    while write::expire(&db, KEEP, NOW).unwrap() {}
    assert_eq!((count(&db, "minutes"), count(&db, "episodes")), (8, 1));
}

#[test]
fn what_is_acknowledged_survives_a_reopening_and_a_second_collector_is_kept_out() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = SqliteStore::open(dir.path(), KEEP).unwrap();
    let answers = runtime.block_on(async {
        let mut answers = Vec::new();
        for n in 1..=20 {
            answers.push(store.store("k".to_owned(), vec![batch("n1", "s", n)]).await.unwrap());
        }
        answers
    });
    assert!(answers.iter().all(|stored| stored.batches == 1));
    assert!(SqliteStore::open(dir.path(), KEEP).is_err(), "one collector per directory");
    drop(store);
    let again = SqliteStore::open(dir.path(), KEEP).unwrap();
    let stored =
        runtime.block_on(again.store("k".to_owned(), vec![batch("n1", "s", 20), batch("n1", "s", 21)])).unwrap();
    assert_eq!((stored.batches, stored.repeated), (1, 1));
}

#[test]
fn another_file_is_not_taken_for_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fleet.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE x (y); PRAGMA user_version=7;").unwrap();
    assert!(schema::open(&path).unwrap_err().to_string().contains("not the store of a fleet"));
}

/// Which problem, how long ago it began and ended.
type Drawn = (usize, Option<i64>, Option<i64>);

/// Some diagnoses of one node, each later than the one before, in the order in which they arrive.
fn diagnoses() -> impl Strategy<Value = Vec<Concluded>> {
    let problem = (0..2usize, prop::option::of(0..4000i64), prop::option::of(0..2000i64));
    let diagnosis = (1..2000i64, 0..2000i64, any::<bool>(), prop::collection::vec(problem, 0..3));
    let all = prop::collection::vec(diagnosis, 1..12).prop_map(|drawn| {
        let mut until = NOW - 100_000;
        let mut conclude = |(later, covers, is_second, problems): (i64, i64, bool, Vec<Drawn>)| {
            until += later;
            let mut concluded = concluded(if is_second { "b" } else { "a" }, until - covers, until, &[]);
            for (key, began, ended) in problems {
                if concluded.problems.iter().all(|problem| problem.key != ["x", "y"][key]) {
                    concluded.problems.push(Problem {
                        key: ["x", "y"][key].to_owned(),
                        title: format!("until {until}"),
                        began: began.map(|ago| wall(until - ago)),
                        ended: ended.map(|ago| wall(until - ago)),
                        ..Problem::default()
                    });
                }
            }
            concluded
        };
        drawn.into_iter().map(&mut conclude).collect::<Vec<Concluded>>()
    });
    all.prop_flat_map(|all| {
        let twice: Vec<Concluded> = all.iter().chain(all.iter().step_by(2)).cloned().collect();
        Just(twice).prop_shuffle()
    })
}

type Told = (String, String, i64, i64, Option<i64>);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// In any order, also twice, diagnoses make the same episodes, and those of the rule that ClickHouse's answers follow.
    #[test]
    fn episodes_do_not_depend_on_the_order_of_diagnoses(arriving in diagnoses()) {
        let (_dir, mut db) = opened();
        for (at, concluded) in arriving.iter().enumerate() {
            let mut said = batch("n1", "s", at as u64 + 1);
            said.diagnoses = vec![concluded.clone()];
            stored(&mut db, "k", &[said], NOW).unwrap();
        }
        let mut rows = db.prepare("SELECT boot_id, key, began, seen_until, ended FROM episodes ORDER BY 1, 2, 3").unwrap();
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))).unwrap();
        let found: Vec<Told> = rows.collect::<rusqlite::Result<_>>().unwrap();
        let diagnosed_until = arriving.iter().map(|concluded| write::seconds(concluded.until)).max().unwrap();
        let mut expected: Vec<Told> = Vec::new();
        for boot in ["a", "b"] {
            for key in ["x", "y"] {
                let of_boot = arriving.iter().filter(|concluded| concluded.boot_id == boot);
                let observed: Vec<Observed> = of_boot
                    .flat_map(|concluded| concluded.problems.iter().map(move |problem| (concluded, problem)))
                    .filter(|(_, problem)| problem.key == key)
                    .map(|(concluded, problem)| Observed::of(problem, concluded))
                    .collect();
                let of_problem = spans(&observed, diagnosed_until).into_iter();
                expected.extend(of_problem.map(|s| (boot.to_owned(), key.to_owned(), s.began, s.seen_until, s.ended)));
            }
        }
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn absurd_counts_fail_nobody_and_a_removed_node_leaves_nothing() {
    let (_dir, mut db) = opened();
    for node in ["n1", "n2"] {
        let mut absurd = batch(node, "s", 1);
        absurd.head.dropped.minutes = u64::MAX;
        absurd.minutes =
            (0..2).map(|n| Minute { unit_restarts: Some(u64::MAX), ..minute(NOW - 7200 + n * 60) }).collect();
        absurd.diagnoses = vec![concluded("a", NOW - 300, NOW, &["x"])];
        stored(&mut db, "k", &[absurd], NOW).unwrap();
    }
    assert_eq!(read::status(&db, NOW).unwrap().nodes.sick, 2);
    while write::expire(&db, Retention { episodes_s: 10, ..KEEP }, NOW + 100).unwrap() {}
    for table in ["nodes", "minutes", "hours", "episodes", "boots", "identities", "streams"] {
        assert_eq!(count(&db, table), 0, "{table}");
    }
}

#[test]
fn streams_boots_and_host_names_are_bounded_and_the_nodes_own_name_counts() {
    let (_dir, mut db) = opened();
    let many: Vec<Batch> = (0..300)
        .map(|n| {
            let mut one = batch("n1", &format!("s{n}"), 2);
            one.head.boot_id = format!("boot-{n}");
            one
        })
        .collect();
    stored(&mut db, "k", &many, NOW).unwrap();
    assert_eq!((count(&db, "streams"), count(&db, "boots")), (50, 200));
    let mut evil = batch("evil", "s", 1);
    evil.node = Some(NodeIdentity { host: Some("n1".to_owned()), ..NodeIdentity::default() });
    stored(&mut db, "k2", &[evil], NOW).unwrap();
    let named = read::named(read::find(&db, "n1").unwrap(), |(_, node)| node == "n1");
    assert_eq!(named.len(), 1, "{named:?}");
}

#[test]
fn what_a_node_says_of_itself_again_is_kept_once() {
    let (_dir, mut db) = opened();
    for (sequence, host) in [(1, "a"), (2, "a"), (3, "b"), (4, "b")] {
        let mut said = batch("n1", "s", sequence);
        said.head.sealed = wall(NOW + sequence as i64);
        said.node = Some(NodeIdentity { host: Some(host.to_owned()), ..NodeIdentity::default() });
        stored(&mut db, "k", &[said], NOW).unwrap();
    }
    assert_eq!(count(&db, "identities"), 2);
}

#[test]
fn onsets_of_a_boot_count_however_long_ago() {
    let (_dir, mut db) = opened();
    const DAY: i64 = 86_400;
    for (sequence, from) in [NOW - 20 * DAY, NOW - 3 * DAY].into_iter().enumerate() {
        let mut said = batch("n1", "s", sequence as u64 + 1);
        said.diagnoses = vec![concluded("boot-1", from, from + 600, &["nic-reset"])];
        stored(&mut db, "k", &[said], NOW).unwrap();
    }
    let mut said = batch("n2", "s", 1);
    said.diagnoses = vec![concluded("boot-1", NOW - 20 * DAY, NOW - 19 * DAY, &["nic-reset"])];
    stored(&mut db, "k", &[said], NOW).unwrap();
    let lives = read::lives(&db, "nic-reset", NOW - 7 * DAY).unwrap();
    assert_eq!((lives["n1"].had_it, &lives["n1"].onsets[..]), (true, &[NOW - 20 * DAY, NOW - 3 * DAY][..]));
    assert!(!lives["n2"].had_it, "only before");
}
