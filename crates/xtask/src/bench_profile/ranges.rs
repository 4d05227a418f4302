//! One second's flame graph out of a day of recordings.
//!
//! Generating the day takes minutes. `PROFILE_BENCH_DAY` names a directory to keep it in.

pub mod day;

use super::Row;
use crate::bench::{bytes_in, on_all_cores};
use anyhow::Context;
use coroner_profile::import::{self, ImportOptions};
use coroner_profile::symbols::Symbols;
use coroner_profile::views::{Filter, Selector, StackSums, flame};
use day::{CORES, FILE_SECONDS, Node, RATE, SECOND, START_WALL};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FILES: u64 = 24 * 3600 / FILE_SECONDS;
const BAR: Duration = Duration::from_millis(20);

pub fn run(_binaries: &Path, runs: u32) -> anyhow::Result<Vec<Row>> {
    let temporary = tempfile::tempdir()?;
    let kept = std::env::var_os("PROFILE_BENCH_DAY").map(PathBuf::from);
    let directory = kept.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(directory)?;
    let began = Instant::now();
    if std::fs::read_dir(directory)?.count() as u64 != FILES {
        make(directory, FILES)?;
    }
    let samples = FILES * FILE_SECONDS * RATE * u64::from(CORES);
    let bytes = bytes_in(directory)?;
    eprintln!(
        "{FILES} files, {samples} samples, {:.2} GB, ready after {:.0} s",
        bytes as f64 / 1e9,
        began.elapsed().as_secs_f64()
    );
    let seconds = FILES * FILE_SECONDS;
    let mut rows = Vec::new();
    for (where_in, second) in [("first", 0), ("middle", seconds / 2 + 301), ("last", seconds - 1)] {
        let times = measure(directory, second, runs.max(5))?;
        rows.push(Row {
            work: format!("flame graph of the {where_in} second of {} h × {CORES} cores", seconds / 3600),
            ours: format!("{} CPU, {} wall; {} wall without page cache", ms(times.cpu), ms(times.wall), ms(times.cold)),
            bar: "≤ 20 ms".to_owned(),
            met: times.wall <= BAR,
            ..Row::alone()
        });
    }
    let packed = chunk_bytes(directory, FILES)?;
    let each = |bytes: u64| bytes as f64 / samples as f64;
    rows.push(Row {
        work: format!("bytes per sample, {samples} samples in {FILES} files"),
        ours: format!("{:.2}, with names {:.2}", each(packed), each(bytes)),
        bar: "≤ 10".to_owned(),
        met: each(bytes) <= 10.0,
        ..Row::alone()
    });
    Ok(rows)
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// Writes the files, as many at a time as there are cores.
fn make(directory: &Path, files: u64) -> anyhow::Result<()> {
    let node = Node::new();
    let next = AtomicU64::new(0);
    let work = || -> anyhow::Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= files {
                return Ok(());
            }
            node.write(directory, number)?;
        }
    };
    on_all_cores(work)
}

/// The size of the sample chunks, from the first file.
fn chunk_bytes(directory: &Path, files: u64) -> anyhow::Result<u64> {
    let range = START_WALL..START_WALL + FILE_SECONDS * SECOND - SECOND;
    let options = ImportOptions { range: Some(range), ..ImportOptions::default() };
    let mut ignore = |_: &_, _| ControlFlow::Continue(());
    Ok(import::file(directory, &options, &mut Symbols::none(), &mut ignore)?.report.bytes * files)
}

/// The minimum of several turns.
struct Times {
    cpu: Duration,
    wall: Duration,
    cold: Duration,
}

fn measure(directory: &Path, second: u64, runs: u32) -> anyhow::Result<Times> {
    let range = START_WALL + second * SECOND..START_WALL + (second + 1) * SECOND;
    let mut cold = Vec::new();
    for _ in 0..3 {
        for entry in std::fs::read_dir(directory)? {
            let file = std::fs::File::open(entry?.path())?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        cold.push(flame_graph(directory, &range)?.1);
    }
    let warm: Vec<(Duration, Duration)> =
        (0..runs).map(|_| flame_graph(directory, &range)).collect::<anyhow::Result<_>>()?;
    let least = |times: &mut dyn Iterator<Item = Duration>| times.min().unwrap_or_default();
    Ok(Times {
        cpu: least(&mut warm.iter().map(|(cpu, _)| *cpu)),
        wall: least(&mut warm.iter().map(|(_, wall)| *wall)),
        cold: least(&mut cold.into_iter()),
    })
}

/// CPU time of this thread so far.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// From the directory's name to the tree that is drawn. CPU and wall time.
fn flame_graph(directory: &Path, range: &Range<u64>) -> anyhow::Result<(Duration, Duration)> {
    let (began, used) = (Instant::now(), cpu_time());
    let mut sums = StackSums::by_command();
    let mut selector = Selector::new(Filter::between(range.start, range.end));
    let options = ImportOptions { range: Some(range.clone()), ..ImportOptions::default() };
    let imported = import::file(directory, &options, &mut Symbols::none(), &mut |names, sample| {
        if selector.has(names, &sample) {
            sums.add(names, &sample);
        }
        ControlFlow::Continue(())
    })?;
    let (event, samples) = *sums.events().first().context("no samples")?;
    let tree = flame::tree(&imported.names, &sums, event, &flame::FlameOptions::default());
    let took = (cpu_time() - used, began.elapsed());
    let expected = RATE * u64::from(CORES);
    anyhow::ensure!(
        samples.abs_diff(expected) <= 2 * u64::from(CORES) && tree.samples == samples && tree.nodes.len() > 1000,
        "{samples} samples and {} nodes for one second, expected about {expected}",
        tree.nodes.len()
    );
    anyhow::ensure!(imported.report.oddities.is_empty(), "{:?}", imported.report);
    Ok(took)
}
