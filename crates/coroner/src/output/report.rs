//! A complete diagnosis as Markdown, for a ticket.

use super::diagnosis_text::window_line;
use super::markdown::{cell, code_block, line};
use super::telling::{self, sentence};
use super::verdict_text::clock;
use coroner_diagnosis::Outcome;
use coroner_diagnosis::verdict::{Certainty, Link, Moment, Proof, Proofs, Verdict};
use coroner_diagnosis::{Diagnosis, Fact, Finding};
use coroner_evidence::{Evidence, Node, Wall};

pub struct MarkdownReport<'a> {
    pub diagnosis: &'a Diagnosis,
    pub evidence: &'a Evidence,
    /// Where the evidence comes from, one or more lines.
    pub source: &'a str,
    /// The incident it is about, if any.
    pub incident: Option<&'a str>,
    /// The command line that made this report.
    pub command: &'a str,
}

pub fn render(report: &MarkdownReport<'_>) -> String {
    let diagnosis = report.diagnosis;
    let mut out = format!("# {}\n\n", line(&title(diagnosis)));
    out.push_str(&about(report));
    let verdicts = &diagnosis.conclusion.verdicts;
    match diagnosis.outcome() {
        Outcome::NothingWrong => out.push_str("\n## Verdict\n\nNothing wrong in what was seen.\n"),
        Outcome::TooLittleSeen => {
            out.push_str("\n## Verdict\n\nNothing wrong in what was seen, but too little was seen to be sure.\n");
        }
        Outcome::NoCauseFound => out.push_str("\n## Verdict\n\nProblems found, but not their cause.\n"),
        Outcome::CauseFound => {
            for (i, verdict) in verdicts.iter().enumerate() {
                let number =
                    if verdicts.len() > 1 { format!(" {} of {}", i + 1, verdicts.len()) } else { String::new() };
                out.push_str(&verdict_text(verdict, &number, diagnosis.window));
            }
        }
    }
    out.push_str(&others(diagnosis));
    out.push_str(&ruled_out(diagnosis));
    out.push_str(&not_seen(diagnosis));
    out.push_str(&evidence_table(diagnosis));
    out.push_str(&how_made(report));
    out
}

fn title(diagnosis: &Diagnosis) -> String {
    let host = diagnosis.node.host.as_deref().unwrap_or("an unnamed node");
    let what = match (diagnosis.outcome(), diagnosis.conclusion.verdicts.first(), diagnosis.findings.first()) {
        (Outcome::CauseFound, Some(verdict), _) => {
            format!("{}{}", if_unsure(verdict.certainty), verdict.root_cause.title)
        }
        (Outcome::NoCauseFound, _, Some(worst)) => format!("no cause found: {}", worst.title),
        (Outcome::TooLittleSeen, ..) => "too little was seen to tell whether something is wrong".to_owned(),
        _ => "nothing wrong in what was seen".to_owned(),
    };
    format!("{host}: {what}")
}

fn if_unsure(certainty: Certainty) -> &'static str {
    match certainty {
        Certainty::Proven => "",
        Certainty::Likely => "likely cause: ",
        Certainty::Possible => "possible cause: ",
    }
}

fn about(report: &MarkdownReport<'_>) -> String {
    let mut out = String::new();
    for (name, value) in node_facts(&report.diagnosis.node) {
        out.push_str(&format!("- {name}: {}\n", line(&value)));
    }
    out.push_str(&format!("- {}\n", line(&window_line(report.diagnosis, report.evidence))));
    for source in report.source.lines().chain(report.incident.into_iter().flat_map(str::lines)) {
        out.push_str(&format!("- {}\n", line(source)));
    }
    out
}

