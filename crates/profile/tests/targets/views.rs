//! Views and writers, with arbitrary samples: any time, core and period, in any order.

use coroner_evidence::Wall;
use coroner_profile::export::{folded, pprof, speedscope, svg};
use coroner_profile::model::{
    Clock, Dictionary, EventId, Frame, FramePlace, Sample, Samples, StackId, Strings, Task, TaskId,
};
use coroner_profile::views::monopolies::Finder;
use coroner_profile::views::risers::BusyShares;
use coroner_profile::views::{Band, Filter, Selector, StackSums, cores, diff, flame, heatmap, monopolies, risers};
use prost::Message;

const SECOND: u64 = 1_000_000_000;
const TIMES: [u64; 10] =
    [0, 1, SECOND - 1, SECOND, 1 << 40, 1 << 62, 1 << 63, u64::MAX - SECOND, u64::MAX - 1, u64::MAX];
const CORES: [u32; 6] = [0, 1, 1023, 65_534, 65_535, u32::MAX];
const WEIGHTS: [u64; 7] = [0, 1, 1000, 10_101_010, i64::MAX as u64, u64::MAX - 1, u64::MAX];
const STEPS: [u64; 6] = [0, 1, 1000, SECOND / 10, SECOND, u64::MAX];
const ROWS: [usize; 5] = [0, 1, 7, 50, usize::MAX];
const SYMBOLS: [&str; 8] =
    ["", "do_idle", "__do_softirq", "irqentry_exit", "a->b", "f(int)", "<&\"'\u{1}\u{fffe}]]>", "x;y"];

/// Every six bytes are a sample; the bytes before them choose the options.
pub fn views(bytes: &[u8]) {
    let Some((ask, rows)) = bytes.split_first_chunk::<6>() else { return };
    let (names, samples) = samples(rows);
    let pick = |at: usize, of: usize| usize::from(ask[at]) % of;
    let n = samples.len() as u64;

    let mut by_offset = heatmap::OffsetCounter::new(ROWS[pick(0, ROWS.len())]);
    samples.iter().for_each(|sample| by_offset.add(&names, sample));
    let map = by_offset.finish();
    assert_eq!(map.samples + map.left_out, n);
    assert!(map.counts.iter().all(|count| (0.0..=map.largest).contains(count)), "{}", map.largest);
    assert_eq!(map.counts.len(), map.columns * map.rows);

    let mut by_core = cores::CoreCounter::new(STEPS[pick(1, STEPS.len())]);
    samples.iter().for_each(|sample| {
        by_core.add(&names, sample);
    });
    let map = by_core.finish();
    let counted: u64 = map.cells.iter().map(|cell| u64::from(cell.samples)).sum();
    assert_eq!(counted + map.left_out + map.other_events, n);
    assert_eq!(map.cells.len(), map.columns * map.cores.len());
    for cell in &map.cells {
        assert!(cell.owner.is_some() == (cell.busy() > 0) && cell.owner_weight <= cell.busy(), "{cell:?}");
        assert!(cell.busy_share().is_none_or(|share| (0.0..=1.0).contains(&share)), "{cell:?}");
    }

    let options = monopolies::MonopolyOptions {
        threshold: TIMES[pick(2, TIMES.len())],
        pause_intervals: WEIGHTS[pick(3, WEIGHTS.len())],
        pause: WEIGHTS[pick(2, WEIGHTS.len())],
        chance: [0.0, 1e-3, 1.0, f64::NAN, f64::INFINITY][pick(3, 5)],
        most: [0, 1, usize::MAX][pick(4, 3)],
    };
    let mut finder = Finder::new(options);
    samples.iter().for_each(|sample| finder.add(&names, sample));
    for monopoly in finder.finish(&names) {
        assert!(monopoly.samples >= 2 && monopoly.samples + monopoly.foreign <= n, "{monopoly:?}");
        assert!((0.0..=1.0).contains(&monopoly.share()) && monopoly.paused <= monopoly.length, "{monopoly:?}");
        assert!(monopoly.stacks.iter().all(|(_, share)| (0.0..=1.0).contains(share)), "{monopoly:?}");
    }

    let filter = filter(ask);
    let mut selector = Selector::new(filter);
    let (mut kept, mut others) = (StackSums::by_command(), StackSums::by_thread());
    let mut shares = [BusyShares::default(), BusyShares::default()];
    for sample in &samples {
        let has = selector.has(&names, sample);
        if has {
            kept.add(&names, sample)
        } else {
            others.add(&names, sample)
        };
        shares[usize::from(has)].add(&names, sample);
    }
    for riser in risers::find((&names, &shares[0]), (&names, &shares[1]), pick(4, 20)) {
        assert!(riser.rise() > 0.0 && (0.0..=1.0).contains(&riser.now), "{riser:?}");
    }
    written(&names, &kept);
    written(&names, &others);
    let options = flame::FlameOptions { invert: ask[5] & 1 == 1 };
    let [before, after] =
        [&kept, &others].map(|sums| flame::tree(&names, sums, EventId(u16::from(ask[5] & 2)), &options));
    let difference = diff::diff(&before, &after);
    for node in &difference.nodes {
        assert!((0.0..=1.0).contains(&node.before) && (0.0..=1.0).contains(&node.after), "{node:?}");
    }
    let picture = svg::SvgOptions { width: u32::from(ask[5]), icicle: ask[5] & 4 != 0, ..svg::SvgOptions::default() };
    for tree in [&before, &after] {
        drawn(|to| svg::write(tree, &picture, to));
    }
    drawn(|to| svg::write_diff(&difference, &picture, to));
    kept_as_they_are(&samples);
}

