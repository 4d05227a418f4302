use crate::case::Case;
use crate::log_events::patterns::tests::SAMPLES;
use crate::rules;
use coroner_evidence::{
    Born, CgroupCensus, CgroupChurn, Charged, ChildExits, Clocks, Container, CoreSet, CoreTicks, CoreTimes, Counters,
    CrowdedParent, DeadBelow, Evidence, Hold, KernelWork, LogLine, Maker, MapSource, Nic, NicQueue, Node, PinningFile,
    QueueKind, Source, StatRead, Time, TriedInVain, Unit, UnitLogLine, Wall, WorkKind, WorkRow, Zombie, ZombieMethod,
    ZombieScan,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Moments close together, far apart, and at both ends of the range.
pub fn time() -> impl Strategy<Value = Time> {
    prop_oneof![
        4 => (0u64..200_000).prop_map(Time::from_secs),
        4 => (0u64..5_000).prop_map(|ms| super::END - std::time::Duration::from_millis(ms)),
        1 => any::<u64>().prop_map(Time),
    ]
}

pub fn number() -> impl Strategy<Value = u64> {
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
            restart_delay_us: delay, cgroup: None, ..Unit::default()
        }
    }
}

prop_compose! {
    fn more_of_a_unit()(
        unit in unit(), cgroup in option::of(path()), kind in option::of(select(&["simple", "oneshot"][..])),
        main_exited in option::of(time()), cpu_ns in option::of(number()), memory_bytes in option::of(number()),
        timer in any::<bool>(), next_trigger in option::of(number()),
    ) -> Unit {
        let triggered_by = if timer { vec!["x.timer".to_owned()] } else { Vec::new() };
        Unit {
            cgroup, service_type: kind.map(str::to_owned), main_exited, cpu_ns, memory_bytes, triggered_by,
            next_trigger: next_trigger.map(Wall), ..unit
        }
    }
}

prop_compose! {
    fn unit_line()(
        unit in select(&["ecs.service", "x@1.service"][..]), wall in number(), restart in option::of(0u32..9),
        text in select(&["ecs.service: Failed with result 'exit-code'.", ""][..]),
    ) -> UnitLogLine {
        UnitLogLine { unit: unit.to_owned(), at: Wall(wall), text: text.to_owned(), restart }
    }
}

prop_compose! {
    fn child_exits()(
        from in time(), to in time(), parent_pid in 0u32..4, parent in select(&["ecs-init", "sh", "é"][..]), cgroup in option::of(path()),
        comm in select(&["agent", "grep", ""][..]), exits in number(), failed in number(), failed_young in number(),
        exit_code in option::of(any::<i32>()), signal in option::of(any::<i32>()),
    ) -> ChildExits {
        ChildExits {
            from, to, parent_pid, parent_comm: parent.to_owned(), cgroup, comm: comm.to_owned(), exits, failed, failed_young,
            exit_code, signal,
        }
    }
}

prop_compose! {
    fn container()(
        at in time(), runtime in select(&["kubelet", "docker", ""][..]), name in select(&["web", "", "é'"][..]),
        pod in option::of("[ab]"), restarts in number(), started in option::of(number()),
        first_started in option::of(number()), exit_code in option::of(any::<i32>()),
    ) -> Container {
        Container {
            at, runtime: runtime.to_owned(), name: name.to_owned(), namespace: pod.clone(), pod_uid: pod.clone(), id: pod.clone(),
            pod, restarts, started: started.map(Wall), first_started: first_started.map(Wall), exit_code,
        }
    }
}

prop_compose! {
    fn units()(
        units in vec(more_of_a_unit(), 0..8), unit_log in vec(unit_line(), 0..9), child_exits in vec(child_exits(), 0..6),
        containers in vec(container(), 0..6),
    ) -> Evidence {
        Evidence { units, unit_log, child_exits, containers, ..Evidence::default() }
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

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "(/(system.slice|pod[0-9a-f]{8}|[a-z]{2,4}|ecs.service)){1,3}(/[a-z]{1,3}[0-9]{0,2}(\\.scope)?)?",
        1 => select(SUBJECTS).prop_map(str::to_owned),
        1 => "\\PC{0,12}",
    ]
}

prop_compose! {
    fn held()(
        file in number(), swap_backed in number(), unevictable in number(), anonymous in option::of(number()),
        shmem in option::of(number()), kernel in option::of(number()), swap in option::of(number()),
    ) -> Charged {
        Charged { file, swap_backed, unevictable, anonymous, shmem, kernel, swap }
    }
}

prop_compose! {
    fn zombie()(
        id in number(), path in path(), held in held(), born in option::of((time(), any::<bool>())), serial in number(),
    ) -> Zombie {
        let born = born.map(|(at, exact)| Born { at, exact });
        Zombie { id, path, references: Some(1), held, born, directory_lives: false, serial }
    }
}

prop_compose! {
    fn pinning_file()(
        path in option::of(path()), filesystem in select(&["tmpfs", "ext4", "bdev", ""][..]), deleted in any::<bool>(),
        bytes in number(), zombies in number(),
    ) -> PinningFile {
        PinningFile {
            path, seen_by: None, mounted: true, filesystem: filesystem.to_owned(), device: (8, 1), inode: bytes,
            size: bytes, deleted, bytes, zombies,
        }
    }
}

