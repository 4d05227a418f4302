//! A node goes down, a disk is full, a copy ends early: a file truncated anywhere is read up to the cut, and the report says that
//! it is truncated unless it could be a complete file.

use std::collections::HashMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use coroner_profile::import::perf_script::samples;
use coroner_profile::import::{self, ImportError, ImportReport, Take};
use coroner_profile::model::Dictionary;
use coroner_profile::symbols::Symbols;
use flate2::{Compression, write::GzEncoder};

/// A sample as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Row {
    time: Option<u64>,
    core: Option<u32>,
    task: (Option<u32>, String),
    event: String,
    period: u64,
    /// Leaf first.
    stack: Vec<String>,
}

type Reader<'a> = &'a dyn Fn(&[u8], &mut Take<'_>) -> Result<(Dictionary, ImportReport), ImportError>;

fn rows(reader: Reader<'_>, bytes: &[u8]) -> Option<(Vec<Row>, ImportReport)> {
    let mut rows = Vec::new();
    let mut take = |names: &Dictionary, sample: coroner_profile::model::Sample| {
        let task = names.task(sample.task);
        let frame = |id| {
            let frame = names.frames.get(id);
            format!("{} {} {:?}", frame.symbol(&names.strings), frame.module(&names.strings), frame.place)
        };
        rows.push(Row {
            time: sample.time,
            core: sample.core,
            task: (task.tid, names.strings.get(task.comm).to_owned()),
            event: names.events[usize::from(sample.event.0)].name.clone(),
            period: sample.period,
            stack: names.stacks.leaf_first(sample.stack).map(frame).collect(),
        });
        ControlFlow::Continue(())
    };
    let (_, report) = reader(bytes, &mut take).ok()?;
    Some((rows, report))
}

fn corpus(name: &str) -> Vec<u8> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_corpus = here.join("../../fuzz/corpus").join(name);
    let path = if of_corpus.exists() { of_corpus } else { here.join("testdata").join(name) };
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut to = GzEncoder::new(Vec::new(), Compression::default());
    to.write_all(bytes).expect("memory");
    to.finish().expect("memory")
}

/// The samples of every prefix are the first of the whole file; only the last may itself be cut, as `last` allows.
fn beginnings(
    what: &str,
    reader: Reader<'_>,
    bytes: &[u8],
    last: fn(&Row, &Row) -> bool,
    can_be_whole: &dyn Fn(usize) -> bool,
) {
    let (whole, report) = rows(reader, bytes).expect("a good file");
    assert!(!report.truncated && whole.len() > 1, "{what}: {report:?}");
    let mut most = 0;
    for length in 0..bytes.len() {
        let (part, report) = rows(reader, &bytes[..length]).unwrap_or_else(|| panic!("{what} cut to {length}"));
        assert!(part.len() <= whole.len(), "{what} cut to {length}");
        for (at, (row, of)) in part.iter().zip(&whole).enumerate() {
            let same = row == of || at + 1 == part.len() && last(row, of);
            assert!(same, "{what} cut to {length}: {row:?} was {of:?}");
        }
        assert!(report.truncated || can_be_whole(length), "{what} cut to {length} is not reported as truncated");
        most = most.max(part.len());
    }
    assert!(most + 1 >= whole.len(), "{what}: {} samples, but at most {most} are read", whole.len());
}

fn text(bytes: &[u8], take: &mut Take<'_>) -> Result<(Dictionary, ImportReport), ImportError> {
    samples::read(bytes, take)
}

fn folded(bytes: &[u8], take: &mut Take<'_>) -> Result<(Dictionary, ImportReport), ImportError> {
    import::folded::read(bytes, take)
}

/// The frames near the leaf are complete; the last line may be half a frame.
fn fewer_frames(row: &Row, of: &Row) -> bool {
    let known = row.stack.len().saturating_sub(1);
    Row { stack: Vec::new(), ..row.clone() } == Row { stack: Vec::new(), ..of.clone() }
        && of.stack.get(..known) == Some(&row.stack[..known])
}

