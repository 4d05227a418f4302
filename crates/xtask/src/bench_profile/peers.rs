//! Peers and how they are measured: CPU time and memory of a child according to the kernel, tools alternating.

use anyhow::{Context, bail};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub const INFERNO: &str = "0.12.8";

/// What one run cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// User and system time.
    pub cpu: Duration,
    pub wall: Duration,
    /// Peak memory.
    pub peak_kib: u64,
}

/// Runs `command` to its end. It must succeed.
pub fn cost_of(command: &mut Command) -> anyhow::Result<Cost> {
    let name = command.get_program().to_string_lossy().into_owned();
    let begun = Instant::now();
    let child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
    ended(&child, begun, &name)
}

/// Waits for a child's end. It must succeed.
pub fn ended(child: &Child, begun: Instant, name: &str) -> anyhow::Result<Cost> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid, and the kernel fills it and the status for a child that nobody else waits for.
    let (waited, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage), usage)
    };
    let wall = begun.elapsed();
    if waited < 0 {
        return Err(std::io::Error::last_os_error()).context("wait4");
    }
    let status = ExitStatus::from_raw(status);
    if !status.success() {
        bail!("{name} failed: {status}");
    }
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Ok(Cost { cpu: time(usage.ru_utime) + time(usage.ru_stime), wall, peak_kib: usage.ru_maxrss as u64 })
}

/// Runs the commands alternately, `runs` times each, and returns the minimum cost of each: on a busy machine that is closest to
/// the cost of the work itself.
pub fn by_turns(runs: u32, commands: &mut [Command]) -> anyhow::Result<Vec<Cost>> {
    let mut works: Vec<Work> = Vec::new();
    for command in commands {
        works.push(Box::new(|| cost_of(command)));
    }
    works_by_turns(runs, &mut works)
}

pub type Work<'a> = Box<dyn FnMut() -> anyhow::Result<Cost> + 'a>;

/// The same for work that is more than one command.
pub fn works_by_turns(runs: u32, works: &mut [Work]) -> anyhow::Result<Vec<Cost>> {
    let mut least: Vec<Option<Cost>> = vec![None; works.len()];
    for _ in 0..runs.max(1) {
        for (work, least) in works.iter_mut().zip(&mut least) {
            let cost = work()?;
            *least = Some(match *least {
                None => cost,
                Some(old) => Cost {
                    cpu: old.cpu.min(cost.cpu),
                    wall: old.wall.min(cost.wall),
                    peak_kib: old.peak_kib.max(cost.peak_kib),
                },
            });
        }
    }
    Ok(least.into_iter().flatten().collect())
}

/// The directory for peers.
pub fn directory() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap_or(root).join("target/peers")
}

/// The binary of a crate that cargo installs below target/peers, once.
pub fn cargo_installed(name: &str, version: &str, binary: &str) -> anyhow::Result<PathBuf> {
    let root = directory();
    let path = root.join("bin").join(binary);
    if !path.exists() {
        let wanted = format!("{name}@{version}");
        let status = Command::new("cargo")
            .args(["install", "--quiet", "--locked", &wanted, "--root"])
            .arg(&root)
            .stdout(Stdio::null())
            .status()
            .context("cargo cannot be started")?;
        if !status.success() {
            bail!("cargo install {wanted} failed");
        }
    }
    Ok(path)
}
