//! The child that writes an incident's file. It reads minutes of evidence and an hour of samples: in a process of its own that
//! memory goes back to the node, and nothing it meets can stop the recorder.

use anyhow::Context;
use coroner_evidence::Time;
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The minutes before, at once: normally a fraction of a second.
const FIRST_LIMIT: Duration = Duration::from_secs(30);
/// With the diagnosis and an hour of samples to compare with, at low priority.
const WHOLE_LIMIT: Duration = Duration::from_secs(120);
/// What is kept of its complaint.
const MOST_SAID: u64 = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// What there is until now.
    First,
    /// The window is over: all of it, with findings and risers.
    Whole,
}

pub struct Freezing {
    child: Child,
    pub purpose: Purpose,
    started: Time,
}

impl Freezing {
    pub fn start(
        program: &[OsString],
        directory: &Path,
        number: u64,
        purpose: Purpose,
        now: Time,
    ) -> anyhow::Result<Freezing> {
        let (first, rest) = program.split_first().context("cannot find the coroner binary to freeze the incident")?;
        let mut command = Command::new(first);
        command.args(rest).arg("freeze-incident").arg(directory).arg(number.to_string());
        if purpose == Purpose::Whole {
            command.arg("--whole");
        }
        command.arg(format!("--recorder={}", std::process::id()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().context("cannot start the process that freezes incidents")?;
        Ok(Freezing { child, purpose, started: now })
    }

    /// `None` while it is at work. Never waits.
    pub fn outcome(&mut self, now: Time) -> Option<Result<(), String>> {
        match self.child.try_wait() {
            Ok(Some(status)) if status.success() => Some(Ok(())),
            Ok(Some(status)) => Some(Err(self.complaint().unwrap_or_else(|| format!("freezing ended with {status}")))),
            Ok(None) => {
                let limit = match self.purpose {
                    Purpose::First => FIRST_LIMIT,
                    Purpose::Whole => WHOLE_LIMIT,
                };
                (now.since(self.started) >= limit).then(|| {
                    self.kill();
                    Err(format!("freezing took longer than {} s and was stopped", limit.as_secs()))
                })
            }
            Err(error) => Some(Err(format!("cannot watch the process that freezes: {error}"))),
        }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Whether the kernel has let it go. One that hangs on a disk may take long to die.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The last words of a child that has ended: its pipe has an end.
    fn complaint(&mut self) -> Option<String> {
        let mut said = Vec::new();
        let _ = self.child.stderr.take()?.take(MOST_SAID).read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().rev().find(|line| !line.trim().is_empty())?.trim();
        Some(last.strip_prefix("coroner: ").unwrap_or(last).to_owned())
    }
}
