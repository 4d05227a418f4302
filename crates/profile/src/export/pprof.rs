//! pprof's profile.proto, compressed, as `go tool pprof` and everything around it reads
//! (<https://github.com/google/pprof/blob/main/proto/profile.proto>).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};
use prost::Message;

use crate::model::{Dictionary, EventId, StackId, Strings, Task};
use crate::views::{Owner, StackSums};

/// The messages, field numbers as in profile.proto. Only what is written is declared.
pub mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        #[prost(int64, tag = "9")]
        pub time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub period: i64,
        #[prost(int64, tag = "14")]
        pub default_sample_type: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct ValueType {
        #[prost(int64, tag = "1")]
        pub r#type: i64,
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub label: Vec<Label>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Label {
        #[prost(int64, tag = "1")]
        pub key: i64,
        #[prost(int64, tag = "2")]
        pub str: i64,
        #[prost(int64, tag = "3")]
        pub num: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Mapping {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "5")]
        pub filename: i64,
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Function {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "2")]
        pub name: i64,
        #[prost(int64, tag = "3")]
        pub system_name: i64,
        #[prost(int64, tag = "4")]
        pub filename: i64,
    }
}

/// The string table under construction. Its first string is empty, as the format demands.
#[derive(Default)]
struct Table(Strings);

impl Table {
    fn id(&mut self, text: &str) -> i64 {
        i64::from(self.0.intern(text).0)
    }
}

/// Stacks as a message. Each sample type is an event's count and weight; samples carry command, pid and tid as labels where
/// they are summed by thread.
pub fn message(names: &Dictionary, stacks: &StackSums) -> proto::Profile {
    let mut table = Table::default();
    let mut out = proto::Profile::default();
    let columns = value_types(names, stacks, &mut table, &mut out);
    let shared = out.sample_type.len() < 2 * columns.iter().flatten().count();
    let mut sums: BTreeMap<(Owner, StackId, Option<EventId>), Vec<i64>> = BTreeMap::new();
    for sum in stacks.sorted() {
        let event = Some(sum.event).filter(|_| shared);
        let values = sums.entry((sum.owner, sum.stack, event)).or_insert_with(|| vec![0; out.sample_type.len()]);
        if let Some(column) = columns.get(usize::from(sum.event.0)).copied().flatten() {
            let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            values[column] = number(sum.samples);
            values[column + 1] = number(sum.weight);
        }
    }
    if let Some((first, last)) = stacks.span {
        out.duration_nanos = i64::try_from(last - first).unwrap_or(0);
        let wall = names.clock.and_then(|clock| clock.wall_ns.checked_add(first)?.checked_sub(clock.clock_ns));
        out.time_nanos = wall.and_then(|wall| i64::try_from(wall).ok()).unwrap_or(0);
    }
    functions(names, &mut table, &mut out);
    let (comm_key, pid_key, tid_key) = (table.id("comm"), table.id("pid"), table.id("tid"));
    let event_key = table.id("event");
    for ((owner, stack, event), value) in sums {
        let task = match owner {
            Owner::Thread(task) => names.task(task),
            Owner::Command(comm) => Task { pid: None, tid: None, comm, cgroup: None },
        };
        let number = |key: i64, id: Option<u32>| id.map(|id| proto::Label { key, str: 0, num: i64::from(id) });
        let comm = proto::Label { key: comm_key, str: table.id(names.strings.get(task.comm)), num: 0 };
        let event = event.and_then(|event| names.events.get(usize::from(event.0)));
        let event = event.map(|event| proto::Label { key: event_key, str: table.id(&event.name), num: 0 });
        let labels = [Some(comm), event, number(pid_key, task.pid), number(tid_key, task.tid)];
        out.sample.push(proto::Sample {
            // Locations count from 1.
            location_id: names.stacks.leaf_first(stack).map(|frame| u64::from(frame.0) + 1).collect(),
            value,
            label: labels.into_iter().flatten().collect(),
        });
    }
    out.string_table = table.0.iter().map(|(_, text)| text.to_owned()).collect();
    out
}

/// Each sample has a value for each column, so beyond this they are too many.
const MAX_EVENTS: usize = 64;

/// Two columns for each event that has samples; where they are. Too many events share two columns, and are labels instead.
fn value_types(
    names: &Dictionary,
    stacks: &StackSums,
    table: &mut Table,
    out: &mut proto::Profile,
) -> Vec<Option<usize>> {
    let mut columns = Vec::new();
    let has: HashSet<EventId> = stacks.events().into_iter().map(|(event, _)| event).collect();
    if has.len() > MAX_EVENTS {
        let name = table.id("samples");
        out.sample_type.push(proto::ValueType { r#type: name, unit: table.id("count") });
        out.sample_type.push(proto::ValueType { r#type: table.id("weight"), unit: table.id("count") });
        return (0..names.events.len()).map(|id| has.contains(&EventId(id as u16)).then_some(0)).collect();
    }
    for (id, event) in names.events.iter().enumerate() {
        if !has.contains(&EventId(id as u16)) {
            columns.push(None);
            continue;
        }
        columns.push(Some(out.sample_type.len()));
        let clock = event.name.starts_with("cpu-clock") || event.name.starts_with("task-clock");
        let name = if event.name.is_empty() { "samples" } else { &event.name };
        let unit = if clock { "nanoseconds" } else { "count" };
        out.sample_type
            .push(proto::ValueType { r#type: table.id(&format!("{name} samples")), unit: table.id("count") });
        out.sample_type.push(proto::ValueType { r#type: table.id(name), unit: table.id(unit) });
        out.period_type.get_or_insert(proto::ValueType { r#type: table.id(name), unit: table.id(unit) });
        out.default_sample_type = table.id(name);
    }
    columns
}

/// A mapping for each module, a location and a function for each frame.
fn functions(names: &Dictionary, table: &mut Table, out: &mut proto::Profile) {
    let mut mappings: HashMap<u32, u64> = HashMap::new();
    for (id, frame) in names.frames.iter() {
        let (symbol, module) = (frame.symbol(&names.strings), frame.module(&names.strings));
        let mapping_id = *mappings.entry(frame.module.0).or_insert_with(|| {
            let id = out.mapping.len() as u64 + 1;
            out.mapping.push(proto::Mapping { id, filename: table.id(module), has_functions: true });
            id
        });
        let name = table.id(if symbol.is_empty() { "[unknown]" } else { symbol });
        let id = u64::from(id.0) + 1;
        out.function.push(proto::Function { id, name, system_name: name, filename: table.id(module) });
        out.location.push(proto::Location { id, mapping_id, line: vec![proto::Line { function_id: id }] });
    }
}

/// Writes stacks, compressed.
pub fn write(names: &Dictionary, stacks: &StackSums, to: impl Write) -> io::Result<()> {
    let mut to = GzEncoder::new(to, Compression::default());
    to.write_all(&message(names, stacks).encode_to_vec())?;
    to.finish()?.flush()
}
