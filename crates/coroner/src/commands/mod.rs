//! The commands, one file each, and how they get their evidence.

pub mod condition;
pub mod cores;
pub mod diagnose;
pub mod fix;
pub mod fleet;
pub mod history;
pub mod incidents;
pub mod mark;
pub mod profile;
pub mod record;
mod report;
pub mod undo;
pub mod units;
pub mod view;
pub mod waits;
pub mod zombies;

use crate::output::progress::Progress;
use anyhow::Context;
use coroner_evidence::Evidence;
use coroner_probes::Root;
use coroner_probes::watch::{Watch, WatchOptions};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal_hook::consts::SIGHUP - 1) & 1 == 1
}

/// Set by Ctrl-C, SIGTERM or SIGHUP, so that what was seen so far is still reported. A second signal ends the process at once.
pub fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    // The terminal was closed; under nohup, keep going.
    let hangup = (!ignores_hangup()).then_some(signal_hook::consts::SIGHUP);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM].into_iter().chain(hangup) {
        signal_hook::flag::register_conditional_shutdown(signal, 2, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot watch for Ctrl-C")?;
    }
    Ok(stop)
}

/// How long a node is watched by default.
const WATCH_FOR: Duration = Duration::from_secs(5);

/// Watches a node with a progress line.
fn watch(root: Root, options: WatchOptions, duration: Duration) -> anyhow::Result<Evidence> {
    let mut progress = Progress::new("watching this node:");
    progress.show(Duration::ZERO, duration, &Evidence::default());
    let mut watch = Watch::start(root, options, duration);
    let mut evidence = Evidence::default();
    while let Some(fragment) = watch.next_turn() {
        progress.show(watch.elapsed(), duration, &fragment);
        evidence.append(fragment);
    }
    evidence.window().context("the cores could not be read; no diagnosis is possible")?;
    Ok(evidence)
}
