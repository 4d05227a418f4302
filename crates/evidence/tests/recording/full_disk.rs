//! A full disk, on a real file system.

use crate::scratch::{Tmpfs, second, seconds};
use coroner_evidence::recording::{RecordingError, Writer, read};
use std::time::Duration;

const CORES: u32 = 64;

#[test]
fn a_full_disk_costs_only_what_does_not_fit() {
    let Some(tmpfs) = Tmpfs::mount("3m") else { return };
    let (path, ballast) = (tmpfs.path().join("a.coroner"), tmpfs.path().join("ballast"));
    std::fs::write(&ballast, vec![7; 1 << 20]).unwrap();
    let mut writer = Writer::create(&path).unwrap().sync_every(Duration::from_millis(20));
    let mut stored = 0;
    let error = loop {
        match writer.append(&second(stored, CORES)) {
            Ok(()) => stored += 1,
            Err(e) => break e,
        }
        assert!(stored < 100_000, "two megabytes must be full by now");
    };
    assert!(matches!(error, RecordingError::DiskFull { .. }), "{error:?}");
    assert!(error.to_string().contains("a.coroner: the disk is full"), "{error}");
    assert!(stored > 10, "{stored}");

    // Everything stored stays readable, time after time, and the writer still works.
    for _ in 0..3 {
        assert!(read(&path).unwrap().evidence == seconds(stored, CORES));
        while writer.append(&second(stored, CORES)).is_ok() {
            // Copying the log has freed some space.
            stored += 1;
            assert!(stored < 100_000);
        }
    }
    std::fs::remove_file(&ballast).unwrap();
    for _ in 0..20 {
        writer.append(&second(stored, CORES)).unwrap();
        stored += 1;
    }
    writer.finish(&[]).unwrap();
    let recording = read(&path).unwrap();
    assert!(recording.about.sealed);
    assert!(recording.evidence == seconds(stored, CORES));
}

#[test]
fn a_recording_that_cannot_begin_says_so_and_leaves_nothing() {
    let Some(tmpfs) = Tmpfs::mount("64k") else { return };
    let path = tmpfs.path().join("a.coroner");
    let error = Writer::create(&path).err().expect("there is no room for the tables");
    assert!(matches!(error, RecordingError::DiskFull { .. }), "{error:?}");
    assert_eq!(std::fs::read_dir(tmpfs.path()).unwrap().count(), 0);
}
