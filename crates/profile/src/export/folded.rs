//! Folded stacks: one line `command;frame;… weight` per distinct stack.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::model::folded::root_label;
use crate::model::{Dictionary, EventId, FoldedStacks, Seeded, StrId, label};
use crate::views::{Owner, StackSums};

/// Folds sums.
pub fn fold(names: &Dictionary, sums: &StackSums) -> FoldedStacks {
    let mut folded = FoldedStacks::default();
    // Caches of labels by frame and by command.
    let mut labels: Vec<Option<u32>> = vec![None; names.frames.len()];
    let mut roots: HashMap<StrId, u32, Seeded> = HashMap::default();
    let mut used: Vec<EventId> = sums.events().into_iter().map(|(event, _)| event).collect();
    used.sort_unstable();
    let mut events: HashMap<EventId, u32, Seeded> = HashMap::default();
    for event in used {
        let name = names.events.get(usize::from(event.0)).map_or("", |event| event.name.as_str());
        events.insert(event, folded.event(name));
    }
    let mut key = Vec::new();
    for sum in sums.iter() {
        let comm = match sum.owner {
            Owner::Command(comm) => comm,
            Owner::Thread(task) => names.task(task).comm,
        };
        let root = *roots.entry(comm).or_insert_with(|| {
            let comm = names.strings.get(comm);
            folded.labels.intern(&root_label(if comm.is_empty() { "[unknown]" } else { comm })).0
        });
        key.clear();
        key.extend([events[&sum.event], root]);
        for id in names.stacks.leaf_first(sum.stack) {
            let label = labels[id.0 as usize].get_or_insert_with(|| {
                let frame = names.frames.get(id);
                let (symbol, module) = (frame.symbol(&names.strings), frame.module(&names.strings));
                folded.labels.intern(&label::label(symbol, module, frame.place, true)).0
            });
            key.push(*label);
        }
        folded.add(&key, sum.weight);
    }
    folded
}

/// Folds and writes.
pub fn write(names: &Dictionary, sums: &StackSums, to: impl Write) -> io::Result<()> {
    fold(names, sums).write(to)
}
