//! A plan and its result, as text.

use super::safe::one_line;
use super::terminal::{bold, by_severity, dim, good, width, wrap, wrap_hanging};
use super::{from_recording, telling};
use coroner_diagnosis::units::paths::shell_word;
use coroner_diagnosis::words::{count, plural};
use coroner_diagnosis::{Diagnosis, Finding, Severity};
use coroner_evidence::Evidence;
use coroner_remedy::apply::{FixReport, Outcome, StepReport};
use coroner_remedy::measure::{Effect, Measured};
use coroner_remedy::plan::{Plan, Risk, Step};
use coroner_remedy::planner::worth_asking_for;
use coroner_remedy::steps::StepKind;

/// Files listed in the text; JSON has all of them.
const FILES: usize = 6;
/// Width of a step's labels.
const LABEL: usize = 15;

/// What goes into the output besides the plan.
pub struct Shown<'s> {
    pub chosen: &'s [&'s Step],
    pub evidence: &'s Evidence,
    pub diagnosis: &'s Diagnosis,
    /// Where the evidence comes from, one or more lines.
    pub source: &'s str,
    /// Whether it is about this node now.
    pub is_here: bool,
    /// `--from FILE`, if the user named a recording.
    pub from: Option<&'s str>,
}

impl Shown<'_> {
    /// The same for the commands in a text.
    fn text(&self, text: &str) -> String {
        self.from.map_or_else(|| text.to_owned(), |from| from_recording::in_text(text, from))
    }

    /// A command of ours that looks at the same recording, if it is one.
    fn command(&self, text: &str) -> String {
        one_line(&self.from.map_or_else(|| text.to_owned(), |from| from_recording::command(text, from)))
    }
}

pub fn plan(plan: &Plan, shown: &Shown<'_>) -> String {
    let width = width();
    let mut out = head(plan, shown, width);
    if plan.causes.is_empty() {
        out.push_str(&nothing_to_do(plan, shown, width));
        return out;
    }
    for (i, step) in shown.chosen.iter().enumerate() {
        out.push('\n');
        out.push_str(&step_text(step, &format!("{}", i + 1), shown.evidence, width));
    }
    let list_files = shown.command("coroner fix --json | jq -r '.files[].reach'");
    out.push_str(&files_text(plan, &list_files, width));
    out.push_str(&reboot_text(plan, width, When::Before));
    if let Some(other) = &plan.other_dead {
        out.push('\n');
        out.push_str(&wrap(&shown.text(other), width, 0));
    }
    out.push_str(&others_text(plan, shown, width));
    out.push_str(&refused_text(plan, width));
    out.push_str(&by_hand_text(plan, width));
    out.push_str(&over_text(plan, shown, width));
    out.push_str(&worth_knowing(plan, shown, width));
    out.push('\n');
    out.push_str(&match shown.chosen.is_empty() {
        true => wrap("No step to apply. Nothing was changed.", width, 0),
        false if !shown.is_here => wrap(
            "Nothing was changed. This plan is from a recording, and so are its PIDs. On the node, `coroner fix` makes a \
             new plan and `coroner fix --apply` applies it.",
            width,
            0,
        ),
        false => wrap(
            "Nothing was changed. `coroner fix --apply` applies the plan: it asks before each step, then measures the effect; \
             `coroner undo` undoes it.",
            width,
            0,
        ),
    });
    out
}

fn head(plan: &Plan, shown: &Shown<'_>, width: usize) -> String {
    let host = shown.diagnosis.node.host.as_deref().unwrap_or("unknown host");
    let mut out = wrap(&format!("coroner {} · plan for {host}", env!("CARGO_PKG_VERSION")), width, 0);
    for line in shown.source.lines() {
        out.push_str(&wrap(line, width, 0));
    }
    for cause in &plan.causes {
        let sure = cause.certainty.map(|certainty| format!(", {certainty}")).unwrap_or_default();
        let line = format!("Cause: {} ({}{sure})", cause.finding.title, cause.finding.code);
        out.push_str(&bold(&wrap_hanging(&line, width, 0, 2)));
        // Shown with the reboot, if there is one.
        if let Some(risk) = cause.risk.as_ref().filter(|_| plan.reboot.is_none()) {
            out.push_str(&wrap(&format!("If nothing is done: {risk}"), width, 2));
        }
    }
    out
}

