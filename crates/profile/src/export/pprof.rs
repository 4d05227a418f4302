//! pprof's profile.proto, compressed, as read by `go tool pprof` and related tools
//! (<https://github.com/google/pprof/blob/main/proto/profile.proto>).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};
use prost::Message;

use crate::model::{Dictionary, EventId, FrameId, FramePlace, StackId, StrId, Strings, Task, label};
use crate::views::{Owner, StackSums, Sum};

/// The messages with the field numbers of profile.proto. Only written fields are declared.
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
        #[prost(int64, repeated, tag = "13")]
        pub comment: Vec<i64>,
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
        #[prost(int64, tag = "4")]
        pub num_unit: i64,
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
    }
}

/// The string table under construction. Its first string is empty, as the format requires.
#[derive(Default)]
struct Table(Strings);

impl Table {
    fn id(&mut self, text: &str) -> i64 {
        i64::from(self.0.intern(text).0)
    }
}

/// Stacks as a message. Each sample type is an event's count or weight. Samples have labels: command, whose code ran (`mode`), and
/// pid, tid and cgroup if summed by thread. Addresses are not kept, so mappings have only names.
pub fn message(names: &Dictionary, stacks: &StackSums) -> proto::Profile {
    let mut table = Table::default();
    let mut out = proto::Profile::default();
    let sorted = stacks.sorted();
    let columns = value_types(names, stacks, &sorted, &mut table, &mut out);
    let shared = out.sample_type.len() < 2 * columns.iter().flatten().count();
    let mut sums: BTreeMap<(Owner, StackId, Option<EventId>), Vec<i64>> = BTreeMap::new();
    for sum in &sorted {
        let event = Some(sum.event).filter(|_| shared);
        let values = sums.entry((sum.owner, sum.stack, event)).or_insert_with(|| vec![0; out.sample_type.len()]);
        if let Some(column) = columns.get(usize::from(sum.event.0)).copied().flatten() {
            values[column] = number(sum.samples);
            values[column + 1] = number(sum.weight);
        }
    }
    if let Some((first, last)) = stacks.span {
        out.duration_nanos = i64::try_from(last - first).unwrap_or(0);
        let wall = names.clock.and_then(|clock| clock.wall_of(first));
        out.time_nanos = wall.and_then(|wall| i64::try_from(wall.0).ok()).unwrap_or(0);
    }
    out.comment = vec![table.id(concat!("written by coroner ", env!("CARGO_PKG_VERSION")))];
    let mut locations = Locations { names, by_frame: HashMap::new(), mappings: HashMap::new(), without_stack: None };
    for ((owner, stack, event), value) in sums {
        let label = labels(names, owner, stack, event, &mut table);
        let mut location_id: Vec<u64> =
            names.stacks.leaf_first(stack).map(|frame| locations.of(frame, &mut table, &mut out)).collect();
        if location_id.is_empty() {
            location_id.push(locations.without_stack(&mut table, &mut out));
        }
        out.sample.push(proto::Sample { location_id, value, label });
    }
    out.string_table = table.0.iter().map(|(_, text)| text.to_owned()).collect();
    out
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn labels(
    names: &Dictionary,
    owner: Owner,
    stack: StackId,
    event: Option<EventId>,
    table: &mut Table,
) -> Vec<proto::Label> {
    let task = match owner {
        Owner::Thread(task) => names.task(task),
        Owner::Command(comm) => Task { pid: None, tid: None, comm, cgroup: None },
    };
    let mode = names.stacks.leaf_first(stack).next().map(|leaf| match names.frames.get(leaf).place {
        FramePlace::User => "user",
        FramePlace::Jit => "jit",
        FramePlace::Kernel => "kernel",
    });
    let comm = Some(names.strings.get(task.comm));
    let cgroup = task.cgroup.map(|cgroup| names.strings.get(cgroup));
    let event = event.and_then(|event| names.events.get(usize::from(event.0))).map(|event| event.name.as_str());
    let mut out = Vec::new();
    for (key, text) in [("comm", comm), ("mode", mode), ("cgroup", cgroup), ("event", event)] {
        // An empty string would be read as the number 0.
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            out.push(proto::Label { key: table.id(key), str: table.id(text), ..Default::default() });
        }
    }
    for (key, id) in [("pid", task.pid), ("tid", task.tid)] {
        if let Some(id) = id {
            // Without a unit pprof takes the key for it and drops a 0, which is the idle task.
            let key = table.id(key);
            out.push(proto::Label { key, num: i64::from(id), num_unit: key, ..Default::default() });
        }
    }
    out
}

/// Every sample has a value for each column, so the number of columns is limited.
const MAX_EVENTS: usize = 64;

