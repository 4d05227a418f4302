//! Samples the kernel of this node and prints what it did and what looking cost, as JSON. `kernel_work [SECONDS [RATE_HZ [always]]]`

use std::time::{Duration, Instant};

use coroner_probes::kernel_work::{KernelSampler, Naming, RATE_HZ};
use coroner_probes::root::{now, own_cpu};
use coroner_probes::{Evidence, Root};

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(10.0);
    let rate_hz = args.next().and_then(|a| a.parse().ok()).unwrap_or(RATE_HZ);
    let naming = if args.next().is_some() { Naming::Always } else { Naming::IfMuch };
    let mut evidence = Evidence::default();
    let mut sampler = KernelSampler::start(&Root::live(), rate_hz, naming, now(), &mut evidence);
    let (start_ms, began) = (sampler.spent().as_secs_f64() * 1e3, Instant::now());
    let length = Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0));
    while sampler.is_sampling() && began.elapsed() < length {
        std::thread::sleep(length.saturating_sub(began.elapsed()).min(Duration::from_secs(1)));
        sampler.look(now(), &mut evidence);
    }
    let looks_ms = sampler.spent().as_secs_f64() * 1e3 - start_ms;
    sampler.finish(now(), &mut evidence);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak_kb: Option<u64> = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|l| l.split_ascii_whitespace().next()?.parse().ok());
    let out = serde_json::json!({
        "kernel_work": evidence.kernel_work, "unseen": evidence.unseen,
        "cost": {"start_ms": start_ms, "looks_ms": looks_ms, "process_cpu_ms": own_cpu().as_secs_f64() * 1e3, "peak_rss_kb": peak_kb},
    });
    println!("{out:#}");
}
