//! Files that are not recordings, and places where none can be created.

use crate::scratch::{scratch_file, second, snapshot};
use coroner_evidence::recording::{FORMAT, RecordingError, Writer, read};
use rusqlite::Connection;
use std::fs;
use std::path::Path;

fn refusal(path: &Path) -> (RecordingError, String) {
    let error = read(path).expect_err("not a recording");
    let text = error.to_string();
    assert!(text.starts_with(&path.display().to_string()), "the error names the file: {text}");
    (error, text)
}

#[test]
fn each_refusal_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a b%41?x#y.coroner");
    assert!(matches!(refusal(&path).0, RecordingError::Missing { .. }));
    assert!(matches!(refusal(dir.path()).0, RecordingError::Unreadable { .. }));

    fs::write(&path, "").unwrap();
    assert!(matches!(refusal(&path).0, RecordingError::Empty { .. }));

    for foreign in ["x", "# perf script\nswapper 0 [000] 1.0: cycles\n".repeat(300).as_str()] {
        fs::write(&path, foreign).unwrap();
        assert!(matches!(refusal(&path).0, RecordingError::NotSqlite { .. }));
    }

    fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE meta (key, value)").unwrap();
    let before = snapshot(dir.path());
    assert!(matches!(refusal(&path).0, RecordingError::NotRecording { .. }));
    assert_eq!(snapshot(dir.path()), before);

    fs::remove_file(&path).unwrap();
    Writer::create(&path).unwrap().finish(&[]).unwrap();
    assert!(read(&path).is_ok());
    let made_in = |format: u32| {
        let sql = format!("PRAGMA user_version={format}; UPDATE meta SET value='9.8' WHERE key='coroner_version'");
        Connection::open(&path).unwrap().execute_batch(&sql).unwrap();
        refusal(&path)
    };
    let (error, text) = made_in(FORMAT + 1);
    assert!(matches!(error, RecordingError::Newer { .. }));
    assert!(text.ends_with(": update coroner") && text.contains("made by coroner 9.8, format 6"), "{text}");
    for older in 1..FORMAT {
        let (error, text) = made_in(older);
        assert!(matches!(error, RecordingError::Older { .. }));
        assert!(text.contains(&format!("made by coroner 9.8, format {older}; only format 5 is supported")), "{text}");
        assert!(text.ends_with("read it with the coroner that made it, or record again"), "{text}");
    }
}

#[test]
fn a_file_is_never_overwritten() {
    let (dir, path) = scratch_file();
    fs::write(&path, "precious").unwrap();
    let error = Writer::create(&path).err().expect("it exists");
    assert!(matches!(error, RecordingError::Exists { .. }), "{error:?}");
    assert!(error.to_string().contains("remove it or choose another name"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");

    // A log that an earlier recording left behind would become part of the new one.
    let (other, log) = (dir.path().join("b.coroner"), dir.path().join("b.coroner-wal"));
    fs::write(&log, "left over").unwrap();
    let error = Writer::create(&other).err().expect("a log is there");
    assert!(matches!(&error, RecordingError::LeftOver { path } if *path == log), "{error:?}");
    assert!(!other.exists());

    let error = Writer::create(&dir.path().join("no/such/directory/c.coroner")).err().expect("no directory");
    let source = std::error::Error::source(&error).expect("why");
    assert!(source.to_string().contains("No such file or directory"), "{error}: {source}");
}

#[test]
fn names_special_to_sqlite_are_plain_files() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    for name in [&b":memory:"[..], b"file:x?mode=memory", b"50%41.coroner", b"\xff\xfe.coroner", b"a\nb"] {
        let path = dir.path().join(std::ffi::OsStr::from_bytes(name));
        let mut writer = Writer::create(&path).unwrap();
        writer.append(&second(0, 1)).unwrap();
        assert_eq!(read(&path).unwrap().evidence, second(0, 1));
        writer.finish(&[]).unwrap();
        assert_eq!(read(&path).unwrap().evidence, second(0, 1));
    }
    assert_eq!(snapshot(dir.path()).len(), 5);
}

#[test]
fn only_its_owner_may_read_a_recording() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(&dir.path().join("a.coroner")).unwrap();
    writer.append(&second(0, 1)).unwrap();
    for (file, _) in snapshot(dir.path()) {
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", file.display());
    }
}
