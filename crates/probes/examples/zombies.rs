//! Prints what a scan of this node finds and costs, as JSON. `zombies [test-run|page-faults] [no-pins] [list N] [repeat N]`

use coroner_probes::zombies::{Method, ScanOptions, Walker, scan};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|a| a == word);
    let method = match () {
        () if has("test-run") => Some(Method::TestRun),
        () if has("page-faults") => Some(Method::PageFaults),
        () => None,
    };
    if let Some(at) = args.iter().position(|a| a == "repeat") {
        return repeat(method, args.get(at + 1).and_then(|n| n.parse().ok()).unwrap_or(20));
    }
    let scan = match scan(&ScanOptions { method, pins: !has("no-pins"), ..ScanOptions::default() }) {
        Ok(scan) => scan,
        Err(blind) => {
            println!("{}", serde_json::json!({"blind": blind.why, "how_to_see": blind.how_to_see}));
            std::process::exit(1);
        }
    };
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    let spent = |s: coroner_probes::zombies::Spent| serde_json::json!({"wall_ms": ms(s.wall), "cpu_ms": ms(s.cpu)});
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak_kb: Option<u64> = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|l| l.split_ascii_whitespace().next()?.parse().ok());
    println!(
        "{}",
        serde_json::json!({
            "method": scan.method.as_str(), "version": scan.version, "tracked": scan.tracked, "live": scan.live,
            "leaving": scan.leaving, "zombies": scan.zombies.len(), "truncated": scan.truncated, "resumed": scan.resumed,
            "runs": scan.cost.runs, "load": spent(scan.cost.load), "walk": spent(scan.cost.walk),
            "settle": spent(scan.cost.settle), "names": spent(scan.cost.names), "pins": spent(scan.cost.pins), "total": spent(scan.cost.total()),
            "files": scan.pins.as_ref().map(|p| p.as_ref().map_or(0, |p| p.files.len())),
            "pins_error": scan.pins.as_ref().and_then(|p| p.as_ref().err()),
            "peak_rss_kb": peak_kb,
        })
    );
    if let Some(at) = args.iter().position(|a| a == "list") {
        let count = args.get(at + 1).and_then(|n| n.parse().ok()).unwrap_or(10);
        for zombie in scan.zombies.iter().take(count) {
            println!("{zombie:?}");
        }
        for file in scan.pins.iter().flatten().flat_map(|p| &p.files).take(count) {
            println!("{} {} {} {:?}", file.bytes, file.zombies, file.filesystem, file.name());
        }
    }
}

/// For a profiler: the walk alone, again and again.
fn repeat(method: Option<Method>, times: u32) {
    let options = ScanOptions { pins: false, ..ScanOptions::default() };
    let mut walker = Walker::open(&options.root, method).expect("the programs load");
    let mut walks: Vec<_> = (0..times)
        .map(|_| {
            let scan = walker.scan(&options).expect("a scan");
            scan.cost.walk.wall / scan.tracked.max(1) as u32
        })
        .collect();
    walks.sort();
    println!("each cgroup: least {:?}, median {:?}", walks[0], walks[walks.len() / 2]);
}
