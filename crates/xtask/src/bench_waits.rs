//! What the wait ledger costs: its BPF programs by the kernel's own count (kernel.bpf_stats_enabled, which adds some 60 ns to each run), the
//! switches that the same load makes without it, and the CPU time of the process that reads it.

use crate::bench::yes;
use crate::child::{Ended, ends_with_us};
use anyhow::{Context, bail};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// Loading the programs, and the first looks.
const SETTLES: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(8);

/// What `cargo xtask switches` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Switches {
    /// Two threads on each core that yield to each other.
    Yield,
    /// Two threads on each core that pass a byte to and fro: each switch has a wake-up.
    Pipe,
    /// Six threads on each core that go over 8 MB each: caches are cold at every switch, which ends a wait of milliseconds.
    Cold,
}

struct Case {
    name: &'static str,
    load: Option<(Switches, u64)>,
    recorder: bool,
    /// Most ns for each switch, wake-ups included.
    most_ns: Option<f64>,
    /// Most percent of a core.
    most_percent: Option<f64>,
}

const CASES: [Case; 5] = [
    Case { name: "idle node, diagnosing", load: None, recorder: false, most_ns: None, most_percent: Some(2.5) },
    Case {
        name: "threads that yield, diagnosing (in slices)",
        load: Some((Switches::Yield, 0)),
        recorder: false,
        most_ns: Some(300.0),
        most_percent: Some(2.5),
    },
    Case {
        name: "a byte to and fro, 50,000 switches a second, diagnosing",
        load: Some((Switches::Pipe, 48_000)),
        recorder: false,
        most_ns: None,
        most_percent: Some(2.5),
    },
    Case {
        name: "cold caches, diagnosing",
        load: Some((Switches::Cold, 0)),
        recorder: false,
        most_ns: Some(1000.0),
        most_percent: None,
    },
    Case {
        name: "a byte to and fro, 10,000 switches a second, recording",
        load: Some((Switches::Pipe, 9_500)),
        recorder: true,
        most_ns: None,
        most_percent: Some(0.6),
    },
];

pub fn run(directory: &Path, runs: u32) -> anyhow::Result<()> {
    let _stats = Stats::on()?;
    println!(
        "| load | its switches a second without | with | seen a second | ns for each | of one core, BPF | of one core, reader | bar | met |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for case in &CASES {
        for _ in 0..runs {
            measure(case, &directory.join("coroner"))?;
        }
    }
    Ok(())
}

fn measure(case: &Case, coroner: &Path) -> anyhow::Result<()> {
    let load = case.load.map(start_load).transpose()?;
    let pid = load.as_ref().map(Ended::id);
    std::thread::sleep(Duration::from_millis(500));
    let without = switches_a_second(pid, MEASURED / 4)?;
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(coroner);
    if case.recorder {
        command.args(["record", "--metrics", "off", "--dir"]).arg(dir.path());
    } else {
        command.args(["waits", "--json", "--for", "30s"]);
    }
    let watcher = ends_with_us(command.stdout(Stdio::null()).stderr(Stdio::null())).spawn()?;
    let watcher = Ended::by(Signal::TERM, watcher);
    std::thread::sleep(SETTLES);
    let (before, cpu_before, began) = (programs(watcher.id())?, cpu_ns(watcher.id())?, Instant::now());
    let with = switches_a_second(pid, MEASURED)?;
    let (after, cpu_after, seconds) = (programs(watcher.id())?, cpu_ns(watcher.id())?, began.elapsed().as_secs_f64());
    let mut ns = 0;
    let mut switches = 0;
    for (program, (ran_ns, runs)) in after {
        let (ran_before, runs_before) = before.get(&program).copied().unwrap_or_default();
        ns += ran_ns.saturating_sub(ran_before);
        // Of the ledger's programs, the one on sched_switch runs most often.
        switches = switches.max(runs.saturating_sub(runs_before));
    }
    if switches == 0 {
        bail!("{}: coroner ran no BPF program on the scheduler's tracepoints", case.name);
    }
    let each = ns as f64 / switches as f64;
    let percent = ns as f64 / 1e7 / seconds;
    let reader = (cpu_after - cpu_before) as f64 / 1e7 / seconds;
    let bars: Vec<String> = [
        case.most_ns.map(|most| format!("≤ {most} ns")),
        case.most_percent.map(|most| format!("≤ {most} % of a core")),
    ]
    .into_iter()
    .flatten()
    .collect();
    let met = case.most_ns.is_none_or(|most| each <= most) && case.most_percent.is_none_or(|most| percent <= most);
    println!(
        "| {} | {without:.0} | {with:.0} | {:.0} | {each:.0} | {percent:.2} % | {reader:.2} % | {} | {} |",
        case.name,
        switches as f64 / seconds,
        bars.join(", "),
        yes(met)
    );
    Ok(())
}

