//! Dead memory cgroups in a recording: many of them, parts of them lost, and for people with only sqlite3.

use crate::scratch::{churn, kernel_work, scan_of, scratch_file, second};
use coroner_evidence::recording::{PROBE, Writer, read};
use coroner_evidence::{CgroupChurn, Charged, DeadBelow, Evidence, Hold, Time, ZombieMethod, ZombieScan};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn at() -> Time {
    second(0, 0).clocks[0].at + Duration::from_millis(2500)
}

fn recorded(scans: Vec<ZombieScan>) -> (tempfile::TempDir, PathBuf) {
    let (dir, path) = scratch_file();
    let mut writer = Writer::create(&path).unwrap();
    writer.append(&Evidence { zombie_scans: scans, ..second(0, 1) }).unwrap();
    writer.finish(&[]).unwrap();
    (dir, path)
}

fn spoil(path: &Path, sql: &str) -> Evidence {
    assert_ne!(Connection::open(path).unwrap().execute(sql, []).unwrap(), 0);
    read(path).unwrap().evidence
}

#[test]
fn tens_of_thousands_come_back_and_take_less_than_a_megabyte() {
    let scan = scan_of(at(), 60_000, 3000, |i| format!("/ecs/task-{:x}/ecs-agent-{i}", i / 9));
    let (_dir, path) = recorded(vec![scan.clone()]);
    let back = read(&path).unwrap().evidence;
    assert!(back.zombie_scans == [scan] && back.unseen.is_empty());
    let size: i64 = Connection::open(&path)
        .unwrap()
        .query_row("SELECT sum(length(data)) FROM zombie_chunks", [], |r| r.get(0))
        .unwrap();
    assert!(size < 1_000_000, "{size}");
}

#[test]
fn very_long_paths_come_back() {
    let deep = "/a-rather-long-name-of-a-directory".repeat(400);
    let scan = scan_of(at(), 4000, 1, |i| format!("{deep}/{i}"));
    let (_dir, path) = recorded(vec![scan.clone()]);
    assert!(read(&path).unwrap().evidence.zombie_scans == [scan]);
}

#[test]
fn of_very_many_files_the_biggest_are_kept_and_the_others_reported() {
    let scan = scan_of(at(), 20_000, 5003, |i| format!("/a/{i}"));
    let mut hidden = scan.clone();
    hidden.files_unseen = Some("unevictable pages are on no list".into());
    let (_dir, path) = recorded(vec![scan.clone(), hidden]);
    let back = read(&path).unwrap().evidence;
    assert_eq!(back.unseen, []);
    let [first, second] = back.zombie_scans.as_slice() else { panic!() };
    assert!(first.files == scan.files[..5000] && first.zombies == scan.zombies);
    let kept: Vec<_> = scan.holds.iter().filter(|h| h.file < 5000).copied().collect();
    assert!(kept.len() < scan.holds.len() && first.holds == kept);
    let told = first.files_unseen.as_deref().unwrap();
    // 100,000,000 minus the place of each.
    assert!(told.starts_with("3 files") && told.contains("299984997 bytes"), "{told}");
    let told = second.files_unseen.as_deref().unwrap();
    assert!(told.starts_with("unevictable pages are on no list; 3 files"), "{told}");
}

#[test]
fn a_hold_that_names_nothing_is_not_stored() {
    let mut scan = scan_of(at(), 3, 2, |i| format!("/a/{i}"));
    let whole = scan.clone();
    scan.holds.push(Hold { zombie: 2, file: 2, bytes: 1 });
    scan.holds.push(Hold { zombie: 3, file: 1, bytes: 1 });
    let (_dir, path) = recorded(vec![scan]);
    assert_eq!(read(&path).unwrap().evidence.zombie_scans, [whole]);
}

#[test]
fn a_lost_chunk_leaves_the_others_with_their_files() {
    let scan = scan_of(at(), 100_000, 11, |i| format!("/some/rather/long/parent/of/many/{i}"));
    let (_dir, path) = recorded(vec![scan.clone(), scan_of(at(), 5, 2, |i| format!("/b/{i}"))]);
    let rows: Vec<usize> = {
        let db = Connection::open(&path).unwrap();
        let mut select = db.prepare("SELECT rows FROM zombie_chunks WHERE scan_id = 1 ORDER BY id").unwrap();
        select.query_map([], |r| Ok(r.get::<_, u32>(0)? as usize)).unwrap().map(Result::unwrap).collect()
    };
    assert!(rows.len() >= 3 && rows.iter().sum::<usize>() == 100_000, "{rows:?}");
    let seen = spoil(&path, "UPDATE zombie_chunks SET data = substr(data, 1, length(data) / 2) WHERE id = 2");
    let [told] = seen.unseen.as_slice() else { panic!("{:?}", seen.unseen) };
    assert_eq!(told.probe, PROBE);
    assert!(told.what.contains("zombie_chunks") && told.why.contains("row 2: (scan 1): the chunk"), "{told:?}");
    let [part, other] = seen.zombie_scans.as_slice() else { panic!() };
    assert_eq!(other.zombies.len(), 5);
    assert_eq!((part.dead, part.zombies.len()), (Some(100_000), 100_000 - rows[1]));
    assert_eq!(part.holds.len(), part.zombies.len());
    for hold in &part.holds {
        let zombie = &part.zombies[hold.zombie as usize];
        let before = (zombie.serial - 300) / 2;
        assert_eq!(u64::from(hold.file), before * 7 % 11, "{}", zombie.path);
    }
}

