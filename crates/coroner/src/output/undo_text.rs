//! What was undone, as text.

use super::safe::one_line;
use super::terminal::{bold, good, width, wrap_hanging};
use coroner_diagnosis::words::plural;
use coroner_remedy::journal::{Run, StepState};
use coroner_remedy::steps::Undone;
use coroner_remedy::undo::UndoReport;
use std::path::Path;

pub fn undone(report: &UndoReport) -> String {
    let width = width();
    let mut out = format!("{}\n", bold(&format!("Run {} undone, last step first", report.run)));
    for taken in &report.steps {
        let (word, words) = match &taken.result {
            Ok(Undone::Restored(words)) => ("restored", words),
            Ok(Undone::AlreadySo(words)) => ("nothing to do", words),
            Ok(Undone::CannotBe(words)) => ("cannot be undone", words),
            Ok(Undone::ChangedSince(words)) => ("changed since, left alone", words),
            Err(why) => ("FAILED", why),
        };
        out.push_str(&wrap_hanging(&format!("- {}: {word}: {words}", taken.id), width, 0, 4));
    }
    if let Some(stopped) = &report.stopped {
        out.push_str(&wrap_hanging(&format!("Stopped: {stopped}."), width, 0, 0));
    }
    match (report.steps.is_empty(), report.is_whole()) {
        (true, true) => out.push_str("It was already undone.\n"),
        (false, true) => out.push_str(&format!("{}\n", good("Everything that can be restored is restored."))),
        _ => out.push_str(&bold("Not everything is restored: see above, then run `coroner undo` again.\n")),
    }
    out
}

/// Also names journals that cannot be read: the run may be in one of them.
pub fn nothing_to_undo(directory: &Path, damaged: &[String]) -> String {
    let directory = directory.display();
    let text = format!(
        "Nothing to undo in {directory}. `coroner undo --list` shows what was done. If you ran fix with --journal DIR, use the \
         same for undo."
    );
    let mut out = wrap_hanging(&text, width(), 0, 0);
    for error in damaged {
        out.push_str(&wrap_hanging(&format!("- unreadable, left alone: {error}"), width(), 0, 4));
    }
    out
}

pub fn would_undo(run: &Run) -> String {
    let mut out = format!("Nothing was changed. `coroner undo {}` would undo:\n", run.number);
    for step in run.steps.iter().rev().filter(|step| !matches!(step.state, StepState::Undone(..))) {
        let how = if step.reversible { "" } else { " (cannot be undone)" };
        out.push_str(&wrap_hanging(&format!("- {}: {}{how}", step.id, step.title), width(), 0, 4));
    }
    out
}

pub fn list(runs: &[Run], directory: &Path) -> String {
    if runs.is_empty() {
        return format!("No runs in {}: nothing was done yet.\n", directory.display());
    }
    let mut out = String::new();
    for run in runs.iter().rev() {
        let state = if run.is_open() { "not undone" } else { "nothing left to undo" };
        let line = format!("run {}  {}  {state}", run.number, run.at);
        out.push_str(&format!("{}\n", bold(&one_line(&line))));
        for why in &run.why {
            out.push_str(&wrap_hanging(&format!("for: {why}"), width(), 2, 4));
        }
        for step in &run.steps {
            let state = match &step.state {
                StepState::Unknown => "started; unknown whether it was done".to_owned(),
                StepState::Done(words) => format!("done: {words}"),
                StepState::Failed(why) => format!("failed: {why}"),
                StepState::Undone(how, words) => format!("undone ({how}): {words}"),
            };
            out.push_str(&wrap_hanging(&format!("- {}: {state}", step.id), width(), 2, 4));
        }
        if run.damaged > 0 {
            out.push_str(&format!("  {} cannot be read\n", plural(run.damaged as u64, "line", "lines")));
        }
    }
    out
}
