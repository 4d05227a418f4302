//! What was done, and the state before: one file of JSON lines per run, each line synced before anything else happens.
//!
//! A step is recorded with the previous state, then done, then recorded as done. A crash in between leaves a line that says what may
//! have been done; `undo` then checks the actual state.

use crate::steps::Action;
use coroner_evidence::own_directory::{OwnDirectory, OwnDirectoryError};
use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub const DIRECTORY: &str = "/var/lib/coroner/fix";
/// Disk space reserved before anything is changed, so that the journal cannot run out of it.
const ROOM: u64 = 256 << 10;
/// No journal of ours is larger.
const MOST: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: {why}", .path.display())]
    Refused { path: PathBuf, why: String },
    #[error("{}: another coroner (pid {pid}) is already applying changes; wait until it is done", .path.display())]
    Locked { path: PathBuf, pid: String },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io { path, source }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
pub enum Entry {
    /// The first line of a run.
    Run {
        run: u64,
        at: String,
        coroner_version: String,
        host: Option<String>,
        machine_id: Option<String>,
        boot_id: Option<String>,
        bus: Option<String>,
        root: Option<PathBuf>,
        /// The machine id that the systemd behind the bus reported: undo must use the same one.
        #[serde(default)]
        systemd_of: Option<String>,
        why: Vec<String>,
    },
    /// About to be done.
    Intent {
        step: usize,
        id: String,
        title: String,
        at: String,
        action: Action,
        before: Value,
        reversible: bool,
    },
    Done {
        step: usize,
        at: String,
        words: String,
        after: Value,
    },
    Failed {
        step: usize,
        at: String,
        why: String,
    },
    /// The run is over, with what was measured.
    Measured {
        at: String,
        steps: Value,
    },
    /// About to be undone.
    UndoIntent {
        step: usize,
        at: String,
    },
    Undone {
        step: usize,
        at: String,
        how: String,
        words: String,
    },
    UndoFailed {
        step: usize,
        at: String,
        why: String,
    },
}

/// A step in the journal.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedStep {
    pub step: usize,
    pub id: String,
    pub title: String,
    pub action: Action,
    pub before: Value,
    pub reversible: bool,
    pub state: StepState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepState {
    /// Begun, but no result recorded: it may have been done or not.
    Unknown,
    Done(String),
    Failed(String),
    /// How, and the message.
    Undone(String, String),
}

/// A run, read back.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub number: u64,
    pub at: String,
    pub host: Option<String>,
    pub machine_id: Option<String>,
    pub boot_id: Option<String>,
    pub bus: Option<String>,
    pub root: Option<PathBuf>,
    pub systemd_of: Option<String>,
    pub why: Vec<String>,
    pub steps: Vec<RecordedStep>,
    /// Lines that cannot be parsed; the last one may be torn.
    pub damaged: usize,
}

impl Run {
    /// Whether there is something to undo.
    pub fn is_open(&self) -> bool {
        self.steps.iter().any(|step| step.reversible && !matches!(step.state, StepState::Undone(..)))
    }
}

/// The journal directory, locked while this exists.
#[derive(Debug)]
pub struct Journal {
    own: OwnDirectory,
}

impl Journal {
    /// Creates the directory if needed, and locks it.
    pub fn open(directory: &Path) -> Result<Journal, JournalError> {
        let own = OwnDirectory::take(directory).map_err(|error| match error {
            OwnDirectoryError::Locked { path, pid } => JournalError::Locked { path, pid },
            OwnDirectoryError::Io { path, source } => JournalError::Io { path, source },
            OwnDirectoryError::Unsafe { path, why } => {
                JournalError::Refused { path, why: format!("{why} (--journal)") }
            }
            gone @ OwnDirectoryError::Gone { .. } => {
                JournalError::Refused { path: directory.to_owned(), why: gone.to_string() }
            }
        })?;
        Ok(Journal { own })
    }

    pub fn directory(&self) -> &Path {
        self.own.path()
    }

