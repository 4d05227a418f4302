//! `fold FILE [THREADS]`: perf script text to folded stacks, for benchmarks against other tools.

use coroner_profile::import::perf_script::fold;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: fold FILE [THREADS]")?;
    let threads = arguments.next().map_or(Ok(1), |threads| threads.parse())?;
    let file = std::fs::File::open(&path)?;
    let (folded, report) = fold::file(&file, &fold::Options { threads, ..fold::Options::default() })?;
    folded.write(std::io::stdout().lock())?;
    eprintln!("{}", serde_json::to_string(&report)?);
    Ok(())
}
