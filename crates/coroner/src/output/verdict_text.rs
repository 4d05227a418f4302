//! Verdicts for people: the root cause first, then what follows from it, what to do, and what that leaves.

use super::diagnosis_json::timestamp;
use super::telling::{self, Step, sentence};
use super::terminal::{bold, by_severity, dim, printable, wrap, wrap_hanging};
use coroner_diagnosis::verdict::{Certainty, Moment, Proofs, Verdict};
use coroner_diagnosis::words::duration_words;
use std::time::Duration;

/// So many moments are told unless somebody wants them all.
const FEW: usize = 6;

pub fn render(verdicts: &[Verdict], width: usize, verbose: bool) -> String {
    let mut out = String::new();
    for (i, verdict) in verdicts.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let number = if verdicts.len() > 1 { format!(" {} of {}", i + 1, verdicts.len()) } else { String::new() };
        out.push_str(&one(verdict, &number, width, verbose));
    }
    out
}

fn one(verdict: &Verdict, number: &str, width: usize, verbose: bool) -> String {
    let head = format!("VERDICT{number}  {}, {}", verdict.severity.as_str(), telling::how_sure(verdict));
    let mut out = format!("{}\n", by_severity(verdict.severity, &head));
    let titles = titles(verdict);
    let root = &verdict.root_cause;
    let cause = match verdict.certainty {
        Certainty::Proven => "Root cause",
        Certainty::Likely => "Likely root cause",
        Certainty::Possible => "Possible root cause",
    };
    out.push_str(&bold(&wrap(&format!("{cause}: {} ({})", printable(&root.title), root.code), width, 2)));
    out.push_str(&wrap(&printable(&sentence(&upper_first(&verdict.because))), width, 2));
    for more in &verdict.context {
        out.push_str(&wrap(&format!("Also: {} ({})", printable(&more.title), more.code), width, 2));
    }
    out.push_str(&proofs(&verdict.proofs, &titles, width, 2, verbose));

    let steps = telling::steps(verdict);
    if !steps.is_empty() {
        out.push('\n');
    }
    for step in &steps {
        out.push_str(&step_text(step, &titles, width, verbose));
    }
    out.push_str(&timeline_text(&telling::timeline(verdict), width, verbose));

    out.push('\n');
    for (label, text) in [("What to do", &verdict.remedy), ("But", &verdict.not_fixed)] {
        if !text.is_empty() {
            out.push_str(&wrap(&format!("{}: {}", label, printable(&sentence(text))), width, 2));
        }
    }
    if let Some(risk) = &verdict.risk {
        out.push_str(&wrap(&format!("If nothing is done: {}", printable(&sentence(risk))), width, 2));
    }
    out
}

fn step_text(step: &Step<'_>, titles: &[&str], width: usize, verbose: bool) -> String {
    let link = step.link;
    let indent = 2 + 2 * step.depth;
    let again = if step.again { ", as above" } else { "" };
    let effect = format!("→ {} ({}{again})", printable(&link.to.title), link.to.code);
    let mut out = bold(&wrap_hanging(&effect, width, indent, indent + 2));
    out.push_str(&wrap(&printable(&format!("because {}", link.because)), width, indent + 2));
    out.push_str(&proofs(&link.proofs, titles, width, indent + 2, verbose));
    out
}

/// `likely: core 1 in both · both in the same seconds · not shown: who had the core`. What only repeats a title is left out.
fn proofs_text(proofs: &Proofs, titles: &[&str]) -> String {
    let named = telling::named(proofs);
    let shown = named.iter().filter(|(_, proof)| proof.is_shown() && !titles.contains(&proof.text()));
    let not_shown = named.iter().filter(|(_, proof)| !proof.is_shown());
    let mut parts: Vec<String> = shown.map(|(_, proof)| proof.text().to_owned()).collect();
    let reasons: Vec<&str> = not_shown.map(|(_, proof)| proof.text()).collect();
    if !reasons.is_empty() {
        parts.push(format!("not shown: {}", reasons.join("; ")));
    }
    let certainty = proofs.certainty().as_str();
    if parts.is_empty() { certainty.to_owned() } else { format!("{certainty}: {}", parts.join(" · ")) }
}

/// Each proof on a line of its own.
fn proof_lines(proofs: &Proofs) -> String {
    let mut out = format!("{}:\n", proofs.certainty().as_str());
    for (name, proof) in telling::named(proofs) {
        let not_shown = if proof.is_shown() { "" } else { "not shown: " };
        out.push_str(&format!("- {name}: {not_shown}{}\n", printable(proof.text())));
    }
    out
}

/// The proofs as they are told, at this indent.
fn proofs(proofs: &Proofs, titles: &[&str], width: usize, indent: usize, verbose: bool) -> String {
    let text = if verbose { proof_lines(proofs) } else { printable(&proofs_text(proofs, titles)) };
    dim(&wrap(&text, width, indent))
}

fn titles(verdict: &Verdict) -> Vec<&str> {
    let effects = verdict.chain.iter().map(|link| link.to.title.as_str());
    effects.chain([verdict.root_cause.title.as_str()]).collect()
}

fn timeline_text(moments: &[Moment], width: usize, verbose: bool) -> String {
    if moments.is_empty() {
        return String::new();
    }
    let mut out = String::from("\n");
    let shown = if verbose { moments.len() } else { FEW };
    for moment in moments.iter().take(shown) {
        let line = format!("  {}  {}", clock(moment, moments), printable(&moment.what));
        out.push_str(&cut(&line, if verbose { usize::MAX } else { width }));
        out.push('\n');
    }
    if moments.len() > shown {
        out.push_str(&dim(&format!("  and {} more (-v)\n", moments.len() - shown)));
    }
    out
}

/// `05:51:42.123Z ± 2.0 s`, with the date where they are of several days.
pub fn clock(moment: &Moment, all: &[Moment]) -> String {
    let at = timestamp(moment.real_ns);
    let day = |moment: &Moment| timestamp(moment.real_ns).split('T').next().map(str::to_owned);
    let one_day = all.iter().all(|other| day(other) == day(moment));
    let at = match at.split_once('T') {
        Some((_, time)) if one_day => time.to_owned(),
        _ => at,
    };
    match moment.uncertainty_ms {
        0 => at,
        ms => format!("{at} ± {}", duration_words(Duration::from_millis(ms))),
    }
}

fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

fn upper_first(text: &str) -> String {
    // A name keeps its own letters.
    match text.split_once(' ') {
        Some((first, _)) if first.chars().all(|c| c.is_ascii_lowercase()) => {
            text[..1].to_ascii_uppercase() + &text[1..]
        }
        _ => text.to_owned(),
    }
}
