//! Monopolies as JSON.

use super::{SourceJson, TaskJson, source_json, task_json};
use crate::page::axis::{Axis, AxisTime};
use coroner_evidence::Wall;
use coroner_profile::model::label;
use coroner_profile::views::monopolies::{By, Coverage, Edge, Monopoly};
use coroner_source::profile::ReadProfile;
use serde::Serialize;
use std::time::Duration;

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    source: SourceJson<'a>,
    threshold_ms: f64,
    /// What the result is based on.
    coverage: &'a Coverage,
    /// The longest first.
    monopolies: Vec<Run<'a>>,
}

#[derive(Serialize)]
struct Run<'a> {
    core: u32,
    thread: TaskJson<'a>,
    /// Seconds after the first sample.
    start_s: f64,
    start_ns: u64,
    /// Where it is on the page's axis; only there.
    #[serde(skip_serializing_if = "Option::is_none")]
    axis_ns: Option<AxisTime>,
    /// Wall-clock time, where the file knows it.
    time: Option<Wall>,
    /// Includes pauses.
    length_ms: f64,
    /// The true length is within this of `length_ms`, if others' samples are at both ends.
    uncertainty_ms: f64,
    by: By,
    /// What is beyond its ends.
    begin: Edge,
    end: Edge,
    samples: u64,
    /// Others' samples on that core during the run.
    foreign: u64,
    /// Interrupt samples on top of it.
    interrupts: u64,
    /// Share of the samples in the kernel.
    kernel: f64,
    /// Gaps without samples: how many, the longest, and their total.
    gaps: u64,
    longest_gap_ms: f64,
    unseen_ms: f64,
    /// Pauses that did not end the run, such as real-time throttling: how many, the longest, and their total.
    pauses: u64,
    longest_pause_ms: f64,
    paused_ms: f64,
    /// Its share of `length_ms`, between 0 and 1.
    share: f64,
    /// Probability of this many samples in a row by chance.
    chance: f64,
    /// The last thread before, and the first after.
    before: Option<TaskJson<'a>>,
    after: Option<TaskJson<'a>>,
    /// Other names of the thread during the run, or other interrupted threads.
    also: Vec<TaskJson<'a>>,
    /// Kernel threads of this core that did not run during it.
    absent: Vec<AbsentJson<'a>>,
    stacks: Vec<StackShare>,
}

#[derive(Serialize)]
struct AbsentJson<'a> {
    thread: TaskJson<'a>,
    length_ms: f64,
    came_back: bool,
    /// Mean time between its samples before the run.
    usual_ms: f64,
}

#[derive(Serialize)]
struct StackShare {
    share: f64,
    /// From the root to the leaf.
    frames: Vec<String>,
}

pub fn document(
    read: &ReadProfile,
    found: &[Monopoly],
    coverage: &Coverage,
    threshold: Duration,
    axis: Option<Axis>,
) -> String {
    let names = &read.names;
    let ms = |ns: u64| ns as f64 / 1e6;
    let run = |run: &Monopoly| Run {
        core: run.core,
        thread: task_json(names, run.task),
        start_s: read.seconds(run.start),
        start_ns: run.start,
        axis_ns: axis.map(|axis| axis.of_sample(run.start)),
        time: read.wall(run.start),
        length_ms: ms(run.length),
        uncertainty_ms: ms(run.uncertainty),
        by: run.by,
        begin: run.begin,
        end: run.end,
        samples: run.samples,
        foreign: run.foreign,
        interrupts: run.interrupts,
        kernel: run.kernel,
        gaps: run.gaps,
        longest_gap_ms: ms(run.longest_gap),
        unseen_ms: ms(run.unseen),
        pauses: run.pauses,
        longest_pause_ms: ms(run.longest_pause),
        paused_ms: ms(run.paused),
        share: run.share(),
        chance: run.chance,
        before: run.before.map(|task| task_json(names, task)),
        after: run.after.map(|task| task_json(names, task)),
        also: run.also.iter().map(|task| task_json(names, *task)).collect(),
        absent: run
            .absent
            .iter()
            .map(|absent| AbsentJson {
                thread: task_json(names, absent.task),
                length_ms: ms(absent.length),
                came_back: absent.came_back,
                usual_ms: ms(absent.usual),
            })
            .collect(),
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
        coverage,
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
