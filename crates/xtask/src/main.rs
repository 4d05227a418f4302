//! Chores of the project that are not tests: `cargo xtask bench` measures what docs/benchmarks.md claims.

mod bench;
mod bench_profile;
mod bench_recorder;
mod bench_units;
mod bench_view;
mod bench_zombies;
mod big_node;
mod flamescope;

use clap::{Parser, Subcommand};

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

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Bench { filter, runs } => bench::run(filter.as_deref().unwrap_or(""), runs.max(1)),
        Command::Bursts { seed, seconds, threshold_ms, truth } => {
            bench_profile::monopolies::workload::run(seed, seconds, threshold_ms, &truth)
        }
    }
}
