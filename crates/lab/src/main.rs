//! `coroner-lab list | run NAME | score | clean`

use anyhow::Result;
use clap::{Parser, Subcommand};
use coroner_lab::actors::Actor;
use coroner_lab::crowd::{self, Crowd};
use coroner_lab::fleet::{self, FleetArgs};
use coroner_lab::invent::{self, Invent};
use coroner_lab::scenarios::{self, Scenario, systemd_root};
use coroner_lab::score::{self, Outcome, Score};
use coroner_lab::stage::Stage;
use coroner_lab::{interrupt, leftovers};
use serde_json::json;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Makes real incidents with a known cause on this machine, and prints as JSON what a diagnosis must find.
///
/// Exit codes: 0 success, 1 the scenario failed, 2 usage error.
#[derive(Debug, Parser)]
#[command(name = "coroner-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the scenarios.
    List {
        #[arg(long)]
        json: bool,
    },
    /// Run a scenario: make the problem, hold it, clean up.
    Run {
        name: String,
        /// How long to hold the problem once it is there.
        #[arg(long, default_value_t = 30)]
        seconds: u64,
        /// Seed for names, cores and counts. [default: random]
        #[arg(long)]
        seed: Option<u64>,
        /// How many, for scenarios that make many of something.
        #[arg(long)]
        count: Option<u64>,
    },
    /// Run all scenarios blind: ask coroner what is wrong, compare its answers with the truth, and say whether they are good enough.
    ///
    /// Exit codes: 0 every bar is reached, 1 below a bar, 2 usage error or a run failed.
    Score(Score),
    /// Compose cases that nobody wrote down, ask coroner in the middle of each, and compare its answer with what the victims measured.
    ///
    /// Exit codes: 0 every bar is reached, 1 below a bar, 2 usage error or a case could not be run.
    Invent(Invent),
    /// Simulate a fleet that reports to a collector (coroner fleet serve), and print what is wrong with it as JSON.
    Fleet(Box<FleetArgs>),
    /// Remove leftovers of runs whose runner was killed.
    Clean,
    /// Make the root file system that scenarios with systemd need, if it does not exist, and print its path.
    Root,
    /// A crowded node for benchmarks.
    #[command(hide = true)]
    Crowd(Crowd),
    #[command(hide = true)]
    Actor {
        #[command(subcommand)]
        actor: Actor,
    },
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if let Command::Actor { actor } = command {
        return exit_code(actor.perform());
    }
    interrupt::listen();
    // A panic unwinds through the guards and has already printed its message.
    match catch_unwind(|| perform(command)) {
        Ok(code) => code,
        Err(_) => ExitCode::from(1),
    }
}

fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coroner-lab: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn perform(command: Command) -> ExitCode {
    match command {
        Command::List { json } => {
            list(json);
            ExitCode::SUCCESS
        }
        Command::Run { name, seconds, seed, count } => {
            let Some(scenario) = scenarios::find(&name) else {
                eprintln!("coroner-lab: no scenario {name}; see `coroner-lab list`");
                return ExitCode::from(2);
            };
            let seed = seed.unwrap_or_else(any_seed);
            exit_code(run(scenario, Stage::new(scenario.name, seed, Duration::from_secs(seconds), count)))
        }
        Command::Score(args) => {
            clean();
            outcome(score::score(&args, args.seed.unwrap_or_else(any_seed)))
        }
        Command::Invent(args) => {
            clean();
            outcome(invent::invent(&args, args.seed.unwrap_or_else(any_seed)))
        }
        Command::Fleet(args) => outcome(fleet::fleet(*args, any_seed())),
        Command::Clean => clean(),
        Command::Root => exit_code(systemd_root::build().map(|root| println!("{}", root.display()))),
        Command::Crowd(crowd) => {
            clean();
            exit_code(crowd::gather(crowd))
        }
        Command::Actor { actor } => exit_code(actor.perform()),
    }
}

fn outcome(result: Result<Outcome>) -> ExitCode {
    match result {
        Ok(Outcome::Reached) => ExitCode::SUCCESS,
        Ok(Outcome::Below) => ExitCode::from(1),
        Ok(Outcome::NotShown) => ExitCode::from(2),
        Err(error) => {
            eprintln!("coroner-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn any_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Short enough to type.
    (u64::from(now.subsec_nanos()) ^ u64::from(std::process::id())) % 1_000_000
}

fn run(scenario: &Scenario, mut stage: Stage) -> Result<()> {
    for need in scenario.needs {
        need.check().map_err(|why| why.context(format!("cannot run {}", scenario.name)))?;
    }
    clean();
    (scenario.perform)(&mut stage).map_err(|why| why.context(format!("{} (seed {})", scenario.name, stage.seed)))
}

fn clean() -> ExitCode {
    let (removed, failed) = leftovers::clean();
    for leftover in removed {
        eprintln!("coroner-lab: removed a leftover: {leftover}");
    }
    for (leftover, error) in &failed {
        eprintln!("coroner-lab: could not remove {leftover}: {error:#}");
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn list(as_json: bool) {
    let needs = |s: &Scenario| s.needs.iter().map(|n| n.text()).collect::<Vec<_>>();
    if as_json {
        let entry =
            |s: &Scenario| json!({"name": s.name, "summary": s.summary, "expects": s.expects, "needs": needs(s)});
        println!("{}", json!(scenarios::ALL.iter().map(entry).collect::<Vec<_>>()));
        return;
    }
    let or_dash = |list: Vec<String>| if list.is_empty() { "-".to_owned() } else { list.join(", ") };
    let rows = scenarios::ALL.iter().map(|s| {
        let expects = s.expects.iter().map(|&e| e.to_owned()).collect();
        [s.name.to_owned(), or_dash(expects), or_dash(needs(s)), s.summary.to_owned()]
    });
    let header = ["scenario", "expects", "needs", "what it does"].map(str::to_owned);
    let rows: Vec<[String; 4]> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].len()).max().unwrap_or(0);
    let (w0, w1, w2) = (width(0), width(1), width(2));
    for [name, expects, needs, summary] in &rows {
        println!("{name:w0$}  {expects:w1$}  {needs:w2$}  {summary}");
    }
}
