//! Applies the chosen steps one by one, writing each to the journal first; then measures.

use crate::journal::{self, Entry, Journal, JournalError, Writer};
use crate::measure::{Effect, Measure, Measured, compare};
use crate::plan::Step;
use crate::steps::{Done, Hands, StepError, StepKind};
use coroner_diagnosis::units::paths::shell_word;
use coroner_evidence::{Evidence, Node};
use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;

/// The user's answer for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    Yes,
    No,
    /// Neither this step nor any after it.
    Quit,
}

/// For the journal.
pub struct About<'a> {
    pub version: &'a str,
    pub node: &'a Node,
    pub bus: Option<&'a str>,
    pub why: Vec<String>,
    /// Dangerous steps that the user allowed.
    pub allowed: &'a [String],
}

/// Asks for consent and shows what happens.
pub trait Talk {
    fn consent(&mut self, step: &Step) -> Consent;
    fn tell(&mut self, step: &Step, outcome: &Outcome);
}

#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Done(Done),
    /// The user said no.
    Skipped,
    /// Dangerous and not allowed.
    NotAllowed(String),
    /// A guard said no; nothing was changed.
    Refused(String),
    Failed(String),
    /// An earlier step failed.
    NotReached,
}

impl Outcome {
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Done(_) => "done",
            Outcome::Skipped => "skipped",
            Outcome::NotAllowed(_) => "not-allowed",
            Outcome::Refused(_) => "refused",
            Outcome::Failed(_) => "failed",
            Outcome::NotReached => "not-reached",
        }
    }

    pub fn words(&self) -> &str {
        match self {
            Outcome::Done(done) => &done.words,
            Outcome::Skipped => "declined",
            Outcome::NotAllowed(why) | Outcome::Refused(why) | Outcome::Failed(why) => why,
            Outcome::NotReached => "an earlier step failed",
        }
    }
}

#[derive(Debug, Clone)]
pub struct StepReport {
    pub step: Step,
    pub outcome: Outcome,
    pub measured: Vec<Measured>,
    /// The overall effect; `None` if the step was not done.
    pub effect: Option<Effect>,
}

#[derive(Debug, Clone)]
pub struct FixReport {
    /// `None` if no run was begun.
    pub run: Option<u64>,
    pub journal: Option<PathBuf>,
    pub steps: Vec<StepReport>,
    /// Why it stopped early.
    pub stopped: Option<String>,
}

impl FixReport {
    /// Every step that was not declined was done, and none was measured to have no effect.
    pub fn worked(&self) -> bool {
        let fine = |report: &StepReport| match report.outcome {
            Outcome::Done(_) => report.effect != Some(Effect::None),
            Outcome::Skipped => true,
            _ => false,
        };
        self.stopped.is_none() && self.steps.iter().all(fine)
    }

    pub fn did_something(&self) -> bool {
        self.steps.iter().any(|report| matches!(report.outcome, Outcome::Done(_)))
    }
}

/// Changes nothing if the journal cannot be started. Asks for consent before each step.
pub fn run(
    steps: &[&Step],
    journal: &Journal,
    about: &About<'_>,
    hands: &mut Hands<'_>,
    talk: &mut dyn Talk,
) -> Result<FixReport, JournalError> {
    let mut writer: Option<Writer> = None;
    let mut report = FixReport { run: None, journal: None, steps: Vec::new(), stopped: None };
    let mut quit = false;
    for (number, step) in steps.iter().enumerate() {
        let outcome = if report.stopped.is_some() {
            Outcome::NotReached
        } else if quit {
            Outcome::Skipped
        } else if let Some(why) =
            step.dangerous.as_ref().filter(|_| !about.allowed.iter().any(|name| step.is_named(name)))
        {
            Outcome::NotAllowed(format!("{why}; to do it anyway: --allow {}", shell_word(&step.id)))
        } else {
            match talk.consent(step) {
                Consent::Quit => {
                    quit = true;
                    Outcome::Skipped
                }
                Consent::No => Outcome::Skipped,
                Consent::Yes => {
                    if writer.is_none() {
                        let asks_systemd = steps.iter().any(|step| step.action.is_about_unit());
                        let systemd_of = asks_systemd.then(|| hands.machine_of_bus().ok()).flatten();
                        let begun = journal.begin(|run| first_line(run, about, systemd_of, hands))?;
                        report.run = Some(begun.number);
                        report.journal = Some(begun.path().to_owned());
                        writer = Some(begun);
                    }
                    match writer.as_mut() {
                        Some(writer) => one(number, step, writer, hands, &mut report.stopped),
                        None => Outcome::NotReached,
                    }
                }
            }
        };
        if let (Outcome::Failed(why) | Outcome::Refused(why), None) = (&outcome, &report.stopped) {
            report.stopped = Some(format!("{}: {why}", step.id));
        }
        talk.tell(step, &outcome);
        report.steps.push(StepReport { step: (*step).clone(), outcome, measured: Vec::new(), effect: None });
    }
    Ok(report)
}

fn first_line(run: u64, about: &About<'_>, systemd_of: Option<String>, hands: &Hands<'_>) -> Entry {
    Entry::Run {
        run,
        at: journal::now(),
        coroner_version: about.version.to_owned(),
        host: about.node.host.clone(),
        machine_id: about.node.machine_id.clone(),
        boot_id: about.node.boot_id.clone(),
        bus: about.bus.map(str::to_owned),
        root: hands.root.clone(),
        systemd_of,
        why: about.why.clone(),
    }
}

