use crate::log_events::patterns::tests::SAMPLES;
use crate::rules;
use coroner_evidence::{
    CgroupCensus, CoreSet, CoreTicks, CoreTimes, Counters, CrowdedParent, Evidence, LogLine, MapSource, Nic, NicQueue,
    QueueKind, Source, StatRead, Time, Unit,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Moments that are close together, far apart, and at both ends of what a number can hold.
fn time() -> impl Strategy<Value = Time> {
    prop_oneof![
        4 => (0u64..200_000).prop_map(Time::from_secs),
        4 => (0u64..5_000).prop_map(|ms| super::END - std::time::Duration::from_millis(ms)),
        1 => any::<u64>().prop_map(Time),
    ]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..100, 3 => 0u64..100_000, 2 => 0u64..10_000_000_000, 1 => any::<u64>()]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => select(SAMPLES).prop_map(|(_, line)| line.to_owned()),
        1 => ".{0,80}",
    ]
}

prop_compose! {
    fn line()(at in time(), uncertainty_ns in number(), sequence in 0u64..50, user in 0u8..8, text in text()) -> LogLine {
        LogLine { at, uncertainty_ns, stamp_us: at.0 / 1000, sequence, level: 4, facility: u8::from(user == 0), text }
    }
}

const NAMES: &[&str] = &[
    "total_resets",
    "reset_fail",
    "tx_timeout",
    "wd_expired",
    "suspected_poll_starvation",
    "queue_3_tx_missed_tx",
    "tx-5",
    "quota_us",
    "period_us",
    "nr_periods",
    "nr_throttled",
    "throttled_us",
    "limit_bytes",
    "usage_bytes",
    "limit_hits",
    "high_hits",
    "oom",
    "oom_kill",
    "tracked",
    "live",
    "dying",
    "nf_conntrack_count",
    "nf_conntrack_max",
    "pgscan_direct",
    "pgsteal_direct",
    "pgscan_kswapd",
    "allocstall_normal",
    "workingset_refault_anon",
    "workingset_refault_file",
    "compact_stall",
    "pswpin",
    "pswpout",
    "some_us",
    "full_us",
    "MemTotal",
    "MemAvailable",
    "SwapTotal",
    "SwapFree",
];
const SUBJECTS: &[&str] = &[
    "",
    "eth0",
    "memory",
    "unified",
    "cpu",
    "/",
    "/a",
    "/a/b",
    "/a/b/c",
    "/system.slice/ecs.service",
    "/kubepods/burstable/pod6f9b1c7e-1111-2222-3333-444455556666/c",
];

fn counters() -> impl Strategy<Value = Counters> {
    let point = (select(Source::ALL), select(SUBJECTS), select(NAMES), time(), number());
    vec(point, 0..150).prop_map(|points| {
        let mut counters = Counters::default();
        for (source, subject, name, at, value) in points {
            counters.push(source, subject, name, at, value);
        }
        counters
    })
}

prop_compose! {
    fn unit()(
        at in time(), name in select(&["ecs.service", "sshd.service", "x@1.service", "", "é.service"][..]),
        active in select(&["active", "activating", "failed", ""][..]),
        sub in select(&["running", "auto-restart", "auto-restart-queued", "dead", ""][..]),
        result in option::of(select(&["success", "exit-code"][..])),
        restarts in option::of(prop_oneof![0u32..20, any::<u32>()]), invocation in option::of("[ab]"),
        main_started in option::of(time()), exit_status in option::of(any::<i32>()), delay in option::of(number()),
    ) -> Unit {
        Unit {
            at, name: name.to_owned(), load_state: "loaded".to_owned(), active_state: active.to_owned(),
            sub_state: sub.to_owned(), unit_file_state: None, result: result.map(str::to_owned), restarts,
            invocation_id: invocation, main_started, main_pid: None, exit_kind: Some("exited".to_owned()), exit_status,
            restart_delay_us: delay, cgroup: None,
        }
    }
}

prop_compose! {
    fn census()(
        at in time(), version in 0u8..3, live in number(), tracked in option::of(number()), dying in option::of(number()),
        empty in option::of(number()), truncated in any::<bool>(), children in number(), crowd in 0usize..3,
    ) -> CgroupCensus {
        let parent = CrowdedParent {
            path: "/é".to_owned(), children, empty, dying, example: Some("run-r1.scope".to_owned()),
        };
        CgroupCensus {
            at, version, mount_point: "/sys/fs/cgroup".to_owned(), live, tracked, dying,
            dying_source: "/proc/cgroups".to_owned(), empty, crowded: vec![parent; crowd], truncated, took_ns: live,
        }
    }
}

prop_compose! {
    fn stat_read()(at in time(), took_ns in number(), cpu_ns in option::of(number()), finished in any::<bool>()) -> StatRead {
        StatRead { at, path: "/sys/fs/cgroup/memory/memory.numa_stat".to_owned(), took_ns, cpu_ns, finished }
    }
}

prop_compose! {
    fn nic()(at in time(), index in 0u32..8, core in option::of(0u32..4)) -> Nic {
        let queue = NicQueue {
            kind: QueueKind::Combined, index, map: MapSource::Name, irq: Some(38),
            irq_cores: core.map(|c| CoreSet::new([c])), napi_id: None, napi_tid: None, napi_cores: None, steering: None,
        };
        Nic {
            at, netns: None, name: "eth0".to_owned(), driver: Some("ena".to_owned()),
            bus: Some("0000:20:03.0".to_owned()), up: Some(true), queues: vec![queue],
        }
    }
}

prop_compose! {
    fn evidence()(
        looks in vec(time(), 0..4), counters in counters(), log in vec(line(), 0..40), units in vec(unit(), 0..8),
        cgroup_censuses in vec(census(), 0..3), stat_reads in vec(stat_read(), 0..3), nics in vec(nic(), 0..3),
    ) -> Evidence {
        let core_times = looks
            .into_iter()
            .map(|at| CoreTimes { at, cores: vec![CoreTicks { core: 0, idle: at.0, ..CoreTicks::default() }] })
            .collect();
        Evidence { core_times, counters, log, units, cgroup_censuses, stat_reads, nics, ..Evidence::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_evidence_gets_an_answer_and_every_finding_is_whole(evidence in evidence()) {
        for rule in rules::ALL {
            let answer = (rule.examine)(&evidence);
            match &answer {
                crate::Answer::Fine(why) => prop_assert!(!why.is_empty(), "{} is fine without a reason", rule.code),
                crate::Answer::CannotTell { because, .. } => prop_assert!(!because.is_empty(), "{}", rule.code),
                crate::Answer::Findings(_) => {}
            }
            if let crate::Answer::Findings(findings) = answer {
                prop_assert!(!findings.is_empty(), "{} found nothing", rule.code);
                for finding in findings {
                    prop_assert_eq!(finding.code, rule.code);
                    prop_assert!(!finding.title.is_empty() && !finding.detail.is_empty() && !finding.remedy.is_empty());
                    prop_assert!(!finding.evidence.is_empty(), "{} without evidence", rule.code);
                    prop_assert!(!finding.title.contains("NaN") && !finding.detail.contains("NaN"));
                }
            }
        }
    }
}
