//! Recall, precision and error of the monopoly finder. A load with random bursts records what it did; perf records it; the finder
//! sees only perf's recording.

pub mod workload;

use super::{Row, perf};
use anyhow::bail;
use coroner_profile::import;
use coroner_profile::symbols::Symbols;
use coroner_profile::views::monopolies::{By, Finder, MonopolyOptions};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;

const MS: u64 = 1_000_000;
const SECONDS: u64 = 12;
/// Seeds per rate and run.
const RATES: [(u32, u64); 3] = [(999, 4), (99, 2), (49, 2)];
const BAR: f64 = 0.95;
/// Others may interrupt a run for this long (`MonopolyOptions::pause`); closer stretches of one thread are one run.
const PAUSE: u64 = 5 * MS;

pub fn run(_binaries: &Path, runs: u32) -> anyhow::Result<Vec<Row>> {
    if !rustix::process::geteuid().is_root() {
        bail!("the load has real-time threads and perf records all cores: run as root");
    }
    let threshold = MonopolyOptions::default().threshold;
    let mut rows = Vec::new();
    for (rate, seeds) in RATES {
        let mut score = Score::default();
        for seed in 0..seeds * u64::from(runs) {
            let directory = tempfile::tempdir()?;
            let (recording, truth) = (directory.path().join("perf.data"), directory.path().join("truth"));
            record(rate, seed + u64::from(rate), threshold, &recording, &truth)?;
            let truth = read_truth(&std::fs::read_to_string(&truth)?)?;
            let found = find(&recording)?;
            score.add(&truth, &found, threshold);
        }
        rows.push(score.row(rate, SECONDS * seeds * u64::from(runs)));
    }
    Ok(rows)
}

/// Runs perf around the load.
fn record(rate: u32, seed: u64, threshold: u64, recording: &Path, truth: &Path) -> anyhow::Result<()> {
    let (rate, seed, seconds) = (rate.to_string(), seed.to_string(), SECONDS.to_string());
    let threshold = (threshold / MS).to_string();
    let own = std::env::current_exe()?;
    let (own, truth) = (own.to_string_lossy(), truth.to_string_lossy());
    let options = ["-q", "-k", "CLOCK_MONOTONIC", "-e", "cpu-clock", "-a", "-g", "-F", &rate];
    let load =
        [&own, "bursts", "--seed", &seed, "--seconds", &seconds, "--threshold-ms", &threshold, "--truth", &truth];
    perf::record(recording, &options, &load, &[])
}

/// A stretch of one thread on one core.
#[derive(Clone, Debug)]
struct Stretch {
    tid: u32,
    core: u32,
    start: u64,
    end: u64,
    uncertainty: u64,
}

impl Stretch {
    fn length(&self) -> u64 {
        self.end - self.start
    }

    fn shared(&self, other: &Stretch) -> u64 {
        if self.tid != other.tid || self.core != other.core {
            return 0;
        }
        self.end.min(other.end).saturating_sub(self.start.max(other.start))
    }
}

fn read_truth(text: &str) -> anyhow::Result<Vec<Stretch>> {
    let mut truth = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, tid, core, start, end] = fields[..] else { bail!("the load wrote {line}") };
        let (tid, core) = (tid.parse()?, core.parse()?);
        truth.push(Stretch { tid, core, start: start.parse()?, end: end.parse()?, uncertainty: 0 });
    }
    truth.sort_by_key(|stretch| (stretch.core, stretch.tid, stretch.start));
    truth.dedup_by(|next, last| {
        let one = next.tid == last.tid && next.core == last.core && next.start.saturating_sub(last.end) <= PAUSE;
        if one {
            last.end = next.end;
        }
        one
    });
    Ok(truth)
}

fn find(recording: &Path) -> anyhow::Result<Vec<Stretch>> {
    let mut finder = Finder::new(MonopolyOptions::default());
    let imported = import::file(
        recording,
        &import::ImportOptions::default(),
        &mut Symbols::of_this_machine(),
        &mut |names, sample| {
            finder.add(names, &sample);
            ControlFlow::Continue(())
        },
    )?;
    let found = finder.finish(&imported.names).into_iter().filter(|found| found.by == By::Thread);
    Ok(found
        .filter_map(|found| {
            let tid = imported.names.task(found.task).tid?;
            let (start, end) = (found.start, found.end_time());
            Some(Stretch { tid, core: found.core, start, end, uncertainty: found.uncertainty })
        })
        .collect())
}

