use crate::scratch::{scratch_file, second, seconds, snapshot};
use coroner_evidence::any::any_evidence;
use coroner_evidence::recording::{FORMAT, FindingRow, RecordingError, Writer, read};
use coroner_evidence::{Evidence, StatRead, Time, Wall};
use proptest::collection::vec;
use proptest::prelude::*;
use rusqlite::Connection;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn write(path: &Path, fragments: &[Evidence]) {
    let mut writer = Writer::create(path).unwrap();
    for fragment in fragments {
        writer.append(fragment).unwrap();
    }
    writer.finish(&[]).unwrap();
}

fn evidence(bytes: Vec<u8>) -> Evidence {
    // Few words, so that repeats are frequent, and paths with a common prefix, even within a character.
    let words = |field: &str, pick: usize| match field {
        "probe" | "what" | "why" | "subject" => Some(["a", "b"][pick % 2].to_owned()),
        "path" => Some(format!("/a/{}-{}", ["b", "bb", "é", "è"][pick % 4], pick % 1000)),
        _ => None,
    };
    // Recordings are made of running nodes.
    Evidence { image: None, ..any_evidence(bytes, words) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn what_was_appended_comes_back(fragments in vec(vec(any::<u8>(), 0..12_000).prop_map(evidence), 1..6)) {
        let (_dir, path) = scratch_file();
        write(&path, &fragments);
        let mut expected = Evidence::default();
        for fragment in fragments {
            expected.append(fragment);
        }
        let recording = read(&path).unwrap();
        prop_assert_eq!(&recording.evidence, &expected);
        prop_assert!(recording.about.sealed);
        prop_assert_eq!(recording.about.format, FORMAT);
    }
}

#[test]
fn a_sealed_recording_is_one_file_and_reading_leaves_it_alone() {
    let (dir, path) = scratch_file();
    write(&path, &[second(0, 4), second(1, 4)]);
    let before = snapshot(dir.path());
    assert_eq!(before.keys().collect::<Vec<_>>(), [&path]);
    assert_eq!(read(&path).unwrap().evidence, seconds(2, 4));
    assert_eq!(snapshot(dir.path()), before);
}

#[test]
fn minutes_of_many_cores_come_back_in_few_chunks() {
    let (_dir, path) = scratch_file();
    // More rows per second than fit into a chunk of ten seconds, and seconds of other sizes in between.
    let mut writer = Writer::create(&path).unwrap();
    let mut expected = Evidence::default();
    for i in 0..120 {
        let fragment = second(i, if i % 17 == 0 { 2000 } else { 96 });
        writer.append(&fragment).unwrap();
        expected.append(fragment);
    }
    writer.finish(&[]).unwrap();
    assert!(read(&path).unwrap().evidence == expected);
    let db = Connection::open(&path).unwrap();
    let chunks: u32 = db.query_row("SELECT count(*) FROM core_time_chunks", [], |r| r.get(0)).unwrap();
    let longest: u32 = db.query_row("SELECT max(rows) FROM core_time_chunks", [], |r| r.get(0)).unwrap();
    assert!(chunks < 40, "small chunks are put together: {chunks}");
    assert!(longest <= 32_768, "{longest}");
}

#[test]
fn a_recording_can_be_read_while_it_is_written() {
    let (dir, path) = scratch_file();
    let mut writer = Writer::create(&path).unwrap().sync_every(Duration::ZERO);
    for i in 0..30 {
        writer.append(&second(i, 4)).unwrap();
        let recording = read(&path).unwrap();
        assert_eq!(recording.evidence, seconds(i + 1, 4));
        assert!(!recording.about.sealed);
    }
    writer.finish(&[]).unwrap();
    assert!(read(&path).unwrap().about.sealed);
    assert_eq!(snapshot(dir.path()).len(), 1);
}

#[test]
fn a_dropped_writer_leaves_a_complete_file_that_is_not_sealed() {
    let (dir, path) = scratch_file();
    let mut writer = Writer::create(&path).unwrap();
    writer.append(&second(0, 4)).unwrap();
    drop(writer);
    let recording = read(&path).unwrap();
    assert_eq!(recording.evidence, seconds(1, 4));
    assert_eq!(snapshot(dir.path()).len(), 1);
    assert!(!recording.about.sealed);
}

#[test]
fn a_reader_that_stays_open_keeps_the_log_but_loses_nothing() {
    let (_dir, path) = scratch_file();
    let mut writer = Writer::create(&path).unwrap();
    writer.append(&second(0, 4)).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN; SELECT * FROM meta;").unwrap();
    let error = writer.finish(&[]).unwrap_err().to_string();
    assert!(error.contains("another program has it open") && error.contains("-wal"), "{error}");
    let recording = read(&path).unwrap();
    assert_eq!(recording.evidence, seconds(1, 4));
    assert!(recording.about.sealed);
}

/// As a kill leaves it between the tables and the first rows.
#[test]
fn a_file_killed_before_its_first_rows_is_empty_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (path, killed) = (dir.path().join("a.coroner"), dir.path().join("killed.coroner"));
    let _writer = Writer::create(&path).unwrap();
    std::fs::copy(&path, &killed).unwrap();
    assert!(matches!(read(&killed), Err(RecordingError::Empty { .. })));
}

/// As between the removal of the log and the moment the file says so; a kill just then leaves it like this for ever.
#[test]
fn a_sealed_file_that_still_says_it_has_a_log_lacks_nothing() {
    let (_dir, path) = scratch_file();
    let mut writer = Writer::create(&path).unwrap();
    writer.append(&second(0, 4)).unwrap();
    writer.finish(&[]).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[18..20].copy_from_slice(&[2, 2]);
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(read(&path).unwrap().evidence, seconds(1, 4));
}

