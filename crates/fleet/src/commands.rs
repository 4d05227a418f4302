//! The commands, and how their answers are printed.

mod export;
mod fetch;
mod flame;
mod next;
mod why;

use crate::answers::{Episode, FleetStatus, IncidentList, NodeDetail, NodeList, NodeSummary, called};
use crate::args::{Args, Command, IncidentsArgs, NodesArgs, ServeArgs, ShowArgs, default_directory};
use crate::client::{AtArgs, ask, encoded, parse};
use crate::files::Limits;
use crate::ingest::{fools, printable};
use crate::server::{ServeOptions, serve};
use crate::store::clickhouse::Address;
use crate::store::read::NUMBERS;
use crate::store::write::Retention;
use anyhow::ensure;
use coroner_report::Wall;
use std::io::Write;
use std::time::Duration;

const LONGEST_TITLE: usize = 140;

pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Serve(args) => start(args),
        Command::Status(at) => show(&at, &ask(&at, "status", &[])?, |status| status_text(status, &at.given())),
        Command::Nodes(args) => nodes(&args),
        Command::Why(args) => why::run(&args),
        Command::Incidents(args) => incidents(&args),
        Command::Flame(args) => flame::run(&args),
        Command::Show(args) => show_node(&args),
        Command::Next(args) => next::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Fetch(args) => fetch::run(&args),
    }
}

/// Hours are rolled up from minutes that may arrive late.
const LEAST_MINUTES_KEPT: Duration = Duration::from_secs(2 * 3600);

fn start(args: ServeArgs) -> anyhow::Result<()> {
    ensure!(args.keep_minutes >= LEAST_MINUTES_KEPT, "--keep-minutes: at least 2h, because hours are made of them");
    let address = |store: &String| Address::parse(store, args.store_password_file.as_deref());
    let options = ServeOptions {
        store: args.store.as_ref().map(address).transpose()?,
        directory: args.dir.unwrap_or_else(default_directory),
        listen: args.listen,
        agent_token: args.agent_token_file,
        user_token: args.user_token_file,
        tls: args.tls_cert.zip(args.tls_key),
        retention: Retention {
            minutes_s: args.keep_minutes.as_secs() as i64,
            hours_s: args.keep_hours.as_secs() as i64,
            episodes_s: args.keep_problems.as_secs() as i64,
        },
        files: args.files,
        limits: Limits { bytes: args.files_max, age: args.keep_files },
    };
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(serve(options))
}

/// Prints an answer as it came, or as text.
fn show<T: serde::de::DeserializeOwned>(
    at: &AtArgs,
    answer: &str,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let document: T = parse(answer)?;
    print(&if at.json { safe_json(answer) } else { safe_text(&text(&document)) })
}

/// The only place that prints: names from nodes must not command the terminal.
fn safe_text(text: &str) -> String {
    text.chars().map(|c| if c != '\n' && fools(c) { '\u{fffd}' } else { c }).collect()
}

/// The same document: such characters occur in its strings only.
fn safe_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            c if c != '\n' && fools(c) => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
            }
            c => text.push(c),
        }
    }
    text
}

fn print(text: &str) -> anyhow::Result<()> {
    written(std::io::stdout().lock().write_all(text.as_bytes()))
}