fn nothing_to_do(plan: &Plan, shown: &Shown<'_>, width: usize) -> String {
    let mut out = match plan.over.is_empty() {
        true => format!("{}\n", good("Nothing wrong in what was seen, so there is nothing to fix.")),
        false => format!("{}\n", good("What was wrong is over, so there is nothing to fix now.")),
    };
    out.push_str(&over_text(plan, shown, width));
    out.push_str(&worth_knowing_of(&worth_asking_for(shown.diagnosis), shown, width));
    if !shown.diagnosis.conclusion.unexplained.is_empty() {
        out.push('\n');
        out.push_str(&wrap(
            "There are problems without a known cause: `coroner` shows them and what is needed to find the cause.",
            width,
            0,
        ));
    }
    out
}

/// Mild findings that are not part of this plan.
fn worth_knowing(plan: &Plan, shown: &Shown<'_>, width: usize) -> String {
    let mut asked = worth_asking_for(shown.diagnosis);
    asked.retain(|finding| !plan.causes.iter().any(|cause| cause.finding.subject == finding.subject));
    worth_knowing_of(&asked, shown, width)
}

/// What ended before the end of the window: nothing is planned for it.
fn over_text(plan: &Plan, shown: &Shown<'_>, width: usize) -> String {
    if plan.over.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("Over, nothing planned"));
    for over in &plan.over {
        let line = format!(
            "- {} ({}): {}. If it comes back: {}",
            over.finding.title,
            over.finding.code,
            telling::span_words(&over.time, shown.diagnosis.window),
            telling::sentence(&over.if_it_comes_back)
        );
        out.push_str(&wrap_hanging(&line, width, 2, 4));
    }
    out
}

fn worth_knowing_of(asked: &[&Finding], shown: &Shown<'_>, width: usize) -> String {
    if asked.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("Worth knowing (for a plan, run the command)"));
    for finding in asked {
        out.push_str(&wrap_hanging(&format!("- {}", finding.title), width, 2, 4));
        let command = format!("coroner fix {} {}", finding.code, shell(&finding.subject.name));
        out.push_str(&format!("    {}\n", shown.command(&command)));
    }
    out
}

fn shell(name: &str) -> String {
    one_line(&coroner_diagnosis::units::paths::operand(name))
}

fn field(out: &mut String, label: &str, text: &str, width: usize) {
    let line = format!("{label:<LABEL$}");
    let body = wrap(text, width, 3 + LABEL);
    let body = body.trim_start();
    out.push_str(&format!("   {}{body}", dim(&line)));
    if !out.ends_with('\n') {
        out.push('\n');
    }
}

/// A command is never wrapped: people copy it.
fn command(out: &mut String, label: &str, text: &str) {
    out.push_str(&format!("   {}{}\n", dim(&format!("{label:<LABEL$}")), bold(&one_line(text))));
}

fn step_text(step: &Step, number: &str, evidence: &Evidence, width: usize) -> String {
    let mut out = format!("{}\n", bold(&one_line(&format!("{number}. {}", step.title))));
    field(&mut out, "name", &step.id, width);
    field(&mut out, "why", &step.reason, width);
    for (i, line) in step.commands.iter().take(4).enumerate() {
        command(&mut out, if i == 0 { "equivalent to" } else { "" }, line);
    }
    if step.commands.len() > 4 {
        field(&mut out, "", &format!("and {} more (--json has all)", step.commands.len() - 4), width);
    }
    let risk = format!("{}: {}", step.risk.as_str(), step.risk_words);
    field(&mut out, "risk", &risk, width);
    if let Some(why) = &step.dangerous {
        let text = format!("DANGEROUS: {why}. Only done with --allow {}", shell_word(&step.id));
        let painted = by_severity(Severity::Critical, &wrap(&text, width, 3 + LABEL));
        out.push_str(&painted);
    }
    let undo = if step.reversible { format!("yes: {}", step.undo) } else { format!("NO: {}", step.undo) };
    field(&mut out, "can be undone", &undo, width);
    field(&mut out, "does not fix", &step.not_fixed, width);
    for measure in &step.measures {
        let now = match measure.value(evidence) {
            Ok(value) => format!("now {}", number_words(value)),
            Err(why) => format!("unknown: {why}"),
        };
        field(&mut out, "measured by", &format!("{} ({now})", measure.words()), width);
    }
    if step.measures.is_empty() {
        field(&mut out, "measured by", "whether its state changed", width);
    }
    for detail in step.details.iter().take(8) {
        field(&mut out, "", detail, width);
    }
    out
}

