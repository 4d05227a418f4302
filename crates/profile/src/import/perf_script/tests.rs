use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;

use super::{fold, samples};
use crate::export;
use crate::import::{OddityKind, Stacks};
use crate::model::Profile;
use crate::views::{Kinds, SampleKind};

/// Every form at once, as perf prints it.
const TEXT: &str = "\
# ========
# captured on    : Mon Nov 16 03:05:53 2026
# ========
#
my proc 1 2 123/124 [000] 1.000001:       1000 cycles:u: 
\t    7f0000001000 foo(int, char const*)+0x12 (/usr/lib/my lib.so)
\t    7f0000001001 [unknown] (/usr/lib/libc.so.6)
\t    7f0000001002 (anonymous namespace)::bar(int)+0x1 (/opt/x (deleted))
\t    7f0000001003 inl (inlined)
\t    7f0000001007 x->y+0x3 (/tmp/perf-123.map)

nostack 5 [000] 1.000002:       1000 cycles:u: 

one 5 [000] 1.000003:       1000 cycles:u:      7f0000001000 foo+0x3 (/bin/one)
two 5 [000] 1.000004:       1000 cycles:u:      7f0000001000 foo+0x3 (/bin/two)

\t    7f0000001000 headless+0x3 (/bin/one)

kw 5 [001] 1.000001:       500 cycles:u: 
\tffffffff81000000 kf+0x1 ([kernel.kallsyms])
\tffffffff81000001 [unknown] ([kernel.kallsyms])
\tffffffff81000004 [unknown] ([unknown])
\t    7fff00000004 __vdso_clock+0x3 ([vdso])
\t    7fff00000004 _start

kw 5 [001] 1.000009:       500 cycles:u: 
\tffffffff81000009 kf+0x99 ([kernel.kallsyms])
\tffffffff81000001 [unknown] ([kernel.kallsyms])
\tffffffff81000004 [unknown] ([unknown])
\t    7fff00000004 __vdso_clock+0x4 ([vdso])
\t    7fff00000004 _start

what is this
other 5 [000] 1.000010: sched:sched_switch: prev_comm=a b prev_pid=1 ==> next_comm=c: d next_pid=2
\tffffffff821f5618 __schedule+0x618 ([kernel.kallsyms])
  core.c:6778

";

const FOLDED: &str = "\
[];[unknown];headless 1
[cycles:u];kw;_start;__vdso_clock;[unknown];[[kernel.kallsyms]]_[k];kf_[k] 1000
[cycles:u];my_proc_1_2;x_[j];y_[i];inl;(anonymous namespace)::bar;[libc.so.6];foo 1000
[cycles:u];nostack 1000
[cycles:u];one;foo 1000
[cycles:u];two;foo 1000
[sched:sched_switch];other;__schedule_[k] 1
";

fn sorted(text: &[u8]) -> Vec<&str> {
    let mut lines: Vec<&str> = std::str::from_utf8(text).expect("text").lines().collect();
    lines.sort_unstable();
    lines
}

fn folded(text: &[u8]) -> (Vec<u8>, crate::import::ImportReport) {
    let (folded, report) = fold::read(text, &fold::FoldOptions::default()).expect("memory");
    let mut out = Vec::new();
    folded.write(&mut out).expect("memory");
    (out, report)
}

#[test]
fn every_form_is_folded_and_the_rest_is_reported() {
    let (out, report) = folded(TEXT.as_bytes());
    assert_eq!(sorted(&out), sorted(FOLDED.as_bytes()));
    assert_eq!(report.samples, 8);
    let place = |kind| report.oddities.iter().find(|oddity| oddity.kind == kind).map(|oddity| oddity.first.clone());
    assert_eq!(place(OddityKind::UnparsedLine), Some(vec![33]));
    assert_eq!(place(OddityKind::HeadlessStack), Some(vec![17]));
    assert_eq!(place(OddityKind::SourceLine), Some(vec![36]));
    assert_eq!(report.count(OddityKind::EmptyStack), 1);
    assert!(!report.truncated);
}

