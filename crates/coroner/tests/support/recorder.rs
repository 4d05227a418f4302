//! A recorder for tests.

use super::{CORONER, end, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// `coroner record --dir`; ends with the test.
pub struct Recorder {
    pub child: Child,
    pub dir: PathBuf,
    log: tempfile::NamedTempFile,
}

impl Recorder {
    /// Starts it and waits until it records.
    pub fn start(dir: &Path, args: &[&str]) -> Recorder {
        let mut recorder = Recorder::spawn(dir, args);
        wait_until("the recorder records", || {
            let ended = recorder.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended instead: {}", recorder.said());
            recorder.said().contains("recording into")
        });
        recorder
    }

    pub fn spawn(dir: &Path, args: &[&str]) -> Recorder {
        let log = tempfile::NamedTempFile::new().unwrap();
        let child = Command::new(CORONER)
            .args(["record", "--dir"])
            .arg(dir)
            .args(if args.contains(&"--metrics") { &[][..] } else { &["--metrics", "off"] })
            .args(args)
            // Tests must not find each other's recorders, or a real one.
            .env("CORONER_RUNNING", dir.join("running"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.reopen().unwrap())
            .spawn()
            .expect("coroner runs");
        Recorder { child, dir: dir.to_owned(), log }
    }

    /// What it wrote to standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap_or_default()
    }

    /// SIGTERM; the exit code.
    pub fn stop(mut self) -> Option<i32> {
        end(&mut self.child);
        self.child.wait().ok().and_then(|status| status.code())
    }

    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn incidents(&self) -> Vec<Value> {
        let listed = Command::new(CORONER).args(["incidents", "--json", "--dir"]).arg(&self.dir).output().unwrap();
        let document: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        document["incidents"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            end(&mut self.child);
        }
        if std::thread::panicking() {
            eprintln!("the recorder said:\n{}", self.said());
        }
    }
}

/// The segments in a directory, oldest first.
pub fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(dir).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    found.retain(|path: &PathBuf| path.extension().is_some_and(|extension| extension == "coroner"));
    found.sort();
    found
}

/// Bytes of all segments, including their WAL files.
pub fn segment_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    let of_segments = entries.iter().filter(|entry| entry.file_name().to_string_lossy().contains(".coroner"));
    of_segments.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}
