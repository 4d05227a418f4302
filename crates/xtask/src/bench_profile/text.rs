//! perf script text.
//!
//! `PROFILE_BENCH_TEXT` names the output of `perf script --header` to vary; without it, 30 seconds are recorded here.

use super::peers::{self, Cost, by_turns, cost_of};
use super::{Row, perf, same_lines, vary};
use crate::flamescope;
use anyhow::bail;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SIZE: u64 = 200_000_000;
/// Our code uses nothing beyond SSE2; this also disables AVX2 in the C library.
const WITHOUT_AVX2: &str = "glibc.cpu.hwcaps=-AVX2,-AVX2_Usable,-AVX512F";

pub fn run(binaries: &Path, runs: u32) -> anyhow::Result<Vec<Row>> {
    std::fs::create_dir_all(peers::directory())?;
    let scratch = tempfile::tempdir_in(peers::directory())?;
    let bench = Bench {
        coroner: binaries.join("coroner"),
        inferno: peers::cargo_installed("inferno", peers::INFERNO, "inferno-collapse-perf")?,
        text: scratch.path().join("varied.txt"),
        size: 0,
        scratch: scratch.path().to_owned(),
        runs: runs.max(3),
    };
    let short = std::fs::read_to_string(short_text(&bench.scratch)?)?;
    let short = from_first_stack(&short);
    let size = vary::write(short, SIZE, BufWriter::new(File::create(&bench.text)?))?;
    let bench = Bench { size, ..bench };
    let mut rows = bench.folding()?;
    rows.push(bench.heatmap()?);
    rows.push(bench.memory()?);
    rows.push(bench.switches()?);
    Ok(rows)
}

struct Bench {
    coroner: PathBuf,
    inferno: PathBuf,
    text: PathBuf,
    size: u64,
    scratch: PathBuf,
    runs: u32,
}

impl Bench {
    fn export(&self, text: &Path, threads: u32, to: &Path) -> Command {
        let mut command = Command::new(&self.coroner);
        command.arg("export").arg(text).args(["--threads", &threads.to_string(), "-o"]).arg(to);
        command.stderr(Stdio::null());
        command
    }

    /// inferno writes to standard output: a file that each run overwrites.
    fn collapse(&self, text: &Path, to: &Path) -> Command {
        let mut command = Command::new("sh");
        // It warns about thousands of lines; only a failure matters.
        let script = "\"$0\" -n 1 --all \"$1\" > \"$2\" 2> \"$2.err\" || { tail -n 5 \"$2.err\" >&2; exit 1; }";
        command.args(["-c", script]).arg(&self.inferno).arg(text).arg(to);
        command
    }

    fn folding(&self) -> anyhow::Result<Vec<Row>> {
        let (ours, theirs) = (self.scratch.join("ours.folded"), self.scratch.join("inferno.folded"));
        let mut commands = [
            self.export(&self.text, 1, &ours),
            self.collapse(&self.text, &theirs),
            self.export(&self.text, 2, &self.scratch.join("two.folded")),
            self.export(&self.text, 1, &self.scratch.join("without.folded")),
        ];
        commands[3].env("GLIBC_TUNABLES", WITHOUT_AVX2);
        let costs = by_turns(self.runs, &mut commands)?;
        let [one, inferno, two, without] = costs[..] else { bail!("four commands, {} costs", costs.len()) };
        if std::fs::read(&ours)? != std::fs::read(self.scratch.join("two.folded"))? {
            bail!("one thread and two fold to different lines");
        }
        let compared = same_lines::compare(&ours, &theirs)?;
        let reasons: Vec<String> = compared.changed.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
        for line in compared.unexplained.iter().take(5) {
            eprintln!("differs: {line}");
        }
        let mb = self.size as f64 / 1e6;
        let work = format!("text → folded, {mb:.0} MB, one thread");
        let same_work = "the same lines and weights".to_owned();
        let others = format!("ours changed for it: {}", reasons.join(", "));
        let scale = one.wall.as_secs_f64() / two.wall.as_secs_f64();
        let more = two.cpu.as_secs_f64() / one.cpu.as_secs_f64();
        Ok(vec![
            against(work, one, "inferno", inferno, 8.0),
            Row {
                work: same_work,
                ours: format!("{} lines", compared.same),
                peer: format!("inferno; {others}"),
                ratio: format!("{} unexplained", compared.unexplained.len()),
                bar: "0 unexplained".to_owned(),
                met: compared.unexplained.is_empty(),
            },
            Row {
                work: "the same, two threads, wall time".to_owned(),
                ours: seconds(two.wall),
                peer: format!("one thread: {}", seconds(one.wall)),
                ratio: format!("{scale:.2} (CPU time {more:.2})"),
                bar: "1.6, if two cores are free".to_owned(),
                met: scale >= 1.6,
            },
            against("the same, one thread, C library without AVX2".to_owned(), without, "inferno", inferno, 5.0),
        ])
    }

