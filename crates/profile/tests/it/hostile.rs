//! Hostile files: time and memory for each must be linear in its size.

use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::targets::perf_file::{KERNEL, Records, USER, attr, words};
use crate::targets::{MB, peak};
use coroner_profile::export::pprof;
use coroner_profile::import::perf_script::{fold, samples};
use coroner_profile::import::{self, Format, ImportReport, OddityKind};
use coroner_profile::model::{Dictionary, Sample};
use coroner_profile::symbols::{Kallsyms, PerfMap, Symbols};
use coroner_profile::views::StackSums;
use coroner_profile::views::cores::CoreCounter;
use coroner_profile::views::monopolies::{self, Finder};
use flate2::{Compression, write::GzEncoder};

/// CPU time, not wall time: other tests run in parallel.
fn core_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let on_core = text.split(' ').next().and_then(|word| word.parse().ok());
    on_core.map_or_else(|| START.with(Instant::elapsed), Duration::from_nanos)
}

thread_local! {
    static START: Instant = Instant::now();
}

fn time(work: impl FnOnce()) -> Duration {
    let before = core_time();
    work();
    core_time().saturating_sub(before)
}

/// Twice the input takes about twice as long, and at most `times` the input in memory. A run may be disturbed, so the fastest of
/// several counts.
fn holds(what: &str, size: usize, times: usize, make: impl Fn(usize) -> Vec<u8>, work: impl Fn(&[u8])) {
    const TURNS: usize = 5;
    let (small, large) = (make(size / 2), make(size));
    let ((), memory) = peak(|| work(&large));
    assert!(memory <= times * large.len() + 32 * MB, "{what}: {memory} bytes of memory for {}", large.len());
    let (mut one, mut two) = (Duration::MAX, Duration::MAX);
    for _ in 0..TURNS {
        one = one.min(time(|| work(&small)));
        two = two.min(time(|| work(&large)));
        // Below a few milliseconds the clock is too coarse. Quadratic growth would take four times as long.
        if two <= one * 3 + Duration::from_millis(30) {
            println!("{what}: {} bytes in {two:?} ({one:?} for half), {memory} bytes of memory", large.len());
            return;
        }
    }
    panic!("{what}: {one:?}, then {two:?} for twice as much ({} bytes)", large.len());
}

fn text(what: &str, times: usize, line: impl Fn(usize) -> Vec<u8>) {
    let make = |size: usize| {
        let mut all = Vec::new();
        let mut at = 0;
        while all.len() < size {
            all.extend(line(at));
            at += 1;
        }
        all
    };
    holds(what, 2 * MB, times, make, |bytes| {
        fold::read(bytes, &fold::FoldOptions::default()).expect("memory can be read");
        samples::read(bytes, &mut |_, _| ControlFlow::Continue(())).expect("memory can be read");
        import::folded::read(bytes, &mut |_, _| ControlFlow::Continue(())).expect("memory can be read");
    });
}

fn read_perf_data(bytes: &[u8]) -> ImportReport {
    import::perf_data::read(bytes, &mut Symbols::none(), &mut |_, _| ControlFlow::Continue(())).expect("a header").1
}

fn records(what: &str, size: usize, times: usize, fill: impl Fn(&mut Records, usize)) {
    let make = |size: usize| {
        let mut all = Records::default();
        fill(&mut all, size);
        all.file()
    };
    holds(what, size, times, make, |bytes| drop(read_perf_data(bytes)));
}

fn gz(parts: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut to = GzEncoder::new(Vec::new(), Compression::default());
    parts.into_iter().for_each(|part| to.write_all(&part).expect("memory"));
    to.finish().expect("memory")
}

#[test]
fn lines_of_every_size() {
    let long = |byte: u8| move |_: usize| vec![byte; 300 * 1024];
    for byte in [b'a', b' ', b'\t', b'1', b')', b'(', b':', b';', 0xff] {
        text(&format!("one line of {}", byte.escape_ascii()), 40, long(byte));
    }
    for line in
        ["\n", "a\n", "\t\n", "1\n", "#\n", "a \n", "\t0\n", " 1\n", "a;b 1\n", "1 1 1 1:\n", "- - -1 -1/-1 x: \n"]
    {
        text(&format!("many times {line:?}"), 100, |_| line.as_bytes().to_vec());
    }
    let long_line = |piece: &'static str| move |_: usize| [piece.repeat(60_000).as_bytes(), b"\n"].concat();
    for piece in ["1 ", "1 1:", "[0] ", ": ", " (", "->", "(deleted) ", "a->b ", "0.0: "] {
        text(&format!("lines of {piece:?}"), 100, long_line(piece));
        text(&format!("frames of {piece:?}"), 100, |at| {
            [b"\t               1 ", &long_line(piece)(at)[..99_000], b")\n"].concat()
        });
    }
}

