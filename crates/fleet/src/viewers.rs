//! Recordings of incidents in the node's own page: `coroner view` on each, a process of its own that this one starts and answers through.
//!
//! A recording comes from a node, which may be hostile. Whatever its reader does with it, the collector goes on: the process has little
//! memory, a low priority, and ends with its standard input, that is, when the collector ends or nobody has looked for a while.

use crate::files::{Files, Stored};
use anyhow::{Context, bail};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use ureq::Agent;

const PROGRAM: &str = "coroner";
/// Recordings that are shown at a time.
const MOST: usize = 4;
/// One that nobody looked at for so long is closed.
const KEPT: Duration = Duration::from_secs(900);
/// It prints its address before it reads the recording.
const STARTS_WITHIN: Duration = Duration::from_secs(20);
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
const MOST_ANSWERED: u64 = 256 << 20;
/// Of address space: the page of ten minutes of a large node takes a few hundred megabytes.
const MOST_MEMORY: u64 = 8 << 30;
/// The kernel takes it before it takes the collector.
const OOM_SCORE: &str = "800";
/// What of its answer a browser gets.
const PASSED: [&str; 8] = [
    "content-type",
    "content-encoding",
    "content-disposition",
    "content-security-policy",
    "cache-control",
    "etag",
    "vary",
    "x-content-type-options",
];
/// What of a browser's question it gets.
pub const ASKED: [&str; 3] = ["accept", "accept-encoding", "if-none-match"];

pub struct Viewers {
    /// Files are copied here while they are shown, so that none of them goes meanwhile.
    directory: PathBuf,
    agent: Agent,
    open: Mutex<HashMap<String, Viewer>>,
    /// Held while one starts: two of the same recording would share its file.
    starting: Mutex<()>,
}

struct Viewer {
    /// `http://127.0.0.1:PORT/`
    url: String,
    child: Child,
    file: PathBuf,
    /// Of the recording: its number may be another incident's by now.
    sha256: String,
    used: Instant,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        // It has nothing to tidy up that a stop would need.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

/// Why there is no page.
pub enum NotShown {
    Busy,
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for NotShown {
    fn from(error: E) -> NotShown {
        NotShown::Failed(error.into())
    }
}

impl Viewers {
    /// `own`: the collector's directory.
    pub fn open(own: &Path) -> anyhow::Result<Viewers> {
        let directory = own.join("shown");
        // Of a collector that was killed.
        let _ = std::fs::remove_dir_all(&directory);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.with_context(|| format!("cannot create {}", directory.display()))?;
        let config = Agent::config_builder().http_status_as_error(false).proxy(None).max_redirects(0);
        let agent = config.timeout_global(Some(ANSWERS_WITHIN)).build().new_agent();
        Ok(Viewers { directory, agent, open: Mutex::default(), starting: Mutex::default() })
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Viewer>> {
        // Valid after a panic: whole entries come and go.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what nobody looks at.
    pub fn tidy(&self) {
        self.all().retain(|_, viewer| viewer.used.elapsed() < KEPT && matches!(viewer.child.try_wait(), Ok(None)));
    }

    /// Starts a page for this file unless there is one.
    pub fn show(&self, name: &str, files: &Files, stored: &Stored) -> Result<(), NotShown> {
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        self.tidy();
        {
            let mut all = self.all();
            if all.get(name).is_some_and(|viewer| viewer.sha256 == stored.sha256) {
                return Ok(());
            }
            all.remove(name);
        }
        if self.all().len() >= MOST {
            return Err(NotShown::Busy);
        }
        // Two names of one node may have the same recording.
        let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
        let digest = crate::files::hex(&digest.as_ref()[..8]);
        let file = self.directory.join(format!("{digest}-{}.coroner", &stored.sha256[..8]));
        let mut to = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&file)?;
        std::io::copy(&mut files.open_stored(stored)?, &mut to).context("cannot copy the recording")?;
        let viewer = start(file, &stored.sha256)?;
        self.all().insert(name.to_owned(), viewer);
        Ok(())
    }

    /// `None`: it is not shown, or no longer.
    pub fn ask(&self, name: &str, path: &str, headers: &[(&str, String)]) -> Option<anyhow::Result<Answer>> {
        let url = {
            let mut all = self.all();
            let viewer = all.get_mut(name)?;
            viewer.used = Instant::now();
            format!("{}{path}", viewer.url)
        };
        match self.answer(&url, headers) {
            Ok(answer) => Some(Ok(answer)),
            // It died, of its memory perhaps, or hangs. The next one who opens it starts it again.
            Err(error) => {
                self.all().remove(name);
                Some(Err(error))
            }
        }
    }

    fn answer(&self, url: &str, headers: &[(&str, String)]) -> anyhow::Result<Answer> {
        let mut request = self.agent.get(url);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let response = request.call()?;
        let passed = |name: &&'static str| Some((*name, response.headers().get(*name)?.to_str().ok()?.to_owned()));
        let headers = PASSED.iter().filter_map(passed).collect();
        let status = response.status().as_u16();
        let body = response.into_body().with_config().limit(MOST_ANSWERED).read_to_vec()?;
        Ok(Answer { status, headers, body })
    }
}

/// Beside this program, otherwise in PATH.
fn program() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|ours| ours.with_file_name(PROGRAM)).filter(|path| path.is_file());
    beside.unwrap_or_else(|| PathBuf::from(PROGRAM))
}

fn start(file: PathBuf, sha256: &str) -> anyhow::Result<Viewer> {
    let program = program();
    let child = Command::new(&program)
        .args(["view", "--until-eof", "--no-open", "--listen", "127.0.0.1:0", "--"])
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .inspect_err(|_| drop(std::fs::remove_file(&file)));
    let child = child.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => anyhow::anyhow!(
            "the program {PROGRAM}, which shows recordings, is neither beside coroner-fleet nor in PATH of the collector"
        ),
        _ => anyhow::Error::from(error).context(format!("cannot run {}", program.display())),
    })?;
    let mut viewer = Viewer { url: String::new(), child, file, sha256: sha256.to_owned(), used: Instant::now() };
    restrain(viewer.child.id());
    let (Some(out), Some(err)) = (viewer.child.stdout.take(), viewer.child.stderr.take()) else {
        bail!("{PROGRAM} view has no output");
    };
    let (tell, told) = channel();
    // Goes on reading, so that it never waits for us.
    thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
    });
    match told.recv_timeout(STARTS_WITHIN) {
        Ok(url) if url.starts_with("http://127.0.0.1:") => {
            viewer.url = url;
            thread::spawn(move || std::io::copy(&mut { err }, &mut std::io::sink()));
            Ok(viewer)
        }
        _ => {
            let _ = viewer.child.kill();
            let mut said = String::new();
            let _ = err.take(4096).read_to_string(&mut said);
            bail!("{PROGRAM} view did not start: {}", crate::ingest::printable(said.trim()))
        }
    }
}

/// What cannot be had is done without: the recording is read all the same.
fn restrain(process: u32) {
    let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return };
    let limit = Rlimit { current: Some(MOST_MEMORY), maximum: Some(MOST_MEMORY) };
    let _ = prlimit(Some(pid), Resource::As, limit);
    let _ = rustix::process::setpriority_process(Some(pid), 10);
    let _ = std::fs::write(format!("/proc/{process}/oom_score_adj"), OOM_SCORE);
}
