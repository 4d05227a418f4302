//! Project chores: `cargo xtask bench` measures what docs/benchmarks.md claims, `cargo xtask steady` finds flaky tests.

mod bench;
mod bench_fleet;
mod bench_profile;
mod bench_recorder;
mod bench_units;
mod bench_view;
mod bench_waits;
mod bench_zombies;
mod big_node;
mod child;
mod flamescope;
mod lab;
mod random;
mod steady;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Project chores")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure what coroner costs the node it examines. Prints a Markdown table. Needs root for the crowd.
    Bench {
        /// Only benchmarks whose name contains this. Seven run only if named: `zombies` (makes 60,000 dead cgroups), `units`
        /// (boots a systemd with 400 units), `waits` (the wait ledger), `profile` or `profile:PART` (the profile engine against its peers), `recorder` or
        /// `recorder:PART` (the flight recorder against perf), `fleet` or `fleet:PART` (the collector under 10,000
        /// simulated nodes), and `view` or `view:PART` (the page's server, also against
        /// FlameScope).
        filter: Option<String>,
        /// Runs of each benchmark.
        #[arg(long, default_value_t = 3)]
        runs: u32,
    },
    /// Run the host and browser tests repeatedly, and print which failed how often. Needs root, as they do.
    ///
    /// Also prints how long they took. If something fails, keeps the output in target/steady and exits with 1.
    Steady {
        /// How often.
        #[arg(long, default_value_t = 3)]
        runs: u32,
        /// Run `stress-ng --cpu 2 --fork 1 --hdd 1` at the same time.
        #[arg(long)]
        load: bool,
        /// Run every test program of `cargo test --release`, also those that do not touch the host.
        #[arg(long)]
        all: bool,
        /// Only tests whose name contains one of these.
        #[arg(value_name = "TEST")]
        tests: Vec<String>,
    },
    /// The loads of `bench waits`.
    #[command(hide = true)]
    Switches {
        how: bench_waits::Switches,
        /// Switches a second; 0: as many as possible.
        #[arg(long, default_value_t = 0)]
        rate: u64,
    },
    /// The load of `bench profile:monopolies`.
    #[command(hide = true)]
    Bursts {
        #[arg(long)]
        seed: u64,
        #[arg(long)]
        seconds: u64,
        #[arg(long)]
        threshold_ms: u64,
        #[arg(long)]
        truth: std::path::PathBuf,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    match Args::parse().command {
        Command::Bench { filter, runs } => bench::run(filter.as_deref().unwrap_or(""), runs.max(1))?,
        Command::Steady { runs, load, all, tests } => {
            if !steady::run(runs.max(1), load, all, &tests)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Switches { how, rate } => bench_waits::switch(how, rate)?,
        Command::Bursts { seed, seconds, threshold_ms, truth } => {
            bench_profile::monopolies::workload::run(seed, seconds, threshold_ms, &truth)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
