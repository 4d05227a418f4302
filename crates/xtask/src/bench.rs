//! What a diagnosis costs. CPU time is taken twice: as coroner reports it, and as the kernel accounts it to the child process.

use crate::big_node;
use crate::lab::Lab;
use anyhow::{Context, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The bars of the original issue.
const STEADY_PERCENT_OF_ONE_CORE: f64 = 1.0;
const STARTUP_MS: f64 = 300.0;
const PEAK_MB: f64 = 64.0;
const CROWD_TOTAL_MS: f64 = 1000.0;
const SECONDS: f64 = 5.0;

pub fn run(filter: &str, runs: u32) -> anyhow::Result<()> {
    if filter == "units" {
        return crate::bench_units::run(runs);
    }
    if let Some(part @ ("ranges" | "monopolies")) = filter.strip_prefix("profile:") {
        // They measure libraries; no binary is needed.
        return crate::bench_profile::run(Path::new(""), part, runs);
    }
    if let Some(part) = filter.strip_prefix("fleet") {
        let binaries = cargo_build(&["-p", "coroner", "-p", "coroner-lab", "-p", "coroner-fleet"])?;
        return crate::bench_fleet::run(&binaries, part.trim_start_matches(':'));
    }
    let binaries = build()?;
    if filter == "zombies" {
        return crate::bench_zombies::run(&binaries, runs);
    }
    if filter == "waits" {
        return crate::bench_waits::run(&binaries, runs);
    }
    if let Some(part) = filter.strip_prefix("view") {
        return crate::bench_view::run(&binaries, part.trim_start_matches(':'), runs);
    }
    if let Some(part) = filter.strip_prefix("recorder") {
        return crate::bench_recorder::run(&binaries, part.trim_start_matches(':'), runs);
    }
    if let Some(part) = filter.strip_prefix("profile") {
        return crate::bench_profile::run(&binaries, part.trim_start_matches(':'), runs);
    }
    println!(
        "| benchmark | start-up CPU ms | watching CPU ms over 5 s | % of one core | total CPU ms (by the kernel) | peak MB | bar | met |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    if "this-node".contains(filter) {
        measure("this-node", runs, &binaries.join("coroner"), &[], false)?;
    }
    if "crowd-5000-processes-20000-cgroups".contains(filter) {
        let arguments = ["crowd", "--processes", "5000", "--cgroups", "20000", "--seconds", "600"];
        let crowd = Lab::start(&binaries.join("coroner-lab"), &arguments)?;
        measure("crowd-5000-processes-20000-cgroups", runs, &binaries.join("coroner"), &[], true)?;
        drop(crowd);
    }
    if "192-cores-generated".contains(filter) {
        let dir = tempfile::tempdir()?;
        big_node::write(dir.path(), 192, 600)?;
        let root = dir.path().to_str().context("the temporary directory's name is not UTF-8")?.to_owned();
        measure("192-cores-generated", runs, &binaries.join("coroner"), &["--root", &root], false)?;
    }
    Ok(())
}

fn build() -> anyhow::Result<PathBuf> {
    cargo_build(&["-p", "coroner", "-p", "coroner-lab"])
}

/// Builds these, and returns the directory with the binaries.
pub fn cargo_build(what: &[&str]) -> anyhow::Result<PathBuf> {
    let built = Command::new(env!("CARGO")).args(["build", "--release", "--quiet"]).args(what).status();
    if !built.context("cargo build")?.success() {
        bail!("cargo build failed");
    }
    let here = std::env::current_exe()?;
    Ok(here.parent().context("xtask has no directory")?.to_owned())
}

/// Does `work` on as many threads as there are cores.
pub fn on_all_cores(work: impl Fn() -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    let workers = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a writer panicked")))
    })
}

/// The size of all files in a directory.
pub fn bytes_in(directory: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        bytes += entry?.metadata().map_or(0, |about| about.len());
    }
    Ok(bytes)
}

pub fn yes(met: bool) -> &'static str {
    if met { "yes" } else { "**no**" }
}

fn measure(name: &str, runs: u32, coroner: &Path, extra: &[&str], crowded: bool) -> anyhow::Result<()> {
    for _ in 0..runs {
        let before = children_cpu_ms();
        let output = Command::new(coroner).args(["diagnose", "--for", "5s", "--json"]).args(extra).output()?;
        let accounted = children_cpu_ms() - before;
        let document: Value = serde_json::from_slice(&output.stdout).with_context(|| {
            format!("{name}: coroner printed no JSON; it said: {}", String::from_utf8_lossy(&output.stderr))
        })?;
        let cost = |field: &str| document["cost"][field].as_f64().with_context(|| format!("no cost.{field}"));
        let (startup, watching) = (cost("startup_cpu_ms")?, cost("cpu_ms")?);
        let peak = cost("peak_rss_bytes")? / 1e6;
        let percent = watching / SECONDS / 10.0;
        let (bar, met) = if crowded {
            ("≤ 1000 ms in total, ≤ 64 MB", accounted <= CROWD_TOTAL_MS && peak <= PEAK_MB)
        } else {
            (
                "≤ 300 ms start, ≤ 1 %, ≤ 64 MB",
                startup <= STARTUP_MS && percent <= STEADY_PERCENT_OF_ONE_CORE && peak <= PEAK_MB,
            )
        };
        println!(
            "| {name} | {startup:.0} | {watching:.0} | {percent:.2} | {accounted:.0} | {peak:.1} | {bar} | {} |",
            yes(met)
        );
    }
    Ok(())
}

/// CPU time of all ended children, in ms.
pub fn children_cpu_ms() -> f64 {
    // SAFETY: getrusage writes one rusage into the zeroed struct that we own; all-zero is a valid rusage.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let ms = |t: libc::timeval| t.tv_sec as f64 * 1e3 + t.tv_usec as f64 / 1e3;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}
