//! Incidents as text.

use super::safe::one_line;
use super::terminal::{bold, dim, width, wrap};
use super::{diagnosis_text, from_recording};
use coroner_diagnosis::units::paths::shell_word;
use coroner_diagnosis::words::bytes as size;
use coroner_diagnosis::words::{duration_words, plural};
use coroner_evidence::Wall;
use coroner_evidence::recording::RiserKind;
use coroner_source::directory;
use coroner_source::incident::{Incident, IncidentState, MARK};
use coroner_source::incident_report::{IncidentReport, Listed, Losses, ReadIncident, losses};
use std::path::Path;
use std::time::Duration;

/// Newest first.
pub fn list(directory: &Path, is_live: bool, listed: &[Listed]) -> String {
    let place = directory.display();
    let recorder = if is_live { "a recorder is running" } else { "no recorder is running" };
    if listed.is_empty() {
        return format!("no incidents in {place} ({recorder})\n");
    }
    let mut out = String::new();
    for Listed { incident, bytes, .. } in listed {
        let subject = if incident.subject.is_empty() { String::new() } else { format!("  {}", incident.subject) };
        let mut facts = vec![incident.state.as_str().to_owned()];
        facts.extend(bytes.map(size));
        if incident.repeats > 0 {
            facts.push(plural(incident.repeats, "repeat", "repeats"));
        }
        out.push_str(&format!(
            "{:>4}  {}  {}{}  {}\n",
            incident.number,
            incident.triggered,
            bold(&one_line(&incident.code)),
            one_line(&subject),
            dim(&facts.join(", "))
        ));
        out.push_str(&wrap(&told(incident, is_live), width(), 6));
        if let Some(error) = &incident.error {
            out.push_str(&wrap(error, width(), 6));
        }
    }
    let all: u64 = listed.iter().filter_map(|l| l.bytes).sum();
    let number = listed[0].incident.number;
    out.push_str(&dim(&format!(
        "\n{} in {place} ({recorder}), {}. More: coroner incidents show {number} --dir {place}\n",
        plural(listed.len() as u64, "incident", "incidents"),
        size(all)
    )));
    out
}

/// What became of a mark: the incident that it opened or was added to.
pub fn marked(directory: &Path, incident: Option<&Incident>) -> String {
    let place = shell_word(&directory.display().to_string());
    let Some(incident) = incident else {
        return format!(
            "sent to the recorder, but no incident has appeared yet; see: coroner incidents --dir {place}\n"
        );
    };
    let Incident { number, from, triggered, until, .. } = incident;
    let show = format!("coroner incidents show {number} --dir {place}");
    match incident.code == MARK {
        true => format!(
            "incident {number}: keeps {} before this moment and {} after it; complete at {until}. Then: {show}\n",
            duration_words(triggered.since(*from)),
            duration_words(until.since(*triggered))
        ),
        false => format!(
            "noted in incident {number}, which is still open (no more are opened at once), until {until}. Then: {show}\n"
        ),
    }
}

pub fn report(report: &IncidentReport) -> String {
    let IncidentReport { listed: Listed { incident, file, .. }, directory, read, verbose } = report;
    let width = width();
    let seen = read.as_ref().ok().and_then(|read| read.diagnosis.window);
    let mut out = head(incident, seen, directory::is_live(directory), width);
    match read {
        Ok(read) => {
            out.push('\n');
            if let Some(about) = &read.about {
                out.push_str(&format!("{}\n", bold("What it was about")));
                out.push_str(&wrap(&about.detail, width, 2));
                out.push_str(&wrap(&format!("What to do: {}", about.remedy), width, 2));
                out.push('\n');
            }
            let from = file.as_ref().map(|file| format!("--from {}", shell_word(&file.display().to_string())));
            let told = diagnosis_text::Told { source: "", from: from.as_deref(), is_incident: true, verbose: *verbose };
            let mut diagnosis = read.diagnosis.clone();
            if let Some(from) = &from {
                from_recording::carry(&mut diagnosis, from);
            }
            if !read.names_trigger {
                let text = format!(
                    "What triggered it ({}{}) is not among the findings of this window{}",
                    incident.code,
                    if incident.subject.is_empty() { String::new() } else { format!(" {}", incident.subject) },
                    if diagnosis.conclusion.verdicts.is_empty() { "." } else { "; what else was wrong then:" }
                );
                out.push_str(&format!("{}\n", bold(&wrap(&text, width, 0))));
            }
            out.push_str(&diagnosis_text::render(&diagnosis, &read.evidence, &told));
            out.push_str(&samples(read, incident, width));
        }
        Err(why) => out.push_str(&format!("\n{}", wrap(&format!("No diagnosis: {why}."), width, 0))),
    }
    if let Some(file) = file {
        let file = file.display();
        let core = incident.core.map(|core| format!(" --core {core}")).unwrap_or_default();
        let number = incident.number;
        out.push_str(&format!("\n{}\n", bold("Where to look next")));
        for line in [
            format!("coroner flame {file}{core}"),
            format!("coroner heatmap {file}"),
            format!("coroner cores --from {file}"),
            format!("coroner export --incident {number} --dir {} -o incident-{number}.coroner", directory.display()),
        ] {
            out.push_str(&format!("  {line}\n"));
        }
    }
    out
}

fn head(incident: &Incident, seen: Option<(Wall, Wall)>, is_live: bool, width: usize) -> String {
    let mut lines = head_lines(incident, seen, is_live).into_iter();
    let mut out = format!("{}\n", bold(&one_line(&lines.next().unwrap_or_default())));
    for line in lines {
        out.push_str(&wrap(&line, width, 2));
    }
    out
}