#[derive(Default)]
struct Score {
    /// Long runs (at least twice the threshold), and how many of them were found.
    long: (u64, u64),
    /// All runs of at least the threshold, and how many were found.
    all: (u64, u64),
    /// Found runs of the load's threads, and how many of them are real.
    found: (u64, u64),
    /// Runs found in more than one part.
    split: u64,
    /// Found runs of other threads on this machine; their truth is unknown.
    unknown: u64,
    start_errors: Vec<u64>,
    length_errors: Vec<u64>,
}

impl Score {
    fn add(&mut self, truth: &[Stretch], found: &[Stretch], threshold: u64) {
        let explain = std::env::var_os("CORONER_BENCH_EXPLAIN").is_some();
        let threads: HashSet<u32> = truth.iter().map(|stretch| stretch.tid).collect();
        for one in truth.iter().filter(|one| one.length() >= threshold) {
            let best = found.iter().max_by_key(|found| found.shared(one));
            let hit = best.filter(|found| found.shared(one) * 2 >= one.length());
            let parts = found.iter().filter(|found| found.shared(one) > 0).count();
            self.split += u64::from(parts > 1);
            if explain && parts > 1 {
                eprintln!("in {parts} parts: {one:?}, {} ms", one.length() / MS);
            }
            self.all.0 += 1;
            self.all.1 += u64::from(hit.is_some());
            if one.length() >= 2 * threshold {
                self.long.0 += 1;
                self.long.1 += u64::from(hit.is_some());
            }
            match hit {
                Some(found) => {
                    self.start_errors.push(found.start.abs_diff(one.start));
                    self.length_errors.push(found.length().abs_diff(one.length()));
                }
                None if explain => eprintln!("missed: {one:?}, {} ms", one.length() / MS),
                None => {}
            }
        }
        for one in found {
            if !threads.contains(&one.tid) {
                self.unknown += 1;
                continue;
            }
            let best = truth.iter().max_by_key(|truth| truth.shared(one));
            // Samples cannot tell the threshold from a run that is shorter by the uncertainty.
            let was_there = best.is_some_and(|truth| {
                truth.shared(one) * 2 >= one.length() && truth.length() + one.uncertainty >= threshold
            });
            self.found.0 += 1;
            self.found.1 += u64::from(was_there);
            if explain && !was_there {
                eprintln!("not there: {one:?}, {} ms; nearest {best:?}", one.length() / MS);
            }
        }
    }

    fn row(mut self, rate: u32, seconds: u64) -> Row {
        let share = |(all, part): (u64, u64)| if all == 0 { 1.0 } else { part as f64 / all as f64 };
        let (recall, precision) = (share(self.long), share(self.found));
        let errors = |errors: &mut Vec<u64>| {
            errors.sort_unstable();
            let ms = |error: Option<&u64>| error.map_or(0.0, |error| *error as f64 / 1e6);
            format!("{:.1}/{:.1} ms", ms(errors.get(errors.len() / 2)), ms(errors.last()))
        };
        let (start, length) = (errors(&mut self.start_errors), errors(&mut self.length_errors));
        let enough = self.long.0 > 0 && recall >= BAR && precision >= BAR && self.split == 0;
        Row {
            work: format!("monopolies found blind, {rate} Hz, {seconds} s"),
            ours: format!(
                "recall {recall:.3} of {} runs ≥ 200 ms ({:.3} of {} ≥ 100 ms), precision {precision:.3} of {}, {} in more than one part; error of start {start}, of length {length} (median/worst); {} of other threads not judged",
                self.long.0,
                share(self.all),
                self.all.0,
                self.found.0,
                self.split,
                self.unknown
            ),
            bar: if rate == 999 { format!("≥ {BAR} for both, none in parts") } else { "none".to_owned() },
            met: rate != 999 || enough,
            ..Row::alone()
        }
    }
}
