//! The commands, one file each, and how they get their evidence.

pub mod cores;
pub mod diagnose;
pub mod record;
mod recorder;

use crate::args::NodeArgs;
use crate::output::progress::Progress;
use crate::output::warn;
use anyhow::Context;
use coroner_evidence::{Evidence, recording};
use coroner_probes::Root;
use coroner_probes::watch::{Options, Watch};
use std::path::Path;
use std::time::Duration;

impl NodeArgs {
    pub fn root(&self) -> Root {
        match &self.root {
            Some(dir) => Root::at(dir),
            None => Root::live(),
        }
    }

    pub fn watch_options(&self) -> Options {
        Options { bus: self.bus.clone(), pretend_kernel_log: self.trust_user_log }
    }
}

/// Watches this node, or reads a recording.
fn gather(from: Option<&Path>, duration: Duration, node: &NodeArgs) -> anyhow::Result<Evidence> {
    match from {
        Some(file) => read_recording(file),
        None => watch_node(duration, node),
    }
}

fn read_recording(file: &Path) -> anyhow::Result<Evidence> {
    let recording = recording::read(file)?;
    if !recording.about.sealed {
        warn(&format!(
            "{}: the recorder was stopped before it could seal this file; reading what is there",
            file.display()
        ));
    }
    anyhow::ensure!(
        recording.evidence.window().is_some(),
        "{}: the recording holds no look at the cores; nothing can be said",
        file.display()
    );
    Ok(recording.evidence)
}

fn watch_node(duration: Duration, node: &NodeArgs) -> anyhow::Result<Evidence> {
    let mut progress = Progress::new("watching this node:");
    progress.show(Duration::ZERO, duration, &Evidence::default());
    let mut watch = Watch::start(node.root(), node.watch_options(), duration);
    let mut evidence = Evidence::default();
    while let Some(fragment) = watch.next_turn() {
        progress.show(watch.elapsed(), duration, &fragment);
        evidence.append(fragment);
    }
    evidence.window().context("the cores could not be seen; nothing can be said")?;
    Ok(evidence)
}