/// A weight without its last digits is still a weight.
fn shorter_weight(row: &Row, of: &Row) -> bool {
    Row { period: of.period, ..row.clone() } == *of && of.period >= row.period
}

#[test]
fn text_of_perf_script() {
    for name in ["perf_script/default", "perf_script/header_ns", "perf_script/sched_switch", "perf_script/every_form"] {
        let mut bytes = corpus(name);
        // The last sample of an excerpt may be incomplete.
        bytes.truncate(memchr::memmem::rfind(&bytes, b"\n\n").expect("a sample") + 2);
        let ends_well = |length: usize| {
            let part = &bytes[..length];
            let last_line =
                part.strip_suffix(b"\n").map(|part| part.rsplit(|byte| *byte == b'\n').next().unwrap_or(b""));
            // After a sample, or before the first. The first header could be all there is, as could one with its only frame.
            let first = rows(&text, part)
                .is_some_and(|(rows, _)| rows.len() <= 1 && rows.iter().all(|row| row.stack.is_empty()));
            let only_frame = last_line.is_some_and(|line| !line.starts_with(b"\t") && line.ends_with(b")"));
            part.is_empty()
                || last_line.is_some_and(|line| {
                    line.is_empty() || line[0] == b'#' || first || only_frame || line == b"what is this"
                })
        };
        beginnings(name, &text, &bytes, fewer_frames, &ends_well);
        let packed = gz(&bytes);
        beginnings(&format!("{name}, packed"), &text, &packed, fewer_frames, &|length| length == 0);
    }
}

#[test]
fn folded_stacks() {
    let bytes = b"a;b;c_[k] 1234\na;b;[lib.so] 20\nd;e f 7\ng;h 18446744073709551615\n";
    let has_weight = |length: usize| {
        let line = bytes[..length].rsplit(|byte| *byte == b'\n').next().unwrap_or(b"");
        line.is_empty() || line.last().is_some_and(u8::is_ascii_digit)
    };
    beginnings("folded", &folded, bytes, shorter_weight, &has_weight);
    let packed = gz(bytes);
    beginnings("folded, packed", &folded, &packed, |_, _| false, &|length| length == 0);
}

/// Samples come in time order, not file order: those of a part are a subset of those of the whole. Names are not compared: their
/// records may come after the sample, from another core or at the end of the file.
#[test]
fn perf_data() {
    for name in ["plain.data", "zstd.data", "pipe.data", "cgroups.data"] {
        let bytes = corpus(&format!("perf_data/{name}"));
        let reader = |bytes: &[u8], take: &mut Take<'_>| import::perf_data::read(bytes, &mut Symbols::none(), take);
        let nameless = |(mut rows, report): (Vec<Row>, ImportReport)| {
            for row in &mut rows {
                row.event.clear();
                row.task.1.clear();
                row.stack.iter_mut().for_each(String::clear);
            }
            (rows, report)
        };
        let (whole, report) = rows(&reader, &bytes).map(nameless).expect("a good file");
        assert!(!report.truncated && whole.len() > 1, "{name}: {report:?}");
        let mut count: HashMap<&Row, usize> = HashMap::new();
        whole.iter().for_each(|row| *count.entry(row).or_default() += 1);
        let mut before = 0;
        for length in 104..bytes.len() {
            let (part, report) =
                rows(&reader, &bytes[..length]).map(nameless).unwrap_or_else(|| panic!("{name} cut to {length}"));
            let mut of_part: HashMap<&Row, usize> = HashMap::new();
            part.iter().for_each(|row| *of_part.entry(row).or_default() += 1);
            for (row, n) in of_part {
                assert!(count.get(row).is_some_and(|of| n <= *of), "{name} cut to {length}: {row:?}");
            }
            assert!(part.len() >= before, "{name} cut to {length}: {} samples, {before} from less", part.len());
            before = part.len();
            // Only records: the file could end after each.
            let can_be_whole = name == "pipe.data";
            assert!(report.truncated || can_be_whole, "{name} cut to {length} is not reported as truncated");
        }
        assert!(before + 1 >= whole.len(), "{name}: {} samples, but at most {before} are read", whole.len());
    }
}
