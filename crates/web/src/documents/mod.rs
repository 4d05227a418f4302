//! The JSON documents (docs/json.md, docs/api.md): the page requests them, and commands print them with `--json`.

pub mod diagnosis;
pub mod flame;
pub mod heatmap;
pub mod history;
pub mod incidents;
pub mod monopolies;
pub mod safe;
pub mod units;
pub mod waits;
pub mod zombies;

use coroner_evidence::Wall;
use coroner_profile::import::Oddity;
use coroner_profile::model::{Dictionary, TaskId};
use coroner_source::profile::ReadProfile;
use serde::Serialize;

/// A thread in JSON.
#[derive(Serialize)]
pub struct TaskJson<'a> {
    comm: &'a str,
    pid: Option<u32>,
    tid: Option<u32>,
    cgroup: Option<&'a str>,
}

pub fn task_json(names: &Dictionary, id: TaskId) -> TaskJson<'_> {
    let task = names.task(id);
    TaskJson {
        comm: names.strings.get(task.comm),
        pid: task.pid,
        tid: task.tid,
        cgroup: task.cgroup.map(|cgroup| names.strings.get(cgroup)),
    }
}

/// One document, pretty-printed.
pub fn document(value: &impl Serialize) -> String {
    // Only a map with non-string keys could fail, and there is none.
    safe::json(&serde_json::to_string_pretty(value).unwrap_or_default()) + "\n"
}

/// One document on one line, for long ones that nobody reads.
pub fn long_document(value: &impl Serialize) -> String {
    safe::json(&serde_json::to_string(value).unwrap_or_default()) + "\n"
}

/// The source that was read, in JSON.
#[derive(Serialize)]
pub struct SourceJson<'a> {
    file: String,
    format: &'static str,
    samples: u64,
    selected: u64,
    first_ns: Option<u64>,
    last_ns: Option<u64>,
    /// Wall-clock time of the first sample.
    first_time: Option<Wall>,
    cores: &'a [u32],
    events: &'a [coroner_profile::model::Event],
    lost: u64,
    out_of_order: u64,
    truncated: bool,
    unused: &'a [Oddity],
    unnamed: &'a [String],
}

pub fn source_json(read: &ReadProfile) -> SourceJson<'_> {
    SourceJson {
        file: read.file.display().to_string(),
        format: read.format.id(),
        samples: read.report.samples,
        selected: read.selected,
        first_ns: read.span.map(|(first, _)| first),
        last_ns: read.span.map(|(_, last)| last),
        first_time: read.span.and_then(|(first, _)| read.wall(first)),
        cores: &read.cores,
        events: &read.names.events,
        lost: read.report.lost,
        out_of_order: read.report.out_of_order,
        truncated: read.report.truncated,
        unused: &read.report.oddities,
        unnamed: &read.unnamed,
    }
}
