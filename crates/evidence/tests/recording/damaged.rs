//! Damaged files: the rest is read, and what is missing is reported.

use crate::scratch::{scratch_file, second, seconds};
use coroner_evidence::Evidence;
use coroner_evidence::recording::{PROBE, RecordingError, Writer, read};
use proptest::prelude::*;
use rusqlite::Connection;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const SECONDS: u64 = 60;

fn sealed() -> (tempfile::TempDir, PathBuf) {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let (_dir, path) = scratch_file();
        let mut writer = Writer::create(&path).unwrap();
        for i in 0..SECONDS {
            writer.append(&second(i, 96)).unwrap();
        }
        writer.finish(&[]).unwrap();
        fs::read(&path).unwrap()
    });
    let (dir, path) = scratch_file();
    fs::write(&path, &*BYTES).unwrap();
    (dir, path)
}

fn spoil(path: &Path, sql: &str) -> Evidence {
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
    read(path).unwrap().evidence
}

/// The only complaint: it must come from the recording, name the file, and contain these words.
fn complaint(evidence: &Evidence, path: &Path, words: &[&str]) {
    let [unseen] = evidence.unseen.as_slice() else { panic!("{:?}", evidence.unseen) };
    assert_eq!(unseen.probe, PROBE);
    let said = format!("{} {}", unseen.what, unseen.why);
    for word in words.iter().copied().chain([path.to_str().unwrap()]) {
        assert!(said.contains(word), "{word} in {said}");
    }
}

#[test]
fn a_broken_chunk_costs_only_itself() {
    let (_dir, path) = sealed();
    let whole = read(&path).unwrap().evidence;
    assert!(whole == seconds(SECONDS, 96));
    let cut = spoil(&path, "UPDATE core_time_chunks SET data = substr(data, 1, 40) WHERE id = 2");
    complaint(&cut, &path, &["core_time_chunks", "row 2", "5 rows could be read, 1 or more could not"]);
    assert!(cut.core_times.len() > 400 && cut.core_times.len() < 600, "{}", cut.core_times.len());
    assert!(whole.core_times.starts_with(&cut.core_times[..90]) && whole.core_times.ends_with(&cut.core_times[400..]));
    assert_eq!(cut.log, whole.log);
    assert_eq!(cut.thread_samples, whole.thread_samples);
    assert!(cut.counters == whole.counters);
    assert!(cut.zombie_scans == whole.zombie_scans && cut.zombie_scans.len() == 3);
}

#[test]
fn an_invalid_row_costs_only_itself() {
    let (_dir, path) = sealed();
    let seen = spoil(&path, "UPDATE kernel_log SET level = 'loud' WHERE id IN (3, 4)");
    complaint(&seen, &path, &["kernel_log", "row 3", "58 rows could be read, 2 or more could not"]);
    assert_eq!(seen.log.len(), 58);
}

#[test]
fn a_table_that_is_missing_or_not_a_table_is_named() {
    let (_dir, path) = sealed();
    complaint(&spoil(&path, "DROP TABLE stat_reads"), &path, &["stat_reads", "no such table"]);
    let (_dir, path) = sealed();
    let endless = "DROP TABLE clocks; CREATE VIEW clocks AS
        WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) SELECT id, 0 at_ns, 0 real_ns, 0 boot_ns FROM n";
    complaint(&spoil(&path, endless), &path, &["clocks", "no such table"]);
}

#[test]
fn points_without_a_series_are_reported() {
    let (_dir, path) = sealed();
    let seen = spoil(&path, "DELETE FROM series WHERE id = 5");
    complaint(&seen, &path, &["counter_chunks", "series 5"]);
    assert_eq!(seen.counters.iter().count(), 18);
    assert!(seen.counters.iter().all(|(_, points)| points.len() == SECONDS as usize));
}

#[test]
fn a_truncated_file_is_read_as_far_as_it_goes() {
    let (_dir, path) = sealed();
    let whole = fs::read(&path).unwrap();
    let mut best = 0;
    for kept in (1..whole.len()).step_by(1777) {
        fs::write(&path, &whole[..kept]).unwrap();
        match read(&path) {
            Ok(recording) => {
                assert!(!recording.evidence.unseen.is_empty(), "{kept} of {} bytes", whole.len());
                best = best.max(recording.evidence.core_times.len());
            }
            Err(RecordingError::Damaged { .. } | RecordingError::NotSqlite { .. }) => {
                // The list of tables and their still empty first pages are that long.
                assert!(kept < 56 * 4096, "{kept} of {} bytes", whole.len());
            }
            Err(other) => panic!("{kept} bytes: {other}"),
        }
    }
    assert!(best >= 400, "most of a truncated file can be read: {best} looks");
}

#[test]
fn a_broken_page_costs_what_was_on_it() {
    let (_dir, path) = sealed();
    let bytes = fs::read(&path).unwrap();
    let expected = seconds(SECONDS, 96);
    let mut fatal = 0;
    for page in 1..bytes.len() / 4096 {
        let mut broken = bytes.clone();
        broken[page * 4096..(page + 1) * 4096].fill(0xA5);
        fs::write(&path, &broken).unwrap();
        match read(&path) {
            Ok(recording) => {
                let seen = recording.evidence;
                // Pages of the findings table, of indexes and unused ones hold nothing that is read.
                assert!(seen == expected || !seen.unseen.is_empty(), "page {page}");
                let lost =
                    (expected.log.len() - seen.log.len()) * 10 + expected.core_times.len() - seen.core_times.len();
                assert!(lost <= 600, "page {page} cost {lost}");
            }
            Err(RecordingError::Damaged { .. }) => fatal += 1,
            Err(other) => panic!("page {page}: {other}"),
        }
    }
    // Without the list of tables nothing can be found.
    assert!(fatal <= 4, "{fatal} of {} pages are fatal", bytes.len() / 4096);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_bytes_anywhere_are_survived(
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (_dir, path) = sealed();
        let mut bytes = fs::read(&path).unwrap();
        for (place, byte) in places {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, &bytes).unwrap();
        let _ = read(&path);
    }
}
