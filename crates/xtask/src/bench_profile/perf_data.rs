//! perf.data to folded stacks with symbols, against `perf script` + inferno and against `samply import`.
//!
//! The recording is made here: the whole machine at 999 Hz under a load with varied stacks. `perf script --no-inline`, because we do
//! not expand inlined functions either. `samply import --save-only` names no functions (they are looked up when its page asks), so
//! it does less than we do.

use super::Row;
use super::peers::{self, by_turns};
use anyhow::bail;
use std::path::Path;
use std::process::{Command, Stdio};

const SAMPLY: &str = "0.13.1";

/// Seconds of recording: about 8 MB on two cores.
const SECONDS: u32 = 30;
/// A shell that computes, walks files, sorts, compresses and starts short processes, beside stress-ng where it is installed.
const LOAD: &str = "
    stress-ng --quiet --cpu 1 --cpu-load 60 --matrix 1 --pipe 1 --switch 1 --vm 1 --vm-bytes 64M --timeout ${S}s 2>/dev/null &
    end=$(($(date +%s) + S))
    while [ $(date +%s) -lt $end ]; do
        ls -lR /usr/share/doc 2>/dev/null | sort | gzip > /dev/null
        python3 -c 'import json, hashlib
d = {str(i): list(range(20)) for i in range(200)}
for _ in range(40): s = json.dumps(d); json.loads(s); hashlib.sha256(s.encode() * 10).hexdigest()' 2>/dev/null
        i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done
    done
    wait";

pub fn run(binaries: &Path, runs: u32) -> anyhow::Result<Vec<Row>> {
    let dir = tempfile::tempdir()?;
    let recording = dir.path().join("perf.data");
    if !can_run("perf") {
        bail!("perf is not installed; it makes the recording");
    }
    let recorded = Command::new("perf")
        .args(["record", "-q", "-F", "999", "-a", "-g", "-o"])
        .arg(&recording)
        .args(["--", "sh", "-c", LOAD])
        .env("S", SECONDS.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if !recorded.success() {
        bail!("perf record failed: it needs root");
    }
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
    let costs = by_turns(runs, &mut commands)?;
    let least: Vec<f64> = costs.iter().map(|cost| cost.cpu.as_secs_f64()).collect();
    let row = |peer: &str, seconds: f64, bar: f64| Row {
        work: format!("perf.data → folded with symbols, {size:.0} MB"),
        ours: format!("{:.3} s", least[0]),
        peer: format!("{peer} {seconds:.3} s"),
        ratio: format!("{:.1}", seconds / least[0]),
        bar: format!("{bar}"),
        met: seconds / least[0] >= bar,
    };
    Ok(vec![row("perf script + inferno", least[1], 10.0), row("samply import (names nothing)", least[2], 5.0)])
}

fn can_run(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}