fn samples(bytes: &[u8]) -> (Dictionary, Vec<Sample>) {
    let mut names = Dictionary::default();
    names.clock = bytes.first().map(|byte| Clock {
        clock_ns: TIMES[usize::from(*byte) % TIMES.len()],
        wall: Wall(TIMES[usize::from(*byte / 16) % TIMES.len()]),
    });
    let events = ["cpu-clock:u", "", "cycles", "odd;[name]"].map(|name| names.intern_event(name));
    let frames: Vec<u32> = (0..SYMBOLS.len() * 4)
        .map(|at| {
            let symbol = names.strings.intern(SYMBOLS[at / 4]);
            let module = names.strings.intern(if at & 2 == 0 { "" } else { "/tmp/perf-1.map" });
            let place = [FramePlace::User, FramePlace::Kernel, FramePlace::Jit][at % 3];
            names.frames.intern(Frame { symbol, module, place, inlined: at & 1 == 1 }).0
        })
        .collect();
    let (mut samples, mut time, mut stack) = (Vec::new(), 0u64, Vec::new());
    for row in bytes.chunks_exact(6) {
        let row: [usize; 6] = std::array::from_fn(|at| usize::from(row[at]));
        time = match row[0] {
            0..=99 => TIMES[row[0] % TIMES.len()],
            100..=199 => time.wrapping_add(SECOND / 1000 * (row[0] as u64 - 99)),
            _ => time.wrapping_sub(SECOND / 2 * (row[0] as u64 - 199)),
        };
        match row[3] {
            0..=9 => stack.clear(),
            10..=19 => stack = frames.repeat(row[3]),
            at => stack.push(frames[at % frames.len()]),
        }
        let comm = names.strings.intern(["", "swapper", "a b", "c;d"][row[2] % 4]);
        let cgroup = (row[2] & 64 != 0).then_some(comm);
        let id = (row[2] & 128 != 0).then_some(row[2] as u32 / 4 % 8);
        let task: TaskId = names.intern_task(Task { pid: id, tid: id, comm, cgroup });
        let sample = Sample {
            time: Some(time).filter(|_| row[0] != 255),
            core: CORES.get(row[1] % 7).copied(),
            task,
            event: events[row[4] % events.len()],
            period: WEIGHTS[row[5] % WEIGHTS.len()],
            stack: if row[3] == 9 { StackId::EMPTY } else { names.stacks.intern(&stack) },
        };
        names.count(sample.event, sample.period);
        samples.push(sample);
    }
    assert_eq!(names.strings.get(Strings::EMPTY), "");
    (names, samples)
}

