//! Monopolies in the terminal.

use super::{counted, footer, header, shortened, task, thousands};
use crate::output::safe::one_line;
use crate::output::terminal::{bold, dim, good, width, wrap};
use coroner_evidence::Order;
use coroner_profile::views::monopolies::{By, Coverage, Edge, Monopoly};
use coroner_source::profile::ReadProfile;
use coroner_web::documents::monopolies::frames;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Frames shown per stack, leaf first.
const FRAMES: usize = 4;
/// Runs shown without --all.
const RUNS: usize = 20;
/// Threads named in the summary.
const SUMMARY: usize = 5;
/// Absent kernel threads named per run.
const ABSENT: usize = 3;
const INDENT: usize = 28;

pub struct Shown {
    /// The selected samples, in words.
    pub selection: String,
    pub threshold: Duration,
    /// Every run, not only the longest.
    pub all: bool,
}

pub fn text(read: &ReadProfile, found: &[Monopoly], coverage: &Coverage, shown: &Shown) -> String {
    let width = width();
    let mut out = header(read, &shown.selection, width);
    let least = shown.threshold.as_secs_f64() * 1e3;
    out.push('\n');
    if found.is_empty() {
        let _ = writeln!(out, "{}", good(&format!("No thread had a core to itself for {least} ms or longer.")));
        out.push_str(&remarks(read, coverage, width));
        return out;
    }
    let runs = counted(found.len() as u64, "run");
    let _ = writeln!(out, "{}", bold(&format!("{runs} of one thread on one core for {least} ms or longer")));
    for (who, core, count, length) in summary(read, found).into_iter().take(SUMMARY) {
        let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
        let _ = writeln!(out, "  {} had core {core} {times}, {:.2} s in total", bold(&who), length as f64 / 1e9);
    }
    out.push('\n');
    // The longest runs, sorted by start.
    let most = if shown.all { found.len() } else { RUNS };
    let mut runs: Vec<&Monopoly> = found.iter().take(most).collect();
    runs.order_by_key(|run| (run.start, run.core));
    let _ = writeln!(out, "{}", bold("   start s     length  core  who"));
    for run in runs {
        describe(read, run, width, &mut out);
    }
    if found.len() > most {
        let _ =
            writeln!(out, "{}", dim(&format!("{} shorter ones are not shown; --all shows them", found.len() - most)));
    }
    if let Some(longest) = found.first() {
        let at = read.seconds(longest.start);
        let _ = writeln!(
            out,
            "\nFor the longest one: coroner flame {} --core {} --since {at:.3} --until {:.3}",
            read.file.display(),
            longest.core,
            at + longest.length as f64 / 1e9
        );
    }
    out.push_str(&remarks(read, coverage, width));
    out
}

/// Thread, core, number of runs and total length; the longest first.
fn summary(read: &ReadProfile, found: &[Monopoly]) -> Vec<(String, u32, u64, u64)> {
    let mut sums: BTreeMap<(String, u32), (u64, u64)> = BTreeMap::new();
    for run in found {
        let (count, length) = sums.entry((who(read, run), run.core)).or_default();
        *count += 1;
        *length += run.length;
    }
    let mut sums: Vec<_> = sums.into_iter().map(|((who, core), (count, length))| (who, core, count, length)).collect();
    sums.order_by_key(|(_, _, _, length)| std::cmp::Reverse(*length));
    sums
}

fn who(read: &ReadProfile, run: &Monopoly) -> String {
    match run.by {
        By::Thread => task(&read.names, run.task),
        By::Interrupts => format!("interrupts, mostly of {}", task(&read.names, run.task)),
    }
}

fn remarks(read: &ReadProfile, coverage: &Coverage, width: usize) -> String {
    let mut out: String = notes(coverage).iter().map(|note| dim(&wrap(note, width, 0))).collect();
    if let Some(pid) = read.only_process() {
        let note =
            format!("only process {pid} was recorded: what else ran on these cores is unknown (use perf record -a)");
        out.push_str(&dim(&wrap(&note, width, 0)));
    }
    out.push_str(&footer(read, width));
    out
}

fn describe(read: &ReadProfile, run: &Monopoly, width: usize, out: &mut String) {
    let names = &read.names;
    let at_least = run.begin == Edge::Recording || run.end == Edge::Recording;
    let _ = writeln!(
        out,
        "{:>10.3} {}{:>6.0} ms {:>5}  {}",
        read.seconds(run.start),
        if at_least { "≥" } else { " " },
        run.length as f64 / 1e6,
        run.core,
        bold(&who(read, run))
    );
    let mut about = Vec::new();
    about.extend(read.wall(run.start).map(|wall| wall.to_string()));
    about.push(format!("± {:.0} ms, {:.0} % in the kernel", run.uncertainty as f64 / 1e6, run.kernel * 100.0));
    about.extend(run.before.map(|before| format!("before: {}", task(names, before))));
    about.extend(run.after.map(|after| format!("after: {}", task(names, after))));
    if run.pauses > 0 {
        let pauses = match run.pauses {
            1 => format!("one pause of {:.0} ms", run.longest_pause as f64 / 1e6),
            pauses => {
                format!("{} short pauses, the longest {:.0} ms", thousands(pauses), run.longest_pause as f64 / 1e6)
            }
        };
        about.push(format!("it had {:.1} % of that time, with {pauses}", run.share() * 100.0));
    }
    if run.foreign > 0 {
        about.push(format!("{} of {} samples belong to others", run.foreign, run.samples + run.foreign));
    }
    if run.gaps > 0 {
        about.push(format!("no samples for {:.0} ms of it", run.unseen as f64 / 1e6));
    }
    if !run.absent.is_empty() {
        let absent: Vec<String> = run
            .absent
            .iter()
            .take(ABSENT)
            .map(|absent| format!("{} for {:.0} ms", task(names, absent.task), absent.length as f64 / 1e6))
            .collect();
        about.push(format!("did not run there: {}", absent.join(", ")));
    }
    out.push_str(&dim(&wrap(&about.join(" · "), width, INDENT)));
    // A stack in less than 1 % of the samples says nothing.
    for (stack, share) in run.stacks.iter().take(2).filter(|(_, share)| *share >= 0.01) {
        let frames = frames(read, *stack);
        let mut leaf_first: Vec<String> = frames.iter().rev().take(FRAMES).map(|frame| one_line(frame)).collect();
        if frames.len() > FRAMES {
            leaf_first.push("…".to_owned());
        }
        let line = format!("{:.0} % {}", share * 100.0, leaf_first.join(" ← "));
        let line = shortened(&line, width.saturating_sub(INDENT));
        let _ = writeln!(out, "{:INDENT$}{}", "", dim(&line));
    }
}

fn notes(coverage: &Coverage) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |count: u64, what: &str| {
        if count > 0 {
            notes.push(format!("{} {what}", thousands(count)));
        }
    };
    note(coverage.left_out, "samples without a time or core were not used");
    note(coverage.other_events, "samples of events that are not clock-like were not used");
    note(coverage.late, "samples came too late to be used");
    note(coverage.restarts, "times the clock went backwards, as in concatenated files");
    note(coverage.by_chance, "runs were long enough, but may be chance at this sampling rate");
    note(coverage.not_kept, "shorter runs were not kept");
    notes
}
