//! The fleet's collector under ten thousand simulated nodes: what it costs, how fast it answers, what it stores, and what happens when all
//! come back at once. The simulator runs on the same machine; its own cost is not counted, but shown.

use crate::bench::yes;
use crate::child::{Ended, ends_with_us};
use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use std::fs::read_to_string;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

const NODES: u32 = 10_000;
/// With the simulated fleet's own: 40 attributes.
const LABELS: u32 = 28;
const DAYS: f64 = 7.0;
/// The history has one minute of each hour, and the last hour whole.
const ONE_MINUTE_IN: u32 = 60;
/// At ten times the clock's pace: an hour of fleet time. Each connection waits for a commit, so there are many.
const LIVE: [&str; 6] = ["--speed", "10", "--for", "6m", "--connections", "64"];

struct Collector {
    child: Ended,
    url: String,
    dir: tempfile::TempDir,
    binaries: PathBuf,
}

/// `part`: `history`, `live`, `outage`; empty: all.
pub fn run(binaries: &Path, part: &str) -> anyhow::Result<()> {
    ensure!(["", "history", "live", "outage"].contains(&part), "fleet: its parts are history, live, outage");
    let collector = Collector::start(binaries)?;
    println!("| work | bar | measured | met |\n|---|---|---|---|");
    history(&collector)?;
    if ["", "live"].contains(&part) {
        live(&collector)?;
    }
    if ["", "outage"].contains(&part) {
        outage(&collector)?;
    }
    Ok(())
}

fn row(work: &str, bar: &str, measured: &str, met: Option<bool>) {
    println!("| {work} | {bar} | {measured} | {} |", met.map_or("–", yes));
}

fn history(collector: &Collector) -> anyhow::Result<()> {
    let one_minute_in = ONE_MINUTE_IN.to_string();
    let sent = collector.simulate(&["--span", "7d", "--one-minute-in", &one_minute_in])?;
    let what = format!("{NODES} nodes, 7 days of history (one minute of each hour, the last hour whole)");
    row(&what, "–", &sent.to_string(), None);
    for (asked, most_ms) in [
        (&["status"][..], 500.0),
        (&["why", "zombie-memcgs"], 2000.0),
        (&["why"], 2000.0),
        (&["nodes", "--where", "zombies>1000", "--limit", "50"], 2000.0),
        (&["next"], 2000.0),
    ] {
        let ms = collector.ask(asked)?;
        let what = format!("`coroner fleet {}`", asked.join(" "));
        row(&what, &format!("{most_ms:.0} ms"), &format!("{ms:.0} ms, the second of two"), Some(ms <= most_ms));
    }
    collector.stored()
}

fn live(collector: &Collector) -> anyhow::Result<()> {
    let sent = collector.simulate(&[&["--span", "1h"], &LIVE[..]].concat())?;
    let times = |line: &str| line.split("99 % within ").nth(1)?.split(' ').next()?.parse::<f64>().ok();
    let worst = sent.said.lines().filter_map(times).fold(0.0, f64::max);
    let minutes = sent.said.lines().filter(|line| line.starts_with("minute ")).count();
    let what = format!("live, {minutes} minutes of fleet time in 6");
    // Slower than asked for: then nothing was shown.
    let is_fast = minutes >= 58;
    row(&what, "60 in 6, 50 % of a core", &sent.to_string(), Some(is_fast && sent.percent() <= 50.0));
    row("its memory at most", "512 MB", &format!("{:.0} MB", sent.peak_mb), Some(sent.peak_mb <= 512.0));
    row("99 % of requests, in the worst minute", "250 ms", &format!("{worst:.0} ms"), Some(worst <= 250.0));
    Ok(())
}

fn outage(collector: &Collector) -> anyhow::Result<()> {
    let sent = collector.simulate(&["--span", "1h", "--outage", "1h"])?;
    let line = sent.said.lines().find(|line| line.contains("came back at once")).context("no outage was simulated")?;
    let seconds = line.split("all stored after ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    row("an hour's outage", "all stored in 10 min", line, seconds.map(|seconds| seconds <= 600.0));
    row("its memory at most", "512 MB", &format!("{:.0} MB", sent.peak_mb), Some(sent.peak_mb <= 512.0));
    Ok(())
}

/// What a simulation cost the collector.
struct Sent {
    seconds: f64,
    collector_s: f64,
    simulator_s: f64,
    peak_mb: f64,
    said: String,
}

impl Sent {
    fn percent(&self) -> f64 {
        self.collector_s / self.seconds * 100.0
    }
}

impl std::fmt::Display for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.0} s; collector {:.1} s of CPU time ({:.0} % of a core), {:.0} MB at most; simulator {:.1} s",
            self.seconds,
            self.collector_s,
            self.percent(),
            self.peak_mb,
            self.simulator_s
        )
    }
}

