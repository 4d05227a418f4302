//! The processes that are measured.

use super::load::terminate;
use crate::bench::children_cpu_ms;
use anyhow::{Context, bail};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `coroner record --dir`; ends when dropped.
pub struct Recorder {
    child: Child,
    dir: PathBuf,
}

pub struct Measured {
    /// Once it has settled.
    pub cpu_ms_per_s: f64,
    /// Start and end included.
    pub whole_cpu_ms: f64,
    pub rss_mb: f64,
    pub peak_rss_mb: f64,
    /// From the start to the end of the recorder.
    pub seconds: f64,
}

impl Recorder {
    pub fn start(coroner: &Path, dir: &Path, rate: u32) -> anyhow::Result<Recorder> {
        let child = Command::new(coroner)
            .args(["record", "--json", "--metrics", "off", "--rate", &rate.to_string(), "--dir"])
            .arg(dir)
            .env("CORONER_RUNNING", dir.with_extension("running"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| coroner.display().to_string())?;
        let recorder = Recorder { child, dir: dir.to_owned() };
        let limit = Instant::now() + Duration::from_secs(20);
        while !dir.join("control.sock").exists() {
            if Instant::now() > limit {
                bail!("the recorder did not start");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(recorder)
    }

    /// Its CPU over `turn`, once it has settled; then it ends.
    pub fn measure(self, settle: Duration, turn: Duration) -> anyhow::Result<Measured> {
        let began = Instant::now();
        let earlier = children_cpu_ms();
        std::thread::sleep(settle);
        let (from, before) = (Instant::now(), self.cpu_ms()?);
        std::thread::sleep(turn);
        let (took, cpu) = (from.elapsed(), self.cpu_ms()? - before);
        let (rss_mb, peak_rss_mb) = (self.memory_mb("VmRSS:")?, self.memory_mb("VmHWM:")?);
        let seconds = began.elapsed().as_secs_f64();
        self.stop()?;
        let whole_cpu_ms = children_cpu_ms() - earlier;
        Ok(Measured { cpu_ms_per_s: cpu / took.as_secs_f64(), whole_cpu_ms, rss_mb, peak_rss_mb, seconds })
    }

    /// What it says of itself after it ran for so long.
    pub fn summary_after(mut self, time: Duration) -> anyhow::Result<Value> {
        std::thread::sleep(time);
        let mut stdout = self.child.stdout.take().context("no output")?;
        terminate(&mut self.child);
        let mut text = String::new();
        stdout.read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    }

    pub fn mark_and_wait(&self, coroner: &Path) -> anyhow::Result<Duration> {
        let from = Instant::now();
        let marked = Command::new(coroner).args(["mark", "benchmark", "--dir"]).arg(&self.dir).status()?;
        if !marked.success() {
            bail!("coroner mark failed");
        }
        let frozen = self.dir.join("incidents/1.coroner");
        while !frozen.exists() && from.elapsed() < Duration::from_secs(90) {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(from.elapsed())
    }

    pub fn stop(mut self) -> anyhow::Result<()> {
        terminate(&mut self.child);
        Ok(())
    }

    fn cpu_ms(&self) -> anyhow::Result<f64> {
        cpu_ms(self.child.id())
    }

    fn memory_mb(&self, field: &str) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kib =
            status.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        Ok(kib.context("no such field")? * 1024.0 / 1e6)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            terminate(&mut self.child);
        }
    }
}

/// All threads of a process and its ended children, by the kernel's account.
fn cpu_ms(pid: u32) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(')').context("stat")?.1.split_whitespace().collect();
    // utime, stime, cutime, cstime: fields 14 to 17 of proc(5); the first here is the third.
    let ticks: f64 = fields.get(11..15).context("stat")?.iter().filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks * 10.0)
}

/// `perf record`; ends when dropped.
pub struct Perf(Child);

impl Perf {
    pub fn start(rate: u32, file: &Path) -> anyhow::Result<Perf> {
        let perf = Command::new("perf")
            .args(["record", "-q", "-F", &rate.to_string(), "-a", "-g", "-o"])
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("perf (Debian: linux-perf)")?;
        let perf = Perf(perf);
        std::thread::sleep(Duration::from_millis(500));
        Ok(perf)
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        // SAFETY: kill has no memory effects; the pid is our own child, not yet waited for.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGINT) };
        let _ = self.0.wait();
    }
}

/// perf's CPU in ms for a recording of so long: all of it, and the part while it records, without its start and its end. It hands
/// on what is in the rings only when they are half full, and looks up build ids at the end.
pub fn perf_record(rate: u32, file: &Path, time: Duration) -> anyhow::Result<(f64, f64)> {
    let earlier = children_cpu_ms();
    let perf = Perf::start(rate, file)?;
    let before = cpu_ms(perf.0.id())?;
    std::thread::sleep(time);
    let steady = cpu_ms(perf.0.id())? - before;
    drop(perf);
    Ok((children_cpu_ms() - earlier, steady))
}
