//! The `coroner` command.

mod args;
mod commands;
mod exit;
#[allow(clippy::disallowed_methods, reason = "the only place that prints; makes text safe first")]
mod output;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = args::Args::parse();
    output::terminal::set_colour(args.color);
    output::print_warnings();
    let outcome = match args.command {
        None => commands::diagnose::run(args.diagnose),
        Some(args::Command::Diagnose(diagnose)) => commands::diagnose::run(diagnose),
        Some(args::Command::Cores(cores)) => commands::cores::run(cores),
        Some(args::Command::Waits(waits)) => commands::waits::run(waits),
        Some(args::Command::Zombies(zombies)) => commands::zombies::run(zombies),
        Some(args::Command::Units(units)) => commands::units::run(units),
        Some(args::Command::Record(record)) => commands::record::run(record),
        Some(args::Command::Flame(flame)) => commands::profile::flame::run(flame),
        Some(args::Command::Heatmap(heatmap)) => commands::profile::heatmap::run(heatmap),
        Some(args::Command::Monopolies(monopolies)) => commands::profile::monopolies::run(monopolies),
        Some(args::Command::Import(import)) => commands::profile::import::run(import),
        Some(args::Command::Export(export)) => commands::profile::export::run(export),
        Some(args::Command::Incidents(incidents)) => commands::incidents::run(incidents),
        Some(args::Command::Fleet(fleet)) => commands::fleet::run(&fleet),
        Some(args::Command::History(history)) => commands::history::run(history),
        Some(args::Command::Condition(condition)) => commands::condition::run(&condition),
        Some(args::Command::DiagnoseRecorded(args)) => commands::history::diagnose_recorded(args),
        Some(args::Command::View(view)) => commands::view::run(view),
        Some(args::Command::Mark(mark)) => commands::mark::run(mark),
        Some(args::Command::Fix(fix)) => commands::fix::run(*fix),
        Some(args::Command::Undo(undo)) => commands::undo::run(undo),
        Some(args::Command::FreezeIncident(freeze)) => commands::incidents::freeze(freeze),
    };
    match outcome {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::warn(&format!("{error:#}"));
            exit::Exit::CouldNotExamine.into()
        }
    }
}
