//! perf.data to folded stacks with symbols, against `perf script` + inferno and against `samply import`.
//!
//! The recordings are made here: the whole machine at 999 Hz under two loads, one of many short processes and one of few long ones.
//! `perf script --no-inline`, because we do not expand inlined functions either. `samply import --save-only` names no functions (they
//! are looked up when its page asks), so it does less than we do. (Its `--unstable-presymbolicate` changes nothing here: `import` of 0.13.1 writes no names with it.)

use super::peers::{self, Cost, by_turns};
use super::{Row, perf};
use anyhow::Context;
use std::path::Path;
use std::process::{Command, Stdio};

const SAMPLY: &str = "0.13.1";

/// Seconds of recording: 7 to 20 MB on two cores.
const SECONDS: u32 = 30;
/// A shell that computes, walks files, sorts, compresses and starts short processes, beside stress-ng where it is installed.
const MANY_SHORT: &str = "
    stress-ng --quiet --cpu 1 --cpu-load 60 --matrix 1 --pipe 1 --switch 1 --vm 1 --vm-bytes 64M --timeout ${S}s 2>/dev/null &
    end=$(($(date +%s) + S))
    while [ $(date +%s) -lt $end ]; do
        ls -lR /usr/share/doc 2>/dev/null | sort | gzip > /dev/null
        python3 -c 'import json, hashlib
d = {str(i): list(range(20)) for i in range(200)}
for _ in range(40): s = json.dumps(d); json.loads(s); hashlib.sha256(s.encode() * 10).hexdigest()' 2>/dev/null
        i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done
    done
    wait
    exit 0";
/// Few processes that live as long as the recording, with deep and varied stacks.
const FEW_LONG: &str = "
    timeout ${S} python3 -c 'import json, hashlib, re
d = {str(i): list(range(20)) for i in range(200)}
while True:
    s = json.dumps(d, indent=1); json.loads(s); hashlib.sha256(s.encode() * 10).hexdigest(); re.sub(r\"(\\d+)\", r\"<\\1>\", s)' &
    timeout ${S} perl -e 'while (1) { my %h; $h{$_ * 7 % 1013} .= sprintf(\"%x\", $_) for 1 .. 20000; my @s = sort { $h{$a} cmp $h{$b} } keys %h; }' &
    timeout ${S} sh -c 'cat /dev/zero | gzip -1 | sha256sum' &
    wait
    exit 0";

pub fn run(binaries: &Path, runs: u32) -> anyhow::Result<Vec<Row>> {
    let mut rows = measure(binaries, runs, "many short processes", MANY_SHORT)?;
    rows.extend(measure(binaries, runs, "few long processes", FEW_LONG)?);
    Ok(rows)
}

fn measure(binaries: &Path, runs: u32, what: &str, load: &str) -> anyhow::Result<Vec<Row>> {
    let dir = tempfile::tempdir()?;
    let recording = dir.path().join("perf.data");
    let options = ["-q", "-F", "999", "-a", "-g"];
    perf::record(&recording, &options, &["sh", "-c", load], &[("S", &SECONDS.to_string())])?;
    let size = std::fs::metadata(&recording)?.len() as f64 / 1e6;
    let inferno = peers::cargo_installed("inferno", peers::INFERNO, "inferno-collapse-perf")?;
    let samply = peers::cargo_installed("samply", SAMPLY, "samply")?;
    let mut ours = Command::new(binaries.join("coroner"));
    ours.arg("export").arg(&recording).arg("-o").arg(dir.path().join("out.folded"));
    let mut script = Command::new("sh");
    script.args(["-c", "perf script --no-inline -i \"$1\" 2>/dev/null | \"$2\" -n 1 --all > \"$3\"", "sh"]);
    script.arg(&recording).arg(&inferno).arg(dir.path().join("peer.folded"));
    let mut import = Command::new(&samply);
    import.args(["import", "--save-only", "-o"]).arg(dir.path().join("profile.json.gz")).arg(&recording);
    let mut commands = [ours, script, import];
    for command in &mut commands {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }
    let costs = by_turns(runs.max(5), &mut commands)?;
    let seconds = |cost: &Cost| cost.cpu.as_secs_f64();
    let ours = costs.first().map(seconds).context("no cost")?;
    let row = |peer: &str, cost: &Cost, bar: f64| Row {
        work: format!("perf.data → folded with symbols, {what}, {size:.0} MB"),
        ours: format!("{ours:.3} s"),
        peer: format!("{peer} {:.3} s", seconds(cost)),
        ratio: format!("{:.1}", seconds(cost) / ours),
        bar: format!("{bar}"),
        met: seconds(cost) / ours >= bar,
    };
    Ok(vec![row("perf script + inferno", &costs[1], 10.0), row("samply import, which names nothing", &costs[2], 5.0)])
}
