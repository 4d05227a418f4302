//! The load under which is measured.

use anyhow::{Context, bail};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// `stress-ng --cpu 2`; ends when dropped.
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
    /// Kept open: the runner says a last word when it ends.
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

/// How much plain arithmetic all cores together get done in three seconds.
pub fn work_done() -> anyhow::Result<f64> {
    let cores = std::thread::available_parallelism()?.get();
    let until = Instant::now() + Duration::from_secs(3);
    let workers: Vec<_> = (0..cores)
        .map(|_| {
            std::thread::spawn(move || {
                let (mut x, mut rounds) = (1u64, 0u64);
                while Instant::now() < until {
                    for _ in 0..10_000 {
                        x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
                    }
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    Ok(workers.into_iter().map(|worker| worker.join().unwrap_or(0)).sum::<u64>() as f64)
}