#[test]
fn the_profile_folds_to_the_same_and_keeps_every_field() {
    let (profile, report) = Profile::collect(|take| samples::read(TEXT.as_bytes(), take)).expect("memory");
    let mut out = Vec::new();
    export::folded::write(&profile.names, &profile.sums(), &mut out).expect("memory");
    assert_eq!(sorted(&out), sorted(FOLDED.as_bytes()));
    assert_eq!(report.out_of_order, 1);
    let first = profile.samples.get(0);
    let task = profile.names.task(first.task);
    assert_eq!((first.time, first.core, first.period), (Some(1_000_001_000), Some(0), 1000));
    assert_eq!((task.pid, task.tid, profile.names.strings.get(task.comm)), (Some(123), Some(124), "my proc 1 2"));
    let late = profile.samples.get(1);
    assert_eq!((late.core, late.period), (Some(1), 500));
    let switch = profile.names.events.iter().find(|event| event.name == "sched:sched_switch").expect("the event");
    assert_eq!((switch.samples, switch.weight), (1, 1));
}

#[test]
fn compressed_text_reads_alike_and_a_cut_one_says_so() {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(TEXT.as_bytes()).expect("memory");
    let packed = packed.finish().expect("memory");
    assert_eq!(folded(&packed).0, folded(TEXT.as_bytes()).0);
    let (_, report) = folded(&packed[..packed.len() - 9]);
    assert!(report.truncated);
}

#[test]
fn fields_left_out_by_choice() {
    for (text, want) in [
        ("lto cgu.00 \n\tffffffff821f04e5 f\n\t         8a4f756 g\n\n", "lto_cgu.00;g;f_[k] 1\n"),
        ("\n\tffffffff821f04e5 f\n\n\n\tffffffff821f04e5 f\n\n", "[unknown];f_[k] 2\n"),
        ("a b 27212 [000] 2.5: e: \n\tffffffff821f04e5\n\t         8a4f756\n\n", "a_b;[unknown];[unknown] 1\n"),
        ("a 20826/27212 2.5: e: \n\tffffffff821f04e5 f\n\n", "a;f_[k] 1\n"),
    ] {
        let (out, report) = folded(text.as_bytes());
        assert_eq!(String::from_utf8_lossy(&out), want);
        assert_eq!(report.count(OddityKind::UnparsedLine), 0, "{text}");
    }
}

#[test]
fn lost_records_are_added_up() {
    let text = "perf 5 [000] 1.0: PERF_RECORD_LOST lost 17\nperf 5 [001] 1.1: PERF_RECORD_LOST lost 4\n\
                perf 5 [001] 1.1: PERF_RECORD_MMAP2 5/5: [0x1(0x2) @ 0 00:00 0 0]: r--p /x\n";
    let (_, report) = folded(text.as_bytes());
    assert_eq!((report.lost, report.samples, report.count(OddityKind::PerfRecord)), (21, 0, 3));
}

#[test]
fn a_line_without_an_end_is_skipped_and_the_rest_is_read() {
    let mut text = b"a 1 [000] 1.0: 1 e: \n\t    7f0000001000 f (/x)\n\n".to_vec();
    text.extend(vec![b'x'; 5 << 20]);
    text.extend(b"\nb 1 [000] 1.0: 1 e: \n\t    7f0000001000 g (/x)\n\n");
    let (out, report) = folded(&text);
    assert_eq!(String::from_utf8_lossy(&out), "a;f 1\nb;g 1\n");
    assert_eq!(report.oddities[0].kind, OddityKind::OverlongLine);
    assert_eq!((report.oddities[0].count, report.oddities[0].first.as_slice(), report.lines), (1, &[4][..], 7));
}