/// A second and a half after the made-up node's first clock reading.
fn slow_at() -> Time {
    second(0, 0).clocks[0].at + Duration::from_millis(1500)
}

#[test]
fn a_locked_out_append_says_so_and_the_next_one_succeeds() {
    let (_dir, path) = scratch_file();
    let mut writer = Writer::create(&path).unwrap();
    writer.append(&second(0, 4)).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = writer.append(&second(1, 4)).unwrap_err();
    assert!(matches!(error, RecordingError::Locked { .. }), "{error:?}");
    other.execute_batch("ROLLBACK").unwrap();
    drop(other);
    writer.append(&second(1, 4)).unwrap();
    writer.finish(&[]).unwrap();
    assert_eq!(read(&path).unwrap().evidence, seconds(2, 4));
}

#[test]
fn people_with_only_sqlite3_can_read_it() {
    let (_dir, path) = scratch_file();
    let mut writer = Writer::create(&path).unwrap();
    writer.append(&second(0, 4)).unwrap();
    let mut slow = Evidence::default();
    let path_of_read = "/sys/fs/cgroup/memory/memory.numa_stat".to_owned();
    let at = slow_at();
    slow.stat_reads.push(StatRead { at, path: path_of_read, took_ns: 4_800_000_000, cpu_ns: None, finished: false });
    writer.append(&slow).unwrap();
    let finding = FindingRow {
        code: "core-saturated".into(),
        severity: "warning".into(),
        subject_kind: "core".into(),
        subject: "1".into(),
        title: "core 1 is full".into(),
        detail: "detail".into(),
        remedy: "remedy".into(),
    };
    writer.finish(&[finding]).unwrap();

    let db = Connection::open(&path).unwrap();
    let text = |sql: &str| db.query_row(sql, [], |r| r.get::<_, String>(0)).unwrap();
    assert_eq!(text("SELECT value FROM node WHERE key = 'host'"), "node-1");
    assert_eq!(text("SELECT value FROM meta WHERE key = 'boot_id'"), "b00t");
    // 1,780,000,000 s after 1970, by `date -u -d @1780000000`.
    assert_eq!(text("SELECT time || ' ' || text FROM log_readable"), "2026-05-28T20:26:40.000000Z second 0");
    assert_eq!(
        text("SELECT time || ' ' || kind || ' ' || event FROM events"),
        "2026-05-28T20:26:40.000000Z log second 0"
    );
    let read = text("SELECT time || ' ' || event FROM events WHERE kind = 'stat read'");
    assert_eq!(read, "2026-05-28T20:26:41.500000Z at least 4800.000 ms");
    assert_eq!(text("SELECT code || ' ' || subject FROM findings"), "core-saturated 1");

    let Ok(tables) = Command::new("sqlite3").arg(&path).arg(".tables").output() else {
        coroner_lab::skip("needs the program sqlite3");
        return;
    };
    let tables = String::from_utf8(tables.stdout).unwrap();
    for table in ["meta", "node", "processes", "kernel_log", "units", "findings", "core_time_chunks", "log_readable"] {
        assert!(tables.split_whitespace().any(|t| t == table), "{table} in {tables}");
    }
}

#[test]
fn an_incident_its_risers_and_minutes_come_back() {
    use coroner_evidence::recording::{CoreMinute, IncidentRow, Riser, RiserKind, RollupRow, incident, rollups};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.coroner");
    let mut writer = Writer::create(&path).unwrap();
    assert_eq!(incident(&path).unwrap(), None);
    let mut row = IncidentRow {
        number: 1,
        code: "core-saturated".into(),
        subject: "core 3".into(),
        core: None,
        text: "core 3 was full of kernel work".into(),
        triggered: Wall(1_780_000_000_000_000_000),
        from: Wall(1),
        until: Wall(u64::MAX),
    };
    writer.set_incident(&row).unwrap();
    row.core = Some(3);
    writer.set_incident(&row).unwrap();
    let riser = |name: &str| Riser {
        what: RiserKind::KernelSymbol,
        name: name.into(),
        baseline: 0.004,
        now: 0.5,
        baseline_samples: 7,
        now_samples: 900,
        sigmas: 12.5,
        mostly_in: Some(("kubelet".into(), 0.9)),
        carries: vec!["seq_read".into()],
        ..Riser::default()
    };
    writer.set_risers(&[riser("x")]).unwrap();
    let risers = vec![riser("mem_cgroup_iter"), Riser { mostly_in: None, carries: vec![], ..riser("a") }];
    writer.set_risers(&risers).unwrap();
    let unseen = RollupRow { minute: Wall(60_000_000_000), ..RollupRow::default() };
    let by_core = vec![CoreMinute { core: 3, busy: 1.0, system: 0.9, saturated_s: 30.5 }];
    let seen = RollupRow { cores: Some(1), busy_mean: Some(0.5), oom_kills: Some(0), by_core, ..unseen.clone() };
    for rollup in [&unseen, &seen] {
        writer.append_rollup(rollup).unwrap();
    }
    let on_disk = |suffix: &str| std::fs::metadata(format!("{}{suffix}", path.display())).map_or(0, |m| m.len());
    assert!(writer.bytes() >= on_disk("") && writer.bytes() > 50_000, "{}", writer.bytes());
    writer.finish(&[]).unwrap();
    assert_eq!(incident(&path).unwrap(), Some((row, risers)));
    assert_eq!(rollups(&path).unwrap(), [unseen, seen]);
}
