//! The page's server: `cargo xtask bench view`. Wall-clock times of real requests over loopback, with a new server for each turn, so
//! that nothing is cached; the median of several turns.
//!
//! `VIEW_BENCH_DIR` keeps the generated recordings between runs.

mod flamescope;
mod server;
mod set;

use crate::bench::yes;
use crate::bench_profile::Row;
use server::Server;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
const FIRST_PAINT: Duration = Duration::from_secs(1);
const SELECTION: Duration = Duration::from_millis(200);
const GRID: Duration = Duration::from_millis(300);

fn within(work: String, took: Duration, what: &str, bar: Duration) -> Row {
    Row { work, ours: format!("{}{what}", ms(took)), bar: format!("≤ {}", ms(bar)), met: took <= bar, ..Row::alone() }
}

/// `part` is one of set, day, flamescope, or empty for all.
pub fn run(binaries: &Path, part: &str, runs: u32) -> anyhow::Result<()> {
    type Measure = fn(&Path, u32) -> anyhow::Result<Vec<Row>>;
    let parts: [(&str, Measure); 3] = [("set", of_set), ("day", of_day), ("flamescope", flamescope::run)];
    println!("| work | ours | peer | bar | met |");
    println!("|---|---|---|---|---|");
    for (name, measure) in parts.into_iter().filter(|(name, _)| name.contains(part)) {
        eprintln!("{name} …");
        for row in measure(&binaries.join("coroner"), runs.max(3))? {
            println!("| {} | {} | {} | {} | {} |", row.work, row.ours, row.peer, row.bar, yes(row.met));
        }
    }
    Ok(())
}

fn ms(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}

/// Where the generated recordings are, and what removes them.
struct Place {
    path: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

fn place(name: &str) -> anyhow::Result<Place> {
    match std::env::var_os("VIEW_BENCH_DIR") {
        Some(directory) => Ok(Place { path: PathBuf::from(directory).join(name), _temporary: None }),
        None => {
            let directory = tempfile::tempdir()?;
            Ok(Place { path: directory.path().join(name), _temporary: Some(directory) })
        }
    }
}

/// 500 MB of recordings as a recorder on 192 cores keeps them.
fn of_set(coroner: &Path, runs: u32) -> anyhow::Result<Vec<Row>> {
    let place = place("set-500mb")?;
    let set = set::make(&place.path, set::Until::Bytes(500_000_000), set::RATE)?;
    let of =
        format!("{:.0} MB, {} files, {} cores, {} samples", set.bytes as f64 / 1e6, set.files, set::CORES, set.samples);
    let mut rows = vec![first_paint(coroner, &place.path, runs, &of)?];
    let middle = set.files / 2 * set::FILE_SECONDS + 301;
    let all = set.files * set::FILE_SECONDS;
    for (name, seconds) in [("second", 1), ("10 s", 10), ("minute", 60), ("10 minutes", 600), ("everything", all)] {
        let from = if seconds == all { 0 } else { middle.min(all - seconds) };
        // A new selection each turn, so that nothing is cached.
        let took = Server::median_of(coroner, &place.path, runs, |server, turn| {
            let from = (from + u64::from(turn) * 7) % (all - seconds + 1);
            server.get(&format!("flame?from={}&to={}", from * SECOND, (from + seconds) * SECOND))
        })?;
        rows.push(within(format!("flame graph of a new selection: {name}"), took.time, &took.said("part"), SELECTION));
    }
    for (name, seconds) in [("minute", 60), ("10 minutes", 600), ("everything", all)] {
        let took = Server::median_of(coroner, &place.path, runs, |server, turn| {
            let from = (u64::from(turn) * 13) % (all - seconds + 1);
            server.get(&format!("cores?columns=1200&from={}&to={}", from * SECOND, (from + seconds) * SECOND))
        })?;
        rows.push(within(format!("cores, 1200 columns: {name}"), took.time, &took.size(), GRID));
    }
    Ok(rows)
}

/// From starting the server to everything the first view needs: source, verdict, cores.
fn first_paint(coroner: &Path, path: &Path, runs: u32, of: &str) -> anyhow::Result<Row> {
    let mut times = Vec::new();
    for _ in 0..runs {
        let began = std::time::Instant::now();
        let server = Server::start(coroner, path)?;
        let started = began.elapsed();
        let asked = ["source", "diagnosis", "cores?columns=1200"];
        // Concurrently, like a browser.
        let each = server.get_together(&asked)?;
        times.push((began.elapsed(), started, each));
    }
    times.sort_by_key(|(all, ..)| *all);
    let (all, started, each) = &times[times.len() / 2];
    let each: Vec<String> = each.iter().map(|got| format!("{} {}", got.path, ms(got.time))).collect();
    let what = format!(" (start {}, {})", ms(*started), each.join(", "));
    Ok(within(format!("first useful paint: start, source, verdict, cores; {of}"), *all, &what, FIRST_PAINT))
}

/// 24 hours of 192 cores.
fn of_day(coroner: &Path, runs: u32) -> anyhow::Result<Vec<Row>> {
    let place = place("day-192")?;
    let day = set::make(&place.path, set::Until::Files(144), 1)?;
    let of = format!("24 h × {} cores, {:.0} MB, {} samples", set::CORES, day.bytes as f64 / 1e6, day.samples);
    let mut rows = vec![first_paint(coroner, &place.path, runs, &of)?];
    for hours in [24, 6, 1] {
        let seconds = hours * 3600;
        let took = Server::median_of(coroner, &place.path, runs, |server, turn| {
            let from = u64::from(turn) * 11 % (24 * 3600 - seconds + 1);
            server.get(&format!("cores?columns=1200&from={}&to={}", from * SECOND, (from + seconds) * SECOND))
        })?;
        rows.push(within(
            format!("cores, 1200 columns: {hours} h of 24 h × {} cores", set::CORES),
            took.time,
            &took.size(),
            GRID,
        ));
    }
    let took = Server::median_of(coroner, &place.path, runs, |server, _| server.get("timeline?columns=1200"))?;
    rows.push(within("time line of 24 h".to_owned(), took.time, &took.size(), GRID));
    let took = Server::median_of(coroner, &place.path, runs, |server, turn| {
        let from = u64::from(turn) * 3601;
        server.get(&format!("flame?from={}&to={}", from * SECOND, (from + 60) * SECOND))
    })?;
    rows.push(within("flame graph of a minute of them".to_owned(), took.time, &took.said("part"), SELECTION));
    Ok(rows)
}
