//! `coroner-lab score`: runs every scenario with its own seeds, asks coroner blind, and compares its answers with the truth.

pub mod judge;
pub(crate) mod run;
mod sums;
mod text;

use crate::draw::Draw;
use crate::interrupt;
use crate::scenarios::{self, Scenario};
use anyhow::{Context, Result, bail, ensure};
use judge::{Asking, Judgement, judge};
pub use run::BUSY;
use run::{Answers, Question};
use serde::Serialize;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use sums::Sums;

#[derive(Debug, Clone, clap::Args)]
pub struct Score {
    /// Runs of each scenario.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Seed for the seeds of all runs. [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print one JSON document (schema coroner-lab.score/1); progress goes to standard error.
    #[arg(long)]
    pub json: bool,
    /// Only these scenarios.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The coroner to test. [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub coroner: Option<PathBuf>,
    /// Run coroner without BPF; names of dead cgroups are then not expected.
    #[arg(long)]
    pub no_bpf: bool,
    /// How long coroner watches. [default: coroner's own default]
    #[arg(long = "for", value_name = "DURATION")]
    pub watch: Option<String>,
    /// Keep answer and truth of each run with a fault in this directory.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

/// One run of one scenario.
#[derive(Debug, Serialize)]
pub struct Run {
    pub scenario: &'static str,
    /// Counted from 1.
    pub run: u32,
    pub seed: u64,
    /// From the start of `coroner diagnose` to its end.
    pub seconds: f64,
    /// How busy others kept the machine before the scenario, in percent of all cores.
    pub busy_before: u64,
    pub judgement: Judgement,
}

impl Run {
    /// Its findings may be about other work on the machine.
    pub fn was_disturbed(&self) -> bool {
        self.busy_before >= BUSY
    }
}

/// A run that failed, and why.
#[derive(Debug, Serialize)]
pub struct NotRun {
    pub scenario: &'static str,
    pub run: u32,
    pub seed: u64,
    pub why: String,
}

/// Whether the bars were reached. An error if it cannot start, or was interrupted.
pub fn score(score: &Score, seed: u64) -> Result<Outcome> {
    let chosen = chosen(&score.only)?;
    let coroner = match &score.coroner {
        Some(path) => path.clone(),
        None => std::env::current_exe().context("cannot find this program's own path")?.with_file_name("coroner"),
    };
    if let Some(watch) = &score.watch {
        let number = watch.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let is_long = number.parse::<f64>().is_ok_and(|n| n > 0.0) && number.len() < watch.len();
        ensure!(is_long, "--for {watch}: expected a duration such as 5s or 500ms");
    }
    ensure!(coroner.is_file(), "{} does not exist: build it, or use --coroner", coroner.display());
    if let Some(dir) = &score.keep {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    let question = Question { coroner, no_bpf: score.no_bpf, watch: score.watch.clone() };
    let tell = |line: &str| if score.json { eprintln!("{line}") } else { println!("{line}") };
    tell(&format!("seed {seed}: {} scenarios, {} runs each", chosen.len(), score.runs));
    let (mut runs, mut not_run): (Vec<Run>, Vec<NotRun>) = (Vec::new(), Vec::new());
    for scenario in &chosen {
        for number in 1..=score.runs {
            let drawn = seed_of(seed, scenario.name, number);
            match one(scenario, drawn, number, &question, score.keep.as_deref()) {
                Ok(run) => {
                    tell(&text::line(&run));
                    runs.push(run);
                }
                Err(_) if interrupt::requested() => bail!("interrupted"),
                Err(why) => {
                    let why = format!("{why:#}");
                    tell(&format!("{} {number} (seed {drawn}): could not be run: {why}", scenario.name));
                    not_run.push(NotRun { scenario: scenario.name, run: number, seed: drawn, why });
                }
            }
        }
    }
    let sums = Sums::of(&chosen, &runs);
    if score.json {
        let document = json!({
            "schema": "coroner-lab.score/1", "seed": seed, "runs_each": score.runs, "coroner": question.coroner,
            "no_bpf": score.no_bpf, "watch": score.watch, "scenarios": sums.scenarios, "precision": sums.precision,
            "recall": sums.recall, "culprit_accuracy": sums.culprit_accuracy, "time_to_verdict": sums.time_to_verdict,
            "bars": sums.bars, "pass": sums.pass() && not_run.is_empty(),
            "disturbed": runs.iter().filter(|run| run.was_disturbed()).count(), "runs": runs, "not_run": not_run,
        });
        println!("{document}");
    } else {
        print!("{}", text::table(&sums, &runs, &not_run));
    }
    Ok(match (sums.pass(), not_run.is_empty()) {
        (false, _) => Outcome::Below,
        (true, true) => Outcome::Reached,
        (true, false) => Outcome::NotShown,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Reached,
    Below,
    /// Not every run could be made.
    NotShown,
}

fn chosen(only: &[String]) -> Result<Vec<&'static Scenario>> {
    if only.is_empty() {
        return Ok(scenarios::ALL.iter().collect());
    }
    let find =
        |name: &String| scenarios::find(name).with_context(|| format!("no scenario {name}; see `coroner-lab list`"));
    only.iter().map(find).collect()
}

/// Short enough to type: `coroner-lab run NAME --seed N` repeats the run.
fn seed_of(seed: u64, scenario: &str, run: u32) -> u64 {
    let named = scenario.bytes().fold(seed, |mixed, byte| Draw::new(mixed ^ u64::from(byte)).number(0, u64::MAX));
    Draw::new(named ^ u64::from(run)).number(0, 999_999)
}

fn one(scenario: &Scenario, seed: u64, number: u32, question: &Question, keep: Option<&Path>) -> Result<Run> {
    for need in scenario.needs {
        need.check()?;
    }
    let said = run::run(scenario.name, seed, question)?;
    let asking = Asking { no_bpf: question.no_bpf, earlier: Some(&said.earlier), on_any_machine: false };
    let judgement = judge(&said.truth, &said.answer, asking)?;
    let seconds = said.took.as_secs_f64();
    let run = Run { scenario: scenario.name, run: number, seed, seconds, busy_before: said.busy_before, judgement };
    if let Some(dir) = keep.filter(|_| !run.judgement.faults.is_empty() || !run.judgement.unexplained.is_empty()) {
        keep_run(dir, &run, &said)?;
    }
    Ok(run)
}

fn keep_run(dir: &Path, run: &Run, said: &Answers) -> Result<()> {
    let stem = format!("{}-{}", run.scenario, run.seed);
    let truth = json!({"scenario": run.scenario, "seed": run.seed, "truth": said.truth, "judgement": run.judgement});
    for (what, document) in [("answer", &said.answer), ("truth", &truth)] {
        let path = dir.join(format!("{stem}.{what}.json"));
        fs::write(&path, format!("{document:#}\n")).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_by_run_and_scenario_and_repeat() {
        let seeds: Vec<u64> =
            ["idle", "zombies"].iter().flat_map(|name| (1..=5).map(|run| seed_of(7, name, run))).collect();
        let distinct: std::collections::BTreeSet<&u64> = seeds.iter().collect();
        assert_eq!(distinct.len(), seeds.len(), "{seeds:?}");
        assert_eq!(seed_of(7, "idle", 1), seeds[0]);
        assert_ne!(seed_of(8, "idle", 1), seeds[0]);
    }

    #[test]
    fn an_unknown_scenario_is_an_error() {
        assert!(chosen(&["idle".to_owned(), "no-such".to_owned()]).is_err());
        assert_eq!(chosen(&["idle".to_owned()]).unwrap().len(), 1);
        assert_eq!(chosen(&[]).unwrap().len(), scenarios::ALL.len());
    }
}
