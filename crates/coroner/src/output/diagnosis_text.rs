//! A diagnosis as text.

use super::from_recording;
use super::safe::one_line;
use super::telling;
use super::terminal::{bold, by_severity, dim, good, width, wrap, wrap_hanging};
use super::verdict_text;
use super::waits_text;
use coroner_diagnosis::Outcome;
use coroner_diagnosis::cores::Cores;
use coroner_diagnosis::cores::timeline::Shares;
use coroner_diagnosis::cores::words::percent;
use coroner_diagnosis::waits::sums;
use coroner_diagnosis::{Diagnosis, Fact, Finding, RuledOut, Severity};
use coroner_evidence::{Cost, Evidence, Node, Unseen, Wall};
use std::time::Duration;

/// How to print a diagnosis.
pub struct Told<'a> {
    /// Where the evidence comes from, one or more lines.
    pub source: &'a str,
    /// `--from FILE`, if the user named a recording: what is printed to run next must read it, too.
    pub from: Option<&'a str>,
    /// The first verdict is the one that the incident is about, so it is told in full even if it is over.
    pub is_incident: bool,
    pub verbose: bool,
}

pub fn render(diagnosis: &Diagnosis, evidence: &Evidence, told: &Told<'_>) -> String {
    let Told { source, from, is_incident, verbose } = *told;
    let width = width();
    let mut out = String::new();
    out.push_str(&wrap(&node_line(&diagnosis.node), width, 0));
    out.push_str(&wrap(&window_line(diagnosis, evidence), width, 0));
    for line in source.lines() {
        out.push_str(&wrap(line, width, 0));
    }
    out.push('\n');

    let outcome = diagnosis.outcome();
    out.push_str(&match outcome {
        Outcome::NothingWrong => format!("{}\n", good("Nothing wrong in what was seen.")),
        Outcome::TooLittleSeen => {
            let text =
                "Nothing wrong in what was seen, but too little was seen to be sure. See below for what is missing and how to see it.";
            format!("{}\n", bold(&wrap(text, width, 0)))
        }
        Outcome::NoCauseFound => format!("{}\n", bold("Problems found, but not their cause:")),
        Outcome::CauseFound => {
            let (full, _) = telling::by_time(&diagnosis.conclusion.verdicts, is_incident, verbose);
            worse_below(diagnosis, width) + &verdict_text::render(&full, diagnosis.window, width, verbose)
        }
    });
    out.push_str(&others_text(diagnosis, outcome, width, verbose));
    out.push_str(&over_text(diagnosis, is_incident, width, verbose));
    if verbose {
        out.push_str(&findings_text(diagnosis, width));
    }
    out.push_str(&ruled_out_text(diagnosis, outcome, width, verbose));
    out.push_str(&unseen_text(&diagnosis.unseen, width));
    if let Some(balance) = sums::balance(evidence).filter(|_| verbose) {
        out.push('\n');
        out.push_str(&wrap(&waits_text::balance_text(&balance), width, 0));
    }

    out.push('\n');
    let verdicts = &diagnosis.conclusion.verdicts;
    let root = verdicts.first().map(|verdict| verdict.root_cause.code);
    if verdicts.iter().any(|verdict| verdict.time.ongoing) {
        let command =
            from.map_or_else(|| "coroner fix".to_owned(), |from| from_recording::command("coroner fix", from));
        out.push_str(&dim(&format!("Next steps in detail: {}\n", one_line(&command))));
    }
    if let Some(code) = root.or(diagnosis.findings.first().map(|finding| finding.code)) {
        out.push_str(&dim(&format!("About this finding: coroner --explain {code}\n")));
    }
    if let Some(cost) = diagnosis.cost {
        let watched = diagnosis.window.map(|(from, to)| to.since(from));
        out.push_str(&dim(&cost_line(cost, watched)));
    }
    out
}

/// Announces unexplained problems that are worse than every verdict, so that nobody misses them below.
fn worse_below(diagnosis: &Diagnosis, width: usize) -> String {
    let ongoing = diagnosis.conclusion.verdicts.iter().filter(|verdict| verdict.time.ongoing);
    let told = ongoing.map(|verdict| verdict.severity).max();
    let unexplained = telling::unexplained(diagnosis).into_iter().filter(|(finding, _)| finding.is_ongoing());
    let worse = unexplained.filter(|(finding, _)| Some(finding.severity) > told);
    let titles: Vec<&str> = worse.map(|(finding, _)| finding.title.as_str()).collect();
    match titles.is_empty() {
        true => String::new(),
        false => {
            bold(&wrap(&format!("Worse, but without a known cause (see below): {}.", titles.join("; ")), width, 0))
                + "\n"
        }
    }
}

