//! `coroner-lab invent`: cases that nobody wrote down, judged by what their victims measured.

mod cases;
mod judge;
mod report;
mod staging;

use crate::draw::Draw;
use crate::score::Outcome;
use crate::score::judge::read;
use crate::score::run::take_turn;
use crate::{interrupt, node};
use anyhow::{Context, Result, ensure};
use cases::Case;
use judge::{Judged, judge};
use report::Sums;
use serde::Serialize;
use serde_json::{Value, json};
use staging::{Happened, perform};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, clap::Args)]
pub struct Invent {
    /// How many cases.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Seed of the first case, from which those of the others follow. [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
    /// The cores that cases may use: `all`, or a list such as 0,3.
    #[arg(long, default_value = "all", value_name = "all|LIST")]
    pub cores: String,
    /// The coroner to test. [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub coroner: Option<PathBuf>,
    /// How long coroner watches.
    #[arg(long = "for", value_name = "DURATION", default_value = "5s")]
    pub watch: String,
    /// Print one JSON document (schema coroner-lab.invent/1); progress goes to standard error.
    #[arg(long)]
    pub json: bool,
    /// Go on after a case that could not be run.
    #[arg(long)]
    pub keep_going: bool,
    /// Keep case, answer and judgement of each case with a fault in this directory.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Only draw the cases and print them.
    #[arg(long)]
    pub dry: bool,
}

/// One case that was run.
#[derive(Debug, Serialize)]
pub struct Ran {
    pub case: Case,
    pub happened: Happened,
    pub judged: Judged,
}

#[derive(Debug, Serialize)]
pub struct NotRun {
    pub seed: u64,
    pub why: String,
}

/// Whether the bars were reached. An error if it cannot start.
pub fn invent(invent: &Invent, seed: u64) -> Result<Outcome> {
    let cores = cores(&invent.cores)?;
    let tell = |line: &str| if invent.json { eprintln!("{line}") } else { println!("{line}") };
    if invent.dry {
        for number in 0..invent.runs {
            println!("{}", json!(Case::draw(seed_of(seed, number), &cores)));
        }
        return Ok(Outcome::Reached);
    }
    ensure!(rustix::process::geteuid().is_root(), "needs root");
    let coroner = match &invent.coroner {
        Some(path) => path.clone(),
        None => std::env::current_exe().context("cannot find this program's own path")?.with_file_name("coroner"),
    };
    ensure!(coroner.is_file(), "{} does not exist: build it, or use --coroner", coroner.display());
    if let Some(dir) = &invent.keep {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    let (mut ran, mut not_run): (Vec<Ran>, Vec<NotRun>) = (Vec::new(), Vec::new());
    for number in 0..invent.runs {
        let case = Case::draw(seed_of(seed, number), &cores);
        let drawn = case.seed;
        match one(case, &coroner, invent) {
            Ok(one) => {
                tell(&report::line(&one));
                ran.push(one);
            }
            Err(why) => {
                let why = format!("{why:#}");
                tell(&format!("seed {drawn}: could not be run: {why}"));
                not_run.push(NotRun { seed: drawn, why });
                // What was run until then still counts.
                if !invent.keep_going || interrupt::requested() {
                    break;
                }
            }
        }
    }
    let sums = Sums::of(&ran);
    match invent.json {
        true => println!("{}", document(seed, &coroner, &sums, &ran, &not_run)),
        false => print!("{}", report::table(&sums, &ran, &not_run)),
    }
    Ok(match (sums.pass(), not_run.is_empty()) {
        (false, _) => Outcome::Below,
        (true, true) => Outcome::Reached,
        (true, false) => Outcome::NotShown,
    })
}

fn document(seed: u64, coroner: &Path, sums: &Sums, ran: &[Ran], not_run: &[NotRun]) -> Value {
    json!({
        "schema": "coroner-lab.invent/1", "seed": seed, "coroner": coroner, "sums": sums, "pass": sums.pass() && not_run.is_empty(),
        "cases": ran, "not_run": not_run,
    })
}

fn one(case: Case, coroner: &Path, invent: &Invent) -> Result<Ran> {
    let _turn = take_turn()?;
    let (answer, happened) = perform(&case, coroner, &invent.watch)?;
    let judged = judge(&case, &happened, &read(&answer)?)?;
    let ran = Ran { case, happened, judged };
    if let Some(dir) = invent.keep.as_ref().filter(|_| !ran.judged.faults.is_empty()) {
        for (what, document) in [("answer", &answer), ("case", &json!(ran))] {
            let path = dir.join(format!("{}.{what}.json", ran.case.seed));
            std::fs::write(&path, format!("{document:#}\n")).with_context(|| path.display().to_string())?;
        }
    }
    Ok(ran)
}

fn cores(text: &str) -> Result<Vec<u32>> {
    let allowed = node::allowed_cores()?;
    if text == "all" {
        return Ok(allowed);
    }
    let chosen: Vec<u32> = text
        .split(',')
        .map(|core| core.trim().parse().with_context(|| format!("--cores {text}")))
        .collect::<Result<_>>()?;
    for core in &chosen {
        ensure!(allowed.contains(core), "--cores {text}: this process may not use core {core}");
    }
    ensure!(!chosen.is_empty(), "--cores: no core given");
    Ok(chosen)
}

/// The first case has the seed itself, so that `--runs 1 --seed N` repeats any case. The others' are short enough to type.
fn seed_of(seed: u64, number: u32) -> u64 {
    if number == 0 { seed } else { Draw::new(seed.rotate_left(32) ^ u64::from(number)).number(0, 999_999) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_case_has_the_given_seed() {
        assert_eq!(seed_of(4711, 0), 4711);
        assert_ne!(seed_of(4711, 1), seed_of(4711, 2));
        assert_ne!(seed_of(4711, 1), seed_of(4712, 1));
    }

    #[test]
    fn only_cores_that_exist() {
        assert!(!cores("all").unwrap().is_empty());
        assert!(cores("99999").is_err() && cores("x").is_err() && cores("").is_err());
    }
}
