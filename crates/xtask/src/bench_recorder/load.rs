//! The load during the measurement.

use anyhow::{Context, bail};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// `stress-ng --cpu 2`; ended on drop.
pub struct Stress(Child);

impl Stress {
    pub fn start() -> anyhow::Result<Stress> {
        let stress = Command::new("stress-ng").args(["--cpu", "2", "--quiet"]).stdout(Stdio::null()).spawn();
        let stress = Stress(stress.context("stress-ng")?);
        std::thread::sleep(Duration::from_secs(1));
        Ok(stress)
    }
}

impl Drop for Stress {
    fn drop(&mut self) {
        terminate(&mut self.0);
    }
}

pub fn terminate(child: &mut Child) {
    // SAFETY: kill has no memory effects; the pid is our own child, not yet waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    let _ = child.wait();
}

/// Sleeping processes and live cgroups, made by the lab.
pub struct Crowd {
    runner: Child,
    /// Kept open: the runner prints a last line when it ends.
    _output: BufReader<ChildStdout>,
}

impl Crowd {
    pub fn start(lab: &Path, processes: u32, cgroups: u32) -> anyhow::Result<Crowd> {
        let mut runner = Command::new(lab)
            .args(["crowd", "--processes", &processes.to_string(), "--cgroups", &cgroups.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| lab.display().to_string())?;
        let mut output = BufReader::new(runner.stdout.take().context("no output of the lab")?);
        let mut line = String::new();
        let read = output.read_line(&mut line);
        let crowd = Crowd { runner, _output: output };
        read?;
        if !line.contains("\"ready\":true") {
            bail!("the lab could not make the crowd (is this root?): {line}");
        }
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        terminate(&mut self.runner);
    }
}