/// Findings outside of every verdict.
fn others_text(diagnosis: &Diagnosis, outcome: Outcome, width: usize, verbose: bool) -> String {
    let mut out = String::new();
    let mut unexplained = telling::unexplained(diagnosis);
    // Alone it is all there is to tell; beside something else it is listed with what is over.
    if !verbose
        && diagnosis.findings.iter().any(|finding| finding.is_ongoing() && finding.severity >= Severity::Warning)
    {
        unexplained.retain(|(finding, _)| finding.is_ongoing());
    }
    if !unexplained.is_empty() && outcome == Outcome::CauseFound {
        out.push_str(&format!("\n{}\n", bold("Other problems, cause not found")));
    }
    for (i, (finding, unexplained)) in unexplained.into_iter().enumerate() {
        if i > 0 || outcome != Outcome::CauseFound {
            out.push('\n');
        }
        out.push_str(&finding_text(
            finding,
            width,
            &FindingParts { evidence: verbose, remedy: true, window: Some(diagnosis.window) },
        ));
        let needs = format!("To find its cause: {}.", unexplained.needs.trim_end_matches('.'));
        let how = telling::how_to_get(unexplained);
        out.push_str(&wrap(&format!("{needs} {how}"), width, 2));
    }
    let worth_knowing = telling::worth_knowing(diagnosis);
    if !worth_knowing.is_empty() {
        out.push_str(&format!("\n{}\n", bold("Worth knowing")));
    }
    for finding in worth_knowing {
        if verbose {
            out.push_str(&finding_text(
                finding,
                width,
                &FindingParts { evidence: true, remedy: true, window: Some(diagnosis.window) },
            ));
        } else {
            out.push_str(&wrap_hanging(&format!("- {} ({})", finding.title, finding.code), width, 2, 4));
        }
    }
    out
}

/// What ended before the end of the window, in a few lines each.
fn over_text(diagnosis: &Diagnosis, is_incident: bool, width: usize, verbose: bool) -> String {
    let (_, over) = telling::by_time(&diagnosis.conclusion.verdicts, is_incident, verbose);
    let mut lines: Vec<String> = over
        .into_iter()
        .map(|verdict| {
            format!(
                "- {} ({}; {}, {}): {}. If it comes back: {}",
                verdict.root_cause.title,
                verdict.root_cause.code,
                verdict.severity.as_str(),
                verdict.certainty.as_str(),
                telling::span_words(&verdict.time, diagnosis.window),
                telling::sentence(&verdict.fix)
            )
        })
        .collect();
    let goes_on = |finding: &Finding| finding.is_ongoing() && finding.severity >= Severity::Warning;
    if !verbose && diagnosis.findings.iter().any(goes_on) {
        let unexplained = telling::unexplained(diagnosis).into_iter().filter(|(finding, _)| !finding.is_ongoing());
        lines.extend(unexplained.map(|(finding, unexplained)| {
            format!(
                "- {} ({}; {}, cause not found): {}. If it comes back: {}",
                finding.title,
                finding.code,
                finding.severity.as_str(),
                telling::span_words(&finding.ties.time, diagnosis.window),
                telling::how_to_get(unexplained)
            )
        }));
    }
    if lines.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("Over"));
    for line in lines {
        out.push_str(&wrap_hanging(&line, width, 2, 4));
    }
    out
}

/// The findings of the verdicts in full.
fn findings_text(diagnosis: &Diagnosis, width: usize) -> String {
    let findings = telling::in_verdicts(diagnosis);
    let mut out = String::new();
    if !findings.is_empty() {
        out.push_str(&format!("\n{}\n", bold("Findings behind the verdict")));
    }
    for (i, finding) in findings.into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        out.push_str(&finding_text(
            finding,
            width,
            &FindingParts { evidence: true, remedy: true, window: Some(diagnosis.window) },
        ));
    }
    out
}

/// If something is wrong, dead ends are listed with their reasons: people look there first.
fn ruled_out_text(diagnosis: &Diagnosis, outcome: Outcome, width: usize, verbose: bool) -> String {
    if diagnosis.ruled_out.is_empty() {
        return String::new();
    }
    let codes = |ruled_out: &[&RuledOut]| ruled_out.iter().map(|r| r.code.as_str()).collect::<Vec<_>>().join(", ");
    if matches!(outcome, Outcome::NothingWrong | Outcome::TooLittleSeen) && !verbose {
        let all: Vec<&RuledOut> = diagnosis.ruled_out.iter().collect();
        return format!("\n{}", wrap(&format!("Ruled out (-v shows why): {}.", codes(&all)), width, 0));
    }
    let mut out = format!("\n{}\n", bold("Ruled out"));
    let line = |name: &str, why: &str| wrap_hanging(&format!("- {name}: {why}"), width, 2, 4);
    let (dead_ends, rest) = telling::ruled_out(diagnosis);
    for (name, ruled_out) in dead_ends {
        let name = if verbose { format!("{name} ({})", ruled_out.code) } else { name.to_owned() };
        out.push_str(&line(&name, &ruled_out.why));
    }
    if verbose {
        for ruled_out in rest {
            out.push_str(&line(ruled_out.code.as_str(), &ruled_out.why));
        }
    } else if !rest.is_empty() {
        out.push_str(&wrap_hanging(&format!("- also (-v shows why): {}", codes(&rest)), width, 2, 4));
    }
    out
}