impl Collector {
    fn start(binaries: &Path) -> anyhow::Result<Collector> {
        let dir = tempfile::tempdir()?;
        let mut command = Command::new(binaries.join("coroner-fleet"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--dir"]).arg(dir.path()).stdout(Stdio::piped());
        let mut child = ends_with_us(&mut command).spawn().context("coroner-fleet")?;
        let stdout = child.stdout.take().context("no output")?;
        let child = Ended::by(Signal::TERM, child);
        let mut url = None;
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(rest) = line.strip_prefix("at ") {
                url = rest.split(';').next().map(str::to_owned);
            }
            if line.contains("coroner fleet status") {
                break;
            }
        }
        let url = url.context("the collector did not start")?;
        Ok(Collector { child, url, dir, binaries: binaries.to_owned() })
    }

    fn simulate(&self, more: &[&str]) -> anyhow::Result<Sent> {
        let mut lab = Command::new(self.binaries.join("coroner-lab"));
        lab.args(["fleet", "--story", "zombies-in-one-image", "--seed", "1", "--to", &self.url, "--token-file"]);
        lab.arg(self.dir.path().join("agent.token")).args(["--nodes", &NODES.to_string()]);
        lab.args(["--labels", &LABELS.to_string()]).args(more);
        let (began, cpu, children) = (Instant::now(), self.cpu_s()?, crate::bench::children_cpu_ms());
        // The highest so far would also hold what earlier work needed.
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")?;
        let said = succeeded(lab.output()?, "coroner-lab fleet")?;
        Ok(Sent {
            seconds: began.elapsed().as_secs_f64(),
            collector_s: self.cpu_s()? - cpu,
            simulator_s: (crate::bench::children_cpu_ms() - children) / 1000.0,
            peak_mb: self.peak_mb()?,
            said,
        })
    }

    /// Milliseconds of the second of two runs, the command's own start included.
    fn ask(&self, what: &[&str]) -> anyhow::Result<f64> {
        let mut ms = 0.0;
        for _ in 0..2 {
            let mut command = Command::new(self.binaries.join("coroner-fleet"));
            command.args(what).args(["--json", "--at", &self.url, "--token-file"]);
            command.arg(self.dir.path().join("user.token"));
            let began = Instant::now();
            succeeded(command.output()?, &format!("coroner fleet {}", what.join(" ")))?;
            ms = began.elapsed().as_secs_f64() * 1000.0;
        }
        Ok(ms)
    }

    /// Bytes of each table and its indexes, and what a node and day take if every minute is kept.
    fn stored(&self) -> anyhow::Result<()> {
        // Of a table: what stands in its own pages and in those of its indexes.
        let sql = "SELECT s.tbl_name, sum(d.pgsize) FROM dbstat d JOIN sqlite_schema s ON s.name = d.name GROUP BY 1 ORDER BY 2 DESC;
            SELECT 'minutes in all', count(*) FROM minutes; SELECT 'stacks in all', count(*) FROM stack_samples;";
        let output = Command::new("sqlite3").arg(self.dir.path().join("fleet.db")).arg(sql).output();
        let text = succeeded(output.context("sqlite3 (Debian: sqlite3)")?, "sqlite3")?;
        let rows: Vec<(&str, f64)> = text
            .lines()
            .filter_map(|line| line.split_once('|'))
            .filter_map(|(t, n)| Some((t, n.parse().ok()?)))
            .collect();
        let in_all =
            |name: &str| rows.iter().find(|(table, _)| *table == name).map(|(_, rows)| *rows).context("no rows");
        let (minutes, stacks) = (in_all("minutes in all")?, in_all("stacks in all")?);
        let mut all = 0.0;
        for (table, bytes) in rows.iter().filter(|(table, _)| !table.ends_with(" in all")) {
            // History has a 60th of the minutes, and stacks for its last hour only.
            let of_day = match *table {
                "minutes" => bytes / minutes * 1440.0,
                "stack_samples" => bytes / stacks * 144.0,
                _ => bytes / f64::from(NODES) / DAYS,
            };
            all += of_day;
            if of_day >= 10.0 {
                row(&format!("stored for a node and day: {table}"), "–", &format!("{:.1} KB", of_day / 1000.0), None);
            }
        }
        let measured = format!("{:.0} KB", all / 1000.0);
        row("stored for a node and day: all", "250 KB", &measured, Some(all <= 250e3));
        Ok(())
    }

    fn cpu_s(&self) -> anyhow::Result<f64> {
        let stat = read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).context("stat");
        // utime and stime; the kernel shows hundredths of a second.
        Ok((ticks(11)? + ticks(12)?) / 100.0)
    }

    fn peak_mb(&self) -> anyhow::Result<f64> {
        let status = read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        Ok(kib.context("the collector ended")? * 1024.0 / 1e6)
    }
}

fn succeeded(output: Output, what: &str) -> anyhow::Result<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        bail!("{what}: {}: {}", output.status, text(&output.stderr));
    }
    Ok(text(&output.stdout) + &text(&output.stderr))
}
