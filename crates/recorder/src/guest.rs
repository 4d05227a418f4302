//! Child processes of the recorder. They read minutes of evidence: in a separate process, that memory goes back to the node
//! afterwards, and no failure can stop the recorder. [`Guest`] is the recorder's side, [`be_a_guest`] the child's.

use anyhow::{Context, bail};
use coroner_evidence::Time;
use std::ffi::OsString;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Most bytes read of its error message.
const MOST_SAID: u64 = 2000;
/// Most bytes read of its answer. A pipe holds 64 KiB: a child with a longer answer would block until it times out.
pub const MOST_ANSWERED: usize = 60 << 10;

/// Far more than minutes of a large node take; a bound against the unforeseen.
const MOST_MEMORY: u64 = 2 << 30;
const NICE: i32 = 10;

/// A running child.
pub struct Guest {
    child: Child,
    /// For messages: `freezing`.
    doing: &'static str,
    started: Time,
    limit: Duration,
}

impl Guest {
    /// Starts a hidden command of `program`, which is this program except in tests.
    pub fn start(
        program: &[OsString],
        args: &[OsString],
        doing: &'static str,
        limit: Duration,
        now: Time,
    ) -> anyhow::Result<Guest> {
        let (first, rest) = program.split_first().with_context(|| format!("no program for {doing}"))?;
        let mut command = Command::new(first);
        command.args(rest).args(args).arg(format!("--recorder={}", std::process::id()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().with_context(|| format!("cannot start the child process for {doing}"))?;
        Ok(Guest { child, doing, started: now, limit })
    }

    /// What it printed, or why it failed; `None` while it is running. Never waits.
    pub fn outcome(&mut self, now: Time) -> Option<Result<Vec<u8>, String>> {
        let doing = self.doing;
        match self.child.try_wait() {
            Ok(Some(status)) if status.success() => Some(Ok(self.answer())),
            Ok(Some(status)) => Some(Err(self.complaint().unwrap_or_else(|| format!("{doing} failed: {status}")))),
            Ok(None) if now.since(self.started) >= self.limit => {
                self.kill();
                Some(Err(format!("{doing} took longer than {} s and was killed", self.limit.as_secs())))
            }
            Ok(None) => None,
            Err(error) => Some(Err(format!("cannot wait for the child process for {doing}: {error}"))),
        }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Whether it is reaped. A child that hangs on a disk may take long to die.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// What an exited child left in its pipe.
    fn answer(&mut self) -> Vec<u8> {
        let mut answer = Vec::new();
        if let Some(pipe) = self.child.stdout.take() {
            let _ = pipe.take(MOST_ANSWERED as u64).read_to_end(&mut answer);
        }
        answer
    }

    /// The last line of its standard error.
    fn complaint(&mut self) -> Option<String> {
        let mut said = Vec::new();
        let _ = self.child.stderr.take()?.take(MOST_SAID).read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().rev().find(|line| !line.trim().is_empty())?.trim();
        Some(last.strip_prefix("coroner: ").unwrap_or(last).to_owned())
    }
}

/// Makes this process harmless: it dies with its recorder, is the first to be OOM-killed, and unless it `hurries` runs at low
/// priority.
pub fn be_a_guest(recorder: Option<u32>, hurries: bool) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot arrange to die with the recorder")?;
    // It may have died before the call above.
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get() as u32);
    if recorder.is_some() && parent != recorder {
        bail!("the recorder has exited");
    }
    if !hurries {
        let _ = rustix::process::nice(NICE);
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "900");
    let maximum = getrlimit(Resource::As).maximum;
    let current = Some(MOST_MEMORY.min(maximum.unwrap_or(u64::MAX)));
    let _ = setrlimit(Resource::As, Rlimit { current, maximum });
    Ok(())
}
