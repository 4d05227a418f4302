//! Undoes a run, last step first. Idempotent: it can be run again.

use crate::journal::{self, Entry, Journal, JournalError, RecordedStep, Run, StepState};
use crate::steps::{Hands, Undone};
use coroner_evidence::Node;

/// What became of undoing a step.
#[derive(Debug, Clone)]
pub struct UndoneStep {
    pub id: String,
    pub title: String,
    pub result: Result<Undone, String>,
}

#[derive(Debug, Clone)]
pub struct UndoReport {
    pub run: u64,
    /// The last step of the run first.
    pub steps: Vec<UndoneStep>,
    /// Why it stopped early.
    pub stopped: Option<String>,
}

impl UndoReport {
    /// Everything that can be restored was.
    pub fn is_whole(&self) -> bool {
        let fine = |taken: &UndoneStep| !matches!(taken.result, Err(_) | Ok(Undone::ChangedSince(_)));
        self.stopped.is_none() && self.steps.iter().all(fine)
    }
}

/// The newest run with something left to undo.
pub fn newest_open(directory: &std::path::Path) -> Result<Option<Run>, JournalError> {
    for number in journal::numbers(directory)?.into_iter().rev() {
        let run = match journal::read(directory, number) {
            // A damaged run does not hide older ones; `undo --list` names it.
            Err(JournalError::Refused { .. }) => continue,
            run => run?,
        };
        if run.is_open() {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// Undoes a run. If a step fails, the others are still undone.
pub fn run(
    run: &Run,
    journal: &Journal,
    here: &Node,
    hands: &mut Hands<'_>,
    force: bool,
) -> Result<UndoReport, JournalError> {
    let mut writer = journal.resume(run.number)?;
    let mut report = UndoReport { run: run.number, steps: Vec::new(), stopped: None };
    for recorded in run.steps.iter().rev() {
        if hands.is_stopped() {
            report.stopped = Some(format!("stopped before {}", recorded.id));
            break;
        }
        if let StepState::Undone(..) = recorded.state {
            continue;
        }
        writer.write(&Entry::UndoIntent { step: recorded.step, at: journal::now() })?;
        let result = one(recorded, run, here, hands, force);
        let at = journal::now();
        let line = match &result {
            // Left as somebody changed it; the user may want to undo it later.
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
        report.steps.push(UndoneStep { id: recorded.id.clone(), title: recorded.title.clone(), result });
    }
    Ok(report)
}

fn one(recorded: &RecordedStep, run: &Run, here: &Node, hands: &mut Hands<'_>, force: bool) -> Result<Undone, String> {
    let rebooted = matches!((&run.boot_id, &here.boot_id), (Some(then), Some(now)) if then != now);
    if rebooted && recorded.action.ends_with_boot() {
        return Ok(Undone::AlreadySo("a reboot has already undone it".to_owned()));
    }
    recorded.action.undo(&recorded.before, hands, force).map_err(|error| {
        hands.forget_manager();
        error.to_string()
    })
}
