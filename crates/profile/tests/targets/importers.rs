//! Readers, checked against everything their reports promise.

use std::io::{Read, Write};
use std::ops::ControlFlow;

use coroner_profile::export;
use coroner_profile::import::gz::{Unpacked, is_gz};
use coroner_profile::import::perf_script::{fold, samples};
use coroner_profile::import::{self, ImportError, ImportReport, Take};
use coroner_profile::model::{Dictionary, EventId, Sample, StackId};
use coroner_profile::symbols::{Kallsyms, PerfMap, Symbols};
use coroner_profile::views::StackSums;

/// What a reader passed on.
#[derive(Default)]
pub struct Seen {
    pub samples: u64,
    pub weight: u64,
    pub sums: StackSums,
}

type Read_<'a> = &'a dyn Fn(&mut Take<'_>) -> Result<(Dictionary, ImportReport), ImportError>;

/// Reads everything, and checks what holds for every reader.
pub fn read(reader: Read_<'_>) -> Option<(Dictionary, ImportReport, Seen)> {
    let mut seen = Seen::default();
    let (names, report) = reader(&mut |names, sample| {
        resolves(names, &sample);
        seen.samples += 1;
        seen.weight = seen.weight.saturating_add(sample.period);
        seen.sums.add(names, &sample);
        ControlFlow::Continue(())
    })
    .ok()?;
    check(&names, &report, &seen);
    // A sink that stops gets no more samples.
    let half = seen.samples / 2;
    let mut passed = 0;
    let (_, stopped) = reader(&mut |_, _| {
        passed += 1;
        if passed > half { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .ok()?;
    if seen.samples > 0 {
        assert_eq!(passed, half + 1, "samples passed to a sink that takes {}", half + 1);
        assert!(stopped.samples >= passed, "{} counted, {passed} passed on", stopped.samples);
    }
    Some((names, report, seen))
}

/// Every id in a sample is valid.
fn resolves(names: &Dictionary, sample: &Sample) {
    let task = names.task(sample.task);
    let _ = (names.strings.get(task.comm), task.cgroup.map(|cgroup| names.strings.get(cgroup)));
    let event: EventId = sample.event;
    assert!(usize::from(event.0) < names.events.len(), "a sample without an event");
    let mut below = sample.stack;
    // Not every frame of every deep stack: the first ones, and the whole chain of ids.
    for at in 0.. {
        let Some((parent, frame)) = names.stacks.split(below) else { break };
        assert!(parent < below, "a stack comes before its parent");
        if at < 64 {
            let frame = names.frames.get(frame);
            let _ = (frame.symbol(&names.strings), frame.module(&names.strings));
        }
        below = parent;
    }
    assert_eq!(below, StackId::EMPTY);
}

fn check(names: &Dictionary, report: &ImportReport, seen: &Seen) {
    assert_eq!(report.samples, seen.samples, "samples reported vs. passed on");
    let events: u64 = names.events.iter().map(|event| event.samples).sum();
    assert_eq!(events, seen.samples, "samples by event");
    for oddity in &report.oddities {
        assert!(oddity.count >= oddity.first.len() as u64 && !oddity.first.is_empty(), "{oddity:?}");
        assert!(oddity.example.len() <= 3 * 160, "{oddity:?}");
    }
    let mut text = Vec::new();
    export::folded::write(names, &seen.sums, &mut text).expect("memory");
}

fn folded_text(names: &Dictionary, sums: &StackSums) -> Vec<u8> {
    let mut text = Vec::new();
    export::folded::write(names, sums, &mut text).expect("memory");
    text
}

/// Both ways to read `perf script` text give the same.
pub fn perf_script(bytes: &[u8]) {
    let (names, report, seen) = read(&|take| samples::read(bytes, take)).expect("memory can be read");
    let (folded, fold_report) = fold::read(bytes, &fold::FoldOptions::default()).expect("memory can be read");
    assert_eq!(fold_report, report);
    let weight = folded.iter().fold(0u64, |sum, (_, _, weight)| sum.saturating_add(weight));
    assert_eq!(weight, seen.weight, "total weight");
    let mut text = Vec::new();
    folded.write(&mut text).expect("memory");
    let (ours, theirs) = (String::from_utf8_lossy(&text).into_owned(), folded_text(&names, &seen.sums));
    assert_eq!(ours, String::from_utf8_lossy(&theirs), "folded stacks");
    lines_are_accounted_for(bytes, &report);
}

/// A line is a comment, empty, part of a sample, or counted as odd. Without samples only the first two and the last remain.
fn lines_are_accounted_for(bytes: &[u8], report: &ImportReport) {
    if is_gz(bytes) {
        return;
    }
    assert_eq!(report.bytes, bytes.len() as u64);
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && line[0] != b'#').count() as u64;
    if report.samples == 0 && !report.truncated {
        let odd: u64 = report.oddities.iter().map(|oddity| oddity.count).sum();
        assert_eq!(odd, lines, "unused lines vs. lines reported");
    }
}

pub fn perf_data(bytes: &[u8]) {
    let reader = |take: &mut Take<'_>| import::perf_data::read(bytes, &mut Symbols::none(), take);
    read(&reader);
}

/// What was read can be written and read again with the same result.
pub fn folded(bytes: &[u8]) {
    let (names, report, seen) = read(&|take| import::folded::read(bytes, take)).expect("memory can be read");
    if !is_gz(bytes) {
        assert_eq!(report.bytes, bytes.len() as u64);
        let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let lines = lines.filter(|line| !line.is_empty() && line[0] != b'#').count() as u64;
        let odd: u64 = report.oddities.iter().map(|oddity| oddity.count).sum();
        assert_eq!(report.samples + odd, lines, "every line is a sample or counted");
    }
    let text = folded_text(&names, &seen.sums);
    let (_, again, second) = read(&|take| import::folded::read(&text[..], take)).expect("memory can be read");
    if again.oddities.is_empty() {
        assert_eq!(second.weight, seen.weight, "weight after writing and reading");
    }
}

/// Compressed or not, complete or cut: the stream ends, and is the same with any read size.
pub fn gz(bytes: &[u8]) {
    // The text may be a thousand times as long; only its start is kept.
    const KEPT: u64 = 64 << 10;
    let mut whole = Vec::new();
    let mut from = Unpacked::new(bytes).expect("memory can be read");
    from.by_ref().take(KEPT).read_to_end(&mut whole).expect("damage is no error");
    let rest = std::io::copy(&mut from, &mut std::io::sink()).expect("damage is no error");
    let mut slow = Vec::new();
    let mut again = Unpacked::new(bytes).expect("memory can be read");
    let mut piece = [0; 7];
    while let n @ 1.. = again.read(&mut piece).expect("damage is no error") {
        slow.extend_from_slice(&piece[..n]);
        if slow.len() as u64 >= KEPT {
            break;
        }
    }
    let both = slow.len().min(whole.len());
    assert_eq!(slow[..both], whole[..both]);
    if rest == 0 && (slow.len() as u64) < KEPT {
        // If it is damaged, how much comes out first depends on the read size.
        assert_eq!(again.cut(), from.cut());
        assert!(from.cut() || slow.len() == whole.len());
    }
    if !is_gz(bytes) {
        assert!(!from.cut());
        assert_eq!(whole.len() as u64 + rest, bytes.len() as u64);
    }
    perf_script(bytes);
    folded(bytes);
}

/// A chunk of stacks and a chunk of samples; the first byte says where to split.
pub fn recording(bytes: &[u8]) {
    let Some((share, rest)) = bytes.split_first() else { return };
    let (stacks, samples) = rest.split_at(rest.len() * usize::from(*share) / 256);
    read(&|take| Ok(coroner_profile::recording::read_unpacked(stacks, samples, take)));
}

/// As the commands do: detect the format, then read.
pub fn file(bytes: &[u8]) {
    let mut named = tempfile::NamedTempFile::new().expect("a file");
    named.write_all(bytes).expect("a file");
    let reader = |take: &mut Take<'_>| {
        let imported = import::file(named.path(), &import::ImportOptions::default(), &mut Symbols::none(), take)?;
        Ok((imported.names, imported.report))
    };
    read(&reader);
}

pub fn perf_map(bytes: &[u8]) {
    let map = PerfMap::parse(bytes);
    for address in addresses(bytes) {
        map.find(address);
    }
}

pub fn kallsyms(bytes: &[u8]) {
    let Some(kernel) = Kallsyms::parse(bytes.to_vec()) else { return };
    for address in addresses(bytes) {
        if let Some(symbol) = kernel.find(address) {
            assert!(!symbol.name.is_empty() && symbol.address <= address, "{symbol:?} at {address:x}");
        }
    }
    let modules = kernel.modules();
    assert!(modules.keys().all(|module| !module.contains(' ')), "{modules:?}");
    kernel.address_of("_text");
}

/// The addresses in a text, and their neighbours.
fn addresses(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let words = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let word = line.split(|byte| *byte == b' ').next()?;
        u64::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()
    });
    words.take(1000).flat_map(|at| [at.wrapping_sub(1), at, at.wrapping_add(1)]).chain([0, u64::MAX])
}