#[test]
fn all_names_differ() {
    text("tasks", 300, |at| format!("task{at} {at} [000] 1.000000: 1 e: \n").into_bytes());
    text("events", 300, |at| format!("t 1 [000] 1.000000: 1 event{at}: \n").into_bytes());
    text("frames", 300, |at| format!("\t{at:16x} symbol{at}+0x1 (/bin/x)\n").into_bytes());
    text("stacks", 300, |at| format!("\t{at:16x} symbol{at}+0x1 (/bin/x)\n\n").into_bytes());
    text("folded", 300, |at| format!("a{at};b{at};c{at} 1\n").into_bytes());
    // The same few frames in ever new orders.
    text("orders", 300, |at| {
        let frame = |bit: usize| format!("\t{:16x} f{}+0x1 (/x)\n", at, at >> bit & 1);
        [(0..16).map(frame).collect::<String>(), "\n".to_owned()].concat().into_bytes()
    });
}

/// With known hash constants (these are foldhash's) one could make all keys collide.
#[test]
fn colliding_keys() {
    for constant in [0x243f_6a88_85a3_08d3u64, 0x1319_8a2e_0370_7344] {
        let middle = constant.to_le_bytes();
        let number = |at: usize| format!("{at:08x}").into_bytes();
        text("frames", 300, |at| [b"\t               1 symbol12", &middle[..], &number(at), b"\n"].concat());
        text("frames, longer", 300, |at| {
            [b"\t               1 ", &middle[..], &number(at), &middle[..], &number(at), b"\n"].concat()
        });
        text("tasks", 300, |at| [b"12345678", &middle[..], &number(at), b" 1 [000] 1.0: 1 e: \n"].concat());
    }
}

#[test]
fn times_that_go_backwards() {
    type Order = fn(usize) -> usize;
    let orders: [(&str, Order); 2] = [("backwards", |at| 1_000_000 - at), ("any order", |at| at * 7_919 % 1_000_003)];
    for (what, time) in orders {
        let make = |size: usize| {
            let lines = (0..size / 30).map(|at| format!("t 1 [0] {}.000000: 1 e: \n\n", time(at)));
            lines.collect::<String>().into_bytes()
        };
        holds(what, 8 * MB, 100, make, |bytes| {
            let mut file = tempfile::NamedTempFile::new().expect("a file");
            file.write_all(bytes).expect("a file");
            import::profile(file.path(), &import::ImportOptions::default(), &mut Symbols::none()).expect("text");
        });
    }
}

#[test]
fn records_that_make_work_for_each_other() {
    records("event descriptions", 4 * MB, 100, |all, size| {
        (0..size / 176).for_each(|at| all.add(64, 0, &[attr(), words(&[at as u64, 0])].concat()));
    });
    records("event descriptions and features", 4 * MB, 100, |all, size| {
        (0..size / 352).for_each(|at| all.add(64, 0, &[attr(), words(&[at as u64, 0])].concat()));
        (0..size / 48).for_each(|_| all.add(80, 0, &words(&[29, 0, 0, 0])));
        (0..size / 48).for_each(|_| all.add(80, 0, &words(&[12, 1 << 32 | 1, 0, 0])));
    });
    records("BPF programs and kernel addresses", 4 * MB, 100, |all, size| {
        (0..size / 140).for_each(|at| all.ksymbol((1 << 40) + at as u64 * 16, 8));
        let chain: Vec<u64> = (0..size as u64 / 16).map(|at| (1 << 41) + at).collect();
        chain.chunks(8000).for_each(|chain| all.sample(9, 0, 1, &[&[KERNEL], chain].concat()));
    });
    records("mappings and forks", 4 * MB, 100, |all, size| {
        (0..size / 160).for_each(|at| all.mmap(1, 1, at as u64 * 4096, 4096, "/x"));
        (0..size / 2 / 56).for_each(|at| all.fork(at as u32 + 2, 1));
    });
    records("mappings, forks and mappings of the children", 4 * MB, 200, |all, size| {
        (0..size / 240).for_each(|at| all.mmap(1, 1, at as u64 * 4096, 4096, "/x"));
        for at in 0..size / 3 / 136 {
            all.fork(at as u32 + 2, 1);
            all.mmap(1, at as u32 + 2, 0, 4096, "/y");
        }
    });
    records("mappings and samples by turns", 4 * MB, 100, |all, size| {
        for at in 0..size / 180 {
            all.mmap(1, 1, at as u64 % 1000 * 4096, 4096, "/x");
            all.sample(1, 0, 1, &[USER, at as u64]);
        }
    });
    records("rounds", 4 * MB, 100, |all, size| {
        for at in 0..size / 100 {
            all.sample((size - at) as u64, 0, 1, &[USER, 1]);
            all.add(68, 0, &[]);
        }
    });
    records("tiny records", 8 * MB, 100, |all, size| (0..size / 8).for_each(|_| all.add(11, 0, &[])));
}

