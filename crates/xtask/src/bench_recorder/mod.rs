//! What the flight recorder costs, beside `perf record -F 97 -a -g` under the same load, in one run.
//!
//! CPU is the kernel's account of the process. "Reading, interning and storing" is the recorder with samples less the recorder
//! without (`--rate 0`), in turns, so that what the probes cost is not in it.

mod load;
mod on_disk;
mod process;

use anyhow::{Context, bail};
use load::{Crowd, Stress};
use process::{Measured, Recorder, perf_record};
use std::path::Path;
use std::time::Duration;

const TURN: Duration = Duration::from_secs(60);
/// What the recorder's start costs is not what running costs.
const SETTLE: Duration = Duration::from_secs(4);
/// For what the cores lose: the seconds of a turn, and turns.
const LOST_SECONDS: u32 = 6;
const LOST_TURNS: u32 = 5;

pub fn run(binaries: &Path, part: &str, runs: u32) -> anyhow::Result<()> {
    let coroner = binaries.join("coroner");
    if part.is_empty() || part == "perf" {
        beside_perf(&coroner, runs)?;
    }
    if part.is_empty() || part == "cores" {
        cores_lose(&coroner, runs)?;
    }
    if part.is_empty() || part == "whole" {
        whole(&coroner, runs)?;
    }
    if part.is_empty() || part == "crowd" {
        crowd(&coroner, &binaries.join("coroner-lab"), runs)?;
    }
    if part.is_empty() || part == "fast" {
        nothing_lost(&coroner)?;
    }
    if part.is_empty() || part == "freeze" {
        freeze(&coroner)?;
    }
    Ok(())
}

/// Own CPU at the same rate: whole recordings of the same length, from the start to a file that can be read.
fn beside_perf(coroner: &Path, runs: u32) -> anyhow::Result<()> {
    println!(
        "\n97 samples a second of each core, `stress-ng --cpu 2`, recordings of {} s:\n",
        (SETTLE + TURN).as_secs()
    );
    println!(
        "| run | perf, CPU ms in all (a second, while it records) | recorder, CPU ms in all (a second, settled) | recorder without samples | what samples add, in all (a second) | of perf | met |"
    );
    println!("|---|---|---|---|---|---|---|");
    let per_second = |ms: f64| ms / (SETTLE + TURN).as_secs_f64();
    for run in 1..=runs {
        let dir = tempfile::tempdir()?;
        let stress = Stress::start()?;
        let (perf, perf_steady) = perf_record(97, &dir.path().join("perf.data"), SETTLE + TURN)?;
        let with = Recorder::start(coroner, &dir.path().join("a"), 97)?.measure(SETTLE, TURN)?;
        let without = Recorder::start(coroner, &dir.path().join("b"), 0)?.measure(SETTLE, TURN)?;
        drop(stress);
        let own = (with.whole_cpu_ms - without.whole_cpu_ms).max(0.0);
        let steady = (with.cpu_ms_per_s - without.cpu_ms_per_s).max(0.0);
        println!(
            "| {run} | {perf:.0} ({:.1}) | {:.0} ({:.1}) | {:.0} ({:.1}) | {own:.0} ({steady:.1}) | {:.2} | {} |",
            per_second(perf_steady),
            with.whole_cpu_ms,
            with.cpu_ms_per_s,
            without.whole_cpu_ms,
            without.cpu_ms_per_s,
            own / perf,
            yes(own <= perf)
        );
    }
    Ok(())
}

/// What a thread on each core cannot use, in turns: nobody records, perf does, the recorder does without samples, and with them.
fn cores_lose(coroner: &Path, runs: u32) -> anyhow::Result<()> {
    println!(
        "\nWhat the sampled cores lose at 97 Hz, % of a core that its threads cannot use (median of the seconds):\n"
    );
    println!(
        "| run | nobody | perf | recorder without samples | recorder | perf's samples | recorder's samples | met: samples, all |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for run in 1..=runs {
        let dir = tempfile::tempdir()?;
        let (mut nobody, mut under_perf, mut bare, mut sampled) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for turn in 0..LOST_TURNS {
            nobody.extend(load::time_lost(LOST_SECONDS)?);
            let perf = process::Perf::start(97, &dir.path().join(format!("{turn}.data")))?;
            std::thread::sleep(SETTLE);
            under_perf.extend(load::time_lost(LOST_SECONDS)?);
            drop(perf);
            for (rate, lost) in [(0, &mut bare), (97, &mut sampled)] {
                let recorder = Recorder::start(coroner, &dir.path().join(format!("{turn}-{rate}")), rate)?;
                std::thread::sleep(SETTLE);
                lost.extend(load::time_lost(LOST_SECONDS)?);
                recorder.stop()?;
            }
        }
        let [nobody, under_perf, bare, sampled] = [nobody, under_perf, bare, sampled].map(median);
        let (of_perf, of_us) = (under_perf - nobody, sampled - bare);
        println!(
            "| {run} | {nobody:.2} | {under_perf:.2} | {bare:.2} | {sampled:.2} | {of_perf:.2} | {of_us:.2} | {}, {} |",
            yes(of_us <= of_perf),
            yes(sampled <= under_perf)
        );
    }
    Ok(())
}

