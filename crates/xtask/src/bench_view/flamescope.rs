//! Against FlameScope on the same perf script text: from opening the file to the heatmap, and to the flame graph of one second.
//!
//! For FlameScope ([`crate::flamescope`]) only its own functions are timed: no start of Python, no web server, no browser. For us
//! everything is, from the start of the process to the last byte.

use super::server::Server;
use super::{Row, SECOND, ms};
use crate::bench_profile::{text, vary};
use crate::flamescope;
use anyhow::{Context, bail};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const SIZE: u64 = 200_000_000;
const BAR: f64 = 20.0;

pub fn run(coroner: &Path, runs: u32) -> anyhow::Result<Vec<Row>> {
    let scratch = tempfile::tempdir()?;
    let long = scratch.path().join("varied.txt");
    let short = std::fs::read_to_string(text::short_text(scratch.path())?)?;
    let size = vary::write(text::from_first_stack(&short), SIZE, BufWriter::new(File::create(&long)?))?;
    let (mut heatmaps, mut flames) = (Vec::new(), Vec::new());
    let theirs = theirs(&long)?;
    for _ in 0..runs {
        heatmaps.push(ours(coroner, &long, "heatmap?rows=50")?);
        flames.push(ours(coroner, &long, &format!("flame?from={}&to={}", 5 * SECOND, 6 * SECOND))?);
    }
    let middle = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let row = |what: &str, ours: Duration, theirs: Option<Duration>| {
        let ratio = theirs.map(|theirs| theirs.as_secs_f64() / ours.as_secs_f64());
        Row {
            work: format!("open {:.0} MB of perf script → {what}", size as f64 / 1e6),
            ours: ms(ours),
            peer: match (theirs, ratio) {
                (Some(theirs), Some(ratio)) => format!("FlameScope {}: {ratio:.1}×", ms(theirs)),
                _ => "FlameScope: not installed (FLAMESCOPE_DIR)".to_owned(),
            },
            bar: format!("≥ {BAR}×"),
            met: ratio.is_some_and(|ratio| ratio >= BAR),
            ..Row::default()
        }
    };
    Ok(vec![
        row("heatmap", middle(heatmaps), theirs.map(|(heatmap, _)| heatmap)),
        row("heatmap → flame graph of one second", middle(flames), theirs.map(|(heatmap, flame)| heatmap + flame)),
    ])
}

/// From the start of the process to the answer; retries like the page until the file is read.
fn ours(coroner: &Path, text: &Path, path: &str) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let server = Server::start(coroner, text)?;
    loop {
        match server.ask(path)? {
            (_, 200) => return Ok(began.elapsed()),
            (_, 503) if began.elapsed() < Duration::from_secs(60) => std::thread::sleep(Duration::from_millis(10)),
            (got, status) => bail!("{path}: {status}: {}", String::from_utf8_lossy(&got.body)),
        }
    }
}

/// The times of its two steps, as it prints them. `None` if it is not installed.
fn theirs(text: &Path) -> anyhow::Result<Option<(Duration, Duration)>> {
    let Some(mut command) = flamescope::command(include_str!("flamescope.py"), text) else { return Ok(None) };
    let output = command.stderr(Stdio::inherit()).output().context("python3 cannot be started")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut times = said.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
    match (times.next(), times.next(), output.status.success()) {
        (Some(heatmap), Some(flame), true) => {
            Ok(Some((Duration::from_secs_f64(heatmap), Duration::from_secs_f64(flame))))
        }
        _ => bail!("FlameScope failed: {said}"),
    }
}
