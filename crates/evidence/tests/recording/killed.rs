//! A writer is killed with SIGKILL at any moment; all kinds of readers then find what it had written.

use crate::scratch::{Tmpfs, is_root, scratch_file, second, seconds, snapshot};
use coroner_evidence::recording::{RecordingError, Writer, read};
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CORES: u32 = 8;
const WRITE_TO: &str = "CORONER_TEST_WRITE_TO";
const READ_FROM: &str = "CORONER_TEST_READ_FROM";

/// Not a test: this binary again, as the process that is killed or may not write.
#[test]
fn as_a_child() {
    if let Some(path) = std::env::var_os(WRITE_TO) {
        // Syncs all the time, so that the kill also hits the copying and truncation of the log.
        let mut writer = Writer::create(Path::new(&path)).unwrap().sync_every(Duration::from_millis(3));
        for i in 0.. {
            writer.append(&second(i, CORES)).unwrap();
            println!("appended {}", i + 1);
        }
    }
    if let Some(path) = std::env::var_os(READ_FROM) {
        let recording = read(Path::new(&path)).unwrap();
        println!("read {} {}", recording.evidence.log.len(), recording.evidence.unseen.len());
    }
}

fn child(variable: &str, path: &Path) -> Command {
    child_of(&std::env::current_exe().unwrap(), variable, path)
}

fn child_of(program: &Path, variable: &str, path: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", "killed::as_a_child", "--nocapture", "--test-threads=1"]).env(variable, path);
    command
}

/// Starts a writer, kills it `delay` after its first append, and returns how many appends it reported.
pub fn write_and_kill(path: &Path, delay: Duration) -> u64 {
    let mut child: Child = child(WRITE_TO, path).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut appended = 0;
    let mut count = |line: std::io::Result<String>| {
        if let Some(n) = line.unwrap_or_default().rsplit_once("appended ").and_then(|(_, n)| n.parse().ok()) {
            appended = n;
        }
        appended
    };
    while count(lines.next().expect("the child said nothing")) == 0 {}
    let killer = std::thread::spawn(move || {
        std::thread::sleep(delay);
        child.kill().unwrap();
        child.wait().unwrap();
    });
    lines.for_each(|line| _ = count(line));
    killer.join().unwrap();
    appended
}

fn random(below: u64) -> u64 {
    RandomState::new().hash_one(0) % below
}

