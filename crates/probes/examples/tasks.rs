//! What the task reader sees on this node, and what that costs: `cargo run --release -p coroner-probes --example tasks [SECONDS]`.

use std::time::Duration;

use coroner_probes::root::{now, own_cpu};
use coroner_probes::tasks::TaskReader;
use coroner_probes::{Evidence, Root};

fn main() {
    let seconds: u64 = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(2);
    let mut reader = TaskReader::new(Root::live());
    let mut evidence = Evidence::default();
    let all = |name: &str, reader: &mut TaskReader, evidence: &mut Evidence| {
        let (before, rows) = (own_cpu(), evidence.thread_samples.len());
        reader.look_all(now(), evidence);
        let cost = own_cpu() - before;
        let threads = reader.thread_count().max(1);
        println!(
            "{name}: {threads} threads, {cost:?} of CPU, {:.1} µs each, {} samples",
            cost.as_secs_f64() * 1e6 / threads as f64,
            evidence.thread_samples.len() - rows,
        );
    };
    all("first look at all", &mut reader, &mut evidence);
    let (before, rows) = (own_cpu(), evidence.thread_samples.len());
    let looks = seconds * 10;
    for _ in 0..looks {
        std::thread::sleep(Duration::from_millis(100));
        reader.look_hot(now(), &mut evidence);
    }
    println!(
        "{looks} hot looks: {:?} of CPU each, {} threads watched, {} samples",
        (own_cpu() - before) / u32::try_from(looks).unwrap_or(1).max(1),
        reader.watched_count(),
        evidence.thread_samples.len() - rows,
    );
    all("second look at all", &mut reader, &mut evidence);
    all("third look at all", &mut reader, &mut evidence);

    println!("{} rows of processes, {} of threads", evidence.processes.len(), evidence.threads.len());
    for unseen in &evidence.unseen {
        println!("unseen: {} because {}; {}", unseen.what, unseen.why, unseen.how_to_see);
    }
    for process in evidence.processes.iter().filter(|p| p.ray.is_some()) {
        println!("{} {:?} {:?}", process.pid, process.command.as_deref().unwrap_or("?"), process.ray);
    }
    if std::env::var_os("LIST").is_some() {
        for p in &evidence.processes {
            println!(
                "{} {} {:?} memory {:?} cpu {:?} {:?}",
                p.pid, p.comm, p.command, p.memory_cgroup, p.cpu_cgroup, p.owner
            );
        }
        for t in evidence.threads.iter().filter(|t| t.affinity.is_some()) {
            println!("{} {} {} {:?} on {}", t.pid, t.key.tid, t.comm, t.class, t.affinity.as_ref().unwrap());
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
}