    /// Starts a run and reserves disk space for it.
    pub fn begin(&self, make: impl FnOnce(u64) -> Entry) -> Result<Writer, JournalError> {
        let number = numbers(self.directory())?.last().copied().unwrap_or(0) + 1;
        let path = file_of(self.directory(), number);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path).map_err(io_error(&path))?;
        let mut writer = Writer { path: path.clone(), file, number };
        let begun = reserve(&writer.file)
            .map_err(io_error(&path))
            .and_then(|()| writer.write(&make(number)))
            .and_then(|()| sync_directory(self.directory()));
        if let Err(error) = begun {
            // A file without its first line would only confuse.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        Ok(writer)
    }

    /// Reopens a run to append to it.
    pub fn resume(&self, number: u64) -> Result<Writer, JournalError> {
        let path = file_of(self.directory(), number);
        let mut file = OpenOptions::new().append(true).read(true).open(&path).map_err(io_error(&path))?;
        // A torn line must not swallow the next one.
        let mut text = Vec::new();
        (&mut file).take(MOST).read_to_end(&mut text).map_err(io_error(&path))?;
        if text.last().is_some_and(|last| *last != b'\n') {
            file.write_all(b"\n").map_err(io_error(&path))?;
        }
        Ok(Writer { path, file, number })
    }
}

fn reserve(file: &File) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, ROOM) {
        Ok(()) => Ok(()),
        // A file system that cannot reserve: each line is synced anyway.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        Err(error) => Err(io::Error::from(error)),
    }
}

fn sync_directory(directory: &Path) -> Result<(), JournalError> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(io_error(directory))
}

pub fn file_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("run-{number:06}.jsonl"))
}

/// Existing runs, oldest first.
pub fn numbers(directory: &Path) -> Result<Vec<u64>, JournalError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error(directory)(error)),
    };
    let number = |name: &str| name.strip_prefix("run-")?.strip_suffix(".jsonl")?.parse().ok();
    let mut numbers: Vec<u64> = entries.flatten().filter_map(|entry| number(entry.file_name().to_str()?)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

pub fn read(directory: &Path, number: u64) -> Result<Run, JournalError> {
    let path = file_of(directory, number);
    let mut bytes = Vec::new();
    File::open(&path).and_then(|file| file.take(MOST).read_to_end(&mut bytes)).map_err(io_error(&path))?;
    let text = String::from_utf8_lossy(&bytes);
    let refused = |why: &str| JournalError::Refused { path: path.clone(), why: why.to_owned() };
    let mut run: Option<Run> = None;
    let mut damaged = 0;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let Ok(entry) = serde_json::from_str::<Entry>(line) else {
            damaged += 1;
            continue;
        };
        match (&mut run, entry) {
            (None, Entry::Run { run: other, .. }) if other != number => {
                return Err(refused(&format!("contains run {other}: it was renamed, so it is left alone")));
            }
            (None, Entry::Run { run: number, at, host, machine_id, boot_id, bus, root, systemd_of, why, .. }) => {
                let steps = Vec::new();
                run =
                    Some(Run { number, at, host, machine_id, boot_id, bus, root, systemd_of, why, steps, damaged: 0 });
            }
            (None, _) => return Err(refused("is damaged or not a coroner journal: it does not begin with a run")),
            (Some(run), entry) => note(run, entry),
        }
    }
    let mut run = run.ok_or_else(|| refused("is damaged or not a coroner journal: no line can be read"))?;
    run.damaged = damaged;
    Ok(run)
}

fn note(run: &mut Run, entry: Entry) {
    let mut set = |step: usize, state: StepState| {
        if let Some(recorded) = run.steps.iter_mut().find(|recorded| recorded.step == step) {
            recorded.state = state;
        }
    };
    match entry {
        Entry::Intent { step, id, title, action, before, reversible, .. } => {
            run.steps.push(RecordedStep { step, id, title, action, before, reversible, state: StepState::Unknown });
        }
        Entry::Done { step, words, .. } => set(step, StepState::Done(words)),
        Entry::Failed { step, why, .. } => set(step, StepState::Failed(why)),
        Entry::Undone { step, how, words, .. } => set(step, StepState::Undone(how, words)),
        Entry::Run { .. } | Entry::Measured { .. } | Entry::UndoIntent { .. } | Entry::UndoFailed { .. } => {}
    }
}

