//! A process, killed on drop.

use super::complain;
use crate::{node, syscalls};
use anyhow::{Context, Result, bail};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A process that outlives neither this value nor the thread that started it, even if that is killed.
#[derive(Debug)]
pub struct Child {
    name: String,
    inner: std::process::Child,
}

impl Child {
    /// Starts it in its own process group, so that Ctrl-C reaches only the runner, which then ends everything in order.
    pub fn spawn(name: impl Into<String>, command: &mut Command) -> Result<Child> {
        let name = name.into();
        command.stdin(Stdio::null()).process_group(0);
        syscalls::die_with_parent(command);
        let inner = command
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", command.get_program().to_string_lossy()))?;
        Ok(Child { name, inner })
    }

    /// The same, with its standard output to read from; the command must have asked for a pipe.
    pub fn spawn_with_stdout(name: impl Into<String>, command: &mut Command) -> Result<(Child, ChildStdout)> {
        let mut child = Child::spawn(name, command)?;
        let stdout = child.inner.stdout.take().context("its standard output is not piped")?;
        Ok((child, stdout))
    }

    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// `spin-ab12[4711]`
    pub fn label(&self) -> String {
        format!("{}[{}]", self.name, self.pid())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.inner.try_wait().with_context(|| format!("cannot wait for {}", self.name))
    }

    /// An error if it ended, for processes that must run until dropped.
    pub fn expect_running(&mut self) -> Result<()> {
        match self.ended()? {
            Some(status) => bail!("{} ended by itself: {status}", self.label()),
            None => Ok(()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The PID cannot be reused before we wait for it.
        let _ = self.inner.kill();
        let start = Instant::now();
        let mut freed = false;
        while let Ok(None) = self.inner.try_wait() {
            // A thread needs its core even to die, and another real-time thread may hold that for ever.
            if !freed && start.elapsed() > Duration::from_millis(100) {
                free_threads(self.pid());
                freed = true;
            }
            if start.elapsed() > Duration::from_secs(60) {
                return complain(&self.label(), &"it does not die");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Ordinary class, any core.
fn free_threads(pid: u32) {
    for tid in node::threads_of(pid) {
        syscalls::become_ordinary(tid);
        let _ = node::pin_anywhere(tid);
    }
}
