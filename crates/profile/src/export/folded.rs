//! Folded stacks of a profile: one line `command;frame;… weight` for each distinct stack.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::model::folded::root_label;
use crate::model::hash::Seeded;
use crate::model::{FoldedStacks, FrameId, Profile, Sample, StackId, StrId, label};

/// Folds the samples that `keep` wants (all if there is none).
pub fn fold(profile: &Profile, keep: Option<&dyn Fn(&Sample) -> bool>) -> FoldedStacks {
    let mut folded = FoldedStacks::default();
    // Sum first by what the profile has interned: there are far fewer distinct (event, command, stack) than samples.
    let mut sums: HashMap<(u32, u32, u32), u64, Seeded> = HashMap::default();
    for sample in profile.samples.iter().filter(|sample| keep.is_none_or(|keep| keep(sample))) {
        let comm = profile.task(sample.task).comm;
        let sum = sums.entry((u32::from(sample.event.0), comm.0, sample.stack.0)).or_default();
        *sum = sum.saturating_add(sample.period);
    }
    let mut labels: HashMap<FrameId, u32, Seeded> = HashMap::default();
    let mut events: HashMap<u32, u32> = HashMap::new();
    let mut key = Vec::new();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_unstable();
    for ((event, comm, stack), weight) in sums {
        key.clear();
        let name = profile.events.get(event as usize).map_or("", |event| event.name.as_str());
        key.push(*events.entry(event).or_insert_with(|| folded.event(name)));
        let comm = profile.strings.get(StrId(comm));
        key.push(folded.labels.intern(&root_label(if comm.is_empty() { "[unknown]" } else { comm })).0);
        for id in profile.stacks.leaf_first(StackId(stack)) {
            let label = *labels.entry(id).or_insert_with(|| {
                let frame = profile.frames.get(id);
                let (symbol, module) = (frame.symbol(&profile.strings), frame.module(&profile.strings));
                folded.labels.intern(&label::label(symbol, module, frame.place, true)).0
            });
            key.push(label);
        }
        folded.add(&key, weight);
    }
    folded
}

/// Folds and writes.
pub fn write(profile: &Profile, keep: Option<&dyn Fn(&Sample) -> bool>, to: impl Write) -> io::Result<()> {
    fold(profile, keep).write(to)
}
