//! Restores what a run changed, the last first. What is so already is left alone, so it may be run again and again.

use crate::journal::{self, Entry, Journal, JournalError, Recorded, Run, State};
use crate::steps::{Hands, Undone};
use coroner_evidence::Node;

/// A step that was taken back, or not.
#[derive(Debug, Clone)]
pub struct Taken {
    pub id: String,
    pub title: String,
    pub result: Result<Undone, String>,
}

#[derive(Debug, Clone)]
pub struct Report {
    pub run: u64,
    /// In the order in which it happened: the last step first.
    pub steps: Vec<Taken>,
    /// Why it ended before its end.
    pub stopped: Option<String>,
}

impl Report {
    /// What can be restored is as it was before.
    pub fn is_whole(&self) -> bool {
        let fine = |taken: &Taken| !matches!(taken.result, Err(_) | Ok(Undone::ChangedSince(_)));
        self.stopped.is_none() && self.steps.iter().all(fine)
    }
}

/// The newest run of which something is left to take back.
pub fn newest_open(directory: &std::path::Path) -> Result<Option<Run>, JournalError> {
    for number in journal::numbers(directory)?.into_iter().rev() {
        let run = match journal::read(directory, number) {
            // A damaged one does not hide those before it; `undo --list` names it.
            Err(JournalError::Refused { .. }) => continue,
            run => run?,
        };
        if run.is_open() {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// Takes a run back. A failed step does not keep the others from being restored.
pub fn run(
    run: &Run,
    journal: &Journal,
    here: &Node,
    hands: &mut Hands<'_>,
    force: bool,
) -> Result<Report, JournalError> {
    let mut writer = journal.resume(run.number)?;
    let mut report = Report { run: run.number, steps: Vec::new(), stopped: None };
    for recorded in run.steps.iter().rev() {
        if hands.is_stopped() {
            report.stopped = Some(format!("stopped before {}", recorded.id));
            break;
        }
        if let State::Undone(..) = recorded.state {
            continue;
        }
        writer.write(&Entry::UndoIntent { step: recorded.step, at: journal::now() })?;
        let result = one(recorded, run, here, hands, force);
        let at = journal::now();
        let line = match &result {
            // It is left as somebody made it: another undo may still be wanted.
            Ok(Undone::ChangedSince(words)) => Entry::UndoFailed { step: recorded.step, at, why: words.clone() },
            Ok(undone) => Entry::Undone {
                step: recorded.step,
                at,
                how: undone.word().to_owned(),
                words: undone.words().to_owned(),
            },
            Err(why) => Entry::UndoFailed { step: recorded.step, at, why: why.clone() },
        };
        writer.write(&line)?;
        report.steps.push(Taken { id: recorded.id.clone(), title: recorded.title.clone(), result });
    }
    Ok(report)
}

fn one(recorded: &Recorded, run: &Run, here: &Node, hands: &mut Hands<'_>, force: bool) -> Result<Undone, String> {
    let rebooted = matches!((&run.boot_id, &here.boot_id), (Some(then), Some(now)) if then != now);
    if rebooted && recorded.action.ends_with_boot() {
        return Ok(Undone::AlreadySo("the reboot since then already undid it".to_owned()));
    }
    recorded.action.undo(&recorded.before, hands, force).map_err(|error| {
        hands.forget_manager();
        error.to_string()
    })
}
