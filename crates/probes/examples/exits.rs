//! Prints whose children fail for so many seconds, and what watching cost. `exits [SECONDS]`

use std::time::Duration;

use coroner_evidence::Evidence;
use coroner_probes::Root;
use coroner_probes::exits::ExitReader;
use coroner_probes::root::{now, own_cpu};

fn main() {
    let seconds = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(10);
    let started = own_cpu();
    let mut reader = ExitReader::start(&Root::live());
    let (begun, from) = (own_cpu(), now());
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
        "start {:?} CPU; then {:?} CPU in {:?}, {:.3} % of a core",
        begun - started,
        cpu,
        wall,
        100.0 * cpu.as_secs_f64() / wall.as_secs_f64()
    );
}

fn print(evidence: &mut Evidence) {
    for row in evidence.child_exits.drain(..) {
        println!(
            "{:.1}-{:.1} s {}[{}] in {}: {} of {} {} failed, {} of them young; the last with {}",
            row.from.0 as f64 / 1e9,
            row.to.0 as f64 / 1e9,
            row.parent_comm,
            row.parent_pid,
            row.cgroup.unwrap_or_default(),
            row.failed,
            row.exits,
            row.comm,
            row.failed_young,
            row.exit_code.map_or_else(|| format!("signal {}", row.signal.unwrap_or(0)), |code| format!("code {code}"))
        );
    }
    for unseen in evidence.unseen.drain(..) {
        println!("unseen: {}: {} ({})", unseen.what, unseen.why, unseen.how_to_see);
    }
}