fn one(
    number: usize,
    step: &Step,
    writer: &mut Writer,
    hands: &mut Hands<'_>,
    stopped: &mut Option<String>,
) -> Outcome {
    if hands.is_stopped() {
        *stopped = Some(format!("stopped before {}", step.id));
        return Outcome::NotReached;
    }
    let before = match step.action.prepare(hands) {
        Ok(before) => before,
        Err(StepError::Refused(why)) => return Outcome::Refused(why),
        Err(StepError::Failed(why)) => {
            hands.forget_manager();
            return Outcome::Failed(format!("{why} (this step changed nothing)"));
        }
    };
    let intent = Entry::Intent {
        step: number,
        id: step.id.clone(),
        title: step.title.clone(),
        at: journal::now(),
        action: step.action.clone(),
        before: before.clone(),
        reversible: step.reversible,
    };
    if let Err(error) = writer.write(&intent) {
        return Outcome::Failed(format!("cannot write the journal: {error} (this step changed nothing)"));
    }
    let outcome = match step.action.act(&before, hands) {
        Ok(done) => Outcome::Done(done),
        // The guards check again right before acting.
        Err(StepError::Refused(why)) => Outcome::Refused(why),
        Err(error) => {
            hands.forget_manager();
            Outcome::Failed(error.to_string())
        }
    };
    let at = journal::now();
    let line = match &outcome {
        Outcome::Done(done) => Entry::Done { step: number, at, words: done.words.clone(), after: done.after.clone() },
        other => Entry::Failed { step: number, at, why: other.words().to_owned() },
    };
    // The step stays done; `undo` checks the actual state.
    if let Err(error) = writer.write(&line) {
        *stopped = Some(format!("{} was done, but the journal can no longer be written: {error}", step.id));
    }
    outcome
}

/// The values before anything is done.
pub fn values_before(steps: &[&Step], evidence: &Evidence) -> Vec<(Measure, Result<f64, String>)> {
    let mut values: Vec<(Measure, Result<f64, String>)> = Vec::new();
    for measure in steps.iter().flat_map(|step| &step.measures) {
        if !values.iter().any(|(known, _)| known == measure) {
            values.push((measure.clone(), measure.value(evidence)));
        }
    }
    values
}

/// Compares the values now with those before, and writes the result to the journal.
pub fn verify(
    report: &mut FixReport,
    before: &[(Measure, Result<f64, String>)],
    after: &Evidence,
    journal: &Journal,
) -> Result<(), JournalError> {
    for step in &mut report.steps {
        let Outcome::Done(done) = &step.outcome else { continue };
        let of = |measure: &Measure| before.iter().find(|(known, _)| known == measure).map(|(_, value)| value.clone());
        let measures = step.step.measures.iter();
        step.measured = measures
            .map(|measure| compare(measure, of(measure).unwrap_or(Err("not measured before".into())), after))
            .collect();
        step.effect = Some(effect_of(step.step.kind, done, &step.measured));
    }
    let Some(run) = report.run else { return Ok(()) };
    let told: Vec<Value> =
        report.steps.iter().map(|step| serde_json::json!({"id": step.step.id, "measured": step.measured})).collect();
    journal.resume(run)?.write(&Entry::Measured { at: journal::now(), steps: Value::Array(told) })
}

/// Combines what the step itself reports with the measured effects; mixed effects are `Partly`.
fn effect_of(kind: StepKind, done: &Done, measured: &[Measured]) -> Effect {
    if done.in_vain.is_some() {
        return Effect::None;
    }
    let told: Vec<Effect> = measured.iter().map(|m| m.effect).filter(|effect| *effect != Effect::CannotTell).collect();
    // Being disabled, masked or limited is itself the effect, and act() checked it.
    let is_state = matches!(kind, StepKind::DisableUnit | StepKind::MaskUnit | StepKind::IsolateUnit);
    match (told.is_empty(), is_state) {
        (true, true) => Effect::Worked,
        (true, false) => Effect::CannotTell,
        _ if told.iter().all(|effect| *effect == Effect::Worked) => Effect::Worked,
        _ if told.iter().all(|effect| *effect == Effect::None) => Effect::None,
        _ => Effect::Partly,
    }
}

/// A step's result as JSON.
#[derive(Debug, Serialize)]
pub struct StepDocument<'r> {
    pub id: &'r str,
    pub kind: StepKind,
    pub title: &'r str,
    pub outcome: &'static str,
    pub words: &'r str,
    pub after: Option<&'r Value>,
    pub effect: Option<Effect>,
    /// Why it had no effect, if the step itself knows.
    pub in_vain: Option<&'r str>,
    pub measured: &'r [Measured],
    pub reversible: bool,
}

impl StepReport {
    pub fn document(&self) -> StepDocument<'_> {
        let done = match &self.outcome {
            Outcome::Done(done) => Some(done),
            _ => None,
        };
        StepDocument {
            id: &self.step.id,
            kind: self.step.kind,
            title: &self.step.title,
            outcome: self.outcome.word(),
            words: self.outcome.words(),
            after: done.map(|done| &done.after),
            effect: self.effect,
            in_vain: done.and_then(|done| done.in_vain.as_deref()),
            measured: &self.measured,
            reversible: self.step.reversible,
        }
    }
}
