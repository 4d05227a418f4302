//! `fold_data PERF.DATA`: perf.data to folded stacks, for benchmarks against other tools.

use coroner_profile::{export, import::perf_data, symbols::Symbols};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: fold_data PERF.DATA")?;
    let mut symbols = Symbols::of_this_machine();
    let (profile, report) = perf_data::read(&std::fs::File::open(path)?, &mut symbols)?;
    export::folded::write(&profile, None, std::io::stdout().lock())?;
    eprintln!("{}", serde_json::to_string(&report)?);
    eprintln!("{:?}", profile.events);
    for problem in &symbols.problems {
        eprintln!("{problem}");
    }
    Ok(())
}
