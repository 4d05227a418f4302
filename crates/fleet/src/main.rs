//! The program behind `coroner fleet`: a collector of what recorders report, and the commands that ask it.

mod answers;
mod args;
mod client;
mod commands;
mod export;
mod files;
mod flame;
mod ingest;
mod next;
mod page;
mod query;
mod remedy;
mod save;
mod server;
mod stacks;
mod store;
mod tokens;
mod viewers;
mod why;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(args::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coroner fleet: {error:#}");
            ExitCode::from(2)
        }
    }
}
