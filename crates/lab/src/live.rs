//! A scenario running beside a test.

use crate::guard::Child;
use crate::interrupt;
use crate::truth::Truth;
use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The runner as a process. Its drop ends it and waits until it has cleaned up.
#[derive(Debug)]
pub struct LiveScenario {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    pub truth: Truth,
}

impl LiveScenario {
    /// `start("zombies", &["--seconds", "20", "--count", "500"])`; returns when the problem is there.
    pub fn start(scenario: &str, args: &[&str]) -> Result<LiveScenario> {
        let mut command = Command::new(lab_binary());
        command.args(["run", scenario]).args(args).stdout(Stdio::piped());
        let (child, stdout) = Child::spawn_with_stdout(format!("coroner-lab run {scenario}"), &mut command)?;
        let mut live = LiveScenario { child, lines: BufReader::new(stdout), truth: Truth::default() };
        live.await_words()?;
        let ready =
            live.next_line()?.ok_or_else(|| anyhow!("coroner-lab run {scenario} failed before it was ready"))?;
        live.truth = serde_json::from_value(ready["truth"].clone()).with_context(|| ready.to_string())?;
        Ok(live)
    }

    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits for its first line; an error on Ctrl-C, because that line may take long.
    fn await_words(&self) -> Result<()> {
        let slice = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        loop {
            let mut ready = [PollFd::new(self.lines.get_ref(), PollFlags::IN)];
            match poll(&mut ready, Some(&slice)) {
                Ok(0) | Err(Errno::INTR) if interrupt::requested() => bail!("interrupted"),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error).context("poll"),
            }
        }
    }

    fn next_line(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        serde_json::from_str(&line).map(Some).with_context(|| line.clone())
    }

    /// Waits until it ends by itself and has cleaned up. Returns what it measured.
    pub fn finish(mut self) -> Result<Value> {
        let ended = self.next_line()?.ok_or_else(|| anyhow!("it ended without saying what it measured"))?;
        self.wait()?;
        Ok(ended["measured"].clone())
    }

    /// Ends it now, like Ctrl-C. Returns what it measured so far.
    pub fn stop(self) -> Result<Value> {
        self.signal(Signal::INT);
        self.finish()
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.pid() as i32) {
            let _ = kill_process(pid, signal);
        }
    }

    fn wait(&mut self) -> Result<()> {
        let limit = Instant::now() + Duration::from_secs(300);
        while Instant::now() < limit {
            match self.child.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{}: {status}", self.child.label()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        bail!("{} does not end", self.child.label())
    }
}

impl Drop for LiveScenario {
    fn drop(&mut self) {
        if matches!(self.child.ended(), Ok(None)) {
            self.signal(Signal::TERM);
            let _ = self.wait();
        }
    }
}

/// `CORONER_LAB_BIN`, or this binary if it is the lab's, or the one that `cargo build -p coroner-lab` puts beside the tests.
pub fn lab_binary() -> PathBuf {
    const NAME: &str = "coroner-lab";
    if let Some(path) = std::env::var_os("CORONER_LAB_BIN") {
        return path.into();
    }
    let Ok(this) = std::env::current_exe() else { return NAME.into() };
    if this.file_name().is_some_and(|n| n == NAME) {
        return this;
    }
    // Tests run from target/PROFILE/deps.
    this.ancestors().skip(1).take(2).map(|d| d.join(NAME)).find(|p| p.is_file()).unwrap_or_else(|| NAME.into())
}
