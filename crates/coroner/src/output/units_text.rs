//! `coroner units` as text.

use super::diagnosis_text::{FindingParts, cost_line, finding_text, node_line, unseen_text};
use super::safe::one_line;
use super::terminal::{bold, dim, good, is_terminal, width, wrap};
use coroner_diagnosis::agents::Judgement;
use coroner_diagnosis::agents::baseline::Drift;
use coroner_diagnosis::units::cost::UnitCost;
use coroner_diagnosis::units::{Audit, AuditedUnit};
use coroner_diagnosis::words::{bytes, count, duration_words, percent, plural};
use coroner_evidence::{Enablement, Evidence, Preset};
use std::path::Path;

/// Rows shown without --all.
const ROWS: usize = 15;
const JUDGEMENTS: usize = 8;
const DRIFTED: usize = 20;

pub struct Shown<'a> {
    pub all: bool,
    pub verbose: bool,
    /// Set if it is not the node's own systemd.
    pub bus: Option<&'a str>,
}

pub fn render(audit: &Audit, evidence: &Evidence, stored: Option<&Path>, shown: &Shown<'_>) -> String {
    let width = width();
    let mut out = wrap(&headline(audit, evidence), width, 0);
    if let Some(bus) = shown.bus {
        let there = format!("These are the units of the systemd behind {}: run the commands below there.", bus);
        out.push_str(&wrap(&there, width, 0));
    }
    out.push('\n');
    if audit.findings.is_empty() {
        out.push_str(&good(&nothing_wrong(evidence)));
        out.push('\n');
    }
    for (i, finding) in audit.findings.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        out.push_str(&finding_text(
            finding,
            width,
            &FindingParts { evidence: shown.verbose, remedy: true, window: None },
        ));
    }
    let judgements = if shown.all { audit.judgements.iter().flatten().collect() } else { audit.lesser_judgements() };
    out.push_str(&judgements_text(&judgements, width, shown.all));
    if let Some(Ok(drift)) = &audit.drift {
        out.push_str(&drift_text(drift, width, shown.all));
    }
    out.push_str(&match (evidence.image.is_some(), audit.cgroups.is_empty()) {
        (true, _) => image_table(audit, shown.all),
        (false, false) => cgroup_table(audit, shown.all),
        (false, true) => cost_table(audit, shown.all),
    });
    out.push_str(&unseen_text(&audit.unseen, width));
    if let Some(cost) = evidence.cost {
        out.push_str(&format!("\n{}", dim(&cost_line(cost, evidence.window().map(|w| w.length())))));
    }
    if let Some(path) = stored {
        out.push_str(&wrap(
            &format!(
                "Stored {} as the baseline {}; the next run with it reports what is new, gone or changed.",
                plural(evidence.unit_files.len() as u64, "unit", "units"),
                path.display()
            ),
            width,
            0,
        ));
    }
    out
}

fn headline(audit: &Audit, evidence: &Evidence) -> String {
    let mut line = match &evidence.image {
        Some(dir) => {
            let os = evidence.node.as_ref().and_then(|n| n.os.as_deref()).unwrap_or("an unknown system");
            format!("the image {dir}, {os}, not booted")
        }
        None => node_line(&evidence.node.clone().unwrap_or_default()),
    };
    if !audit.units.is_empty() {
        let enabled = audit.units.iter().filter(|u| u.enablement() == Some(Enablement::Enabled)).count();
        line.push_str(&format!(
            " · {}, {} enabled",
            plural(audit.units.len() as u64, "unit", "units"),
            count(enabled as u64)
        ));
        if !evidence.units.is_empty() {
            let active = audit.units.iter().filter(|u| u.is_active() && u.name.ends_with(".service")).count();
            line.push_str(&format!(", {}", plural(active as u64, "service active", "services active")));
        }
    }
    if let Some(window) = evidence.window() {
        line.push_str(&format!(" · watched {}", duration_words(window.length())));
    }
    line
}

fn nothing_wrong(evidence: &Evidence) -> String {
    match (&evidence.image, evidence.units.is_empty()) {
        (Some(_), _) => "No enabled unit is known to be unused.".to_owned(),
        (None, true) => "No crashloop was seen. Units could not be queried: see below.".to_owned(),
        (None, false) => "No unit crashloops, churns, or is known to be unused.".to_owned(),
    }
}