/// Many descriptions that all claim the whole file as their ids.
#[test]
fn overlapping_ids() {
    let make = |size: usize| {
        let one = [attr(), words(&[0, size as u64])].concat();
        Records::default().file_with(&one.repeat(size / one.len()))
    };
    holds("ids", MB, 100, make, |bytes| drop(read_perf_data(bytes)));
}

/// A 60 kB path 8000 times in one stack: 130 kB would fold to half a gigabyte of text.
#[test]
fn long_names_in_deep_stacks() {
    let mut all = Records::default();
    all.mmap(1, 1, 0, 1 << 30, &"x".repeat(60_000));
    let chain: Vec<u64> = std::iter::once(USER).chain(0..8000).collect();
    all.sample(1, 0, 1, &chain);
    let bytes = all.file();
    let ((), memory) = peak(|| {
        let (names, sums) = sums_of(&bytes);
        coroner_profile::export::folded::write(&names, &sums, std::io::sink()).expect("nowhere");
    });
    assert!(memory < 64 * MB, "{memory} bytes of memory");
}

fn sums_of(bytes: &[u8]) -> (Dictionary, StackSums) {
    let mut sums = StackSums::by_command();
    let mut take = |names: &Dictionary, sample| {
        sums.add(names, &sample);
        ControlFlow::Continue(())
    };
    let (names, _) = import::perf_data::read(bytes, &mut Symbols::none(), &mut take).expect("a header");
    (names, sums)
}

/// pprof has a value for each event in each stack.
#[test]
fn many_events_in_many_stacks() {
    let make = |size: usize| {
        let event = |at: usize| format!("t 1 [000] 1.000000: 1 event{at}: \n\t{at:16x} f{at} (/x)\n\n");
        (0..size / 70).map(event).collect::<String>().into_bytes()
    };
    holds("pprof", 2 * MB, 1000, make, |bytes| {
        let mut sums = StackSums::by_command();
        let mut take = |names: &Dictionary, sample| {
            sums.add(names, &sample);
            ControlFlow::Continue(())
        };
        let (names, _) = samples::read(bytes, &mut take).expect("memory can be read");
        pprof::write(&names, &sums, std::io::sink()).expect("nowhere");
    });
}

/// Compressed records that contain compressed records that contain …
#[test]
fn packed_records_do_not_nest() {
    let mut inner = Records::default();
    inner.sample(1, 0, 1, &[USER, 1]);
    for _ in 0..50 {
        let packed = zstd::encode_all(&inner.0[..], 1).expect("memory");
        inner = Records::default();
        inner.add(81, 0, &packed);
    }
    let report = read_perf_data(&inner.file());
    assert_eq!((report.samples, report.count(OddityKind::BadRecord)), (0, 1), "{report:?}");
}

