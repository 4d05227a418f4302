//! A simulated fleet: thousands of nodes that report to a real collector as recorders do, with a known cause of their trouble.
//!
//! What the sick nodes say is what coroner said about a golden recording; who is sick, since when, and with which attributes is drawn.
//! Nodes reboot, fall silent, have wrong clocks, and send some batches twice.

mod nodes;
mod outage;
mod score;
mod send;
mod stacks;
mod story;

use crate::score::Outcome;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use nodes::{Fleet, Spared};
use send::Sender;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use story::Story;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct FleetArgs {
    #[command(subcommand)]
    pub command: Option<FleetCommand>,

    #[command(flatten)]
    pub simulate: Simulate,
}

#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Run stories blind, each on a collector of its own: ask `coroner fleet why`, and compare its answer with the truth.
    ///
    /// Exit codes: 0 every bar is reached, 1 below a bar, 2 usage error.
    Score(FleetScore),
}

#[derive(Debug, Args)]
pub struct Simulate {
    /// How many nodes
    #[arg(long, default_value_t = 1000)]
    pub nodes: u32,

    /// What is wrong with the fleet
    #[arg(long, value_enum, default_value = "zombies-in-one-image")]
    pub story: Story,

    /// Seed. [default: random]
    #[arg(long)]
    pub seed: Option<u64>,

    /// How much history to send, as fast as the collector takes it: 7d, 12h
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = time)]
    pub span: Duration,

    /// One minute of history for each so many; the last hour is sent whole
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub one_minute_in: u32,

    /// Send no stacks; otherwise those of the last hour are sent
    #[arg(long)]
    pub no_stacks: bool,

    /// After the history, go on live, so many times as fast as the clock, until stopped
    #[arg(long)]
    pub speed: Option<u32>,

    /// With --speed: stop after this long
    #[arg(long = "for", value_name = "DURATION", value_parser = time)]
    pub duration: Option<Duration>,

    /// After the history, let all nodes come back in the same second, each with what it kept for so long
    #[arg(long, value_name = "DURATION", value_parser = time, conflicts_with = "speed")]
    pub outage: Option<Duration>,

    /// Give each node so many labels that have nothing to do with the trouble
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub labels: u32,

    /// The collector's URL
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8478")]
    pub to: String,

    /// A file with the collector's token for nodes
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Requests at a time
    #[arg(long, default_value_t = 16)]
    pub connections: usize,

    /// The coroner that reads the golden recordings. [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub coroner: Option<PathBuf>,

    /// Directory of the golden recordings
    #[arg(long, value_name = "DIR", default_value = "golden")]
    pub golden: PathBuf,
}

#[derive(Debug, Args)]
pub struct FleetScore {
    /// Seeds for each story
    #[arg(long, default_value_t = 20)]
    pub seeds: u32,

    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    #[arg(long, default_value_t = 2000)]
    pub nodes: u32,

    /// Only these stories
    #[arg(long, value_enum)]
    pub story: Vec<Story>,

    /// Print one JSON document (schema coroner-lab.fleet-score/1)
    #[arg(long)]
    pub json: bool,

    /// Directory of the golden recordings
    #[arg(long, value_name = "DIR", default_value = "golden")]
    pub golden: PathBuf,
}

pub fn fleet(args: FleetArgs, any_seed: u64) -> Result<Outcome> {
    match args.command {
        Some(FleetCommand::Score(args)) => score::score(&args),
        None => simulate(&args.simulate, args.simulate.seed.unwrap_or(any_seed)).map(|()| Outcome::Reached),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let expected = "expected a time such as 90s, 30m, 12h or 7d";
    let unit = text.chars().next_back().ok_or(expected)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(expected.to_owned()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| expected)?;
    Ok(Duration::from_secs(number.saturating_mul(seconds).min(400 * 86_400)))
}

pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn simulate(args: &Simulate, seed: u64) -> Result<()> {
    ensure!(args.nodes > 0 && args.one_minute_in > 0 && args.connections > 0, "expected more than none");
    let token_file = args.token_file.clone().context("--token-file: name the collector's agent.token")?;
    let token =
        std::fs::read_to_string(&token_file).with_context(|| format!("cannot read {}", token_file.display()))?;
    let problem = args.story.problem(&args.golden, args.coroner.as_deref())?;
    let sender = Sender::new(&args.to, token.trim(), args.connections);
    let began = Instant::now();
    let now = unix_now();
    let mut fleet = Fleet::draw(args.story, args.nodes, seed, now, args.span.as_secs());
    fleet.label(args.labels);
    let spared = Spared { one_minute_in: args.one_minute_in, stacks_s: if args.no_stacks { 0 } else { 3600 } };
    let history = |at: usize| {
        let mut node = fleet.nodes[at].clone();
        node.history(&problem, now, args.span.as_secs(), spared)
    };
    let sent = sender.send_all(fleet.nodes.len(), history)?;
    eprintln!(
        "{} nodes, {} of history: {} requests, {:.1} MB, {} rows in {:.1} s; {} sent again, {} told to come later",
        args.nodes,
        words(args.span),
        sent.requests,
        sent.bytes as f64 / 1e6,
        sent.rows,
        began.elapsed().as_secs_f64(),
        sent.repeated,
        sent.shed
    );
    if let Some(speed) = args.speed.filter(|speed| *speed > 0) {
        live(args, speed, &mut fleet, &problem, &sender)?;
    }
    if let Some(away) = args.outage {
        outage::come_back(&mut fleet, &problem, &sender, unix_now(), away)?;
    }
    println!("{}", truth(&fleet));
    Ok(())
}

/// What `coroner fleet why` must find.
fn truth(fleet: &Fleet) -> Value {
    json!({
        "schema": "coroner-lab.fleet/1", "story": fleet.story.name(), "seed": fleet.seed, "condition": fleet.story.condition(),
        "attributes": fleet.cause, "aliases": fleet.aliases, "sick": fleet.nodes.iter().filter(|node| node.is_sick()).count(),
        "nodes": fleet.nodes.len(), "function": fleet.story.function(),
    })
}

fn words(time: Duration) -> String {
    match time.as_secs() {
        s if s >= 86_400 => format!("{:.1} days", s as f64 / 86_400.0),
        s => format!("{:.1} hours", s as f64 / 3600.0),
    }
}

/// Each node reports once per minute of fleet time, at a second of its own.
fn live(args: &Simulate, speed: u32, fleet: &mut Fleet, problem: &Value, sender: &Sender) -> Result<()> {
    let round = Duration::from_secs_f64(60.0 / f64::from(speed));
    let began = Instant::now();
    let mut minute = 0;
    while args.duration.is_none_or(|duration| began.elapsed() < duration) && !crate::interrupt::requested() {
        let start = Instant::now();
        minute += 1;
        let now = unix_now();
        let shared = std::sync::Mutex::new(&mut *fleet);
        let sent = sender.send_paced(args.nodes as usize, round, |at| {
            let mut fleet = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            fleet.nodes[at].minute(problem, now, minute)
        })?;
        eprintln!(
            "minute {minute}: {} requests in {:.1} s, half within {} ms, 99 % within {} ms, {} told to come later",
            sent.requests,
            start.elapsed().as_secs_f64(),
            sent.median.as_millis(),
            sent.p99.as_millis(),
            sent.shed
        );
    }
    Ok(())
}
