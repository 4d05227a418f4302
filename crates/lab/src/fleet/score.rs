//! Stories and seeds, blind: does `coroner fleet why` name the cause, and nothing else?

use super::nodes::{Fleet, Spared};
use super::send::Sender;
use super::story::Story;
use super::{FleetScore, unix_now};
use crate::score::Outcome;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const CAUSE_FIRST_PERCENT: f64 = 98.0;
const FALSE_ALARM_PERCENT: f64 = 1.0;
const SPAN: u64 = 7 * 86_400;
/// Minutes matter little for `why`.
const SPARED: Spared = Spared { one_minute_in: 720, stacks_s: 0 };

#[derive(Debug, Serialize)]
struct Judged {
    story: String,
    seed: u64,
    sick: usize,
    /// The cause, or what picks the same nodes, comes first.
    right: bool,
    /// A planted alias is told as a cause of its own.
    alias_apart: bool,
    /// Cohorts beside the cause that are called harmful.
    extra: usize,
    said: String,
}

pub fn score(args: &FleetScore) -> Result<Outcome> {
    let stories: Vec<Story> = if args.story.is_empty() { Story::ALL.to_vec() } else { args.story.clone() };
    let program =
        std::env::current_exe().context("cannot find this program's own path")?.with_file_name("coroner-fleet");
    ensure!(program.is_file(), "{} does not exist: cargo build --release -p coroner-fleet", program.display());
    let mut judged = Vec::new();
    for story in stories {
        let problem = story.problem(&args.golden, None)?;
        for seed in args.seed..args.seed + u64::from(args.seeds) {
            if crate::interrupt::requested() {
                return Ok(Outcome::NotShown);
            }
            let one = run(&program, story, seed, args.nodes, &problem)?;
            eprintln!("{} seed {seed}: {}: {}", one.story, if one.right { "right" } else { "WRONG" }, one.said);
            judged.push(one);
        }
    }
    let (nothing, caused): (Vec<&Judged>, Vec<&Judged>) =
        judged.iter().partition(|one| one.story == Story::Nothing.name());
    let percent = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
    let cause_first = percent(caused.iter().filter(|one| one.right).count(), caused.len());
    let false_alarms = percent(nothing.iter().filter(|one| !one.right).count(), nothing.len());
    let aliases_apart = judged.iter().filter(|one| one.alias_apart).count();
    let extra: usize = caused.iter().map(|one| one.extra).sum();
    let pass = (caused.is_empty() || cause_first >= CAUSE_FIRST_PERCENT)
        && false_alarms <= FALSE_ALARM_PERCENT
        && aliases_apart == 0;
    if args.json {
        println!(
            "{}",
            json!({"schema": "coroner-lab.fleet-score/1", "pass": pass, "cause_first_percent": cause_first,
            "false_alarm_percent": false_alarms, "aliases_apart": aliases_apart, "extra_cohorts": extra, "runs": judged})
        );
    } else {
        println!("{} fleets of {} nodes", judged.len(), args.nodes);
        println!("cause first                {cause_first:.1} %  (needed: {CAUSE_FIRST_PERCENT} %)");
        println!("false alarms in `nothing`  {false_alarms:.1} %  (at most: {FALSE_ALARM_PERCENT} %)");
        println!("aliases told apart         {aliases_apart}  (needed: 0)");
        println!("cohorts beside the cause   {extra}");
    }
    Ok(if pass { Outcome::Reached } else { Outcome::Below })
}

/// A collector in a directory of its own.
struct Collector {
    dir: PathBuf,
    child: Child,
    url: String,
}

impl Collector {
    fn start(program: &Path) -> Result<Collector> {
        let dir = std::env::temp_dir().join(format!("coroner-lab-fleet-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--dir"]).arg(&dir).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
        let mut url = None;
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(at) = line.strip_prefix("at ") {
                    url = at.split(';').next().map(str::to_owned);
                }
                if line.contains("coroner fleet status") {
                    break;
                }
            }
        }
        let collector = Collector { dir, child, url: url.unwrap_or_default() };
        ensure!(!collector.url.is_empty(), "the collector did not start");
        Ok(collector)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn run(program: &Path, story: Story, seed: u64, nodes: u32, problem: &Value) -> Result<Judged> {
    let collector = Collector::start(program)?;
    let token = std::fs::read_to_string(collector.dir.join("agent.token")).context("no token")?;
    let now = unix_now();
    let fleet = Fleet::draw(story, nodes, seed, now, SPAN);
    let sender = Sender::new(&collector.url, token.trim(), 8);
    sender.send_all(fleet.nodes.len(), |at| fleet.nodes[at].clone().history(problem, now, SPAN, SPARED))?;
    let mut why = Command::new(program);
    why.args(["why", story.condition(), "--json", "--at", &collector.url, "--token-file"])
        .arg(collector.dir.join("user.token"));
    let output = why.output().context("cannot ask why")?;
    let answer: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no answer: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(judge(&fleet, seed, &answer))
}

fn judge(fleet: &Fleet, seed: u64, answer: &Value) -> Judged {
    let cohorts = answer["cohorts"].as_array().cloned().unwrap_or_default();
    let harmful: Vec<&Value> = cohorts.iter().filter(|cohort| cohort["protective"] != true).collect();
    let picks = |cohort: &Value| -> Vec<BTreeMap<String, String>> {
        let aliases = cohort["aliases"].as_array().cloned().unwrap_or_default();
        let all = std::iter::once(cohort["attributes"].clone()).chain(aliases);
        all.filter_map(|one| serde_json::from_value(one).ok()).collect()
    };
    let own = |map: &BTreeMap<&'static str, String>| -> BTreeMap<String, String> {
        map.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    };
    let truths: Vec<BTreeMap<String, String>> = std::iter::once(&fleet.cause).chain(&fleet.aliases).map(own).collect();
    let is_cause = |cohort: &&Value| picks(cohort).iter().any(|picked| truths.contains(picked));
    let right = match fleet.story {
        Story::Nothing => cohorts.is_empty(),
        _ => cohorts.first().is_some_and(|first| is_cause(&first)),
    };
    let said =
        answer["words"].as_array().and_then(|words| Some(words.first()?.as_str()?.to_owned())).unwrap_or_default();
    Judged {
        story: fleet.story.name(),
        seed,
        sick: fleet.nodes.iter().filter(|node| node.is_sick()).count(),
        right,
        alias_apart: harmful.iter().filter(|cohort| is_cause(cohort)).count() > 1,
        extra: harmful.iter().filter(|cohort| !is_cause(cohort)).count(),
        said,
    }
}