/// 64 KiB of zstd that unpack to gigabytes: of zeros, and of minimal records.
#[test]
fn unpacking_is_limited() {
    let mut tiny = Records::default();
    tiny.add(11, 0, &[]);
    for (what, piece) in [("zeros", vec![0; 8]), ("records", tiny.0)] {
        let unpacked = piece.repeat(MB / 8);
        let mut to = zstd::Encoder::new(Vec::new(), 1).expect("memory");
        (0..1024).for_each(|_| to.write_all(&unpacked).expect("memory"));
        let packed = to.finish().expect("memory");
        let mut all = Records::default();
        packed.chunks(65_000).for_each(|part| all.add(81, 0, part));
        all.sample(1, 0, 1, &[USER, 1]);
        let bytes = all.file();
        let mut report = ImportReport::default();
        let (time, memory) = peak(|| time(|| report = read_perf_data(&bytes)));
        println!("{what}: {} bytes that stand for 1 GiB in {time:?}, {memory} bytes of memory", bytes.len());
        assert!(memory < 32 * MB && time < Duration::from_secs(20), "{what}: {memory} bytes, {time:?}");
        assert_eq!(report.samples, 1, "what follows is read: {report:?}");
        assert!(report.count(OddityKind::BadRecord) > 0, "{report:?}");
    }
}

/// A gigabyte of zeros in a megabyte: text is streamed; perf.data, which goes to disk, is not unpacked to the end.
#[test]
fn a_gigabyte_of_zeros_in_a_megabyte() {
    let zeros = || std::iter::repeat_n(vec![0; MB], 1024);
    let head = Records::default().file();
    let text = gz(std::iter::once(b"a;b 1\n".to_vec()).chain(zeros()));
    let data = gz(std::iter::once(head).chain(zeros()));
    let files = [(Format::Folded, &text), (Format::PerfScript, &text), (Format::PerfData, &data)];
    for (format, bytes) in files {
        let what = format.name();
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(bytes).expect("a file");
        let mut report = ImportReport::default();
        let read = || {
            let options = import::ImportOptions { format: Some(format), ..import::ImportOptions::default() };
            import::file(file.path(), &options, &mut Symbols::none(), &mut |_, _| ControlFlow::Continue(()))
        };
        let (time, memory) = peak(|| time(|| report = read().expect("a file").report));
        println!("{what}: {} bytes that stand for 1 GiB in {time:?}, {memory} bytes of memory", bytes.len());
        assert!(memory < 32 * MB && time < Duration::from_secs(20), "{what}: {memory} bytes, {time:?}");
        assert!(report.truncated, "{what}: {report:?}");
    }
}

/// Each sample of another thread, all in one column and on one core.
#[test]
fn many_threads_at_once() {
    let make = |size: usize| {
        let line = |at: usize| format!("t {at} [000] 1.{:06}: 1 cpu-clock: \n\n", at % 1_000_000);
        (0..size / 38).map(line).collect::<String>().into_bytes()
    };
    holds("threads", 4 * MB, 200, make, |bytes| {
        let mut counter = CoreCounter::new(u64::MAX);
        let mut finder = Finder::new(monopolies::MonopolyOptions::default());
        let mut take = |names: &Dictionary, sample: Sample| {
            counter.add(names, &sample);
            finder.add(names, &sample);
            ControlFlow::Continue(())
        };
        let (names, _) = samples::read(bytes, &mut take).expect("memory can be read");
        assert_eq!(counter.finish().left_out, 0);
        finder.finish(&names);
    });
}

#[test]
fn symbol_lists() {
    let list = |line: fn(usize) -> String| move |size: usize| (0..size / 30).map(line).collect::<String>().into_bytes();
    let kernel = |bytes: &[u8]| {
        if let Some(kernel) = Kallsyms::parse(bytes.to_vec()) {
            kernel.modules();
            assert!((0..20).all(|address| kernel.find(address).is_none_or(|symbol| symbol.address <= address)));
        }
    };
    holds("modules", 4 * MB, 50, list(|at| format!("{:x} t name [module{at}]\n", at + 1)), kernel);
    holds("one address", 4 * MB, 50, list(|at| format!("1 t name{at}\n")), kernel);
    holds(
        "underscores",
        4 * MB,
        50,
        |size| [b"1 t ", &[b'_'; 60_000][..], b"\n"].concat().repeat(size / 60_000),
        kernel,
    );
    let map = |bytes: &[u8]| drop(PerfMap::parse(bytes));
    holds("perf map", 4 * MB, 50, list(|at| format!("{:x} 1 name\n", 1 << 40 ^ at)), map);
    holds("perf map of one line", 4 * MB, 50, |size| vec![b' '; size], map);
}
