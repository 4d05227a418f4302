//! What was undone, for people.

use super::safe::one_line;
use super::terminal::{bold, good, width, wrap_hanging};
use coroner_remedy::journal::{Run, State};
use coroner_remedy::steps::Undone;
use coroner_remedy::undo::Report;
use std::path::Path;

pub fn undone(report: &Report) -> String {
    let width = width();
    let mut out = format!("{}\n", bold(&format!("Run {} undone, last step first", report.run)));
    for taken in &report.steps {
        let (word, words) = match &taken.result {
            Ok(Undone::Restored(words)) => ("restored", words),
            Ok(Undone::AlreadySo(words)) => ("as it was", words),
            Ok(Undone::CannotBe(words)) => ("cannot be undone", words),
            Ok(Undone::ChangedSince(words)) => ("left alone, changed since", words),
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

/// Also that some of it cannot be read, if so: what is looked for may be there.
pub fn nothing_to_undo(directory: &Path, damaged: &[String]) -> String {
    let directory = directory.display();
    let text = format!(
        "Nothing to undo: {directory} has no run that is not undone. `coroner undo --list` shows what was done. If you ran fix \
         with --journal DIR, use the same for undo."
    );
    let mut out = wrap_hanging(&text, width(), 0, 0);
    for error in damaged {
        out.push_str(&wrap_hanging(&format!("- unreadable, left alone: {error}"), width(), 0, 4));
    }
    out
}

pub fn would_undo(run: &Run) -> String {
    let mut out = format!("Nothing was changed. For run {}, `coroner undo {}` would undo:\n", run.number, run.number);
    for step in run.steps.iter().rev().filter(|step| !matches!(step.state, State::Undone(..))) {
        let how = if step.reversible { "" } else { " (cannot be undone)" };
        out.push_str(&wrap_hanging(&format!("- {}: {}{how}", step.id, step.title), width(), 0, 4));
    }
    out
}

pub fn list(runs: &[Run], directory: &Path) -> String {
    if runs.is_empty() {
        return format!("{} has no runs: nothing was done yet.\n", directory.display());
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
                State::Unknown => "started; not known whether it was done".to_owned(),
                State::Done(words) => format!("done: {words}"),
                State::Failed(why) => format!("failed: {why}"),
                State::Undone(how, words) => format!("undone ({how}): {words}"),
            };
            out.push_str(&wrap_hanging(&format!("- {}: {state}", step.id), width(), 2, 4));
        }
        if run.damaged > 0 {
            out.push_str(&format!("  {} of its lines cannot be read\n", run.damaged));
        }
    }
    out
}