pub fn unseen_text(unseen: &[Unseen], width: usize) -> String {
    if unseen.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("Not seen"));
    for text in telling::unseen(unseen) {
        out.push_str(&wrap_hanging(&format!("- {text}"), width, 2, 4));
    }
    out
}

pub fn node_line(node: &Node) -> String {
    let mut parts =
        vec![format!("coroner {} on {}", env!("CARGO_PKG_VERSION"), node.host.as_deref().unwrap_or("an unnamed node"))];
    if let Some(kernel) = &node.kernel {
        parts.push(format!("Linux {kernel}"));
    }
    if let Some(cores) = node.cores {
        let memory =
            node.memory_bytes.map(|b| format!(", {:.0} GiB", b as f64 / (1u64 << 30) as f64)).unwrap_or_default();
        parts.push(format!("{cores} cores{memory}"));
    }
    parts.extend([&node.os, &node.instance_type, &node.zone].into_iter().flatten().cloned());
    if let Some(how) = &node.in_container {
        parts.push(format!("inside a container ({how})"));
    }
    parts.join(" · ")
}

pub fn window_line(diagnosis: &Diagnosis, evidence: &Evidence) -> String {
    let mut line = String::new();
    if let Some((from, to)) = diagnosis.window {
        let seconds = to.since(from).as_secs_f64();
        line.push_str(&format!("watched {seconds:.1} s until {to}"));
    }
    // The average beside the worst core: showing what an average hides is the point of this tool.
    let cores = Cores::of(evidence);
    let average = cores.window().and_then(|window| cores.timeline.average(window));
    if let (Some(average), Some((core, busy))) = (average, cores.timeline.worst(Shares::busy)) {
        line.push_str(&format!(
            " · average {} busy; core {core} peaked at {} over 1 s",
            percent(average.busy()),
            percent(busy)
        ));
    }
    line
}

/// What to print about a finding besides what happened.
pub struct FindingParts {
    pub evidence: bool,
    pub remedy: bool,
    /// The time that was examined; `None` to leave out when it was.
    pub window: Option<Option<(Wall, Wall)>>,
}

pub fn finding_text(finding: &Finding, width: usize, told: &FindingParts) -> String {
    let label = finding.severity.as_str().to_uppercase();
    let mut out = format!(
        "{}  {}  {} {}\n",
        by_severity(finding.severity, &label),
        finding.code,
        finding.subject.kind.as_str(),
        one_line(&finding.subject.name)
    );
    out.push_str(&bold(&wrap(&finding.title, width, 2)));
    if !finding.detail.is_empty() {
        out.push_str(&wrap(&finding.detail, width, 2));
    }
    if told.evidence {
        if let Some(time) = told.window.map(|window| telling::span_words(&finding.ties.time, window)) {
            out.push_str(&dim(&wrap(&format!("when: {time}"), width, 4)));
        }
        for fact in &finding.evidence {
            out.push_str(&dim(&wrap(&fact_text(fact), width, 4)));
        }
    }
    if told.remedy && !finding.remedy.is_empty() {
        out.push_str(&wrap(&format!("What to do: {}", finding.remedy), width, 2));
    }
    out
}

fn fact_text(fact: &Fact) -> String {
    format!("{}: {}  ({})", fact.what(), fact.value_text(), fact.source)
}

pub fn cost_line(cost: Cost, watched: Option<Duration>) -> String {
    let share = watched
        .filter(|w| !w.is_zero())
        .map(|w| format!(" ({:.1} % of one core)", cost.cpu_ms as f64 / 10.0 / w.as_secs_f64()))
        .unwrap_or_default();
    format!(
        "coroner's own cost: {} ms of CPU to start, {} ms while watching{share}, {:.1} MB of memory.\n",
        cost.startup_cpu_ms,
        cost.cpu_ms,
        cost.peak_rss_bytes as f64 / 1e6
    )
}

#[cfg(test)]
mod tests;
