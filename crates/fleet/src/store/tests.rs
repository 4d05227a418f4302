use super::*;
use crate::store::read::wall;
use coroner_report::{BatchHead, Concluded, Minute, NodeIdentity, Problem};

const NOW: i64 = 1_790_000_000;
const KEEP: Retention = Retention { minutes_s: 7 * 86_400, episodes_s: 400 * 86_400 };

fn batch(node: &str, stream: &str, sequence: u64) -> Batch {
    let head = BatchHead {
        node: node.to_owned(),
        stream: stream.to_owned(),
        sequence,
        boot_id: "boot-1".to_owned(),
        sealed: wall(NOW),
        ..BatchHead::default()
    };
    Batch { head, node: None, minutes: vec![], diagnoses: vec![], incidents: vec![], unknown: 0 }
}

fn minute(at: i64) -> Minute {
    Minute { minute: wall(at), zombies_dead: Some(at as u64 % 1000), cores: Some(2), ..Minute::default() }
}

fn concluded(boot: &str, from: i64, until: i64, keys: &[&str]) -> Concluded {
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

fn opened() -> (tempfile::TempDir, Connection) {
    let dir = tempfile::tempdir().unwrap();
    let db = schema::open(&dir.path().join("fleet.db")).unwrap();
    (dir, db)
}

fn stored(db: &mut Connection, key: &str, batches: &[Batch], now: i64) -> Result<Stored, StoreError> {
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
    assert_eq!(stored(&mut db, "k", &again, NOW).unwrap(), Stored { batches: 1, repeated: 1, rows: 2 });
    assert_eq!(stored(&mut db, "k", &[one], NOW).unwrap(), Stored { batches: 0, repeated: 1, rows: 0 });
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
    said.minutes = (0..10).map(|day| minute(NOW - day * 86_400)).collect();
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
    let store = Store::open(dir.path(), KEEP).unwrap();
    let answers = runtime.block_on(async {
        let mut answers = Vec::new();
        for n in 1..=20 {
            answers.push(store.store("k".to_owned(), vec![batch("n1", "s", n)]).await.unwrap());
        }
        answers
    });
    assert!(answers.iter().all(|stored| stored.batches == 1));
    assert!(Store::open(dir.path(), KEEP).is_err(), "one collector per directory");
    drop(store);
    let again = Store::open(dir.path(), KEEP).unwrap();
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
