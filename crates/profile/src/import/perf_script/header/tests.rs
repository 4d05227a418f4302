use proptest::prelude::*;

use super::*;

const FULL: Header<'static> = Header {
    comm: b"kubelet",
    pid: None,
    tid: Some(1234),
    core: Some(3),
    time: Some(24_915_802_750_000),
    period: Some(1_001_001),
    event: b"cpu-clock:ppp",
    rest: b" ",
};

#[test]
fn every_choice_of_fields() {
    let none = Header { rest: b"", event: b"", period: None, ..FULL };
    let trace: &[u8] = b" prev_comm=a b prev_pid=5 ==> next_comm=x: y next_pid=6";
    for (line, want) in [
        ("kubelet 1234 [003] 24915.802750:    1001001 cpu-clock:ppp: ", FULL),
        ("kubelet  1000/1234  [003] 24915.802750:    1001001 cpu-clock:ppp: ", Header { pid: Some(1000), ..FULL }),
        (
            "kubelet  1000/1234  [003] K     24915.802750:    1001001 cpu-clock:ppp: ",
            Header { pid: Some(1000), ..FULL },
        ),
        ("kubelet 1234 [003] 24915.802750:  cpu-clock:ppp: ", Header { period: None, ..FULL }),
        ("kubelet 1234 [003] 24915.802750: ", none),
        ("kubelet 1234 [003]    1001001 cpu-clock:ppp: ", Header { time: None, ..FULL }),
        ("kubelet 1234 24915.802750:    1001001 cpu-clock:ppp: ", Header { core: None, ..FULL }),
        (
            "kubelet 1234 24915.802750123:    1001001 cpu-clock:ppp: ",
            Header { core: None, time: Some(24_915_802_750_123), ..FULL },
        ),
        ("kubelet 1234    1001001 cpu-clock:ppp: ", Header { core: None, time: None, ..FULL }),
        ("kubelet 1000/1234    1001001 cpu-clock:ppp: ", Header { pid: Some(1000), core: None, time: None, ..FULL }),
        ("kubelet 1000/1234 ", Header { pid: Some(1000), core: None, time: None, ..none }),
        ("kubelet [003] 24915.802750:    1001001 cpu-clock:ppp: ", Header { tid: None, ..FULL }),
        ("kubelet 24915.802750:    1001001 cpu-clock:ppp: ", Header { tid: None, core: None, ..FULL }),
        ("1234 [003] 24915.802750:    1001001 cpu-clock:ppp: ", Header { comm: b"", ..FULL }),
        ("         kubelet 1234 [003] 24915.802750:    1001001 cpu-clock:ppp: ", FULL),
        ("my proc 1 2 1234 [003] 24915.802750:    1001001 cpu-clock:ppp: ", Header { comm: b"my proc 1 2", ..FULL }),
        ("x [7] 9 1234 [003] 24915.802750:    1001001 cpu-clock:ppp: ", Header { comm: b"x [7] 9", ..FULL }),
        (
            "kworker/u4:1-ev 1234 [003] 24915.802750:    1001001 cpu-clock:ppp: ",
            Header { comm: b"kworker/u4:1-ev", ..FULL },
        ),
        ("kubelet    -1 [003] 24915.802750:    1001001 cpu-clock:ppp: ", Header { tid: None, ..FULL }),
        (
            "kubelet 1234 [003] 24915.802750: sched:sched_switch: prev_comm=a b prev_pid=5 ==> next_comm=x: y next_pid=6",
            Header { period: None, event: b"sched:sched_switch", rest: trace, ..FULL },
        ),
        (
            "kubelet 1234 [003] 24915.802750: 1 sched:sched_switch: prev_comm=a b prev_pid=5 ==> next_comm=x: y next_pid=6",
            Header { period: Some(1), event: b"sched:sched_switch", rest: trace, ..FULL },
        ),
        ("kubelet 1234 [003] 24915.802750:    1001001 raw 0x1a8: ", Header { event: b"raw 0x1a8", ..FULL }),
        (
            "kubelet 1234 [003] 24915.802750:    1001001 cpu/event=0x3c,umask=0x0/u: ",
            Header { event: b"cpu/event=0x3c,umask=0x0/u", ..FULL },
        ),
    ] {
        assert_eq!(parse(line.as_bytes()), Some(want), "{line}");
    }
    for line in ["", " ", "no header", "\tffffffff821f04e5 f+0x1 ([kernel.kallsyms])", "12 monkeys", "::", "[003]"] {
        assert_eq!(parse(line.as_bytes()), None, "{line}");
    }
}