/// Text as perf would print it, with repeated names.
fn events() -> impl Strategy<Value = String> {
    let frame = ("[a-f]{1,3}", 0u64..1 << 48, 0u32..5000, prop_oneof![Just("/bin/x"), Just("/opt/y z (deleted)")]);
    let frame = frame
        .prop_map(|(symbol, address, offset, module)| format!("\t{address:16x} {symbol}+0x{offset:x} ({module})\n"));
    let event = ("[a-z]{1,4}( [0-9])?", 1u32..99, proptest::collection::vec(frame, 0..6));
    let event =
        event.prop_map(|(comm, tid, frames)| format!("{comm} {tid} [000] 1.5: 10 cycles: \n{}\n", frames.concat()));
    proptest::collection::vec(event, 0..30).prop_map(|events| events.concat())
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        folded(&bytes);
        Profile::collect(|take| samples::read(&bytes[..], take)).expect("memory can be read");
    }

    #[test]
    fn any_lines(lines in proptest::collection::vec(
        "(\t| {0,3})[0-9a-f]{0,16}[ :\\[\\]()/+x0-9a-z]{0,40}|\t +[0-9a-f]{1,6} [a-z+:0x]{1,9} \\([a-z/]{0,5}\\)|", 0..40)) {
        let text = lines.join("\n");
        let (out, report) = folded(text.as_bytes());
        let (profile, second) = Profile::collect(|take| samples::read(text.as_bytes(), take)).expect("memory");
        let mut other = Vec::new();
        export::folded::write(&profile.names, &profile.sums(), &mut other).expect("memory");
        // Samples with weight 0 count too.
        prop_assert_eq!(sorted(&out), sorted(&other));
        prop_assert_eq!(report.samples, profile.samples.len() as u64);
        prop_assert_eq!(report.oddities, second.oddities);
    }

    /// The cache must not change results: a text read at once and its events read one by one give the same.
    #[test]
    fn the_line_cache_changes_nothing(text in events()) {
        let whole = fold::read(text.as_bytes(), &fold::FoldOptions::default()).expect("memory").0;
        let mut single = crate::model::FoldedStacks::default();
        for event in text.split_inclusive("\n\n") {
            single.append(&fold::read(event.as_bytes(), &fold::FoldOptions::default()).expect("memory").0);
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        whole.write(&mut a).expect("memory");
        single.write(&mut b).expect("memory");
        prop_assert_eq!(String::from_utf8_lossy(&a), String::from_utf8_lossy(&b));
    }

    /// Cut anywhere, the whole events before the cut are there, and the report says that the text was cut inside a stack.
    #[test]
    fn a_cut_text_gives_what_is_there(text in events(), at in 0.0f64..1.0) {
        let cut = (text.len() as f64 * at) as usize;
        let whole_events = text[..cut].matches("\n\n").count() as u64;
        let (_, report) = folded(&text.as_bytes()[..cut]);
        prop_assert!(report.samples >= whole_events && report.samples <= whole_events + 1);
        let in_stack = !text[..cut].ends_with("\n\n") && text[..cut].rsplit("\n\n").next().is_some_and(|last| last.contains("\n\t"));
        prop_assert!(!in_stack || report.truncated);
    }
}