/// Possibly unused units, one line each.
fn judgements_text(judgements: &[&Judgement], width: usize, all: bool) -> String {
    if judgements.is_empty() {
        return String::new();
    }
    let title = if all { "Every unit of a known agent" } else { "Possibly unused here" };
    let mut out = format!("\n{}\n", bold(title));
    let most = if all { judgements.len() } else { JUDGEMENTS };
    for judgement in judgements.iter().take(most) {
        let why: Vec<&str> = judgement.why.iter().map(|r| r.text.as_str()).collect();
        let why = if all { why.join("; ") } else { why.first().copied().unwrap_or_default().to_owned() };
        let text =
            format!("{} ({}, {}): {}", judgement.unit, judgement.verdict.as_str(), judgement.certainty.as_str(), why);
        out.push_str(&wrap(&text, width, 2));
        if all {
            out.push_str(&wrap(&format!("Safe step: {}", judgement.safe_step), width, 4));
        }
    }
    if judgements.len() > most {
        out.push_str(&format!(
            "  and {} more (--all shows them with reasons and what to do)\n",
            judgements.len() - most
        ));
    }
    out
}

fn drift_text(drift: &Drift, width: usize, all: bool) -> String {
    if drift.is_empty() {
        return format!("\n{}\n", good("Same as the baseline: nothing is new, gone or changed."));
    }
    let mut lines = Vec::new();
    for unit in &drift.new {
        lines.push(format!("new      {} ({})", unit.name, unit.unit.enablement));
    }
    for unit in &drift.gone {
        lines.push(format!("gone     {} (was {})", unit.name, unit.unit.enablement));
    }
    for unit in &drift.changed {
        let changes = unit.changes.iter().map(|change| change.words().unwrap_or("its files".to_owned()));
        let changes: Vec<String> = changes.collect();
        lines.push(format!("changed  {}: {}", unit.name, changes.join(", ")));
    }
    let most = if all { lines.len() } else { DRIFTED };
    let mut out = format!("\n{}\n", bold("Different from the baseline"));
    for line in lines.iter().take(most) {
        out.push_str(&wrap(line, width, 2));
    }
    if lines.len() > most {
        out.push_str(&format!("  and {} more (--all shows them)\n", lines.len() - most));
    }
    out
}

/// Columns are as wide as their widest cell. If the terminal is too narrow, the last columns are left out.
fn table(header: &[&str], rows: &[Vec<String>], right: &[bool]) -> String {
    let mut shown = header.len();
    while shown > 2 && is_terminal() && table_width(&header[..shown], rows) > width() {
        shown -= 1;
    }
    let header = &header[..shown];
    let widths = column_widths(header, rows);
    let line = |cells: &[&str]| {
        let mut line = String::new();
        for (i, cell) in cells.iter().enumerate() {
            let pad = widths[i].saturating_sub(cell.chars().count());
            let spaces = " ".repeat(pad);
            match right[i] {
                true => line.push_str(&format!("{spaces}{cell}  ")),
                false => line.push_str(&format!("{cell}{spaces}  ")),
            }
        }
        one_line(line.trim_end()) + "\n"
    };
    let mut out = dim(&line(header));
    for row in rows {
        let cells: Vec<&str> = row.iter().take(shown).map(String::as_str).collect();
        out.push_str(&line(&cells));
    }
    out
}

fn column_widths(header: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let width = |i: usize| {
        let cells = rows.iter().map(|row| row[i].chars().count());
        cells.chain([header[i].chars().count()]).max().unwrap_or(0)
    };
    (0..header.len()).map(width).collect()
}

fn table_width(header: &[&str], rows: &[Vec<String>]) -> usize {
    column_widths(header, rows).iter().map(|w| w + 2).sum()
}

const UNKNOWN: &str = "–";

fn cost_cells(cost: &UnitCost) -> Vec<String> {
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.to_owned());
    vec![
        or_unknown(cost.cores.map(percent)),
        or_unknown(cost.memory_bytes.map(bytes)),
        or_unknown(cost.restarts.map(|n| count(n.into()))),
        or_unknown(cost.zombies.map(count)),
    ]
}

fn costs_anything(cost: &UnitCost) -> bool {
    cost.cores.is_some_and(|c| c > 0.0)
        || cost.memory_bytes.is_some_and(|b| b > 0)
        || cost.restarts.is_some_and(|n| n > 0)
        || cost.zombies.is_some_and(|n| n > 0)
}