fn node_facts(node: &Node) -> Vec<(&'static str, String)> {
    let memory = node.memory_bytes.map(|bytes| format!("{:.0} GiB", bytes as f64 / (1u64 << 30) as f64));
    let kernel = node.kernel.as_ref().map(|kernel| {
        let cgroups = node.cgroup_version.as_ref().map(|version| format!(", cgroup {version}")).unwrap_or_default();
        format!("Linux {kernel}{cgroups}")
    });
    let facts = [
        ("node", node.host.clone()),
        ("kernel", kernel),
        ("cores", node.cores.map(|cores| cores.to_string())),
        ("memory", memory),
        ("system", node.os.clone()),
        ("instance", node.instance_id.clone()),
        ("instance type", node.instance_type.clone()),
        ("zone", node.zone.clone()),
        ("image", node.image_id.clone()),
        ("booted", node.booted.map(|at| at.to_string())),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn verdict_text(verdict: &Verdict, number: &str, seen: Option<(Wall, Wall)>) -> String {
    let severity = verdict.severity.as_str();
    let sure = telling::how_sure(verdict);
    let cause = match verdict.certainty {
        Certainty::Proven => "Root cause",
        Certainty::Likely => "Likely root cause",
        Certainty::Possible => "Possible root cause",
    };
    let root = &verdict.root_cause;
    let subject = format!("{} {}", root.subject.kind.as_str(), root.subject.name);
    let over = telling::over(verdict, seen);
    let state = if verdict.time.ongoing { "ongoing" } else { "over" };
    let mut out = format!("\n## Verdict{number} ({severity}, {state}, {sure})\n\n");
    if !verdict.chain.is_empty() {
        // Two trailing spaces are a line break.
        let mut story: Vec<String> = verdict.story_path.iter().map(|title| line(title)).collect();
        if let (Some(last), false) = (story.last_mut(), verdict.story_also.is_empty()) {
            last.push_str(&format!("; from the same cause: {}", line(&verdict.story_also.join("; "))));
        }
        out.push_str(&format!("> {}\n\n", story.join("  \n> ← ")));
    }
    out.push_str(&format!("**{cause}:** {} ({}, `{}`)\n\n", line(&root.title), line(&subject), root.code));
    out.push_str(&format!("Because {}\n\n", line(&sentence(&verdict.because))));
    if let Some(over) = over {
        out.push_str(&format!("{over}\n\n"));
    }
    for more in &verdict.context {
        out.push_str(&format!("- also: {} (`{}`)\n", line(&more.title), more.code));
    }
    out.push_str(&proofs(&verdict.proofs, ""));

    let fix = line(&sentence(&verdict.fix));
    let what_to_do = match &verdict.first_aid {
        Some(first_aid) => format!("{}\n\nThen fix the cause: {fix}", line(first_aid)),
        None => fix,
    };
    for (name, text) in [
        ("What to do", what_to_do),
        ("What that does not fix", line(&sentence(&verdict.not_fixed))),
        ("If nothing is done", line(&sentence(verdict.risk.as_deref().unwrap_or_default()))),
    ] {
        if !text.is_empty() {
            out.push_str(&format!("\n### {name}\n\n{text}\n"));
        }
    }

    let steps = telling::steps(verdict);
    if !steps.is_empty() {
        out.push_str("\n### Effects\n\n");
    }
    for step in steps {
        out.push_str(&link_text(step.link, &"  ".repeat(step.depth), step.again));
    }
    out.push_str(&timeline(&telling::timeline(verdict)));
    out
}

fn link_text(link: &Link, margin: &str, again: bool) -> String {
    let again = if again { ", as above" } else { "" };
    let certainty = link.certainty.as_str();
    let mut out = format!("{margin}- **{}** (`{}`{again})\n", line(&link.to.title), link.to.code);
    out.push_str(&format!("{margin}  {certainty}, because {}\n", line(&sentence(&link.because))));
    let inner = format!("{margin}  ");
    out.push_str(&proofs(&link.proofs, &inner));
    for fact in &link.evidence {
        out.push_str(&format!("{inner}- seen: {}\n", line(&fact_line(fact))));
    }
    out
}

fn proofs(proofs: &Proofs, margin: &str) -> String {
    let mut out = String::new();
    for (name, proof) in telling::named(proofs) {
        let text = match proof {
            Proof::Shown(text) => format!("{name}: {}", line(text)),
            Proof::NotSeen(why) => format!("{name}, **not shown**: {}", line(why)),
        };
        out.push_str(&format!("{margin}- {text}\n"));
    }
    out
}

fn timeline(moments: &[Moment]) -> String {
    if moments.is_empty() {
        return String::new();
    }
    let mut out = "\n### Timeline\n\n| when | what |\n|---|---|\n".to_owned();
    for moment in moments {
        out.push_str(&format!("| {} | {} |\n", cell(&clock(moment, moments)), cell(&moment.what)));
    }
    out
}

fn others(diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    let unexplained = telling::unexplained(diagnosis);
    if !unexplained.is_empty() {
        out.push_str("\n## Other problems, cause not found\n\n");
    }
    for (finding, unexplained) in unexplained {
        out.push_str(&finding_text(finding));
        out.push_str(&format!("  To find its cause: {}\n", line(&sentence(&unexplained.needs))));
        out.push_str(&format!("  {}\n", line(&telling::how_to_get(unexplained))));
    }
    let worth_knowing = telling::worth_knowing(diagnosis);
    if !worth_knowing.is_empty() {
        out.push_str("\n## Worth knowing\n\n");
    }
    for finding in worth_knowing {
        out.push_str(&finding_text(finding));
    }
    out
}

fn finding_text(finding: &Finding) -> String {
    let subject = format!("{} {}", finding.subject.kind.as_str(), finding.subject.name);
    let mut out = format!("- **{}** ({}, ", line(&finding.title), finding.severity.as_str());
    out.push_str(&format!("{}, `{}`)\n", line(&subject), finding.code));
    for text in [&finding.detail, &finding.remedy].into_iter().filter(|text| !text.is_empty()) {
        out.push_str(&format!("  {}\n", line(&sentence(text))));
    }
    out
}

fn ruled_out(diagnosis: &Diagnosis) -> String {
    if diagnosis.ruled_out.is_empty() {
        return String::new();
    }
    let mut out = "\n## Ruled out\n\n| what | why |\n|---|---|\n".to_owned();
    let (dead_ends, rest) = telling::ruled_out(diagnosis);
    for (name, ruled_out) in dead_ends {
        out.push_str(&format!("| {name} (`{}`) | {} |\n", ruled_out.code, cell(&ruled_out.why)));
    }
    for ruled_out in rest {
        out.push_str(&format!("| `{}` | {} |\n", ruled_out.code, cell(&ruled_out.why)));
    }
    out
}

fn not_seen(diagnosis: &Diagnosis) -> String {
    if diagnosis.unseen.is_empty() {
        return String::new();
    }
    let mut out = "\n## Not seen\n\n".to_owned();
    for text in telling::unseen(&diagnosis.unseen) {
        out.push_str(&format!("- {}\n", line(&text)));
    }
    out
}

fn evidence_table(diagnosis: &Diagnosis) -> String {
    if diagnosis.findings.iter().all(|finding| finding.evidence.is_empty()) {
        return String::new();
    }
    let mut out = "\n## Evidence\n\n| finding | what | value | read from |\n|---|---|---|---|\n".to_owned();
    for finding in &diagnosis.findings {
        for fact in &finding.evidence {
            out.push_str(&format!(
                "| `{}` {} | {} | {} | {} |\n",
                finding.code,
                cell(&finding.subject.name),
                cell(&fact.what()),
                cell(&fact.value_text()),
                cell(&fact.source)
            ));
        }
    }
    out
}

fn fact_line(fact: &Fact) -> String {
    format!("{}: {} ({})", fact.what(), fact.value_text(), fact.source)
}

fn how_made(report: &MarkdownReport<'_>) -> String {
    let mut out = format!("\n## Made by\n\ncoroner {}:\n\n", env!("CARGO_PKG_VERSION"));
    out.push_str(&code_block(report.command));
    out.push_str(
        "\nFor *proven*, *likely* and *possible*, see coroner's docs/verdicts.md. `coroner --explain CODE` explains a \
    finding.\n",
    );
    out
}

#[cfg(test)]
mod tests;