/// The kernel counts what BPF programs take. As it was, on drop.
struct Stats(String);

impl Stats {
    fn on() -> anyhow::Result<Stats> {
        let before = Stats(read_to_string(STATS).context(STATS)?);
        std::fs::write(STATS, "1").with_context(|| format!("{STATS} (is this root?)"))?;
        Ok(before)
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        let _ = std::fs::write(STATS, &self.0);
    }
}

/// Time and runs of the tracing programs of a process, by their id.
fn programs(pid: u32) -> anyhow::Result<BTreeMap<u64, (u64, u64)>> {
    const TRACING: u64 = 26; // BPF_PROG_TYPE_TRACING
    let mut programs = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let Ok(text) = read_to_string(entry?.path()) else { continue };
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|number| number.trim().parse::<u64>().ok())
        };
        if let (Some(TRACING), Some(id), Some(ns), Some(runs)) =
            (field("prog_type"), field("prog_id"), field("run_time_ns"), field("run_cnt"))
        {
            programs.insert(id, (ns, runs));
        }
    }
    Ok(programs)
}

/// Of all threads of a process.
fn tasks(pid: u32, file: &str) -> anyhow::Result<Vec<String>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.flatten().filter_map(|task| read_to_string(task.path().join(file)).ok()).collect())
}

fn cpu_ns(pid: u32) -> anyhow::Result<u64> {
    let of = |text: &String| text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    Ok(tasks(pid, "schedstat")?.iter().map(of).sum())
}

fn switches_a_second(pid: Option<u32>, time: Duration) -> anyhow::Result<f64> {
    let count = || -> anyhow::Result<u64> {
        let Some(pid) = pid else { return Ok(0) };
        let is = |line: &&str| line.contains("ctxt_switches:");
        let of = |text: &String| -> u64 {
            text.lines().filter(is).filter_map(|line| line.split_whitespace().next_back()?.parse::<u64>().ok()).sum()
        };
        Ok(tasks(pid, "status")?.iter().map(of).sum())
    };
    let (before, began) = (count()?, Instant::now());
    std::thread::sleep(time);
    Ok((count()?.saturating_sub(before)) as f64 / began.elapsed().as_secs_f64())
}

fn start_load((how, rate): (Switches, u64)) -> anyhow::Result<Ended> {
    let how = clap::ValueEnum::to_possible_value(&how).context("a load without a name")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["switches", how.get_name(), "--rate", &rate.to_string()]);
    Ok(Ended::by(Signal::KILL, ends_with_us(&mut command).spawn()?))
}

/// Never returns. `rate`: switches a second on all cores together; 0: as many as possible.
pub fn switch(how: Switches, rate: u64) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        for core in 0..cores {
            match how {
                Switches::Yield => (0..2).for_each(|_| drop(scope.spawn(move || on(core, std::thread::yield_now)))),
                Switches::Cold => (0..6).for_each(|_| {
                    let mut memory = vec![1u8; 8 << 20];
                    scope
                        .spawn(move || on(core, || memory.iter_mut().step_by(64).for_each(|b| *b = black_box(*b ^ 1))));
                }),
                Switches::Pipe => {
                    let (Ok((mut from_b, mut to_a)), Ok((mut from_a, mut to_b))) = (std::io::pipe(), std::io::pipe())
                    else {
                        continue;
                    };
                    let pace = (rate > 0).then(|| Duration::from_secs_f64(2.0 * cores as f64 / rate as f64));
                    let (mut turns, began) = (0u32, Instant::now());
                    scope.spawn(move || {
                        on(core, || {
                            let mut byte = [0];
                            let _ = to_b.write_all(&byte).and_then(|()| from_b.read_exact(&mut byte));
                            turns += 1;
                            // Each millisecond's worth at once.
                            if let Some(pace) = pace
                                .filter(|pace| turns.is_multiple_of((1000.0 / (pace.as_secs_f64() * 1e6)) as u32 + 1))
                            {
                                std::thread::sleep((pace * turns).saturating_sub(began.elapsed()));
                            }
                        })
                    });
                    scope.spawn(move || {
                        on(core, || {
                            let mut byte = [0];
                            let _ = from_a.read_exact(&mut byte).and_then(|()| to_a.write_all(&byte));
                        })
                    });
                }
            }
        }
    });
    Ok(())
}

/// Works on one core, for ever.
fn on(core: usize, mut work: impl FnMut()) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    if rustix::thread::sched_setaffinity(None, &cores).is_err() {
        return;
    }
    loop {
        work();
    }
}
