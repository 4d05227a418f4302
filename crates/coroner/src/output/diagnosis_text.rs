//! A diagnosis for people.

use super::diagnosis_json::timestamp;
use super::terminal::{bold, by_severity, dim, good, printable, width, wrap};
use coroner_diagnosis::cores::Cores;
use coroner_diagnosis::cores::timeline::Shares;
use coroner_diagnosis::{Diagnosis, Fact, Finding, Severity};
use coroner_evidence::{Cost, Evidence, Node, Unseen};
use serde_json::Value;
use std::time::Duration;

/// `source` says where the evidence comes from, in lines of its own.
pub fn render(diagnosis: &Diagnosis, evidence: &Evidence, source: &str, verbose: bool) -> String {
    let width = width();
    let mut out = String::new();
    out.push_str(&wrap(&node_line(&diagnosis.node), width, 0));
    out.push_str(&wrap(&window_line(diagnosis, evidence), width, 0));
    for line in source.lines() {
        out.push_str(&wrap(&printable(line), width, 0));
    }
    out.push('\n');

    if diagnosis.findings.is_empty() {
        out.push_str(&good("Nothing wrong in what was seen."));
        out.push('\n');
    }
    for (i, finding) in diagnosis.findings.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let remedy = verbose || finding.severity > Severity::Info;
        out.push_str(&finding_text(finding, width, &Told { evidence: verbose, remedy }));
    }

    if !diagnosis.ruled_out.is_empty() {
        out.push('\n');
        if verbose {
            out.push_str(&bold("Ruled out"));
            out.push('\n');
            for ruled_out in &diagnosis.ruled_out {
                out.push_str(&wrap(&format!("{}: {}", ruled_out.code, printable(&ruled_out.why)), width, 2));
            }
        } else {
            let codes: Vec<&str> = diagnosis.ruled_out.iter().map(|r| r.code.as_str()).collect();
            out.push_str(&wrap(&format!("Ruled out (-v says why): {}.", codes.join(", ")), width, 0));
        }
    }

    out.push_str(&unseen_text(&diagnosis.unseen, width));

    out.push('\n');
    if let Some(finding) = diagnosis.findings.first() {
        out.push_str(&dim(&format!("More about a finding: coroner diagnose --explain {}\n", finding.code)));
    }
    if let Some(cost) = diagnosis.cost {
        let watched = diagnosis.window_real_ns.map(|(from, to)| Duration::from_nanos(to.saturating_sub(from)));
        out.push_str(&dim(&cost_line(cost, watched)));
    }
    out
}

pub fn unseen_text(unseen: &[Unseen], width: usize) -> String {
    if unseen.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("Not seen"));
    // One reason may hide several things; it is told once.
    let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for Unseen { what, why, how_to_see, .. } in unseen {
        match reasons.iter_mut().find(|(w, h, _)| w == why && h == how_to_see) {
            Some((_, _, whats)) => whats.push(what),
            None => reasons.push((why, how_to_see, vec![what])),
        }
    }
    for (why, how_to_see, whats) in reasons {
        let mut text = format!("{}: {}.", whats.join("; "), why.trim_end_matches('.'));
        if !how_to_see.is_empty() {
            text.push_str(&format!(" To see it: {}.", how_to_see.trim_end_matches('.')));
        }
        out.push_str(&wrap(&format!("- {}", printable(&text)), width, 2));
    }
    out
}

pub fn node_line(node: &Node) -> String {
    let mut parts = vec![format!(
        "coroner {} on {}",
        env!("CARGO_PKG_VERSION"),
        node.host.as_deref().map(printable).unwrap_or_else(|| "a node without a name".into())
    )];
    if let Some(kernel) = &node.kernel {
        parts.push(format!("Linux {}", printable(kernel)));
    }
    if let Some(cores) = node.cores {
        let memory =
            node.memory_bytes.map(|b| format!(", {:.0} GiB", b as f64 / (1u64 << 30) as f64)).unwrap_or_default();
        parts.push(format!("{cores} cores{memory}"));
    }
    parts.extend([&node.os, &node.instance_type, &node.zone].into_iter().flatten().map(|s| printable(s)));
    if let Some(how) = &node.in_container {
        parts.push(format!("inside a container ({})", printable(how)));
    }
    parts.join(" · ")
}

fn window_line(diagnosis: &Diagnosis, evidence: &Evidence) -> String {
    let mut line = String::new();
    if let Some((from, to)) = diagnosis.window_real_ns {
        let seconds = Duration::from_nanos(to.saturating_sub(from)).as_secs_f64();
        line.push_str(&format!("watched {seconds:.1} s until {}", timestamp(to)));
    }
    // The average beside the worst core: what an average hides is the point of this tool.
    let cores = Cores::of(evidence);
    let average = cores.window().and_then(|window| cores.timeline.average(window));
    if let (Some(average), Some((core, busy))) = (average, cores.timeline.worst(Shares::busy)) {
        line.push_str(&format!(
            " · average {:.0} % busy, worst core {core}: {:.0} % over one second",
            average.busy() * 100.0,
            busy * 100.0
        ));
    }
    line
}

/// What is told of a finding beside what happened.
pub struct Told {
    pub evidence: bool,
    pub remedy: bool,
}

pub fn finding_text(finding: &Finding, width: usize, told: &Told) -> String {
    let label = finding.severity.as_str().to_uppercase();
    let mut out = format!(
        "{}  {}  {} {}\n",
        by_severity(finding.severity, &label),
        finding.code,
        finding.subject.kind.as_str(),
        printable(&finding.subject.name)
    );
    out.push_str(&bold(&wrap(&printable(&finding.title), width, 2)));
    if !finding.detail.is_empty() {
        out.push_str(&wrap(&printable(&finding.detail), width, 2));
    }
    if told.evidence {
        for fact in &finding.evidence {
            out.push_str(&dim(&wrap(&printable(&fact_text(fact)), width, 4)));
        }
    }
    if told.remedy && !finding.remedy.is_empty() {
        out.push_str(&wrap(&format!("What to do: {}", printable(&finding.remedy)), width, 2));
    }
    out
}

fn fact_text(fact: &Fact) -> String {
    let value = match &fact.value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if !number.is_u64() && !number.is_i64() => format!("{float:.1}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    };
    let unit = if fact.unit.is_empty() { String::new() } else { format!(" {}", fact.unit) };
    format!("{}: {value}{unit}  ({})", fact.what, fact.source)
}

pub fn cost_line(cost: Cost, watched: Option<Duration>) -> String {
    let share = watched
        .filter(|w| !w.is_zero())
        .map(|w| format!(" ({:.1} % of one core)", cost.cpu_ms as f64 / 10.0 / w.as_secs_f64()))
        .unwrap_or_default();
    format!(
        "Cost of looking: {} ms of CPU to start, {} ms while watching{share}, {:.1} MB of memory.\n",
        cost.startup_cpu_ms,
        cost.cpu_ms,
        cost.peak_rss_bytes as f64 / 1e6
    )
}
