//! speedscope's JSON (<https://www.speedscope.app/file-format-schema.json>): one profile for each event.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::model::folded::root_label;
use crate::model::{Dictionary, EventId, StrId, label};
use crate::views::{Owner, StackSums, Sum};

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: &'a str,
    #[serde(rename = "activeProfileIndex")]
    active: usize,
    shared: Shared,
    profiles: Vec<Sampled>,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<FrameEntry>,
}

#[derive(Serialize)]
struct FrameEntry {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

#[derive(Serialize)]
struct Sampled {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start: u64,
    #[serde(rename = "endValue")]
    end: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// Writes stacks.
pub fn write(names: &Dictionary, stacks: &StackSums, name: &str, to: impl Write) -> io::Result<()> {
    let mut frames: Vec<FrameEntry> = names.frames.iter().map(|(_, frame)| entry(names, frame)).collect();
    let mut comms: HashMap<StrId, usize> = HashMap::new();
    let mut profiles: Vec<(EventId, Sampled)> = Vec::new();
    for Sum { event, owner, stack, weight, .. } in stacks.sorted() {
        let comm = match owner {
            Owner::Command(comm) => comm,
            Owner::Thread(task) => names.task(task).comm,
        };
        let root = *comms.entry(comm).or_insert_with(|| {
            frames.push(FrameEntry { name: root_label(names.strings.get(comm)), file: None });
            frames.len() - 1
        });
        if profiles.last().is_none_or(|(of, _)| *of != event) {
            profiles
                .push((event, empty(names.events.get(usize::from(event.0)).map_or("samples", |event| &event.name))));
        }
        let Some((_, sampled)) = profiles.last_mut() else { continue };
        let stack = names.stacks.root_first(stack);
        sampled.samples.push(std::iter::once(root).chain(stack.into_iter().map(|frame| frame.0 as usize)).collect());
        sampled.weights.push(weight);
        sampled.end = sampled.end.saturating_add(weight);
    }
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("coroner ", env!("CARGO_PKG_VERSION")),
        name,
        active: 0,
        shared: Shared { frames },
        profiles: profiles.into_iter().map(|(_, sampled)| sampled).collect(),
    };
    let mut to = io::BufWriter::new(to);
    serde_json::to_writer(&mut to, &file)?;
    to.flush()
}

fn entry(names: &Dictionary, frame: crate::model::Frame) -> FrameEntry {
    let (symbol, module) = (frame.symbol(&names.strings), frame.module(&names.strings));
    let file = (!module.is_empty()).then(|| module.to_owned());
    FrameEntry { name: label::label(symbol, module, frame.place, true), file }
}

fn empty(event: &str) -> Sampled {
    let clock = event.starts_with("cpu-clock") || event.starts_with("task-clock");
    let unit = if clock { "nanoseconds" } else { "none" };
    Sampled {
        r#type: "sampled",
        name: event.to_owned(),
        unit,
        start: 0,
        end: 0,
        samples: Vec::new(),
        weights: Vec::new(),
    }
}
