//! Prints who makes and removes memory cgroups for so many seconds, and what watching cost. `churn [SECONDS] [bpf|perf]`

use std::time::Duration;

use coroner_evidence::Evidence;
use coroner_probes::Root;
use coroner_probes::churn::{ChurnOptions, ChurnReader, Way};
use coroner_probes::root::{now, own_cpu};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seconds = args.iter().find_map(|a| a.parse().ok()).unwrap_or(10);
    let only = match () {
        () if args.iter().any(|a| a == "bpf") => Some(Way::Bpf),
        () if args.iter().any(|a| a == "perf") => Some(Way::Perf),
        () => None,
    };
    let started = own_cpu();
    let mut reader = ChurnReader::start(&Root::live(), &ChurnOptions { only, ..ChurnOptions::default() });
    let (way, begun, from) = (reader.way(), own_cpu(), now());
    let mut evidence = Evidence::default();
    for _ in 0..seconds {
        std::thread::sleep(Duration::from_secs(1));
        reader.look(now(), &mut evidence);
        print(&mut evidence);
    }
    reader.finish(now(), &mut evidence);
    print(&mut evidence);
    let (cpu, wall) = (own_cpu() - begun, now().since(from));
    eprintln!(
        "{way:?}: start {:?} CPU; then {:?} CPU in {:?}, {:.2} % of a core",
        begun - started,
        cpu,
        wall,
        100.0 * cpu.as_secs_f64() / wall.as_secs_f64()
    );
}

fn print(evidence: &mut Evidence) {
    for row in evidence.cgroup_churn.drain(..) {
        let who = row.maker.map_or_else(
            || "-".to_owned(),
            |m| {
                let via = m.via.map(|via| format!(" via {via} x {}", m.processes)).unwrap_or_default();
                let parent = m.parent_comm.unwrap_or_default();
                format!(
                    "{}[{}]{via}, of {parent}[{}], in {}: {}",
                    m.comm,
                    m.pid,
                    m.parent_pid.unwrap_or(0),
                    m.cgroup.unwrap_or_default(),
                    m.command.unwrap_or_default()
                )
            },
        );
        println!(
            "{:.1}-{:.1} s {}/{} ({}) born {} removed {} freed {} by {who}",
            row.from.0 as f64 / 1e9,
            row.to.0 as f64 / 1e9,
            row.parent.trim_end_matches('/'),
            row.pattern,
            row.example,
            row.born,
            row.removed,
            row.freed
        );
    }
    for unseen in evidence.unseen.drain(..) {
        println!("unseen: {}: {} ({})", unseen.what, unseen.why, unseen.how_to_see);
    }
}
