//! speedscope's JSON (<https://www.speedscope.app/file-format-schema.json>): one profile per event.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde::Serialize;

use crate::model::{Dictionary, Event, EventId, Frame, FrameId, label};
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

/// Writes stacks. Equal stacks are added up, whoever ran them, and sorted by name, so that even speedscope's time-order view is a
/// flame graph.
pub fn write(names: &Dictionary, stacks: &StackSums, name: &str, to: impl Write) -> io::Result<()> {
    let mut frames = Frames { entries: Vec::new(), numbers: HashMap::new() };
    let mut known: HashMap<FrameId, Vec<usize>> = HashMap::new();
    let mut events: BTreeMap<EventId, HashMap<Vec<usize>, u64>> = BTreeMap::new();
    for Sum { event, owner, stack, weight, .. } in stacks.sorted() {
        let comm = match owner {
            Owner::Command(comm) => comm,
            Owner::Thread(task) => names.task(task).comm,
        };
        let comm = names.strings.get(comm);
        let mut path = vec![frames.number(if comm.is_empty() { "[unknown]" } else { comm }, "")];
        for id in names.stacks.root_first(stack) {
            path.extend(known.entry(id).or_insert_with(|| frames.of(names, names.frames.get(id))).iter());
        }
        let sum = events.entry(event).or_default().entry(path).or_default();
        *sum = sum.saturating_add(weight);
    }
    let profiles: Vec<Sampled> = events.into_iter().map(|(event, sums)| sampled(names, event, sums, &frames)).collect();
    // The event with the most samples is shown first.
    let most = stacks.events().first().map_or(EventId(0), |(event, _)| *event);
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("coroner ", env!("CARGO_PKG_VERSION")),
        name,
        active: profiles.iter().position(|profile| profile.name == event_name(names, most)).unwrap_or(0),
        shared: Shared { frames: frames.entries },
        profiles,
    };
    let mut to = io::BufWriter::new(to);
    serde_json::to_writer(&mut to, &file)?;
    to.flush()
}

fn event_name(names: &Dictionary, event: EventId) -> &str {
    names
        .events
        .get(usize::from(event.0))
        .map(|event| event.name.as_str())
        .filter(|name| !name.is_empty())
        .unwrap_or("samples")
}

fn sampled(names: &Dictionary, id: EventId, sums: HashMap<Vec<usize>, u64>, frames: &Frames) -> Sampled {
    let event = event_name(names, id);
    let clock = names.events.get(usize::from(id.0)).is_some_and(Event::is_clock);
    let mut sums: Vec<(Vec<usize>, u64)> = sums.into_iter().collect();
    // Frames with the same name have different numbers if their modules differ.
    let key = |frame: &usize| (frames.entries[*frame].name.as_str(), *frame);
    sums.sort_by(|(a, _), (b, _)| a.iter().map(key).cmp(b.iter().map(key)));
    let (samples, weights): (Vec<_>, Vec<u64>) = sums.into_iter().unzip();
    Sampled {
        r#type: "sampled",
        name: event.to_owned(),
        unit: if clock { "nanoseconds" } else { "none" },
        start: 0,
        end: weights.iter().copied().fold(0, u64::saturating_add),
        samples,
        weights,
    }
}

/// Interned pairs of name and module.
struct Frames {
    entries: Vec<FrameEntry>,
    numbers: HashMap<(String, String), usize>,
}

impl Frames {
    fn number(&mut self, name: &str, module: &str) -> usize {
        *self.numbers.entry((name.to_owned(), module.to_owned())).or_insert_with(|| {
            let file = (!module.is_empty()).then(|| module.to_owned());
            self.entries.push(FrameEntry { name: name.to_owned(), file });
            self.entries.len() - 1
        })
    }

    /// Several if a compiler's `outer->inner` names several functions.
    fn of(&mut self, names: &Dictionary, frame: Frame) -> Vec<usize> {
        let (symbol, module) = (frame.symbol(&names.strings), frame.module(&names.strings));
        let label = label::label(symbol, module, frame.place, false);
        label.split(';').map(|part| self.number(part, module)).collect()
    }
}