#[test]
fn a_lost_file_takes_only_its_own_holds() {
    let scan = scan_of(at(), 100, 10, |i| format!("/a/{i}"));
    let (_dir, path) = recorded(vec![scan.clone()]);
    let seen = spoil(&path, "UPDATE zombie_files SET inode = 'none' WHERE place = 4");
    assert!(seen.unseen[0].what.contains("zombie_files"), "{:?}", seen.unseen);
    let part = &seen.zombie_scans[0];
    assert_eq!((part.files.len(), part.holds.len()), (9, 90));
    let name = |scan: &ZombieScan, h: &Hold| (h.zombie, scan.files[h.file as usize].name());
    let expected: Vec<_> = scan.holds.iter().filter(|h| h.file != 4).map(|h| name(&scan, h)).collect();
    assert_eq!(part.holds.iter().map(|h| name(part, h)).collect::<Vec<_>>(), expected);
}

#[test]
fn an_invalid_row_costs_only_itself() {
    let small = || scan_of(at(), 3, 2, |i| format!("/a/{i}"));
    for (sql, table) in [
        ("UPDATE zombie_scans SET method = 'guess' WHERE id = 1", "zombie_scans"),
        ("UPDATE zombie_scans SET instead_of_json = '[' WHERE id = 1", "zombie_scans"),
        ("UPDATE zombie_scans SET version = 256 WHERE id = 1", "zombie_scans"),
    ] {
        let (_dir, path) = recorded(vec![small(), small()]);
        let seen = spoil(&path, sql);
        assert!(seen.unseen.len() == 1 && seen.unseen[0].what.contains(table), "{sql}: {:?}", seen.unseen);
        assert_eq!(seen.zombie_scans, [small()], "{sql}");
    }
}

#[test]
fn zombies_and_their_makers_can_be_read_with_sqlite3() {
    let (_dir, path) = scratch_file();
    let by_name = scan_of(at(), 300, 2, |i| format!("/ecs/ecs-agent-{i}"));
    let held = Charged { file: 3_000_000, kernel: None, ..Charged::default() };
    let by_parent = ZombieScan {
        at: at() + Duration::from_secs(1),
        method: ZombieMethod::CgroupStat,
        live: None,
        zombies: Vec::new(),
        files: Vec::new(),
        holds: Vec::new(),
        below: vec![DeadBelow { parent: "/ecs".into(), dead: Some(300), held: Some(held) }; 2],
        truncated: Some("out of time".into()),
        ..by_name.clone()
    };
    let churn = churn(at(), at() + Duration::from_secs(10));
    let freed = CgroupChurn { born: 0, removed: 0, freed: 2, parent: "/".into(), maker: None, ..churn.clone() };
    // 61 % of one core's time, and then 12 %, which is not worth a line.
    let later = at() + Duration::from_secs(2);
    let work = vec![kernel_work(at(), later), kernel_work(later, later + Duration::from_secs(10))];
    let mut writer = Writer::create(&path).unwrap();
    writer
        .append(&Evidence {
            zombie_scans: vec![by_name, by_parent],
            cgroup_churn: vec![churn, freed],
            kernel_work: work,
            ..second(0, 1)
        })
        .unwrap();
    writer.finish(&[]).unwrap();

    let db = Connection::open(&path).unwrap();
    let lines = |sql: &str| -> Vec<String> {
        db.prepare(sql).unwrap().query_map([], |r| r.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(
        lines("SELECT time || '|' || kind || '|' || subject || '|' || event FROM events WHERE kind != 'log'"),
        [
            "2026-05-28T20:26:42.500000Z|zombies|cgroup v1|300 dead, 40 live, by bpf-test-run",
            "2026-05-28T20:26:43.500000Z|zombies|cgroup v1|300 dead, unknown live, by cgroup-stat (out of time)",
            "2026-05-28T20:26:44.500000Z|kernel|2 cores|120 samples in the kernel in 2.0 s: 120 stepping through memory cgroups, 0 in reclaim",
            "2026-05-28T20:26:52.500000Z|cgroup churn|/ecs/ecs-agent-*|12 born, 11 removed, 0 freed in 10.0 s, by ecs-init (pid 812) through mkdir",
            "2026-05-28T20:26:52.500000Z|cgroup churn|/ecs-agent-*|0 born, 0 removed, 2 freed in 10.0 s",
        ]
    );
    // 100 hold one page, 100 two, 100 three.
    assert_eq!(
        lines(
            "SELECT time || '|' || method || '|' || coalesce(named, 'none') || '|' || printf('%.4f', held_mb) || '|' ||
             coalesce(example, '') || '|' || coalesce(biggest_file, '') FROM zombies_readable"
        ),
        [
            "2026-05-28T20:26:42.500000Z|bpf-test-run|300|2.4576|/ecs/ecs-agent-0|/dev/shm/leak-0 (deleted): 3 zombies",
            "2026-05-28T20:26:43.500000Z|cgroup-stat|none|6.0000||",
        ]
    );
}
