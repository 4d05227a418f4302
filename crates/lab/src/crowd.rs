//! A crowded node for benchmarks: thousands of real sleeping processes, tens of thousands of real live cgroups.

use crate::draw::Draw;
use crate::guard::{Cgroup, Visit};
use crate::interrupt;
use crate::stage::say;
use crate::syscalls::fork_sleeper;
use anyhow::{Context, Result, bail, ensure};
use rustix::pipe::pipe;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::json;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Crowd {
    /// Sleeping processes.
    #[arg(long, default_value_t = 5000)]
    pub processes: u32,
    /// Threads of each process.
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// Live cgroup directories in the memory hierarchy.
    #[arg(long, default_value_t = 20_000)]
    pub cgroups: u32,
    /// How long to stay. [default: until SIGINT or SIGTERM]
    #[arg(long)]
    pub seconds: Option<u64>,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Children per parent directory, about as many as kubelet or a systemd slice has.
const CGROUPS_PER_PARENT: u32 = 200;

const PROCESSES_PER_CGROUP: u32 = 10;

/// The kernel has 65,535 memory cgroup ids; the node itself needs some.
const MAX_CGROUPS: u32 = 60_000;

/// Processes that are ended and reaped on drop.
#[derive(Debug, Default)]
struct Sleepers(Vec<Pid>);

impl Drop for Sleepers {
    fn drop(&mut self) {
        for &pid in &self.0 {
            let _ = kill_process(pid, Signal::KILL);
        }
        for &pid in &self.0 {
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

pub fn gather(crowd: Crowd) -> Result<()> {
    ensure!(crowd.cgroups <= MAX_CGROUPS, "--cgroups must be {MAX_CGROUPS} or less");
    ensure!(crowd.threads >= 1, "--threads must be at least 1");
    let comm = format!("crowd-{}", Draw::new(crowd.seed).tag());
    let root = if crowd.cgroups > 0 { Some(Cgroup::with_controller("memory", "crowd")?) } else { None };
    let started = Instant::now();
    let dirs = root.as_ref().map(|root| make_cgroups(root, crowd.cgroups)).transpose()?.unwrap_or_default();
    let cgroups_in = started.elapsed();

    let started = Instant::now();
    let sleepers = make_processes(crowd, &comm, root.as_ref(), &dirs)?;
    let processes_in = started.elapsed();
    let path = root.as_ref().map(Cgroup::path);
    say(&json!({"scenario": "crowd", "ready": true, "seed": crowd.seed, "truth": {
        "processes": crowd.processes, "threads": crowd.threads, "cgroups": crowd.cgroups, "comm": comm, "cgroup": path,
        "made_in_ms": {"cgroups": cgroups_in.as_millis() as u64, "processes": processes_in.as_millis() as u64},
    }}))?;
    let end = crowd.seconds.map(|s| Instant::now() + Duration::from_secs(s));
    while !interrupt::requested() && end.is_none_or(|end| Instant::now() < end) {
        let left = end.map_or(Duration::from_secs(60), |end| end.saturating_duration_since(Instant::now()));
        interrupt::pause(left);
    }
    let started = Instant::now();
    drop(sleepers);
    drop(root);
    say(
        &json!({"scenario": "crowd", "ended": true, "measured": {"cleaned_in_ms": started.elapsed().as_millis() as u64}}),
    )
}

/// Exactly `count` directories below `root`, parents included.
fn make_cgroups(root: &Cgroup, count: u32) -> Result<Vec<PathBuf>> {
    let hierarchy = root.hierarchy();
    hierarchy.enable(root.dir(), "memory")?;
    let mut leaves = Vec::new();
    let mut parent = root.dir().to_owned();
    for i in 0..count {
        if interrupt::requested() {
            bail!("interrupted while making cgroups");
        }
        let is_parent = i % (CGROUPS_PER_PARENT + 1) == 0;
        let dir = if is_parent { root.dir().join(format!("slice{i}")) } else { parent.join(format!("job{i}")) };
        fs::create_dir(&dir).with_context(|| format!("cannot make cgroup {i} of {count}: {}", dir.display()))?;
        if is_parent {
            hierarchy.enable(&dir, "memory")?;
            parent = dir;
        } else {
            leaves.push(dir);
        }
    }
    Ok(leaves)
}

/// Children inherit the cgroup: the runner joins one cgroup after the other and forks there, which is far cheaper than moving each.
fn make_processes(crowd: Crowd, comm: &str, root: Option<&Cgroup>, dirs: &[PathBuf]) -> Result<Sleepers> {
    let name = CString::new(comm)?;
    let visit = root.map(Visit::from_home).transpose()?;
    let (reports, report) = pipe().context("pipe")?;
    let (mut reports, mut report) = (Some(File::from(reports)), Some(File::from(report)));
    let mut sleepers = Sleepers::default();
    for i in 0..crowd.processes {
        if interrupt::requested() {
            bail!("interrupted while making processes");
        }
        let place = (i / PROCESSES_PER_CGROUP) as usize % dirs.len().max(1);
        if i % PROCESSES_PER_CGROUP == 0
            && let (Some(visit), Some(dir)) = (&visit, dirs.get(place))
        {
            visit.go(dir)?;
        }
        let child = fork_sleeper(|| {
            // In the child: reports with one byte that it has its name and threads, and closes both ends.
            drop(reports.take());
            let named = rustix::thread::set_name(&name).is_ok();
            if named && (1..crowd.threads).all(|_| start_sleeping_thread()) {
                let _ = report.take().map(|mut report| report.write_all(b"."));
            }
            drop(report.take());
        });
        sleepers.0.push(child.with_context(|| format!("cannot make process {i} of {}", crowd.processes))?);
    }
    drop(visit);
    // EOF comes when every child has closed its end or died.
    drop(report);
    let mut complete = Vec::new();
    reports.take().context("pipe")?.read_to_end(&mut complete).context("pipe")?;
    let (wanted, got) = (crowd.processes, complete.len());
    ensure!(got == wanted as usize, "only {got} of {wanted} processes could start their {} threads", crowd.threads);
    Ok(sleepers)
}

fn start_sleeping_thread() -> bool {
    let sleep = || {
        loop {
            std::thread::park();
        }
    };
    std::thread::Builder::new().stack_size(16 << 10).spawn(sleep).is_ok()
}
