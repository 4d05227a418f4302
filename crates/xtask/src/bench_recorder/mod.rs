//! What the flight recorder costs, against `perf record -F 97 -a -g` under the same load, in one run.
//!
//! CPU is what the kernel accounts to the process and its threads. "Reading, interning and storing" is what the threads `rings`, `store`
//! and `recording-sync` use with samples, minus what they use without (`--rate 0`), alternating, so that the probes' cost is excluded.
//! The kernel's cost of a sample is the time in the handler that takes it; the interrupt around it is the same for both.

mod interrupts;
mod on_disk;
mod process;

use crate::bench::yes;
use crate::lab::Lab;
use anyhow::{Context, bail};
use interrupts::{Samples, Tracefs};
use process::{Measured, Recorder};
use std::path::Path;
use std::time::Duration;

const TURN: Duration = Duration::from_secs(60);
/// Leaves out the cost of the start.
const SETTLE: Duration = Duration::from_secs(10);
/// Samples are traced in alternating turns of this length, this many for perf and for the recorder.
const TRACED: Duration = Duration::from_secs(5);
const TRACED_TURNS: u32 = 8;
/// The incident that started this project was recorded with files of this length.
const ROLLED: Duration = Duration::from_secs(120);

pub fn run(binaries: &Path, part: &str, runs: u32) -> anyhow::Result<()> {
    const PARTS: [&str; 5] = ["perf", "whole", "crowd", "fast", "freeze"];
    if !part.is_empty() && !PARTS.contains(&part) {
        bail!("no such part: recorder:{part}; expected one of recorder:{}", PARTS.join(", recorder:"));
    }
    let coroner = binaries.join("coroner");
    if part.is_empty() || part == "perf" {
        beside_perf(&coroner, runs)?;
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

/// At the same rate: own CPU of whole recordings of the same length, from start to a readable file, and what the sampled cores lose
/// to it.
fn beside_perf(coroner: &Path, runs: u32) -> anyhow::Result<()> {
    let tracefs = Tracefs::find()?;
    let length = (SETTLE + TURN).as_secs_f64();
    println!("\n97 samples per second and core, `stress-ng --cpu 2`, recordings of {length:.0} s:\n");
    println!(
        "| run | | per sample, µs in the interrupt | samples, ms per second | own CPU, ms per second | own CPU in total, ms |"
    );
    println!("|---|---|---|---|---|---|");
    let mut sums = Vec::new();
    for run in 1..=runs {
        let dir = tempfile::tempdir()?;
        let stress = process::stress()?;
        let perf = process::perf_record(97, &dir.path().join("perf.data"), SETTLE, TURN)?;
        let per_file = process::perf_rolling(97, &dir.path().join("rolled"), perf.cpu_ms_per_s)?;
        let with = Recorder::start(coroner, &dir.path().join("a"), 97)?.measure(SETTLE, TURN)?;
        let without = Recorder::start(coroner, &dir.path().join("b"), 0)?.measure(SETTLE, TURN)?;
        let (of_perf, of_us) = samples_of_each(&tracefs, coroner, dir.path())?;
        drop(stress);
        let own = (with.storing_ms_per_s - without.storing_ms_per_s).max(0.0);
        // Without stack samples, the recorder's main thread samples the kernel's work by itself.
        let instead = (without.first_thread_ms_per_s - with.first_thread_ms_per_s).max(0.0);
        let in_all = (with.whole_cpu_ms - without.whole_cpu_ms + instead * length).max(0.0);
        let row = |who: &str, samples: &Samples, second: f64, all: f64| {
            let (us, samples) = (samples.mean_us(), samples.ms_per_s());
            let all = if all.is_nan() { "–".to_owned() } else { format!("{all:.0}") };
            println!("| {run} | {who} | {us:.1} | {samples:.2} | {second:.2} | {all} |");
        };
        row("perf", &of_perf, perf.cpu_ms_per_s, perf.whole_cpu_ms);
        let rolling = perf.cpu_ms_per_s + per_file / ROLLED.as_secs_f64();
        row("continuous perf, a new file every two minutes", &of_perf, rolling, f64::NAN);
        row("recorder: what samples add", &of_us, own, in_all);
        row("recorder, all of it", &of_us, with.cpu_ms_per_s, with.whole_cpu_ms);
        let (of_us, of_perf) = (of_us.ms_per_s(), of_perf.ms_per_s());
        sums.push([
            (of_us, of_perf),
            (of_us + own, of_perf + perf.cpu_ms_per_s),
            (in_all / length, perf.whole_cpu_ms / length),
            (of_us + in_all / length, of_perf + perf.whole_cpu_ms / length),
            (own, rolling),
        ]);
    }
    let names = [
        "samples",
        "samples, reading and storing, while it records",
        "own CPU, start and end included",
        "samples and own CPU, start and end included",
        "own CPU over months, against perf with two-minute files",
    ];
    println!(
        "\nMedians, ms per second over all cores:\n\n| | perf | recorder | of perf | met |\n|---|---|---|---|---|"
    );
    for (index, name) in names.iter().enumerate() {
        let ours = median(sums.iter().map(|sums| sums[index].0).collect());
        let perfs = median(sums.iter().map(|sums| sums[index].1).collect());
        println!("| {name} | {perfs:.2} | {ours:.2} | {:.2} | {} |", ours / perfs, yes(ours <= perfs));
    }
    Ok(())
}

/// The kernel's cost of perf's and the recorder's samples, in short alternating turns: a sample takes longer while others use the
/// caches, which changes from minute to minute.
fn samples_of_each(tracefs: &Tracefs, coroner: &Path, dir: &Path) -> anyhow::Result<(Samples, Samples)> {
    let (mut perfs, mut ours) = (Samples::default(), Samples::default());
    for turn in 0..TRACED_TURNS {
        // Wait until the start of either is over.
        let perf = process::Perf::start(97, &dir.join("traced.data"))?;
        std::thread::sleep(Duration::from_secs(2));
        perfs += interrupts::watch(tracefs, TRACED)?;
        drop(perf);
        let recorder = Recorder::start(coroner, &dir.join(format!("traced-{turn}")), 97)?;
        std::thread::sleep(Duration::from_secs(2));
        ours += interrupts::watch(tracefs, TRACED)?;
        drop(recorder);
    }
    Ok((perfs, ours))
}

fn whole(coroner: &Path, runs: u32) -> anyhow::Result<()> {
    println!("\nThe whole recorder at the default 49 Hz, `stress-ng --cpu 2`, 60 s per run:\n");
    print_runs(coroner, runs, 1.0)
}

fn crowd(coroner: &Path, lab: &Path, runs: u32) -> anyhow::Result<()> {
    println!("\nThe same with 2,000 additional processes and 10,000 cgroups:\n");
    let _crowd = Lab::start(lab, &["crowd", "--processes", "2000", "--cgroups", "10000"])?;
    print_runs(coroner, runs, 3.0)
}

fn print_runs(coroner: &Path, runs: u32, most_percent: f64) -> anyhow::Result<()> {
    println!(
        "| run | % of one core | RSS MB | peak RSS MB | samples | bytes per sample | dictionaries, bytes per sample | total, KB/s | 24 h × 64 cores, samples and dictionaries | met |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for run in 1..=runs {
        let dir = tempfile::tempdir()?;
        let stress = process::stress()?;
        let measured = Recorder::start(coroner, &dir.path().join("a"), 49)?.measure(SETTLE, TURN)?;
        drop(stress);
        print_whole(run, &measured, &dir.path().join("a"), most_percent)?;
    }
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
    let stress = process::stress()?;
    let recorder = Recorder::start(coroner, &dir.path().join("a"), 999)?;
    let summary = recorder.summary_after(Duration::from_secs(20))?;
    drop(stress);
    let (samples, lost) = (&summary["samples"], &summary["lost_samples"]);
    let seconds = summary["seconds"].as_f64().context("no seconds")?;
    let expected = 999.0 * seconds * std::thread::available_parallelism()?.get() as f64;
    let share = samples.as_f64().unwrap_or(0.0) / expected;
    println!(
        "\n999 Hz on all cores, {seconds:.0} s under `stress-ng --cpu 2`: {samples} samples ({:.1} % of the nominal rate), {lost} lost: {}",
        share * 100.0,
        yes(*lost == 0)
    );
    Ok(())
}

fn freeze(coroner: &Path) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let stress = process::stress()?;
    let recorder = Recorder::start(coroner, &dir.path().join("a"), 49)?;
    std::thread::sleep(Duration::from_secs(20));
    let took = recorder.mark_and_wait(coroner)?;
    drop(recorder);
    drop(stress);
    println!(
        "\nFrom `coroner mark` to the frozen file of the minutes before: {:.2} s: {}",
        took.as_secs_f64(),
        yes(took.as_secs_f64() <= 2.0)
    );
    if took > Duration::from_secs(60) {
        bail!("the incident was never frozen");
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
