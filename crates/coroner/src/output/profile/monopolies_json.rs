//! Monopolies as JSON.

use super::{SourceJson, TaskJson, source_json, task_json, wall_clock};
use crate::commands::profile::ReadProfile;
use coroner_profile::model::label;
use coroner_profile::views::monopolies::Monopoly;
use serde::Serialize;
use std::time::Duration;

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    source: SourceJson<'a>,
    threshold_ms: f64,
    monopolies: Vec<Run<'a>>,
}

#[derive(Serialize)]
struct Run<'a> {
    core: u32,
    thread: TaskJson<'a>,
    /// Seconds after the first sample.
    start_s: f64,
    start_ns: u64,
    /// Wall-clock time, where the file knows it.
    time: Option<String>,
    length_ms: f64,
    samples: u64,
    /// Samples of others on that core within.
    foreign: u64,
    /// Who was there last before.
    before: Option<TaskJson<'a>>,
    stacks: Vec<StackShare>,
}

#[derive(Serialize)]
struct StackShare {
    share: f64,
    /// From the root to the leaf.
    frames: Vec<String>,
}

pub fn document(read: &ReadProfile, found: &[Monopoly], threshold: Duration) -> String {
    let names = &read.names;
    let run = |run: &Monopoly| Run {
        core: run.core,
        thread: task_json(names, run.task),
        start_s: read.seconds(run.start),
        start_ns: run.start,
        time: read.wall(run.start).map(wall_clock),
        length_ms: run.length as f64 / 1e6,
        samples: run.samples,
        foreign: run.foreign,
        before: run.before.map(|task| task_json(names, task)),
        stacks: run
            .stacks
            .iter()
            .map(|(stack, share)| StackShare { share: *share, frames: frames(read, *stack) })
            .collect(),
    };
    super::document(&Document {
        schema: "coroner.monopolies/1",
        source: source_json(read),
        threshold_ms: threshold.as_secs_f64() * 1e3,
        monopolies: found.iter().map(run).collect(),
    })
}

/// The labels of a stack, from the root to the leaf.
pub fn frames(read: &ReadProfile, stack: coroner_profile::model::StackId) -> Vec<String> {
    let names = &read.names;
    let label = |id: coroner_profile::model::FrameId| {
        let frame = names.frames.get(id);
        label::label(frame.symbol(&names.strings), frame.module(&names.strings), frame.place, true)
    };
    names.stacks.root_first(stack).into_iter().map(label).collect()
}