/// Two columns per sampled event, and their positions; too many events share two. The default is the event with the most samples.
fn value_types(
    names: &Dictionary,
    stacks: &StackSums,
    sums: &[Sum],
    table: &mut Table,
    out: &mut proto::Profile,
) -> Vec<Option<usize>> {
    let events = stacks.events();
    let mut columns = Vec::new();
    if events.len() > MAX_EVENTS {
        let name = table.id("samples");
        out.sample_type.push(proto::ValueType { r#type: name, unit: table.id("count") });
        out.sample_type.push(proto::ValueType { r#type: table.id("weight"), unit: table.id("count") });
        let has: HashSet<EventId> = events.iter().map(|(event, _)| *event).collect();
        return (0..names.events.len()).map(|id| has.contains(&EventId(id as u16)).then_some(0)).collect();
    }
    for (id, event) in names.events.iter().enumerate() {
        let id = EventId(id as u16);
        if !events.iter().any(|(has, _)| *has == id) {
            columns.push(None);
            continue;
        }
        columns.push(Some(out.sample_type.len()));
        let clock = event.is_clock();
        // Folded stacks have no event, only weights.
        let name = if event.name.is_empty() { "samples" } else { &event.name };
        let count = if name == "samples" { "stacks".to_owned() } else { format!("{name} samples") };
        let kind =
            proto::ValueType { r#type: table.id(name), unit: table.id(if clock { "nanoseconds" } else { "count" }) };
        out.sample_type.push(proto::ValueType { r#type: table.id(&count), unit: table.id("count") });
        out.sample_type.push(kind);
        if events.first().is_some_and(|(most, _)| *most == id) {
            out.period_type = Some(kind);
            out.period = period(sums, id);
            out.default_sample_type = kind.r#type;
        }
    }
    columns
}

/// The period of an event if all its samples have the same one, else 0 (unknown).
fn period(sums: &[Sum], event: EventId) -> i64 {
    let mut of = sums.iter().filter(|sum| sum.event == event);
    let Some(first) = of.next() else { return 0 };
    let period = first.weight / first.samples.max(1);
    let same = |sum: &Sum| sum.samples.checked_mul(period) == Some(sum.weight);
    if same(first) && of.all(same) { number(period) } else { 0 }
}

/// Locations, functions and mappings of the frames used.
struct Locations<'a> {
    names: &'a Dictionary,
    by_frame: HashMap<FrameId, u64>,
    mappings: HashMap<StrId, u64>,
    without_stack: Option<u64>,
}

impl Locations<'_> {
    fn of(&mut self, id: FrameId, table: &mut Table, out: &mut proto::Profile) -> u64 {
        if let Some(location) = self.by_frame.get(&id) {
            return *location;
        }
        let frame = self.names.frames.get(id);
        let (symbol, module) = (frame.symbol(&self.names.strings), frame.module(&self.names.strings));
        let known = !symbol.is_empty() && symbol != "[unknown]";
        let mapping_id = if module.is_empty() { 0 } else { self.mapping(frame.module, table, out) };
        let name = if known { symbol.to_owned() } else { label::label("", module, frame.place, false) };
        let location = add(&name, mapping_id, table, out);
        self.by_frame.insert(id, location);
        location
    }

    fn mapping(&mut self, module: StrId, table: &mut Table, out: &mut proto::Profile) -> u64 {
        *self.mappings.entry(module).or_insert_with(|| {
            let id = out.mapping.len() as u64 + 1;
            let filename = table.id(self.names.strings.get(module));
            // Marks the functions as symbolised: otherwise pprof would open the file and look up address 0.
            out.mapping.push(proto::Mapping { id, filename, has_functions: true });
            id
        })
    }

    /// pprof does not show samples without a location.
    fn without_stack(&mut self, table: &mut Table, out: &mut proto::Profile) -> u64 {
        *self.without_stack.get_or_insert_with(|| add("[no stack]", 0, table, out))
    }
}

fn add(name: &str, mapping_id: u64, table: &mut Table, out: &mut proto::Profile) -> u64 {
    // Ids count from 1.
    let id = out.location.len() as u64 + 1;
    let name = table.id(name);
    out.function.push(proto::Function { id, name, system_name: name });
    out.location.push(proto::Location { id, mapping_id, line: vec![proto::Line { function_id: id }] });
    id
}

/// Writes stacks, compressed.
pub fn write(names: &Dictionary, stacks: &StackSums, to: impl Write) -> io::Result<()> {
    let mut to = GzEncoder::new(to, Compression::default());
    to.write_all(&message(names, stacks).encode_to_vec())?;
    to.finish()?.flush()
}
