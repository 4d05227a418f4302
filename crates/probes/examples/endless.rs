//! What a watch without an end costs: `endless SECONDS [SECONDS_BETWEEN_TELLINGS]`. One line a telling, and one for each thread.

use coroner_probes::Root;
use coroner_probes::watch::{Watch, WatchOptions};
use std::time::{Duration, Instant};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse().expect("seconds"));
    let seconds = arguments.next().unwrap_or(20);
    let telling = Duration::from_secs(arguments.next().unwrap_or(600));
    let begun = Instant::now();
    let mut watch = Watch::start_endless(Root::live(), WatchOptions { kernel_work: false, ..WatchOptions::default() });
    let rows = watch.next_turn().map_or(0, |first| rows(&first));
    println!("first look: {:?}, {rows} rows; {}", begun.elapsed(), memory());
    // The first seconds also wait for what other threads read at first.
    run(&mut watch, Duration::from_secs(3));
    let (before, started) = (cpu_by_thread(), Instant::now());
    while started.elapsed() < Duration::from_secs(seconds) {
        let left = Duration::from_secs(seconds).saturating_sub(started.elapsed());
        let told = run(&mut watch, left.min(telling));
        println!("{:4.0} s: {told} rows; {}", started.elapsed().as_secs_f64(), memory());
        if left > telling {
            watch.tell_anew();
        }
    }
    let (elapsed, after) = (started.elapsed().as_secs_f64(), cpu_by_thread());
    let mut all = 0.0;
    for (thread, cpu) in &after {
        let used = cpu - before.iter().find(|(t, _)| t == thread).map_or(0.0, |(_, cpu)| *cpu);
        all += used;
        println!("{:6.3} % {thread}", used / elapsed * 100.0);
    }
    println!("{:6.3} % of a core in all; {}", all / elapsed * 100.0, memory());
    watch.stop();
    let ending = Instant::now();
    while watch.next_turn().is_some() {}
    println!("ended in {:?}", ending.elapsed());
}

fn run(watch: &mut Watch, duration: Duration) -> usize {
    let started = Instant::now();
    let mut told = 0;
    while started.elapsed() < duration {
        let Some(fragment) = watch.next_turn() else { break };
        told += rows(&fragment);
    }
    told
}

fn rows(e: &coroner_evidence::Evidence) -> usize {
    let counters = e.counters.iter().map(|(.., points)| points.len()).sum::<usize>();
    e.core_times.len() + e.processes.len() + e.threads.len() + e.thread_samples.len() + counters
}

fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = status.lines().filter(|l| l.starts_with("VmHWM") || l.starts_with("VmRSS"));
    lines.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}

/// Name and seconds, from schedstat: ticks are too coarse.
fn cpu_by_thread() -> Vec<(String, f64)> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    let mut threads: Vec<(String, f64)> = Vec::new();
    for task in tasks.flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let ns: f64 = read("schedstat").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
        let name = format!("{} {}", read("comm").trim(), task.file_name().to_string_lossy());
        threads.push((name, ns / 1e9));
    }
    threads
}