fn copy(from: &Path, to: &Path, suffixes: &[&str]) -> PathBuf {
    for suffix in suffixes {
        let name = format!("a.coroner{suffix}");
        std::fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
    to.join("a.coroner")
}

#[test]
fn a_killed_writer_loses_nothing_that_it_had_appended() {
    let mut whole = 0;
    for round in 0..15 {
        let (dir, path) = scratch_file();
        let appended = write_and_kill(&path, Duration::from_micros(random(150_000)));
        let before = snapshot(dir.path());

        // FILE and FILE-wal: needs no index and no right to create one.
        let elsewhere = tempfile::tempdir().unwrap();
        let copied = copy(dir.path(), elsewhere.path(), &["", "-wal"]);
        let copied_before = snapshot(elsewhere.path());
        let recording = read(&copied).unwrap();
        assert_eq!(snapshot(elsewhere.path()), copied_before, "reading changed something");
        let found = recording.evidence.log.len() as u64;
        // One more may have been committed but not reported.
        assert!((appended..=appended + 1).contains(&found), "round {round}: {found} of {appended}");
        assert!(recording.evidence == seconds(found, CORES));
        assert!(!recording.about.sealed);

        // In the original place.
        let recording = read(&path).unwrap();
        assert!(recording.evidence == seconds(found, CORES));
        let mut after = snapshot(dir.path());
        let index = dir.path().join("a.coroner-shm");
        let mut before = before;
        before.remove(&index);
        after.remove(&index);
        assert_eq!(after, before, "reading changed something");

        // FILE alone: what had been copied into it, and a note on the rest.
        let alone = tempfile::tempdir().unwrap();
        let mut recording = match read(&copy(dir.path(), alone.path(), &[""])) {
            // Everything was in the log.
            Err(RecordingError::Empty { .. }) => {
                whole += 1;
                continue;
            }
            other => other.unwrap(),
        };
        let in_file = recording.evidence.log.len() as u64;
        assert!(in_file <= found);
        let told = std::mem::take(&mut recording.evidence.unseen);
        assert!(told.iter().any(|u| u.why.contains("-wal")), "{told:?}");
        whole += u32::from(recording.evidence == seconds(in_file, CORES));
    }
    // The kill may hit the few microseconds in which pages are copied, but not often.
    assert!(whole > 7, "{whole} of 15 files alone were consistent");
}

/// The tables are created in one transaction, before there is a log. A kill may hit when half of its pages are in the file.
#[test]
fn a_recording_killed_while_creating_its_tables_is_empty() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("a.coroner");
    let db = rusqlite::Connection::open(&path).unwrap();
    // Pages that do not fit into the cache go into the file before the commit.
    let half = "PRAGMA cache_size = 5; BEGIN; CREATE TABLE meta (key, value); CREATE TABLE log (line);
                WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)
                INSERT INTO log SELECT randomblob(500) FROM n;";
    db.execute_batch(half).unwrap();
    let copied = copy(dir.path(), elsewhere.path(), &["", "-journal"]);
    assert!(std::fs::metadata(&copied).unwrap().len() > 4096);
    assert!(matches!(read(&copied), Err(RecordingError::Empty { .. })), "{:?}", read(&copied).err());
    db.execute_batch("COMMIT").unwrap();
    let copied = copy(dir.path(), elsewhere.path(), &[""]);
    std::fs::remove_file(elsewhere.path().join("a.coroner-journal")).unwrap();
    assert!(!matches!(read(&copied), Err(RecordingError::Empty { .. })));
}

#[test]
fn a_killed_recording_is_read_on_a_read_only_file_system() {
    let Some(tmpfs) = Tmpfs::mount("64m") else { return };
    let path = tmpfs.path().join("a.coroner");
    let appended = write_and_kill(&path, Duration::from_millis(40));
    let without_index = tmpfs.path().join("without-index");
    std::fs::create_dir(&without_index).unwrap();
    copy(tmpfs.path(), &without_index, &["", "-wal"]);
    tmpfs.make_read_only();
    assert!(std::fs::write(tmpfs.path().join("x"), "x").is_err());
    for path in [path, without_index.join("a.coroner")] {
        let recording = read(&path).unwrap();
        assert!(recording.evidence.log.len() as u64 >= appended);
        assert_eq!(recording.evidence.unseen, []);
    }
}

#[test]
fn a_killed_recording_is_read_by_a_user_who_may_not_write() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root() {
        coroner_lab::skip("needs root to read as another user");
        return;
    }
    let (dir, path) = scratch_file();
    let appended = write_and_kill(&path, Duration::from_millis(40));
    let nobody = 65_534;
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // This binary may be where others have no access.
    let public = tempfile::tempdir().unwrap();
    std::fs::set_permissions(public.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = public.path().join("reader");
    // Copied by another process: a child forked meanwhile by another thread would inherit it open for writing, and it could not run.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    let read_as_nobody = || {
        let output = child_of(&program, READ_FROM, &path).uid(nobody).gid(nobody).output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let refused = read_as_nobody();
    assert!(refused.contains("Unreadable") && refused.contains("ermission denied"), "{refused}");
    for file in snapshot(dir.path()).keys() {
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    }
    let output = read_as_nobody();
    let words = output.lines().find_map(|l| l.rsplit_once("read ")).unwrap_or_else(|| panic!("{output}")).1;
    let (found, unseen) = words.split_once(' ').unwrap();
    assert!(found.parse::<u64>().unwrap() >= appended);
    assert_eq!(unseen, "0");
}