fn written(result: std::io::Result<()>) -> anyhow::Result<()> {
    match result {
        // The reader has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

fn nodes(args: &NodesArgs) -> anyhow::Result<()> {
    let limit = if args.limit == 0 { u32::MAX } else { args.limit }.to_string();
    let given = [("where", args.matching.as_deref()), ("sort", args.sort.as_deref()), ("limit", Some(limit.as_str()))];
    let given: Vec<(&str, &str)> = given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    show(&args.at, &ask(&args.at, "nodes", &given)?, |list| nodes_text(list, args.sort.as_deref()))
}

fn incidents(args: &IncidentsArgs) -> anyhow::Result<()> {
    let since = args.since.as_secs().to_string();
    show(&args.at, &ask(&args.at, "incidents", &[("since", &since)])?, incidents_text)
}

fn show_node(args: &ShowArgs) -> anyhow::Result<()> {
    let name = encoded(&args.node);
    show(&args.at, &ask(&args.at, &format!("nodes/{name}"), &[])?, node_text)
}

pub fn plural(count: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// `26,037`
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn shortened(text: &str) -> String {
    let text = printable(text);
    match text.char_indices().nth(LONGEST_TITLE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// `3 d`, `5 h`, `12 min`, `40 s`
fn ago(at: Wall, now: Wall) -> String {
    let seconds = now.0.saturating_sub(at.0) / 1_000_000_000;
    match seconds {
        s if s >= 2 * 86_400 => format!("{} d", s / 86_400),
        s if s >= 2 * 3600 => format!("{} h", s / 3600),
        s if s >= 120 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

/// `given`: the options by which the collector was named.
fn status_text(status: &FleetStatus, given: &str) -> String {
    let nodes = &status.nodes;
    if nodes.known == 0 {
        return "No node has reported yet. Start one with: coroner record --dir DIR --report-to URL --report-token-file FILE\n".to_owned();
    }
    let mut text = format!(
        "{}: {} reporting, {} with a problem, {} not diagnosed yet\n",
        plural(nodes.known, "node"),
        grouped(nodes.reporting),
        grouped(nodes.sick),
        grouped(nodes.undiagnosed)
    );
    if nodes.silent > 0 {
        text.push_str(&format!(
            "{} {} silent: no report for ten minutes, so what follows may be out of date (coroner fleet nodes --where silent)\n",
            grouped(nodes.silent),
            if nodes.silent == 1 { "is" } else { "are" }
        ));
    }
    text.push_str(&format!("{} in the last 24 hours\n", plural(status.incidents_last_day, "incident")));
    if status.dropped_rows > 0 {
        text.push_str(&format!(
            "{} were dropped by nodes before they could be sent, since their recorders started\n",
            plural(status.dropped_rows, "row")
        ));
    }
    if status.problems.is_empty() {
        text.push_str(match nodes.undiagnosed < nodes.known {
            true => "\nNo node that was diagnosed has a problem now.\n",
            false => "\nNo node was diagnosed yet: the first diagnosis comes a few minutes after a recorder's start.\n",
        });
        return text;
    }
    text.push_str("\n   NODES  SINCE    PROBLEM\n");
    for problem in &status.problems {
        let silent = match problem.silent {
            0 => String::new(),
            silent => format!("; {} of them silent", grouped(silent)),
        };
        text.push_str(&format!(
            "{:>8}  {:<7}  {}{}, {}{silent}\n",
            grouped(problem.nodes),
            ago(problem.since, status.at),
            printable(&problem.key),
            if problem.is_new { " (new)" } else { "" },
            problem.severity,
        ));
        let of = if problem.nodes > 1 { "such as " } else { "" };
        text.push_str(&format!(
            "                   {of}{}: {}\n",
            printable(&problem.example),
            shortened(&problem.title)
        ));
    }
    let most = status.problems.iter().max_by_key(|problem| problem.nodes).map_or("CODE", |problem| &problem.code);
    text.push_str(&format!("\nWhat do they have in common? coroner fleet why {}{given}\n", printable(most)));
    text
}

fn name_of(node: &NodeSummary) -> String {
    printable(node.name())
}

fn nodes_text(list: &NodeList, sort: Option<&str>) -> String {
    let verb = if list.matched == 1 { "matches" } else { "match" };
    let mut text = format!("{} of {} {verb}\n", grouped(list.matched), plural(list.known, "node"));
    if list.nodes.is_empty() {
        return text;
    }
    text.push_str("\nNODE                      UP      SEEN       ZOMBIES  BUSY  WHAT\n");
    for node in &list.nodes {
        let number = |name: &str| node.numbers.get(name);
        let zombies = number("zombies").map_or_else(|| "?".to_owned(), |n| grouped(*n as u64));
        let busy = number("busy").map_or_else(|| "?".to_owned(), |n| format!("{:.0} %", n * 100.0));
        let up = node.booted.map_or_else(|| "?".to_owned(), |booted| ago(booted, list.at));
        let seen = if node.is_silent {
            format!("silent {}", ago(node.last_seen, list.at))
        } else {
            ago(node.last_seen, list.at)
        };
        text.push_str(&format!("{:<24}  {up:<6}  {seen:<10} {zombies:>7}  {busy:>4}  {}", name_of(node), what(node)));
        if let Some((field, value)) = sort.and_then(|field| Some((field, node.attributes.get(field)?))) {
            text.push_str(&format!(" [{} {}]", printable(field), printable(value)));
        }
        text.push('\n');
    }
    let hidden = list.matched.saturating_sub(list.nodes.len() as u64);
    if hidden > 0 {
        text.push_str(&format!("and {} more (--limit)\n", grouped(hidden)));
    }
    text
}

fn what(node: &NodeSummary) -> String {
    if node.problems.is_empty() {
        return match node.conclusion.as_deref() {
            Some(nothing @ "nothing wrong") => nothing.to_owned(),
            // Of the minutes that were looked at; it has ended.
            Some(_) => "nothing wrong now".to_owned(),
            None => "not diagnosed yet".to_owned(),
        };
    }
    let mut codes: Vec<&str> = node.problems.iter().map(|problem| problem.code.as_str()).collect();
    codes.dedup();
    codes.iter().map(|code| printable(code)).collect::<Vec<_>>().join(", ")
}

fn incidents_text(list: &IncidentList) -> String {
    if list.incidents.is_empty() {
        return "No incidents.\n".to_owned();
    }
    let mut text = "TRIGGERED             INCIDENT                  CODE                 WHAT\n".to_owned();
    for found in &list.incidents {
        let incident = &found.incident;
        text.push_str(&format!(
            "{}  {:<24}  {:<19}  {}\n",
            to_the_second(incident.triggered),
            printable(&format!("{}/{}", called(&found.node, found.host.as_deref()), incident.number)),
            printable(&incident.code),
            shortened(&incident.text)
        ));
    }
    let more = list.matched.saturating_sub(list.incidents.len() as u64);
    if more > 0 {
        text.push_str(&format!(
            "… and {} earlier ones: ask for a shorter time (--since), or coroner fleet export --what incidents\n",
            grouped(more)
        ));
    }
    text
}

/// `2026-11-18T14:27:14Z`
fn to_the_second(at: Wall) -> String {
    let text = at.to_string();
    text.split_once('.').map_or(text.clone(), |(seconds, _)| format!("{seconds}Z"))
}

fn node_text(detail: &NodeDetail) -> String {
    let node = &detail.node;
    let mut text = format!("{} ({})\n", name_of(node), printable(&node.node));
    let up = node.booted.map_or_else(|| "unknown".to_owned(), |booted| ago(booted, detail.at));
    let silent = if node.is_silent { ", silent" } else { "" };
    text.push_str(&format!(
        "  up {up}, last report {} ago{silent}, coroner {}\n",
        ago(node.last_seen, detail.at),
        printable(node.version.as_deref().unwrap_or("?"))
    ));
    for (name, value) in &node.attributes {
        text.push_str(&format!("  {:<22} {}\n", printable(name), printable(value)));
    }
    if !node.numbers.is_empty() {
        let is_share = |name: &str| NUMBERS.iter().any(|(known, _, unit)| *known == name && *unit < 1.0);
        let told = |(name, value): (&String, &f64)| match is_share(name) {
            true => format!("{name} {:.0} %", value * 100.0),
            false => format!("{name} {}", grouped(*value as u64)),
        };
        let numbers: Vec<String> = node.numbers.iter().filter(|(_, value)| **value != 0.0).map(told).collect();
        text.push_str(&format!("  {:<22} {} (what is 0 is left out)\n", "last minute", numbers.join(", ")));
    }
    let episode = |episode: &Episode| {
        let until = episode.ended.map_or_else(|| "now".to_owned(), to_the_second);
        format!(
            "  {} to {until:<20}  {}: {}\n",
            to_the_second(episode.began),
            printable(&episode.code),
            shortened(&episode.title)
        )
    };
    let (now, over): (Vec<&Episode>, Vec<&Episode>) =
        detail.history.iter().partition(|episode| episode.ended.is_none());
    text.push_str(match (now.is_empty(), node.conclusion.is_some()) {
        (false, _) => "\nNow:\n",
        (true, true) => "\nNothing is known to be wrong now.\n",
        (true, false) => "\nNot diagnosed yet: the first diagnosis comes a few minutes after the recorder's start.\n",
    });
    now.into_iter().for_each(|one| text.push_str(&episode(one)));
    if !over.is_empty() {
        text.push_str("\nEnded:\n");
        over.into_iter().take(30).for_each(|one| text.push_str(&episode(one)));
    }
    if !detail.incidents.is_empty() {
        text.push_str("\nIncidents:\n");
        for incident in detail.incidents.iter().take(30) {
            text.push_str(&format!(
                "  {}  {}  {}: {}\n",
                to_the_second(incident.triggered),
                printable(&format!("{}/{}", name_of(node), incident.number)),
                printable(&incident.code),
                shortened(&incident.text)
            ));
        }
    }
    text
}