fn number_words(value: f64) -> String {
    match value {
        value if value >= 100.0 || value.fract() == 0.0 => count(value.round() as u64),
        value => format!("{value:.1}"),
    }
}

/// `list_all` is the command that prints all of them.
fn files_text(plan: &Plan, list_all: &str, width: usize) -> String {
    if plan.files.is_empty() {
        return String::new();
    }
    let zombies: u64 = plan.files.iter().map(|file| file.zombies).sum();
    let mut out = format!(
        "\n{}\n",
        bold(&format!(
            "Files that keep dead cgroups: {}, {}",
            plural(plan.files.len() as u64, "file", "files"),
            plural(zombies, "cgroup", "cgroups")
        ))
    );
    for file in plan.files.iter().take(FILES) {
        let seen = file.seen_by.map(|pid| format!(", as seen by process {pid}")).unwrap_or_default();
        let deleted = if file.deleted { ", deleted but still open" } else { "" };
        let line = format!("- {} ({}, keeps {}{seen}{deleted})", file.path, file.filesystem, count(file.zombies));
        out.push_str(&wrap_hanging(&line, width, 2, 4));
    }
    let mut words = "coroner deletes only files that you name: --delete-file PATH.".to_owned();
    if plan.files.len() > FILES {
        words.push_str(&format!(" To list all for --delete-files-from: `{list_all}`."));
    }
    out.push_str(&wrap(&words, width, 2));
    out
}

/// After the steps, the plan's outlook is out of date and is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    After,
}

fn reboot_text(plan: &Plan, width: usize, when: When) -> String {
    let Some(reboot) = &plan.reboot else { return String::new() };
    let mut out = format!("\n{}\n", bold("To free the rest: delete these files, or reboot"));
    if plan.files.is_empty() {
        out = format!("\n{}\n", bold("Needs a reboot"));
    }
    if when == When::Before {
        let first = reboot.first.as_deref().unwrap_or_default();
        out.push_str(&wrap(&format!("{} {first}", reboot.why), width, 2));
    }
    for line in &reboot.commands {
        out.push_str(&format!(
            "    {}   {}\n",
            bold(&one_line(&line.command)),
            dim(&format!("# {}: {}", line.run_at, line.why))
        ));
    }
    if let Some(risk) = reboot.if_nothing_is_done.as_ref().filter(|_| when == When::Before) {
        out.push_str(&wrap(&format!("If nothing is done: {risk}"), width, 2));
    }
    out
}

fn others_text(plan: &Plan, shown: &Shown<'_>, width: usize) -> String {
    let others: Vec<&Step> =
        plan.all().filter(|step| !shown.chosen.iter().any(|chosen| chosen.id == step.id)).collect();
    if others.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("Alternatives (use one with --step NAME)"));
    for step in others {
        let risk = if step.risk == Risk::Low { String::new() } else { format!("; risk {}", step.risk.as_str()) };
        let line = format!("- {}: {}{risk}", step.id, step.title);
        out.push_str(&wrap_hanging(&line, width, 2, 4));
    }
    out
}

fn refused_text(plan: &Plan, width: usize) -> String {
    if plan.refused.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("Rejected"));
    for refused in &plan.refused {
        out.push_str(&wrap_hanging(&format!("- {}: {}", refused.what, refused.why), width, 2, 4));
    }
    out
}

fn by_hand_text(plan: &Plan, width: usize) -> String {
    if plan.by_hand.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("To do by hand (coroner has no step for it)"));
    for by_hand in &plan.by_hand {
        let title = format!("- {} ({})", by_hand.finding.title, by_hand.finding.code);
        out.push_str(&wrap_hanging(&title, width, 2, 4));
        out.push_str(&wrap(&by_hand.remedy, width, 4));
    }
    out
}

/// A short summary before acting; the plan has the rest.
pub fn before_acting(plan: &Plan, shown: &Shown<'_>) -> String {
    let width = width();
    let mut out = head(plan, shown, width);
    if plan.causes.is_empty() {
        out.push_str(&nothing_to_do(plan, shown, width));
    } else if shown.chosen.is_empty() {
        out.push_str(&refused_text(plan, width));
        out.push_str(&by_hand_text(plan, width));
        out.push_str("\nNo step to apply. Nothing was changed.\n");
    }
    out
}

