//! Chores of the project: `cargo xtask bench` measures what docs/benchmarks.md claims, `cargo xtask steady` finds tests that fail now
//! and then.

mod bench;
mod bench_profile;
mod bench_recorder;
mod bench_units;
mod bench_view;
mod bench_zombies;
mod big_node;
mod flamescope;
mod steady;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the project")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure what coroner costs the node it examines. Prints a Markdown table. Needs root for the crowd.
    Bench {
        /// Only benchmarks whose name contains this. Five are of their own: `zombies`, which makes 60,000 dead
        /// cgroups, `units`, which boots a systemd with 400 units, `profile` (or `profile:PART`), which measures the
        /// profile engine against its peers, and `recorder` (or `recorder:PART`), which measures the flight recorder beside perf, and
        /// `view` (or `view:PART`), which measures the page's server, beside FlameScope too.
        filter: Option<String>,
        /// Runs of each.
        #[arg(long, default_value_t = 3)]
        runs: u32,
    },
    /// Run the host and browser tests again and again, and print which failed how often. Needs root, as they do.
    ///
    /// Runs every program of `cargo test --release` and browser-tests. Keeps what they print in target/steady where something fails;
    /// then the exit code is 1.
    Steady {
        /// How often.
        #[arg(long, default_value_t = 3)]
        runs: u32,
        /// Beside `stress-ng --cpu 2 --fork 1 --hdd 1`.
        #[arg(long)]
        load: bool,
        /// Only tests whose name contains one of these.
        #[arg(value_name = "TEST")]
        tests: Vec<String>,
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
        Command::Steady { runs, load, tests } => {
            if !steady::run(runs.max(1), load, &tests)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Bursts { seed, seconds, threshold_ms, truth } => {
            bench_profile::monopolies::workload::run(seed, seconds, threshold_ms, &truth)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
