//! Prints what is seen of dead memory cgroups here, by the best way that works, and what is not, as JSON.
//! `look [no-bpf|test-run|page-faults] [no-pins] [root DIRECTORY]`

use coroner_probes::zombies::{Bpf, LookOptions, Method, look};
use coroner_probes::{Evidence, Root};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|a| a == word);
    let bpf = match () {
        () if has("no-bpf") => Bpf::No,
        () if has("test-run") => Bpf::Only(Method::TestRun),
        () if has("page-faults") => Bpf::Only(Method::PageFaults),
        () => Bpf::Best,
    };
    let root = args.iter().position(|a| a == "root").and_then(|at| args.get(at + 1));
    let root = root.map_or_else(Root::live, Root::at);
    let mut evidence = Evidence::default();
    let mut scan = look(&LookOptions { root, bpf, pins: !has("no-pins"), ..LookOptions::default() }, &mut evidence);
    if let Some(scan) = &mut scan {
        scan.zombies.truncate(10);
        scan.files.truncate(10);
        scan.holds.clear();
    }
    let all = serde_json::json!({"scan": scan, "unseen": evidence.unseen});
    println!("{}", serde_json::to_string_pretty(&all).expect("plain data"));
}
