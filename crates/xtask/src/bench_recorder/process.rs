//! The processes that are measured.

use crate::bench::children_cpu_ms;
use crate::child::Ended;
use anyhow::{Context, bail};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// `coroner record --dir`; ended on drop.
pub struct Recorder {
    child: Ended,
    dir: PathBuf,
}

pub struct Measured {
    /// After the start.
    pub cpu_ms_per_s: f64,
    /// Of that, the threads that read the rings and write the file.
    pub storing_ms_per_s: f64,
    pub first_thread_ms_per_s: f64,
    /// Including start and end.
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
        let recorder = Recorder { child: Ended::by(Signal::TERM, child), dir: dir.to_owned() };
        let limit = Instant::now() + Duration::from_secs(20);
        while !dir.join("control.sock").exists() {
            if Instant::now() > limit {
                bail!("the recorder did not start");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(recorder)
    }

    /// Its CPU over `turn`, after the start; then ends it.
    pub fn measure(self, settle: Duration, turn: Duration) -> anyhow::Result<Measured> {
        let began = Instant::now();
        let earlier = children_cpu_ms();
        std::thread::sleep(settle);
        let (from, before) = (Instant::now(), threads_ms(self.child.id())?);
        std::thread::sleep(turn);
        let (took, after) = (from.elapsed().as_secs_f64(), threads_ms(self.child.id())?);
        let (rss_mb, peak_rss_mb) = (self.memory_mb("VmRSS:")?, self.memory_mb("VmHWM:")?);
        let seconds = began.elapsed().as_secs_f64();
        drop(self);
        let of = |names: &[&str]| {
            let sum = |all: &[(String, f64)]| -> f64 {
                all.iter()
                    .filter(|(name, _)| names.is_empty() || names.contains(&name.as_str()))
                    .map(|(_, ms)| ms)
                    .sum()
            };
            (sum(&after) - sum(&before)) / took
        };
        Ok(Measured {
            cpu_ms_per_s: of(&[]),
            storing_ms_per_s: of(&["rings", "store", "recording-sync"]),
            first_thread_ms_per_s: of(&["coroner"]),
            whole_cpu_ms: children_cpu_ms() - earlier,
            rss_mb,
            peak_rss_mb,
            seconds,
        })
    }

    /// Its own summary after running this long.
    pub fn summary_after(mut self, time: Duration) -> anyhow::Result<Value> {
        std::thread::sleep(time);
        let mut stdout = self.child.child.stdout.take().context("no output")?;
        drop(self);
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

    fn memory_mb(&self, field: &str) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kib =
            status.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        Ok(kib.context("no such field")? * 1024.0 / 1e6)
    }
}

/// The load during a measurement.
pub fn stress() -> anyhow::Result<Ended> {
    let stress = Command::new("stress-ng").args(["--cpu", "2", "--quiet"]).stdout(Stdio::null()).spawn();
    let stress = Ended::by(Signal::TERM, stress.context("stress-ng")?);
    std::thread::sleep(Duration::from_secs(1));
    Ok(stress)
}

/// CPU time of each thread of a process so far, from schedstat.
fn threads_ms(pid: u32) -> anyhow::Result<Vec<(String, f64)>> {
    let mut threads = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        let read = |file: &str| fs::read_to_string(thread.join(file));
        // Ignore a thread that just ended.
        let (Ok(name), Ok(stat)) = (read("comm"), read("schedstat")) else { continue };
        let ns = stat.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).context("schedstat")?;
        threads.push((name.trim_end().to_owned(), ns / 1e6));
    }
    Ok(threads)
}

/// `perf record`; ended on drop.
pub struct Perf(Ended);

impl Perf {
    pub fn start(rate: u32, file: &Path) -> anyhow::Result<Perf> {
        Perf::start_with(rate, file, &[])
    }

    fn start_with(rate: u32, file: &Path, more: &[&str]) -> anyhow::Result<Perf> {
        let perf = Command::new("perf")
            .args(["record", "-q", "-F", &rate.to_string(), "-a", "-g"])
            .args(more)
            .arg("-o")
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("perf (Debian: linux-perf)")?;
        let perf = Perf(Ended::by(Signal::INT, perf));
        std::thread::sleep(Duration::from_millis(500));
        Ok(perf)
    }
}

pub struct OfPerf {
    /// While it records, without start and end. It reads the rings only when they are half full, and looks up build ids at the
    /// end.
    pub cpu_ms_per_s: f64,
    /// Including start and end.
    pub whole_cpu_ms: f64,
}

/// What each new file costs a long-running perf with `--switch-output`, in ms, beyond its start and its usual cost per second. Rolling
/// files are perf's way to watch a node for days.
pub fn perf_rolling(rate: u32, directory: &Path, ms_per_s: f64) -> anyhow::Result<f64> {
    const FILE: Duration = Duration::from_secs(15);
    const FILES: u32 = 4;
    fs::create_dir(directory)?;
    let every = format!("--switch-output={}s", FILE.as_secs());
    let perf = Perf::start_with(rate, &directory.join("perf.data"), &[&every])?;
    let cpu = |perf: &Perf| anyhow::Ok(threads_ms(perf.0.id())?.iter().map(|(_, ms)| ms).sum::<f64>());
    // Not when a file ends.
    std::thread::sleep(FILE / 2);
    let (from, before) = (Instant::now(), cpu(&perf)?);
    std::thread::sleep(FILE * FILES);
    let spent = cpu(&perf)? - before;
    Ok(((spent - ms_per_s * from.elapsed().as_secs_f64()) / f64::from(FILES)).max(0.0))
}

/// As long as a recorder is measured.
pub fn perf_record(rate: u32, file: &Path, settle: Duration, turn: Duration) -> anyhow::Result<OfPerf> {
    let earlier = children_cpu_ms();
    let perf = Perf::start(rate, file)?;
    let all = |perf: &Perf| anyhow::Ok(threads_ms(perf.0.id())?.iter().map(|(_, ms)| ms).sum::<f64>());
    std::thread::sleep(settle);
    let (from, before) = (Instant::now(), all(&perf)?);
    std::thread::sleep(turn);
    let cpu_ms_per_s = (all(&perf)? - before) / from.elapsed().as_secs_f64();
    drop(perf);
    Ok(OfPerf { cpu_ms_per_s, whole_cpu_ms: children_cpu_ms() - earlier })
}
