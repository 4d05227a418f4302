//! The score as text.

use super::judge::Judgement;
use super::sums::{ScenarioSums, Sums, Times};
use super::{NotRun, Run};
use std::fmt::Write;

/// One run: `nic-starved 2 (seed 4711): right, 6.1 s`
pub fn line(run: &Run) -> String {
    let Judgement { asked, faults, unexplained, .. } = &run.judgement;
    let faults: Vec<&str> = faults.iter().chain(unexplained).map(String::as_str).collect();
    let word = match faults.as_slice() {
        [] if run.judgement.control => "quiet".to_owned(),
        [] => "right".to_owned(),
        faults if run.judgement.right() && !asked.is_empty() => format!("right, but {}", faults.join("; ")),
        faults => format!("WRONG: {}", faults.join("; ")),
    };
    let hard = if run.judgement.proven_wrong.is_empty() { "" } else { " (a wrong culprit was called proven)" };
    let noise = match run.was_disturbed() {
        true => format!(" (the machine was busy: {} % by others before this run)", run.busy_before),
        false => String::new(),
    };
    format!("{} {} (seed {}): {word}{hard}, {:.1} s{noise}", run.scenario, run.run, run.seed, run.seconds)
}

/// A note below the bars if other work kept the machine busy.
fn disturbed(runs: &[Run]) -> Option<String> {
    let busy: Vec<u64> = runs.iter().filter(|run| run.was_disturbed()).map(|run| run.busy_before).collect();
    let wrong = runs.iter().filter(|run| run.was_disturbed() && !run.judgement.faults.is_empty()).count();
    Some(format!(
        "the machine was busy: up to {} % by others before {} of {} runs, {wrong} of them with faults. A real shortage of CPU counts as \
         a fault: repeat these runs on an idle machine before you believe them",
        busy.iter().max()?,
        busy.len(),
        runs.len()
    ))
}

pub fn table(sums: &Sums, runs: &[Run], not_run: &[NotRun]) -> String {
    let header = ["scenario", "runs", "root cause", "culprit", "chain", "extra", "median s", "worst s"];
    let rows: Vec<[String; 8]> =
        std::iter::once(header.map(str::to_owned)).chain(sums.scenarios.iter().map(row)).collect();
    let widths: Vec<usize> =
        (0..header.len()).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    let mut text = String::from("\n");
    for row in &rows {
        let [name, numbers @ ..] = row;
        let mut line = format!("{name:<width$}", width = widths[0]);
        for (number, width) in numbers.iter().zip(&widths[1..]) {
            let _ = write!(line, "  {number:>width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let share = |part: Option<f64>| part.map_or("-".to_owned(), |p| format!("{:.1} %", p * 100.0));
    let times =
        sums.time_to_verdict.map_or("-".to_owned(), |t| format!("median {:.1} s, worst {:.1} s", t.median, t.worst));
    let _ = writeln!(
        text,
        "\nprecision {}, recall {}, culprit accuracy {}, time to verdict {times}",
        share(sums.precision),
        share(sums.recall),
        share(sums.culprit_accuracy)
    );
    for bar in &sums.bars {
        let reached = bar.reached.as_deref().unwrap_or("not measured");
        let _ = writeln!(text, "{} {}: {reached} (needed: {})", bar.pass.map_or("----", pass), bar.what, bar.needed);
    }
    for not_run in not_run {
        let _ = writeln!(text, "could not be run: {} {} ({})", not_run.scenario, not_run.run, not_run.why);
    }
    if let Some(words) = disturbed(runs) {
        let _ = writeln!(text, "{words}");
    }
    let _ = writeln!(text, "{}", pass(sums.pass() && not_run.is_empty()));
    text
}

fn pass(pass: bool) -> &'static str {
    if pass { "PASS" } else { "FAIL" }
}

fn row(sums: &ScenarioSums) -> [String; 8] {
    let of = |right: usize| match sums.asking {
        0 => "-".to_owned(),
        asking => format!("{right}/{asking}"),
    };
    let seconds = |of: fn(Times) -> f64| sums.seconds.map_or("-".to_owned(), |times| format!("{:.1}", of(times)));
    [
        sums.scenario.to_owned(),
        sums.runs.to_string(),
        of(sums.right_root_cause),
        of(sums.right_culprit),
        of(sums.right_chain),
        sums.extra.to_string(),
        seconds(|times| times.median),
        seconds(|times| times.worst),
    ]
}