fn whole(coroner: &Path, runs: u32) -> anyhow::Result<()> {
    println!("\nThe whole recorder at its usual 49 Hz, `stress-ng --cpu 2`, 60 s a run:\n");
    println!(
        "| run | % of one core | RSS MB | peak RSS MB | samples | bytes a sample | dictionaries, bytes a sample | all, KB/s | 24 h × 64 cores, samples and dictionaries | met |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for run in 1..=runs {
        let dir = tempfile::tempdir()?;
        let stress = Stress::start()?;
        let measured = Recorder::start(coroner, &dir.path().join("a"), 49)?.measure(SETTLE, Duration::from_secs(60))?;
        drop(stress);
        print_whole(run, &measured, &dir.path().join("a"), 1.0)?;
    }
    Ok(())
}

fn crowd(coroner: &Path, lab: &Path, runs: u32) -> anyhow::Result<()> {
    println!("\nThe same with 2,000 processes and 10,000 cgroups more:\n");
    println!(
        "| run | % of one core | RSS MB | peak RSS MB | samples | bytes a sample | dictionaries, bytes a sample | all, KB/s | 24 h × 64 cores, samples and dictionaries | met |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let crowd = Crowd::start(lab, 2000, 10_000)?;
    for run in 1..=runs {
        let dir = tempfile::tempdir()?;
        let stress = Stress::start()?;
        let measured = Recorder::start(coroner, &dir.path().join("a"), 49)?.measure(SETTLE, Duration::from_secs(60))?;
        drop(stress);
        print_whole(run, &measured, &dir.path().join("a"), 3.0)?;
    }
    drop(crowd);
    Ok(())
}

fn print_whole(run: u32, measured: &Measured, dir: &Path, most_percent: f64) -> anyhow::Result<()> {
    let disk = on_disk::look(dir)?;
    let percent = measured.cpu_ms_per_s / 10.0;
    let met = percent <= most_percent && measured.rss_mb <= 64.0 && disk.per_sample() <= 10.0;
    let day = (disk.per_sample() + disk.names_per_sample()) * 49.0 * 64.0 * 86_400.0 / 1e9;
    println!(
        "| {run} | {percent:.2} | {:.1} | {:.1} | {} | {:.1} | {:.1} | {:.1} | {day:.1} GB | {} |",
        measured.rss_mb,
        measured.peak_rss_mb,
        disk.samples,
        disk.per_sample(),
        disk.names_per_sample(),
        disk.all_bytes as f64 / 1e3 / measured.seconds,
        yes(met)
    );
    Ok(())
}

fn nothing_lost(coroner: &Path) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let stress = Stress::start()?;
    let recorder = Recorder::start(coroner, &dir.path().join("a"), 999)?;
    let summary = recorder.summary_after(Duration::from_secs(20))?;
    drop(stress);
    let (samples, lost) = (&summary["samples"], &summary["lost_samples"]);
    let seconds = summary["seconds"].as_f64().context("no seconds")?;
    let expected = 999.0 * seconds * std::thread::available_parallelism()?.get() as f64;
    let share = samples.as_f64().unwrap_or(0.0) / expected;
    println!(
        "\n999 Hz on all cores, {seconds:.0} s under `stress-ng --cpu 2`: {samples} samples ({:.1} % of what the rate says), {lost} lost: {}",
        share * 100.0,
        yes(*lost == 0)
    );
    Ok(())
}

fn freeze(coroner: &Path) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let stress = Stress::start()?;
    let recorder = Recorder::start(coroner, &dir.path().join("a"), 49)?;
    std::thread::sleep(Duration::from_secs(20));
    let took = recorder.mark_and_wait(coroner)?;
    recorder.stop()?;
    drop(stress);
    println!(
        "\nFrom `coroner mark` to the frozen file of the minutes before: {:.2} s: {}",
        took.as_secs_f64(),
        yes(took.as_secs_f64() <= 2.0)
    );
    if took > Duration::from_secs(60) {
        bail!("it never came");
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn yes(met: bool) -> &'static str {
    if met { "yes" } else { "**no**" }
}