/// Asks for consent on a terminal.
pub fn question(step: &Step, number: usize, all: usize) -> String {
    let width = width();
    let mut out = format!("\n{}\n", bold(&one_line(&format!("{number} of {all}. {}", step.title))));
    field(&mut out, "why", &step.reason, width);
    for (i, line) in step.commands.iter().take(4).enumerate() {
        command(&mut out, if i == 0 { "equivalent to" } else { "" }, line);
    }
    field(&mut out, "risk", &format!("{}: {}", step.risk.as_str(), step.risk_words), width);
    let undo = if step.reversible { format!("yes: {}", step.undo) } else { format!("NO: {}", step.undo) };
    field(&mut out, "can be undone", &undo, width);
    out.push_str("   Do it? [y]es, [N]o, [q]uit: ");
    out
}

/// One line when a step is over.
pub fn told(step: &Step, outcome: &Outcome, number: usize, all: usize) -> String {
    let head = format!("{number} of {all} {}", step.id);
    let text = match outcome {
        Outcome::Done(done) => format!("{head}: done. {}.", done.words.trim_end_matches('.')),
        Outcome::Skipped => format!("{head}: skipped."),
        Outcome::NotAllowed(why) => format!("{head}: NOT DONE, dangerous: {}.", why.trim_end_matches('.')),
        Outcome::Refused(why) => format!("{head}: REFUSED. {}.", why.trim_end_matches('.')),
        Outcome::Failed(why) => format!("{head}: FAILED. {}.", why.trim_end_matches('.')),
        Outcome::NotReached => format!("{head}: not reached."),
    };
    wrap_hanging(&text, width(), 0, 4)
}

/// After the last step: what was measured, and what to do next.
pub fn done(report: &FixReport, plan: &Plan) -> String {
    let width = width();
    let mut out = String::new();
    if report.did_something() {
        out.push_str(&format!("\n{}\n", bold("Measured again")));
    }
    for step in &report.steps {
        let Some(effect) = step.effect else { continue };
        let word = match effect {
            Effect::Worked => good("worked"),
            Effect::Partly => by_severity(Severity::Warning, "helped, but did not end it"),
            Effect::None => by_severity(Severity::Critical, "had NO effect"),
            Effect::CannotTell => "done; cannot tell whether it helped".to_owned(),
        };
        out.push_str(&format!("- {} {word}\n", one_line(&step.step.id)));
        if let Outcome::Done(done) = &step.outcome
            && let Some(why) = &done.in_vain
        {
            out.push_str(&wrap(why, width, 4));
        }
        for measured in &step.measured {
            out.push_str(&wrap_hanging(&measured_words(measured), width, 4, 6));
        }
    }
    if let Some(stopped) = &report.stopped {
        let text =
            format!("Stopped: {}. Earlier steps stay done; later ones were not run.", stopped.trim_end_matches('.'));
        out.push('\n');
        out.push_str(&by_severity(Severity::Critical, &wrap(&text, width, 0)));
    }
    // The plan lists files that may be deleted by now.
    let is_deleted =
        |step: &StepReport| step.step.kind == StepKind::DeleteFiles && matches!(step.outcome, Outcome::Done(_));
    if report.did_something() && !report.steps.iter().any(is_deleted) {
        out.push_str(&files_text(plan, "coroner fix --json | jq -r '.files[].reach'", width));
        out.push_str(&reboot_text(plan, width, When::After));
    }
    out.push('\n');
    match (report.run, report.steps.iter().any(|step| step.step.reversible)) {
        (Some(run), true) => {
            let journal = report.journal.as_ref().and_then(|path| path.parent()).map(|path| path.display().to_string());
            let named = journal.filter(|path| path != coroner_remedy::journal::DIRECTORY);
            let named = named.map(|path| format!(" --journal {}", shell(&path))).unwrap_or_default();
            out.push_str(&wrap(&format!("`coroner undo {run}{named}` undoes what can be undone."), width, 0));
        }
        (Some(_), false) => out.push_str("None of it can be undone.\n"),
        (None, _) => out.push_str("Nothing was changed.\n"),
    }
    out
}

fn measured_words(measured: &Measured) -> String {
    let value = |value: Option<f64>| value.map_or_else(|| "unknown".to_owned(), number_words);
    let why = measured.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    format!("{}: {} before, {} now{why}", measured.words, value(measured.before), value(measured.after))
}