fn filter(ask: &[u8; 6]) -> Filter {
    let time = |at: usize| TIMES[usize::from(ask[at]) % TIMES.len()];
    let word = SYMBOLS[usize::from(ask[3]) % SYMBOLS.len()].to_owned();
    let has = |bit: u8| ask[4] >> bit & 1 == 1;
    let (range, within) = (time(0)..time(1), time(1)..time(2));
    Filter {
        ranges: if has(0) { vec![range] } else { Vec::new() },
        band: has(1).then(|| Band { offsets: time(2)..time(3), within }),
        cores: if has(2) { vec![CORES[usize::from(ask[0]) % CORES.len()]] } else { Vec::new() },
        tids: if has(3) { vec![u32::from(ask[1] % 8)] } else { Vec::new() },
        comms: if has(4) { vec![word.clone()] } else { Vec::new() },
        cgroup: has(5).then(|| word.clone()),
        symbol: has(6).then(|| word.clone()),
        event: has(7).then_some(word),
        ..Filter::default()
    }
}

/// All exporters: the output is valid and has all weights.
fn written(names: &Dictionary, sums: &StackSums) {
    let sorted = sums.sorted();
    let weight = sorted.iter().fold(0u64, |all, sum| all.saturating_add(sum.weight));
    let stacks = folded::fold(names, sums);
    assert_eq!(stacks.iter().fold(0u64, |all, (_, _, weight)| all.saturating_add(weight)), weight);
    let message = pprof::message(names, sums);
    let again = pprof::proto::Profile::decode(&message.encode_to_vec()[..]).expect("a message");
    assert_eq!(again, message);
    for sample in &message.sample {
        assert_eq!(sample.value.len(), message.sample_type.len());
        assert!(sample.value.iter().all(|value| *value >= 0), "{sample:?}");
        assert!(sample.location_id.iter().all(|id| *id >= 1 && *id <= message.location.len() as u64));
    }
    let mut json = Vec::new();
    speedscope::write(names, sums, "any \"name\"", &mut json).expect("memory");
    let file: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    let frames = file["shared"]["frames"].as_array().expect("frames").len() as u64;
    for profile in file["profiles"].as_array().expect("profiles") {
        let (samples, weights) =
            (profile["samples"].as_array().expect("stacks"), profile["weights"].as_array().expect("weights"));
        assert_eq!(samples.len(), weights.len());
        let ids = samples.iter().flat_map(|stack| stack.as_array().expect("a stack"));
        assert!(ids.map(|id| id.as_u64().expect("a number")).all(|id| id < frames));
    }
}

fn drawn(draw: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) {
    let mut picture = Vec::new();
    draw(&mut picture).expect("memory");
    let text = std::str::from_utf8(&picture).expect("text");
    assert!(text.starts_with("<?xml") && text.ends_with("</svg>\n"));
    for bad in ["NaN", "inf\"", "\u{1}", "=\"-", "\u{fffe}"] {
        assert!(!text.contains(bad), "{bad} in a picture");
    }
}

/// Columns give back what was put in, except for values that mean "none".
fn kept_as_they_are(samples: &[Sample]) {
    let mut columns = Samples::default();
    samples.iter().for_each(|sample| columns.push(*sample));
    for (sample, kept) in samples.iter().zip(columns.iter()) {
        let same = Sample {
            time: sample.time.filter(|time| *time != u64::MAX),
            core: sample.core.filter(|core| *core < 65_535),
            ..*sample
        };
        assert_eq!(kept, same);
    }
    columns.sort();
    assert!(columns.iter().map(|sample| sample.time.unwrap_or(u64::MAX)).is_sorted());
    let timed = columns.iter().filter(|sample| sample.time.is_some()).count();
    assert_eq!(columns.between(0, u64::MAX).count(), timed);
}
