//! Monopolies in the terminal.

use super::monopolies_json::frames;
use super::{header, task, wall_clock};
use crate::commands::profile::ReadProfile;
use crate::output::terminal::{bold, dim, good, printable};
use coroner_profile::views::monopolies::Monopoly;
use std::fmt::Write;
use std::time::Duration;

/// Frames of a stack that are shown, from the leaf on.
const FRAMES: usize = 4;

pub fn text(read: &ReadProfile, found: &[Monopoly], threshold: Duration, selection: &str, width: usize) -> String {
    let mut out = header(read, selection, width);
    let least = threshold.as_secs_f64() * 1e3;
    out.push('\n');
    if found.is_empty() {
        let _ = writeln!(out, "{}", good(&format!("No thread had a core for itself for {least} ms or longer.")));
        return out;
    }
    let count = found.len();
    let runs = if count == 1 { "run" } else { "runs" };
    let _ = writeln!(out, "{}", bold(&format!("{count} {runs} of one thread on one core for {least} ms or longer")));
    let _ = writeln!(out, "{}", bold("   start s    length  core  thread"));
    for run in found {
        let _ = writeln!(
            out,
            "{:>10.3} {:>6.0} ms {:>5}  {}",
            read.seconds(run.start),
            run.length as f64 / 1e6,
            run.core,
            bold(&task(&read.names, run.task))
        );
        let mut about = Vec::new();
        if let Some(wall) = read.wall(run.start) {
            about.push(wall_clock(wall));
        }
        about.push(match run.before {
            Some(before) => format!("before it {} ran there", task(&read.names, before)),
            None => "who ran there before is not known".to_owned(),
        });
        if run.foreign > 0 {
            about.push(format!("{} of {} samples were others'", run.foreign, run.samples + run.foreign));
        }
        let _ = writeln!(out, "{:27}{}", "", dim(&about.join(" · ")));
        for (stack, share) in run.stacks.iter().take(2) {
            let frames = frames(read, *stack);
            let mut leaf_first: Vec<String> = frames.iter().rev().take(FRAMES).map(|frame| printable(frame)).collect();
            if frames.len() > FRAMES {
                leaf_first.push("…".to_owned());
            }
            let line: String = format!("{:.0} % {}", share * 100.0, leaf_first.join(" ← "))
                .chars()
                .take(width.saturating_sub(27))
                .collect();
            let _ = writeln!(out, "{:27}{}", "", dim(&line));
        }
    }
    out
}