    fn heatmap(&self) -> anyhow::Result<Row> {
        let mut ours = Command::new(&self.coroner);
        ours.arg("heatmap").arg(&self.text).args(["--by", "offset", "--json"]).stdout(Stdio::null());
        ours.stderr(Stdio::null());
        let work = "text → heatmap by offset".to_owned();
        let Some(mut theirs) = flamescope::command(include_str!("flamescope.py"), &self.text) else {
            let ours = by_turns(self.runs, &mut [ours])?[0];
            let rate = self.size as f64 / 1e6 / ours.cpu.as_secs_f64();
            return Ok(Row {
                work,
                ours: format!("{}, {rate:.0} MB/s", seconds(ours.cpu)),
                peer: "FlameScope: not installed (FLAMESCOPE_DIR)".to_owned(),
                ratio: "–".to_owned(),
                bar: "40".to_owned(),
                met: false,
            });
        };
        theirs.stdout(Stdio::null());
        // It takes seconds: a few turns are enough, equally many for both.
        let costs = by_turns(self.runs.min(3), &mut [ours, theirs])?;
        Ok(against(work, costs[0], "FlameScope", costs[1], 40.0))
    }

    /// Memory must depend on distinct stacks: the same text ten times has no more of them.
    fn memory(&self) -> anyhow::Result<Row> {
        let long = self.scratch.join("long.txt");
        let mut to = File::create(&long)?;
        for _ in 0..10 {
            io::copy(&mut File::open(&self.text)?, &mut to)?;
        }
        let folded = self.scratch.join("long.folded");
        let short = cost_of(&mut self.export(&self.text, 1, &folded))?.peak_kib as f64 / 1024.0;
        let long_peak = cost_of(&mut self.export(&long, 1, &folded))?.peak_kib as f64 / 1024.0;
        std::fs::remove_file(long)?;
        Ok(Row {
            work: "memory of text → folded, the text ten times".to_owned(),
            ours: format!("{long_peak:.1} MiB for {:.1} GB", self.size as f64 / 1e8),
            peer: format!("{short:.1} MiB for {:.0} MB", self.size as f64 / 1e6),
            ratio: format!("{:.2}", long_peak / short),
            bar: "1.1".to_owned(),
            met: long_peak <= short * 1.1,
        })
    }

    /// Tracepoints with arguments: no event may be lost.
    fn switches(&self) -> anyhow::Result<Row> {
        let (data, text) = (self.scratch.join("switches.data"), self.scratch.join("switches.txt"));
        let work = ["sh", "-c", "sleep 1; ls /usr/bin; sleep 1"];
        perf::record(&data, &["-e", "sched:sched_switch", "-a", "-g"], &work, &[])?;
        perf::script(&data, &text)?;
        let printed = std::fs::read(&text)?;
        let printed =
            String::from_utf8_lossy(&printed).lines().filter(|line| line.contains(": sched:sched_switch: ")).count();
        let (ours, theirs) = (self.scratch.join("ours-switches.folded"), self.scratch.join("inferno-switches.folded"));
        cost_of(&mut self.export(&text, 1, &ours))?;
        cost_of(&mut self.collapse(&text, &theirs))?;
        let (ours, theirs) = (same_lines::weight(&ours)?, same_lines::weight(&theirs)?);
        Ok(Row {
            work: "sched:sched_switch with arguments, events kept".to_owned(),
            ours: format!("{ours} of {printed}"),
            peer: format!("inferno {theirs}"),
            ratio: format!("{:.1} %", 100.0 * ours as f64 / printed.max(1) as f64),
            bar: "all".to_owned(),
            met: printed > 0 && ours == printed as u64,
        })
    }
}

/// A row of CPU seconds.
fn against(work: String, ours: Cost, name: &str, peer: Cost, bar: f64) -> Row {
    let ratio = peer.cpu.as_secs_f64() / ours.cpu.as_secs_f64();
    Row {
        work,
        ours: seconds(ours.cpu),
        peer: format!("{name} {}", seconds(peer.cpu)),
        ratio: format!("{ratio:.1}"),
        bar: format!("{bar}"),
        met: ratio >= bar,
    }
}

fn seconds(time: std::time::Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

/// Starts at the first event with a stack: inferno gives up on a text that begins with one without.
pub fn from_first_stack(text: &str) -> &str {
    let mut event = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        match line.as_bytes() {
            [b'\t', ..] => return &text[event..],
            [b'#' | b'\n', ..] => {}
            _ => event = at,
        }
        at += line.len();
    }
    text
}

/// The text to vary.
pub fn short_text(scratch: &Path) -> anyhow::Result<PathBuf> {
    if let Some(text) = std::env::var_os("PROFILE_BENCH_TEXT") {
        return Ok(text.into());
    }
    let (data, text) = (scratch.join("short.data"), scratch.join("short.txt"));
    perf::record(&data, &["-F", "999", "-a", "-g"], &["sh", "-c", WORK], &[])?;
    perf::script(&data, &text)?;
    Ok(text)
}

/// Half a minute of various programs: stress-ng if installed, otherwise what every machine has.
const WORK: &str = "
if command -v stress-ng; then
    stress-ng --quiet --cpu 1 --cpu-load 60 --matrix 1 --pipe 1 --switch 1 --vm 1 --vm-bytes 64M --timeout 30s &
else
    timeout 30 sh -c 'while :; do find /usr -type f | head -n 3000 | xargs cat | gzip -1 | sha256sum; done' &
fi
timeout 30 sh -c 'while :; do ls -lR /usr/lib | sort | md5sum; grep -r main /usr/share | wc -l; done' &
if command -v python3; then
    timeout 30 python3 -c 'import json,hashlib
d = {str(i): list(range(20)) for i in range(200)}
while True: s = json.dumps(d); json.loads(s); hashlib.sha256(s.encode() * 10).hexdigest()' &
fi
wait
exit 0";