#[test]
fn the_only_frame_of_a_sample_without_call_chain() {
    for (line, symbol) in [
        ("one 5 [000] 1.000002:       1000 cycles:u:      7f0000001000 foo+0x3 (/bin/one)", Some("foo")),
        ("one 5 [000] 1.000002:      7f0000001000 foo+0x3 (/bin/one)", Some("foo")),
        (
            "one 5 [000] 1.000002:       1000 cycles:u:  ffffffff821f04e5 f::g(int)+0x3 ([kernel.kallsyms])",
            Some("f::g(int)"),
        ),
        (
            "one 5 [000] 1.000002: sched:sched_switch: prev_comm=a ==> next_prio=0 ffffffff821f5618 __schedule+0x618 ([kernel.kallsyms])",
            Some("__schedule"),
        ),
        ("one 5 [000] 1.000002: sched:sched_switch: prev_comm=a ==> next_prio=0", None),
        ("one 5 [000] 1.000002: probe:vfs_read: (ffffffff811e4700)", None),
        ("one 5 [000] 1.000002:       1000 cycles:u: ", None),
    ] {
        let header = parse(line.as_bytes()).unwrap_or_else(|| panic!("{line}"));
        assert_eq!(only_frame(&header).map(|frame| frame.symbol), symbol.map(str::as_bytes), "{line}");
    }
}

proptest! {
    #[test]
    fn the_usual_form_and_the_whole_grammar_agree(line in "[a-z/: ]{0,12}[0-9 ]{0,5}( [0-9]{1,4})?( \\[[0-9]{3}\\])? {0,2}([0-9]{1,3}\\.[0-9]{6}:)? {0,2}([0-9]{1,7} )?(cycles|a:b|[a-z:]{0,8}):? ?[a-z=]{0,4}") {
        for last in ["", "cycles", "a:b"] {
            let fast = task_and_rest(line.as_bytes()).and_then(|(task, rest)| {
                let Header { comm, tid, .. } = usual_task(task)?;
                Some(Header { comm, tid, ..usual_rest(rest, last.as_bytes())? })
            });
            if fast.is_some() {
                prop_assert_eq!(fast, parse(line.as_bytes()));
            }
        }
    }

    #[test]
    fn a_header_gives_back_what_was_printed(
        comm in "[A-Za-z(/][-A-Za-z0-9:._/ ()]{0,13}[A-Za-z)]", pid in 0u32..4_000_000, tid in 0u32..4_000_000, core in 0u32..9999,
        seconds in 0u64..10_000_000, micros in 0u64..1_000_000, period in 0u64..u64::MAX / 10, both: bool,
    ) {
        let ids = if both { format!("{pid:7}/{tid:<7}") } else { format!("{tid:7}") };
        let line = format!("{comm} {ids} [{core:03}] {seconds:5}.{micros:06}: {period:10} cycles:u: ");
        let want = Header {
            comm: comm.as_bytes(), pid: both.then_some(pid), tid: Some(tid), core: Some(core),
            time: Some(seconds * 1_000_000_000 + micros * 1000), period: Some(period), event: b"cycles:u", rest: b" ",
        };
        prop_assert_eq!(parse(line.as_bytes()), Some(want));
    }

    #[test]
    fn any_bytes(line in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Some(header) = parse(&line) {
            only_frame(&header);
        }
    }
}