/// All kinds of lines in any order: idle and other tasks, several events, lone commands, missing empty lines, CRLF, garbage.
fn mixed_lines() -> impl Strategy<Value = String> {
    let task = prop_oneof![
        Just("swapper 0".to_owned()),
        Just("swapper     0/0".to_owned()),
        Just("swapper/1 0".to_owned()),
        "[a-z]{1,4}( [0-9])? [1-9][0-9]?".prop_map(String::from),
    ];
    let event =
        prop_oneof![Just("cycles:u: "), Just("cpu-clock: "), Just("sched:sched_switch: a=b ==> c"), Just("e:\r")];
    let header = (task, 0u32..4, 0u32..9, 0u32..1_000_000, event).prop_map(|(task, core, second, fraction, event)| {
        format!("{task} [00{core}] {second}.{fraction:06}: 10 {event}")
    });
    let symbol = prop_oneof![
        Just("pv_native_safe_halt"),
        Just("do_idle"),
        Just("handle_softirqs"),
        Just("main"),
        Just("[unknown]")
    ];
    let frame = (prop_oneof![0xffff_ffff_8100_0000u64..0xffff_ffff_8200_0000, 0u64..1 << 44], symbol, 0u32..300)
        .prop_map(|(address, symbol, offset)| format!("\t{address:16x} {symbol}+0x{offset:x} ([kernel.kallsyms])"));
    let odd = prop_oneof![
        Just("lone ".to_owned()),
        Just("\r".to_owned()),
        Just("# comment".to_owned()),
        Just("perf 5 [000] 1.0: PERF_RECORD_LOST lost 17".to_owned()),
        Just("a 5 [001] 1.5: 10 cycles: ffffffff81000000 do_idle+0x1 ([kernel.kallsyms])".to_owned()),
        "(\t| {0,3})[0-9a-f]{0,16}[ :\\[\\]()/+x0-9a-z]{0,40}".prop_map(String::from),
    ];
    let line = prop_oneof![3 => header, 4 => frame, 3 => Just(String::new()), 1 => odd];
    proptest::collection::vec(line, 0..120).prop_map(|lines| lines.join("\n"))
}

proptest! {
    /// A heatmap counts the same whether or not the stacks of busy tasks are read.
    #[test]
    fn samples_without_the_stacks_of_busy_tasks_are_the_same(text in mixed_lines(), packed in any::<bool>()) {
        let mut bytes = text.into_bytes();
        if packed {
            let mut to = GzEncoder::new(Vec::new(), Compression::fast());
            to.write_all(&bytes).expect("memory");
            bytes = to.finish().expect("memory");
        }
        let run = |stacks| {
            let mut kinds = Kinds::default();
            let mut seen = Vec::new();
            let (names, report) = samples::read_with(&bytes[..], stacks, &mut |names, sample| {
                let idle = kinds.kind(names, &sample) == SampleKind::Idle;
                let event = names.events[usize::from(sample.event.0)].name.clone();
                let task = names.task(sample.task);
                let comm = names.strings.get(task.comm).to_owned();
                seen.push((sample.time, sample.core, comm, task.pid, task.tid, event, sample.period, idle));
                std::ops::ControlFlow::Continue(())
            }).expect("memory");
            (seen, names.events.len(), report.samples, report.lines, report.lost, report.truncated)
        };
        prop_assert_eq!(run(Stacks::All), run(Stacks::OfIdleTasks));
    }
}

#[test]
fn parts_read_by_several_threads_give_the_same() {
    let mut text = String::new();
    for n in 0..60_000u32 {
        text.push_str(&format!("task{} {} [000] {n}.000001: {} cycles: \n", n % 7, n % 50, n % 3 + 1));
        for depth in 0..n % 5 {
            text.push_str(&format!("\t{:16x} f{}_{depth}+0x{:x} (/bin/x)\n", n * 64, n % 11, n % 64));
        }
        text.push('\n');
        if n == 40_000 {
            text.push_str("what is this\n");
        }
    }
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(text.as_bytes()).expect("room");
    let run = |threads| {
        let (folded, report) = fold::file(&file, &fold::FoldOptions { threads, suffixes: true }).expect("a file");
        let mut out = Vec::new();
        folded.write(&mut out).expect("memory");
        (String::from_utf8(out).expect("text"), report)
    };
    let (one, report) = run(1);
    for threads in [2, 3, 8] {
        let (several, several_report) = run(threads);
        assert!(one == several, "{threads} threads");
        assert_eq!(report, several_report);
    }
    assert_eq!(report.samples, 60_000);
}
