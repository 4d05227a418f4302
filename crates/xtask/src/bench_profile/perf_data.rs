//! perf.data to folded stacks with symbols, against `perf script` + inferno and against `samply import`.
//!
//! The recording is made here: the whole machine at 999 Hz under a load with varied stacks. `perf script --no-inline`, because we do
//! not expand inlined functions either. `samply import --save-only` names no functions (they are looked up when its page asks), so
//! it does less than we do.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::Row;
use crate::bench::children_cpu_ms;

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
    let (inferno, samply) = (peer("inferno", "inferno-collapse-perf")?, peer("samply", "samply")?);
    let out = dir.path().join("out.folded");
    let profile = dir.path().join("profile.json.gz");
    let mut least = [f64::MAX; 3];
    for _ in 0..runs {
        // Ours is the shortest and so the noisiest: more turns.
        for _ in 0..3 {
            let mut command = Command::new(binaries.join("coroner"));
            command.arg("export").arg(&recording).arg("-o").arg(&out);
            least[0] = least[0].min(cpu_seconds(&mut command)?);
        }
        let mut script = Command::new("sh");
        script.args(["-c", "perf script --no-inline -i \"$1\" 2>/dev/null | \"$2\" -n 1 --all > \"$3\"", "sh"]);
        script.arg(&recording).arg(&inferno).arg(dir.path().join("peer.folded"));
        least[1] = least[1].min(cpu_seconds(&mut script)?);
        let mut import = Command::new(&samply);
        import.args(["import", "--save-only", "-o"]).arg(&profile).arg(&recording);
        least[2] = least[2].min(cpu_seconds(&mut import)?);
    }
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

/// A peer's program: from the path, or installed into target/peers.
fn peer(package: &str, program: &str) -> anyhow::Result<PathBuf> {
    if can_run(program) {
        return Ok(program.into());
    }
    let root = Path::new("target/peers");
    let path = root.join("bin").join(program);
    if !path.is_file() {
        let status = Command::new("cargo").args(["install", "--quiet", package, "--root"]).arg(root).status()?;
        if !status.success() {
            bail!("cargo install {package} failed");
        }
    }
    path.canonicalize().with_context(|| format!("{}", path.display()))
}

/// User and system seconds of a command and all it waited for, by the kernel's account of this process's children.
fn cpu_seconds(command: &mut Command) -> anyhow::Result<f64> {
    let before = children_cpu_ms();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if !status.success() {
        bail!("{command:?} failed");
    }
    Ok((children_cpu_ms() - before) / 1e3)
}