prop_compose! {
    fn zombie_scan()(
        at in time(), method in select(ZombieMethod::ALL), version in 0u8..3, counts in option::of((number(), number())),
        zombies in vec(zombie(), 0..60), files in vec(pinning_file(), 0..8), holds in vec((0u32..70, 0u32..9, number()), 0..60),
        below in vec((path(), option::of(number()), option::of(held())), 0..6), truncated in option::of("why"),
    ) -> ZombieScan {
        let (dead, live) = counts.unzip();
        let holds = holds.into_iter().map(|(zombie, file, bytes)| Hold { zombie, file, bytes }).collect();
        let below = below.into_iter().map(|(parent, dead, held)| DeadBelow { parent, dead, held }).collect();
        let why = TriedInVain { method: "bpf".to_owned(), why: "no BTF".to_owned(), how_to_see: "root".to_owned() };
        ZombieScan {
            at, took_ns: at.0, method, version, tracked: dead, live, dead, leaving: 1, zombies, below, files, holds,
            files_unseen: None, truncated, instead_of: vec![why],
        }
    }
}

prop_compose! {
    fn churn()(
        from in time(), to in time(), parent in path(), pattern in select(&["*", "ecs.service", "a*"][..]),
        born in number(), removed in number(), freed in number(), pid in option::of(any::<u32>()),
    ) -> CgroupChurn {
        let maker = pid.map(|pid| Maker {
            pid, comm: "mkdir".to_owned(), via: None, processes: born, command: None, parent_pid: Some(7),
            parent_comm: None, cgroup: Some(parent.clone()),
        });
        CgroupChurn {
            from, to, parent, pattern: pattern.to_owned(), example: "x".to_owned(), born, removed, freed, maker,
        }
    }
}

prop_compose! {
    fn work_row()(
        core in 0u32..4, tid in 0u32..9, kind in select(WorkKind::ALL), samples in number(), named in any::<bool>(),
    ) -> WorkRow {
        let symbol = named.then(|| "mem_cgroup_iter".to_owned());
        WorkRow { core, pid: 7, tid, comm: "kswapd0".to_owned(), kind, samples, symbol }
    }
}

prop_compose! {
    fn kernel_work()(
        from in time(), to in time(), rate_hz in prop_oneof![Just(0u32), Just(99), any::<u32>()], lost in number(),
        rows in vec(work_row(), 0..5),
    ) -> KernelWork {
        KernelWork { from, to, rate_hz, cores: 2, lost, rows }
    }
}

prop_compose! {
    fn dead()(
        zombie_scans in vec(zombie_scan(), 0..3), cgroup_churn in vec(churn(), 0..6),
        kernel_work in vec(kernel_work(), 0..3), clocks in vec((time(), number(), number()), 0..2),
        kernel in option::of(select(&["5.4.0-216-generic", "6.18.44", "4.4", "x", ""][..])),
    ) -> Evidence {
        let clocks = clocks.into_iter().map(|(at, wall, boot_ns)| Clocks { at, wall: Wall(wall), boot_ns }).collect();
        let node = kernel.map(|kernel| Node { kernel: Some(kernel.to_owned()), ..Node::default() });
        Evidence { zombie_scans, cgroup_churn, kernel_work, clocks, node, ..Evidence::default() }
    }
}

prop_compose! {
    pub fn evidence()(
        looks in vec(time(), 0..4), counters in counters(), log in vec(line(), 0..40), units in units(),
        cgroup_censuses in vec(census(), 0..3), stat_reads in vec(stat_read(), 0..3), nics in vec(nic(), 0..3),
        dead in dead(),
    ) -> Evidence {
        let core_times = looks
            .into_iter()
            .map(|at| CoreTimes { at, cores: vec![CoreTicks { core: 0, idle: at.0, ..CoreTicks::default() }] })
            .collect();
        let Evidence { units, unit_log, child_exits, containers, .. } = units;
        Evidence {
            core_times, counters, log, units, unit_log, child_exits, containers, cgroup_censuses, stat_reads, nics, ..dead
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_evidence_gets_an_answer_and_every_finding_is_complete(evidence in evidence()) {
        if let Some(report) = crate::zombies::report(&evidence) {
            prop_assert!(report.groups.len() <= 20);
            if !report.scan.zombies.is_empty() {
                let dead: Option<u64> = report.groups.iter().map(|g| g.dead).sum();
                prop_assert_eq!(dead, Some(report.scan.zombies.len() as u64), "every zombie is in a group");
            }
            for group in &report.groups {
                prop_assert!(group.per_hour.is_none_or(|rate| rate.value.is_finite()));
            }
            prop_assert_eq!(report.cost.lines.len(), 5);
            prop_assert!(!report.cost.matters.is_empty() && !report.cost.matters.contains("NaN"));
        }
        for cost in crate::units::cost::costs(&evidence).values() {
            prop_assert!(cost.cores.is_none_or(f64::is_finite) && cost.zombies_per_hour.is_none_or(f64::is_finite));
        }
        for rule in rules::ALL {
            let answer = (rule.examine)(&Case::of(&evidence));
            match &answer {
                crate::Answer::Fine(why) => prop_assert!(!why.is_empty(), "{} is fine without a reason", rule.code),
                crate::Answer::CannotTell { because, .. } => prop_assert!(!because.is_empty(), "{}", rule.code),
                crate::Answer::Findings(_) | crate::Answer::NotAsked => {}
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