/// Appends to a run and syncs each line.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
    pub number: u64,
}

impl Writer {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&mut self, entry: &Entry) -> Result<(), JournalError> {
        let mut line = serde_json::to_vec(entry).map_err(|e| io_error(&self.path)(io::Error::other(e)))?;
        line.push(b'\n');
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(io_error(&self.path))
    }
}

pub fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::MaskUnit;
    use serde_json::json;

    fn first(run: u64) -> Entry {
        Entry::Run {
            run,
            at: now(),
            coroner_version: "0".into(),
            host: None,
            machine_id: Some("m".into()),
            boot_id: Some("b".into()),
            bus: None,
            root: None,
            systemd_of: None,
            why: vec![],
        }
    }

    fn intent(step: usize) -> Entry {
        let action = Action::MaskUnit(MaskUnit { unit: "a.service".into() });
        let before = json!({"file_state": "enabled"});
        Entry::Intent {
            step,
            id: format!("mask-unit:{step}"),
            title: "t".into(),
            at: now(),
            action,
            before,
            reversible: true,
        }
    }

    #[test]
    fn a_step_without_a_result_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(&dir.path().join("fix")).unwrap();
        let mut writer = journal.begin(first).unwrap();
        writer.write(&intent(0)).unwrap();
        writer.write(&Entry::Done { step: 0, at: now(), words: "w".into(), after: json!({}) }).unwrap();
        writer.write(&intent(1)).unwrap();
        // A crash tore the third line.
        writer.file.write_all(b"{\"entry\":\"intent\",\"st").unwrap();
        let run = read(journal.directory(), 1).unwrap();
        assert_eq!(run.steps.len(), 2);
        assert_eq!((&run.steps[0].state, &run.steps[1].state), (&StepState::Done("w".into()), &StepState::Unknown));
        assert_eq!(run.damaged, 1);
        assert!(run.is_open());
        // Resuming does not append to the torn line.
        let mut again = journal.resume(1).unwrap();
        for step in [1, 0] {
            again.write(&Entry::Undone { step, at: now(), how: "restored".into(), words: "w".into() }).unwrap();
        }
        let run = read(journal.directory(), 1).unwrap();
        assert!(!run.is_open(), "{run:?}");
        assert_eq!(run.damaged, 1);
        assert_eq!(numbers(journal.directory()).unwrap(), [1]);
    }

    #[test]
    fn a_locked_or_unsafe_directory_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let second = Journal::open(dir.path());
        assert!(
            matches!(&second, Err(JournalError::Locked { pid, .. }) if *pid == std::process::id().to_string()),
            "{second:?}"
        );
        drop(journal);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Journal::open(dir.path()).unwrap_err().to_string().contains("writable by others"));
    }

    #[test]
    fn a_file_that_is_no_journal_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for text in [
            "",
            "\n",
            "{}",
            "[1]\n",
            "{\"entry\":\"done\",\"step\":0,\"at\":\"\",\"words\":\"\",\"after\":1}\n",
            "\u{0}\u{0}",
        ] {
            fs::write(file_of(dir.path(), 1), text).unwrap();
            assert!(read(dir.path(), 1).is_err(), "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let dir = tempfile::tempdir().unwrap();
            fs::write(file_of(dir.path(), 1), &bytes).unwrap();
            let _ = read(dir.path(), 1);
            let mut line = serde_json::to_vec(&first(1)).unwrap();
            line.push(b'\n');
            line.extend(&bytes);
            fs::write(file_of(dir.path(), 1), &line).unwrap();
            assert!(read(dir.path(), 1).is_ok());
        }
    }
}