fn cost_table(audit: &Audit, all: bool) -> String {
    let shown: Vec<&AuditedUnit> =
        audit.units.iter().filter(|u| all || costs_anything(&u.cost)).filter(|u| is_charged(u.name)).collect();
    let most = if all { shown.len() } else { ROWS };
    let rows: Vec<Vec<String>> = shown
        .iter()
        .take(most)
        .map(|u| {
            let mut row = vec![u.name.to_owned()];
            row.extend(cost_cells(&u.cost));
            row.push(state(u));
            row.push(enabled(u));
            row.push(package(u));
            row
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = ["unit", "CPU", "memory", "restarts", "dead cgroups", "state", "enabled", "package"];
    let right = [false, true, true, true, true, false, false, false];
    format!(
        "\n{}\n{}{}",
        bold("Cost per unit, highest first"),
        table(&header, &rows, &right),
        more(shown.len(), most, "units")
    )
}

/// Units that can have processes or memory of their own.
fn is_charged(name: &str) -> bool {
    [".service", ".scope", ".socket", ".mount", ".slice"].iter().any(|kind| name.ends_with(kind))
        && !name.ends_with(".slice")
}

fn cgroup_table(audit: &Audit, all: bool) -> String {
    let most = if all { audit.cgroups.len() } else { ROWS };
    let rows: Vec<Vec<String>> = audit
        .cgroups
        .iter()
        .filter(|(_, cost)| all || costs_anything(cost))
        .take(most)
        .map(|(name, cost)| {
            let mut row = vec![name.to_owned()];
            row.extend(cost_cells(cost));
            row
        })
        .collect();
    let header = ["cgroup", "CPU", "memory", "restarts", "dead cgroups"];
    format!(
        "\n{}\n{}{}",
        bold("systemd could not be queried; what runs, by cgroup, highest cost first"),
        table(&header, &rows, &[false, true, true, true, true]),
        more(audit.cgroups.len(), most, "cgroups")
    )
}

fn image_table(audit: &Audit, all: bool) -> String {
    let starts = |u: &&AuditedUnit| all || u.enablement() == Some(Enablement::Enabled);
    let shown: Vec<&AuditedUnit> = audit.units.iter().filter(starts).collect();
    let most = if all { shown.len() } else { 3 * ROWS };
    let rows: Vec<Vec<String>> = shown
        .iter()
        .take(most)
        .map(|u| {
            let preset = u.file.and_then(|f| f.preset).map_or(UNKNOWN, |p| p.as_str());
            let by = u.file.map(|f| f.pulled_in_by.iter().map(|p| p.by.as_str()).collect::<Vec<_>>().join(", "));
            let enablement = u.enablement().map_or(UNKNOWN, Enablement::as_str);
            vec![u.name.to_owned(), enablement.to_owned(), preset.to_owned(), by.unwrap_or_default(), package(u)]
        })
        .collect();
    format!(
        "\n{}\n{}{}",
        bold(if all { "All units" } else { "Enabled" }),
        table(&["unit", "enabled", "preset", "started by", "package"], &rows, &[false; 5]),
        more(shown.len(), most, "units")
    )
}

fn more(all: usize, shown: usize, what: &str) -> String {
    if all > shown { format!("and {} more {what} (--all shows them)\n", all - shown) } else { String::new() }
}

fn state(u: &AuditedUnit) -> String {
    u.unit.map_or(UNKNOWN.to_owned(), |u| match u.sub_state.is_empty() {
        true => u.active_state.clone(),
        false => format!("{} ({})", u.active_state, u.sub_state),
    })
}

/// Its state, and the preset if that differs.
fn enabled(u: &AuditedUnit) -> String {
    let Some(enablement) = u.enablement() else { return UNKNOWN.to_owned() };
    let wanted: &[Enablement] = match u.file.and_then(|f| f.preset) {
        Some(Preset::Enabled) => &[Enablement::Enabled, Enablement::EnabledRuntime],
        Some(Preset::Disabled) => &[Enablement::Disabled],
        Some(Preset::Ignored) | None => return enablement.to_string(),
    };
    match (wanted.contains(&enablement), wanted) {
        (false, [preset, ..]) => format!("{enablement} (preset: {preset})"),
        _ => enablement.to_string(),
    }
}

fn package(u: &AuditedUnit) -> String {
    match u.file.and_then(|f| f.package.as_ref()) {
        Some(p) => match &p.version {
            Some(version) => format!("{} {version}", p.name),
            None => p.name.clone(),
        },
        None => UNKNOWN.to_owned(),
    }
}
