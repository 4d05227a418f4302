//! speedscope's JSON (<https://www.speedscope.app/file-format-schema.json>): one profile for each event.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::model::folded::root_label;
use crate::model::{Profile, StackId, StrId, label};
use crate::views::Selection;

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

/// Writes the selected samples, equal stacks summed.
pub fn write(selection: &Selection<'_>, name: &str, to: impl Write) -> io::Result<()> {
    let profile = selection.profile();
    let mut frames: Vec<FrameEntry> = profile.frames.iter().map(|(_, frame)| entry(profile, frame)).collect();
    let mut comms: HashMap<u32, usize> = HashMap::new();
    let mut sums: HashMap<(u16, u32, u32), u64> = HashMap::new();
    for sample in selection.samples() {
        let sum = sums.entry((sample.event.0, profile.task(sample.task).comm.0, sample.stack.0)).or_default();
        *sum = sum.saturating_add(sample.period);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_unstable();
    let mut profiles: Vec<(u16, Sampled)> = Vec::new();
    for ((event, comm, stack), weight) in sums {
        let root = *comms.entry(comm).or_insert_with(|| {
            frames.push(FrameEntry { name: root_label(profile.strings.get(StrId(comm))), file: None });
            frames.len() - 1
        });
        if profiles.last().is_none_or(|(of, _)| *of != event) {
            profiles
                .push((event, empty(profile.events.get(usize::from(event)).map_or("samples", |event| &event.name))));
        }
        let Some((_, sampled)) = profiles.last_mut() else { continue };
        let stack = profile.stacks.root_first(StackId(stack));
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

fn entry(profile: &Profile, frame: crate::model::Frame) -> FrameEntry {
    let (symbol, module) = (frame.symbol(&profile.strings), frame.module(&profile.strings));
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
