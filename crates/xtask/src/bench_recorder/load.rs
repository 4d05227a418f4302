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

/// What a thread on each core could not use, in per cent of each second: it looks at the clock without a pause and adds up the gaps. Work done
/// in a time would tell the same, but on a shared machine that differs by a tenth from one run to the next.
pub fn time_lost(seconds: u32) -> anyhow::Result<Vec<f64>> {
    let cores = std::thread::available_parallelism()?.get();
    let watchers: Vec<_> = (0..cores).map(|core| std::thread::spawn(move || watch_clock(core, seconds))).collect();
    let mut lost = Vec::new();
    for watcher in watchers {
        lost.extend(watcher.join().map_err(|_| anyhow::anyhow!("a watcher of the clock panicked"))??);
    }
    Ok(lost)
}

/// Reading the clock takes some ten nanoseconds: a longer gap is an interrupt, another thread, or another machine.
const GAP: Duration = Duration::from_micros(2);

fn watch_clock(core: usize, seconds: u32) -> anyhow::Result<Vec<f64>> {
    // SAFETY: a cpu_set_t is plain bits, and the call only reads it.
    let pinned = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if pinned != 0 {
        bail!("cannot stay on core {core}: {}", std::io::Error::last_os_error());
    }
    let mut lost = Vec::new();
    for _ in 0..seconds {
        let began = Instant::now();
        let (mut last, mut gaps) = (began, Duration::ZERO);
        while last - began < Duration::from_secs(1) {
            let now = Instant::now();
            if now - last > GAP {
                gaps += now - last;
            }
            last = now;
        }
        lost.push(gaps.as_secs_f64() * 100.0);
    }
    Ok(lost)
}
