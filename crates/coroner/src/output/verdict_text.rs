//! Verdicts as text: the root cause, its effects, what to do, and what that does not fix.

use super::safe::one_line;
use super::telling::{self, ChainStep, sentence};
use super::terminal::{bold, by_severity, dim, wrap, wrap_hanging};
use coroner_diagnosis::verdict::{Certainty, Link, Moment, Proofs, Verdict};
use coroner_diagnosis::words::duration_words;
use coroner_evidence::Wall;
use std::time::Duration;

/// Moments shown without -v.
const FEW: usize = 6;

/// `seen` is the window, in nanoseconds since 1970.
pub fn render(verdicts: &[&Verdict], seen: Option<(Wall, Wall)>, width: usize, verbose: bool) -> String {
    let mut out = String::new();
    for (i, verdict) in verdicts.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let number = if verdicts.len() > 1 { format!(" {} of {}", i + 1, verdicts.len()) } else { String::new() };
        out.push_str(&one(verdict, &number, seen, width, verbose));
    }
    out
}

fn one(verdict: &Verdict, number: &str, seen: Option<(Wall, Wall)>, width: usize, verbose: bool) -> String {
    let over = telling::over(verdict, seen);
    let state = if verdict.time.ongoing { "ongoing" } else { "over" };
    let head = format!("VERDICT{number}  {}, {state}, {}", verdict.severity.as_str(), telling::how_sure(verdict));
    let mut out = format!("{}\n", by_severity(verdict.severity, &head));
    let root = &verdict.root_cause;
    let cause = match verdict.certainty {
        Certainty::Proven => "Root cause",
        Certainty::Likely => "Likely root cause",
        Certainty::Possible => "Possible root cause",
    };
    out.push_str(&bold(&wrap(&format!("{cause}: {} ({})", root.title, root.code), width, 2)));
    out.push_str(&wrap(&sentence(&upper_first(&verdict.because)), width, 2));
    if let Some(over) = over {
        out.push_str(&wrap(&over, width, 2));
    }
    for more in &verdict.context {
        out.push_str(&wrap(&format!("Also: {} ({})", more.title, more.code), width, 2));
    }
    let proofs = &verdict.proofs;
    if verbose {
        out.push_str(&dim(&proof_lines(proofs, width, 2)));
    } else if let Some(missing) = not_shown(proofs) {
        out.push_str(&dim(&wrap(&upper_first(&missing), width, 2)));
    }

    let steps = telling::steps(verdict);
    if !steps.is_empty() {
        out.push('\n');
    }
    for step in &steps {
        out.push_str(&step_text(step, width, verbose));
    }
    out.push_str(&timeline_text(&telling::timeline(verdict), width, verbose));

    out.push('\n');
    let (now, then) = match &verdict.first_aid {
        Some(first_aid) => (first_aid.as_str(), verdict.fix.as_str()),
        None => (verdict.fix.as_str(), ""),
    };
    let risk = verdict.risk.as_deref().unwrap_or_default();
    for (label, text) in
        [("What to do", now), ("Then the cause", then), ("But", &verdict.not_fixed), ("If nothing is done", risk)]
    {
        if !text.is_empty() {
            out.push_str(&wrap_hanging(&format!("{label}: {}", sentence(text)), width, 2, 4));
        }
    }
    out
}

fn step_text(step: &ChainStep<'_>, width: usize, verbose: bool) -> String {
    let link = step.link;
    let indent = 2 + 2 * step.depth;
    let again = if step.again { ", as above" } else { "" };
    let effect = format!("→ {} ({}{again})", link.to.title, link.to.code);
    let mut out = bold(&wrap_hanging(&effect, width, indent, indent + 2));
    if verbose {
        out.push_str(&wrap(&format!("because {}", link.because), width, indent + 2));
        out.push_str(&dim(&proof_lines(&link.proofs, width, indent + 2)));
    } else {
        out.push_str(&dim(&wrap(&why(link), width, indent + 2)));
    }
    out
}

/// `likely: core 1 alone polls eth0 rx-3, and was occupied · the two overlap in time · not shown: who occupied the core`. The reason already says
/// what both are about and how large it was, so only the order is added.
fn why(link: &Link) -> String {
    let mut parts = vec![link.because.clone()];
    if link.proofs.order.is_shown() {
        parts.push(link.proofs.order.text().to_owned());
    }
    parts.extend(not_shown(&link.proofs));
    format!("{}: {}", link.certainty.as_str(), parts.join(" · "))
}

/// `not shown: who had the core; …`
fn not_shown(proofs: &Proofs) -> Option<String> {
    let named = telling::named(proofs);
    let reasons: Vec<&str> = named.iter().filter(|(_, p)| !p.is_shown()).map(|(_, p)| p.text()).collect();
    (!reasons.is_empty()).then(|| format!("not shown: {}", reasons.join("; ")))
}

fn proof_lines(proofs: &Proofs, width: usize, indent: usize) -> String {
    let mut out = wrap(&format!("{}:", proofs.certainty().as_str()), width, indent);
    for (name, proof) in telling::named(proofs) {
        let not_shown = if proof.is_shown() { "" } else { "not shown: " };
        out.push_str(&wrap(&format!("- {name}: {not_shown}{}", proof.text()), width, indent));
    }
    out
}

fn timeline_text(moments: &[Moment], width: usize, verbose: bool) -> String {
    if moments.is_empty() {
        return String::new();
    }
    let mut out = String::from("\n");
    let shown = if verbose { moments.len() } else { FEW };
    for moment in moments.iter().take(shown) {
        let line = format!("  {}  {}", clock(moment, moments), one_line(&moment.what));
        out.push_str(&cut(&line, if verbose { usize::MAX } else { width }));
        out.push('\n');
    }
    if moments.len() > shown {
        out.push_str(&dim(&format!("  and {} more (-v)\n", moments.len() - shown)));
    }
    out
}

/// `05:51:42.123Z ± 2.0 s`, with the date if they span several days.
pub fn clock(moment: &Moment, all: &[Moment]) -> String {
    let at = moment.at.to_string();
    let one_day = all.iter().all(|other| other.at.midnight() == moment.at.midnight());
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
    // Do not capitalise a name.
    match text.split_once(' ') {
        Some((first, _)) if first.chars().all(|c| c.is_ascii_lowercase()) => {
            text[..1].to_ascii_uppercase() + &text[1..]
        }
        _ => text.to_owned(),
    }
}