/// What triggered it and when, for a report.
pub fn plain_head(report: &IncidentReport) -> String {
    let seen = report.read.as_ref().ok().and_then(|read| read.diagnosis.window);
    let lines = head_lines(&report.listed.incident, seen, directory::is_live(&report.directory));
    lines.iter().map(|line| one_line(line)).collect::<Vec<_>>().join("\n")
}

fn head_lines(incident: &Incident, seen: Option<(Wall, Wall)>, is_live: bool) -> Vec<String> {
    let subject = if incident.subject.is_empty() { String::new() } else { format!(", {}", incident.subject) };
    let title = format!("Incident {}: {}{subject} ({})", incident.number, incident.code, incident.state.as_str());
    let mut lines = vec![title, told(incident, is_live)];
    let seconds = |from: Wall, to: Wall| to.since(from).as_secs_f64();
    let trigger = incident.triggered;
    let mut window = format!(
        "triggered {}; window {} to {} ({:.0} s before, {:.0} s after)",
        trigger,
        incident.from,
        incident.until,
        seconds(incident.from, trigger),
        seconds(trigger, incident.until)
    );
    if let Some((from, _)) = seen.filter(|(from, _)| seconds(incident.from, *from) > 2.0) {
        window.push_str(&format!("; recorded only from {:.0} s before", seconds(from, trigger)));
    }
    if let Some(frozen) = incident.frozen {
        window.push_str(&format!("; frozen {:.1} s after the trigger", seconds(trigger, frozen)));
    }
    lines.push(window);
    if incident.state == IncidentState::Open {
        let open = match is_live {
            true => "Still open: its last seconds, findings and risers are missing.",
            false => "Incomplete, and no recorder is running: the next one will complete it.",
        };
        lines.push(open.to_owned());
    }
    if incident.repeats > 0 {
        let last = incident.last_repeat.map(|at| format!(", last at {at}")).unwrap_or_default();
        lines.push(format!("{} since then{last}", plural(incident.repeats, "repeat", "repeats")));
    }
    for also in &incident.also {
        lines.push(format!("meanwhile {}: {} ({})", also.at, also.text, also.code));
    }
    if incident.also_more > 0 {
        lines.push(format!("and {} more", incident.also_more));
    }
    if let Some(error) = &incident.error {
        lines.push(format!("while freezing it: {error}"));
    }
    lines
}

/// What happened and for how long: `spin[4711] (SCHED_FIFO 50) had core 1 to itself for 7 min`.
fn told(incident: &Incident, is_live: bool) -> String {
    let text = &incident.text;
    let Some(lasting) = incident.lasting else { return text.clone() };
    let at_least = if lasting.at_least { "at least " } else { "" };
    let lasted = format!("{at_least}{}", duration_words(Duration::from_nanos(lasting.lasted_ns)));
    let again = incident.last_repeat_text.as_ref().filter(|again| *again != text);
    let again = again.map_or_else(String::new, |again| format!("; last {again}"));
    let earlier = if incident.repeats > 0 { format!(", after {lasted} earlier") } else { String::new() };
    let since = lasting.since;
    match (lasting.until, lasting.goes_on() && is_live) {
        (Some(_), _) if incident.repeats > 0 => format!("{text} for {lasted} in all{again}"),
        (Some(_), _) => format!("{text} for {lasted}"),
        (None, true) => format!("{text}{again}; ongoing since {since}{earlier}"),
        (None, false) if lasting.lasted_ns > 0 => format!("{text}{again} for {lasted} in all; its end was not seen"),
        (None, false) => format!("{text}{again}, since {since}; its end was not seen"),
    }
}

/// Smaller rises are real, but say nothing.
const LEAST_RISE: f64 = 0.01;
const MOST_RISERS: usize = 8;

/// Risers, and samples that are missing.
fn samples(read: &ReadIncident, incident: &Incident, width: usize) -> String {
    let mut out = String::new();
    let place = incident.core.map_or_else(|| "on all cores".to_owned(), |core| format!("on core {core}"));
    if !read.risers.is_empty() {
        out.push_str(&format!("\n{}\n", bold(&format!("What rose {place}"))));
        let of =
            if incident.core.is_some() { "its time (its busy time, if sampled by cycles)" } else { "the busy time" };
        let text = format!("Shares of {of}: the seconds around the trigger compared with the hour before.");
        out.push_str(&wrap(&text, width, 2));
    }
    // JSON has them all.
    for riser in read.risers.iter().filter(|riser| riser.now - riser.baseline >= LEAST_RISE).take(MOST_RISERS) {
        let percent = |share: f64| format!("{:>5.1} %", share * 100.0);
        let what = match riser.what {
            RiserKind::Command => "command ",
            RiserKind::KernelSymbol => "function",
        };
        let mut text = format!("{} to {}  {what}  {}", percent(riser.baseline), percent(riser.now), riser.name);
        if let Some((command, share)) = &riser.mostly_in {
            text.push_str(&format!(" ({:.0} % of it in {command})", share * 100.0));
        }
        out.push_str(&format!("  {}\n", one_line(&text)));
    }
    let losses = losses(&read.evidence);
    if !losses.is_empty() {
        out.push_str(&format!("\n{}\n", bold("Missing samples")));
    }
    for Losses { core, lost, throttled } in losses {
        let text = format!(
            "core {core}: {} lost, throttled by the kernel for {:.1} s (a gap is itself a symptom)",
            plural(lost, "sample", "samples"),
            throttled.as_secs_f64()
        );
        out.push_str(&wrap(&text, width, 2));
    }
    out
}

pub fn exported(number: u64, output: &Path, bytes: u64) -> String {
    let name = output.display();
    format!("incident {number}: {name}, {}\ndiagnose it anywhere: coroner diagnose --from {name}\n", size(bytes))
}
