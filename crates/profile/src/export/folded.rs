//! Folded stacks: one line `command;frame;… weight` for each distinct stack.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::model::folded::root_label;
use crate::model::hash::Seeded;
use crate::model::{Dictionary, EventId, FoldedStacks, FrameId, label};
use crate::views::{Owner, StackSums};

/// Folds sums.
pub fn fold(names: &Dictionary, sums: &StackSums) -> FoldedStacks {
    let mut folded = FoldedStacks::default();
    let mut labels: HashMap<FrameId, u32, Seeded> = HashMap::default();
    let mut events: HashMap<EventId, u32> = HashMap::new();
    let mut key = Vec::new();
    for sum in sums.sorted() {
        key.clear();
        let name = names.events.get(usize::from(sum.event.0)).map_or("", |event| event.name.as_str());
        key.push(*events.entry(sum.event).or_insert_with(|| folded.event(name)));
        let comm = match sum.owner {
            Owner::Command(comm) => comm,
            Owner::Thread(task) => names.task(task).comm,
        };
        let comm = names.strings.get(comm);
        key.push(folded.labels.intern(&root_label(if comm.is_empty() { "[unknown]" } else { comm })).0);
        for id in names.stacks.leaf_first(sum.stack) {
            let label = *labels.entry(id).or_insert_with(|| {
                let frame = names.frames.get(id);
                let (symbol, module) = (frame.symbol(&names.strings), frame.module(&names.strings));
                folded.labels.intern(&label::label(symbol, module, frame.place, true)).0
            });
            key.push(label);
        }
        folded.add(&key, sum.weight);
    }
    folded
}

/// Folds and writes.
pub fn write(names: &Dictionary, sums: &StackSums, to: impl Write) -> io::Result<()> {
    fold(names, sums).write(to)
}
