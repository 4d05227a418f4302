//! perf.data to folded stacks with symbols, against `perf script` + inferno and against samply.
//!
//! The recordings are made here: the whole machine at 999 Hz under two loads, many short processes and a few long ones.
//! `perf script --no-inline`, because we do not expand inlined functions either. `samply import --save-only` names kernel
//! functions but not those of programs, so it does less than we do; a second row adds those names from its server
//! ([`super::samply`]).

use super::peers::{self, Cost, cost_of, works_by_turns};
use super::samply::Naming;
use super::{Row, perf};
use anyhow::bail;
use std::path::Path;
use std::process::{Command, Stdio};

const SAMPLY: &str = "0.13.1";

/// Seconds of recording: 7 to 20 MB on two cores.
const SECONDS: u32 = 30;
/// A shell that computes, walks files, sorts, compresses and starts short processes, plus stress-ng if installed.
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
/// A few processes that live as long as the recording, with deep and varied stacks.
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
    let out = |name: &str| dir.path().join(name);
    let quiet = |mut command: Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut ours = Command::new(binaries.join("coroner"));
    ours.arg("export").arg(&recording).arg("-o").arg(out("out.folded"));
    let mut script = Command::new("sh");
    // A failure of perf must not look like a fast run.
    let pipe = "{ perf script --no-inline -i \"$1\" 2>/dev/null || : > \"$3.failed\"; } | \"$2\" -n 1 --all > \"$3\" && [ ! -e \"$3.failed\" ]";
    script.args(["-c", pipe, "sh"]).arg(&recording).arg(&inferno).arg(out("peer.folded"));
    let import = |to: &str| {
        let mut import = Command::new(&samply);
        import.args(["import", "--save-only", "-o"]).arg(out(to)).arg(&recording);
        quiet(import)
    };
    cost_of(&mut import("profile.json"))?;
    let naming = Naming::of(&samply, &out("profile.json"), dir.path())?;
    let (mut ours, mut script, mut import) = (quiet(ours), quiet(script), import("profile.json.gz"));
    let mut named = 0;
    let costs = works_by_turns(
        runs.max(5),
        &mut [
            Box::new(|| cost_of(&mut ours)),
            Box::new(|| cost_of(&mut script)),
            Box::new(|| cost_of(&mut import)),
            Box::new(|| {
                let (cost, names) = naming.cost()?;
                named = names;
                Ok(cost)
            }),
        ],
    )?;
    let [ours, script, import, names] = costs[..] else { bail!("four works, {} costs", costs.len()) };
    let seconds = |cost: Cost| cost.cpu.as_secs_f64();
    let ours = seconds(ours);
    let row = |peer: String, seconds: f64, bar: f64| Row {
        work: format!("perf.data → folded with symbols, {what}, {size:.0} MB"),
        ours: format!("{ours:.3} s"),
        peer: format!("{peer} {seconds:.3} s"),
        ratio: format!("{:.1}", seconds / ours),
        bar: format!("{bar}"),
        met: seconds / ours >= bar,
    };
    let (import, names) = (seconds(import), seconds(names));
    let asked = format!("the same and its server for {named} of {} places in programs", naming.places);
    Ok(vec![
        row("perf script + inferno".to_owned(), seconds(script), 10.0),
        row("samply import, which names the kernel only,".to_owned(), import, 5.0),
        row(asked, import + names, 5.0),
    ])
}
