//! Text of the commands that read CPU profiles.

pub mod flame_text;
pub mod heatmap_text;
pub mod monopolies_text;

use crate::output::safe::one_line;
use crate::output::terminal::{dim, wrap};
pub use coroner_diagnosis::words::count as thousands;
use coroner_profile::import::{Format, ImportReport};
use coroner_profile::model::{Dictionary, TaskId};
use coroner_source::profile::ReadProfile;
pub use coroner_source::profile::words::{cores, oddity};

/// The weight of samples; nanoseconds if the event is a clock.
pub fn weight(is_clock: bool, weight: u64) -> String {
    if !is_clock {
        return thousands(weight);
    }
    match weight as f64 {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} µs", ns / 1e3),
    }
}

/// `kubelet[1234]`, or `kubelet[1234/1240]` for a thread other than the first.
pub fn task(names: &Dictionary, id: TaskId) -> String {
    let task = names.task(id);
    let comm = match names.strings.get(task.comm) {
        "" => "unknown",
        comm => comm,
    };
    one_line(&match (task.pid, task.tid) {
        (Some(pid), Some(tid)) if pid != tid => format!("{comm}[{pid}/{tid}]"),
        (Some(id), _) | (None, Some(id)) => format!("{comm}[{id}]"),
        (None, None) => comm.to_owned(),
    })
}

/// The lines above every result: what was read.
pub fn header(read: &ReadProfile, selection: &str, width: usize) -> String {
    let mut line = format!("{}: {}", read.file.display(), read.format.name());
    let what = if read.format == Format::Folded { "stack" } else { "sample" };
    line.push_str(&format!(", {}", counted(read.report.samples, what)));
    if !read.cores.is_empty() {
        line.push_str(&format!(" on {}", counted(read.cores.len() as u64, "core")));
    }
    if let Some((first, last)) = read.span {
        line.push_str(&format!(" in {:.3} s", (last - first) as f64 / 1e9));
        if let Some(wall) = read.wall(first) {
            line.push_str(&format!(" from {wall}"));
        }
    }
    let mut out = wrap(&line, width, 0);
    if !selection.is_empty() {
        out.push_str(&wrap(&format!("{} of them: {selection}", thousands(read.selected)), width, 0));
    }
    out
}

/// The lines below every result: what could not be used.
pub fn footer(read: &ReadProfile, width: usize) -> String {
    notes(&read.report, &read.unnamed).iter().map(|note| dim(&wrap(note, width, 0))).collect()
}

/// Cuts a text to fit into a line.
pub fn shortened(text: &str, letters: usize) -> String {
    let text = one_line(text);
    if text.chars().count() <= letters {
        return text;
    }
    text.chars().take(letters.saturating_sub(1)).chain(['…']).collect()
}

/// `1 core`, `60,394 samples`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", thousands(count), if count == 1 { "" } else { "s" })
}

pub fn notes(report: &ImportReport, unnamed: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    if report.truncated {
        notes.push("the file is truncated or damaged at its end; this is what could be read".to_owned());
    }
    if report.lost > 0 {
        notes.push(format!("{} samples were lost while recording", thousands(report.lost)));
    }
    if report.out_of_order > 0 {
        notes.push(format!("{} samples were out of order; sorted", thousands(report.out_of_order)));
    }
    notes.extend(report.oddities.iter().map(oddity));
    if let Some(first) = unnamed.first() {
        let more = match unnamed.len() {
            1 => String::new(),
            n => format!("; same for {} more (--json has all)", n - 1),
        };
        notes.push(format!("names: {first}{more}"));
    }
    notes
}
