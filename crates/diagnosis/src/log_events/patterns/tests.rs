use super::*;
use proptest::prelude::*;

fn nic(line: &str) -> NicEvent {
    match parse(line, Family::Nic) {
        Some(Event::Nic(event)) => event,
        other => panic!("{line:?} gave {other:?}"),
    }
}

fn device(driver: &str, bus: &str, interface: Option<&str>) -> Device {
    Device { driver: Some(driver.into()), bus: Some(bus.into()), interface: interface.map(str::to_owned) }
}

#[test]
fn every_expression_compiles_and_every_pattern_has_a_sample() {
    for pattern in PATTERNS {
        assert!(pattern.regex.as_str().len() > 5);
        let of_it = SAMPLES.iter().filter(|(name, _)| *name == pattern.name).count();
        assert!(of_it > 0, "no sample for {}", pattern.name);
    }
}

/// Every known wording, with the pattern that must read it.
pub(crate) const SAMPLES: &[(&str, &str)] = &[
    (
        "ena-tx-paused",
        "ena 0000:20:03.0 eth0: TX q 5 is paused for too long (threshold 5000000). Time since last napi 6596000 usec. napi scheduled: 1",
    ),
    (
        "ena-tx-paused",
        "ena 0000:20:03.0 eth0: TX q 5 is paused for too long (threshold 5000000). usecs since napi 6596000. napi scheduled: 1. napi CPU: 39. msecs since interrupt: 6600",
    ),
    ("ena-napi", "ena 0000:20:03.0 eth0: napi handler hasn't been called for a long time but is scheduled"),
    ("ena-tx-miss", "ena 0000:00:05.0 eth0: Found a Tx that wasn't completed on time, qid 3, index 521."),
    (
        "ena-tx-miss",
        "ena 0000:00:05.0 eth0: TX hasn't completed, qid: 3, index: 521. 5010000 usecs have passed since last napi execution.",
    ),
    (
        "ena-lost",
        "ena 0000:00:05.0 eth0: The number of lost tx completions is above the threshold (129 > 128). Reset the device",
    ),
    (
        "ena-lost",
        "ena 0000:00:05.0 eth0: Lost TX completions are above the threshold (129 > 128). Completion transfer latency: 5",
    ),
    ("ena-keepalive", "ena 0000:00:05.0 eth0: Keep alive watchdog timeout."),
    ("ena-keepalive", "ena 0000:00:05.0 eth0: Keep alive watchdog timeout, 6012 msecs since last keep alive"),
    ("ena-trigger", "ena 0000:00:05.0 eth0: Trigger reset is on"),
    ("ena-trigger", "ena 0000:00:05.0: Resetting the device"),
    ("ena-trigger", "ena 0000:00:05.0 eth0: ENA admin queue is not in running state!"),
    ("ena-tx-timeout", "ena 0000:00:05.0 eth0: Transmit time out"),
    (
        "ena-done",
        "ena 0000:20:03.0: Device reset completed successfully, Driver info: Elastic Network Adapter (ENA) v2.11.0g",
    ),
    ("ena-done", "ena 0000:20:03.0 eth0: Device reset completed, status: -19"),
    ("netdev-watchdog", "NETDEV WATCHDOG: eth0 (ena): transmit queue 5 timed out"),
    ("netdev-watchdog", "NETDEV WATCHDOG: eth0 (ena): transmit queue 5 timed out 5164 ms"),
    ("netdev-watchdog", "vmxnet3 0000:00:03.0 ens3: NETDEV WATCHDOG: CPU: 1: transmit queue 1 timed out 5164 ms"),
    ("netdev-watchdog", "NETDEV WATCHDOG: CPU: 1: transmit queue 1 timed out 5164 ms"),
    ("mlx5-timeout", "mlx5_core 0000:06:00.0 eth2: TX timeout detected"),
    (
        "mlx5-timeout",
        "mlx5_core 0000:06:00.0 eth2: TX timeout on queue: 7, SQ: 0x123, CQ: 0x4, SQ Cons: 0x5 SQ Prod: 0x6, usecs since last trans: 15400000",
    ),
    (
        "mlx5-health",
        "mlx5_core 0000:06:00.0: print_health_info:430:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:",
    ),
    ("mlx5-health", "mlx5_core 0000:06:00.0 eth2: ERR CQE on SQ: 0x123"),
    ("mlx5-recovery", "mlx5_core 0000:06:00.0: mlx5_health_try_recover:335:(pid 9): starting health recovery flow"),
    ("mlx5-recovery", "mlx5_core 0000:06:00.0: mlx5_fw_fatal_reporter_err_work:662:(pid 9): health recovery failed"),
    ("mlx5-recovery", "mlx5_core 0000:06:00.0: mlx5_health_try_recover:340:(pid 9): health recovery succeeded"),
    ("gve", "gve 0000:00:04.0: Performing reset"),
    ("gve", "gve 0000:00:04.0 eth0: Timeout on tx queue, 3"),
    ("gve", "gve 0000:00:04.0 eth0: Kicking queue 3"),
    ("gve", "gve 0000:00:04.0: Device requested reset."),
    ("gve", "gve 0000:00:04.0: Reset failed! !!! DISABLING ALL QUEUES !!!"),
    ("gve", "gve 0000:00:04.0: AQ commands timed out, need to reset AQ"),
    (
        "virtio-timeout",
        "virtio_net virtio0 eth0: TX timeout on queue: 0, sq: output.0, vq: 0x1, name: output.0, 5420000 usecs ago",
    ),
    ("vmxnet3", "vmxnet3 0000:03:00.0 ens192: tx hang"),
    ("vmxnet3", "vmxnet3 0000:03:00.0 ens192: resetting"),
    ("intel-hang", "ixgbe 0000:03:00.0 enp3s0: Detected Tx Unit Hang\n  Tx Queue             <0>"),
    ("intel-hang", "e1000e 0000:00:1f.6 eno1: Detected Hardware Unit Hang:"),
    ("ixgbe-hang", "ixgbe 0000:01:00.1 enp1s0f1: tx hang 19 detected on queue 4, resetting adapter"),
    ("intel-reset", "ixgbe 0000:01:00.1 enp1s0f1: initiating reset due to tx timeout"),
    ("intel-reset", "ixgbe 0000:01:00.1 enp1s0f1: Reset adapter"),
    ("intel-reset", "e1000e 0000:00:1f.6 eno1: Reset adapter unexpectedly"),
    ("intel-recovery", "ice 0000:b1:00.0 ens801f0np0: tx_timeout recovery level 1, txqueue 14"),
    ("intel-recovery", "i40e 0000:03:00.0 eth0: tx_timeout recovery level 2, hung_queue 3"),
    ("intel-recovery", "i40e 0000:03:00.0 eth0: tx_timeout recovery unsuccessful"),
    ("bnxt-timeout", "bnxt_en 0000:04:00.0 eth0: TX timeout detected, starting reset task!"),
    ("soft-lockup", "watchdog: BUG: soft lockup - CPU#39 stuck for 22s! [kubelet:4711]"),
    ("soft-lockup", "BUG: soft lockup - CPU#3 stuck for 23s! [kworker/3:1:77]"),
    ("hard-lockup", "NMI watchdog: Watchdog detected hard LOCKUP on cpu 7"),
    ("hard-lockup", "watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3"),
    ("hung-task", "INFO: task jbd2/vda1-8:321 blocked for more than 120 seconds."),
    ("hung-task", "INFO: task dd:456 blocked in I/O wait for more than 122 seconds."),
    ("rcu-stall", "rcu: INFO: rcu_sched self-detected stall on CPU"),
    ("rcu-stall", "INFO: rcu_sched self-detected stall on CPU { 3}  (t=5250 jiffies g=1 c=0 q=0)"),
    ("rcu-stall", "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"),
    (
        "rcu-stall",
        "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-...D } 62703 jiffies s: 545 root: 0x2/.",
    ),
    ("rcu-core", "rcu: \t3-....: (20998 ticks this GP) idle=d5e/1/0x4000000000000000 softirq=1/1 fqs=5249"),
    ("rcu-core", "\t12-...!: (1 GPs behind) idle=000/0/0x0 softirq=0/0 fqs=0"),
    ("rcu-thread", "rcu: rcu_sched kthread starved for 5250 jiffies! g1 f0x0 RCU_GP_WAIT_FQS(5) ->state=0x0 ->cpu=1"),
    ("workqueue", "workqueue: drain_vmap_area_work hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND"),
    (
        "workqueue",
        "workqueue: output_poll_execute [drm_kms_helper] hogged CPU for >13333us 8 times, consider switching to WQ_UNBOUND",
    ),
    (
        "oom-summary",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/burstable/pod1,task_memcg=/kubepods/burstable/pod1/c1,task=python3,pid=2343,uid=0",
    ),
    (
        "oom-summary",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/user.slice/session-2.scope,task=node,pid=5678,uid=1000",
    ),
    (
        "oom-killed",
        "Memory cgroup out of memory: Killed process 2343 (python3) total-vm:14012340kB, anon-rss:13925120kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:27000kB oom_score_adj:0",
    ),
    ("oom-killed", "Out of memory: Killed process 91 ((sd-pam)) total-vm:1000kB, anon-rss:500kB, file-rss:0kB"),
    ("oom-killed", "Out of memory (oom_kill_allocating_task): Killed process 91 (a b) total-vm:1000kB, anon-rss:500kB"),
    ("oom-killed", "Memory cgroup out of memory: Kill process 1234 (chrome) score 850 or sacrifice child"),
    ("oom-killed", "Killed process 1234 (chrome), UID 1000, total-vm:2345678kB, anon-rss:1234567kB, file-rss:0kB"),
    ("oom-limit", "Task in /kubepods/pod1/c1 killed as a result of limit of /kubepods/pod1"),
    ("xid", "NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    (
        "xid",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS",
    ),
    (
        "xid",
        "NVRM: Xid (PCI:0000:3b:00): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
    ),
    ("xid", "NVRM: Xid (0000:03:00): 13, 0001 00000000 0000a097 000019a4 00000000 00000000"),
    ("conntrack", "nf_conntrack: table full, dropping packet"),
    ("conntrack", "nf_conntrack: nf_conntrack: table full, dropping packet"),
    ("conntrack", "nf_conntrack: nf_conntrack: table full in netns 4026531840, dropping packet"),
];

#[test]
fn each_sample_is_read_by_its_pattern_and_by_no_other_family() {
    for (name, line) in SAMPLES {
        let pattern = PATTERNS.iter().find(|p| p.name == *name).unwrap_or_else(|| panic!("no pattern {name}"));
        assert!(parse(line, pattern.family).is_some(), "{name} does not read {line:?}");
        // The first pattern that reads it must be the named one.
        let first = PATTERNS
            .iter()
            .filter(|p| p.family == pattern.family)
            .find(|p| p.regex.captures(line).and_then(|captures| (p.read)(&Matched { line, captures })).is_some());
        assert_eq!(first.map(|p| p.name), Some(*name), "{line:?}");
        for family in Family::ALL.iter().filter(|f| **f != pattern.family) {
            assert_eq!(parse(line, *family), None, "{line:?} as {family:?}");
        }
    }
}

#[test]
fn the_line_of_the_incident_is_read() {
    let event = nic(SAMPLES[0].1);
    assert_eq!(event.device, device("ena", "0000:20:03.0", Some("eth0")));
    assert_eq!(event.step, NicStep::PollStarved);
    assert_eq!(event.queue, Some(5));
    assert_eq!(event.since_napi, Some(Duration::from_micros(6_596_000)));
    assert_eq!(event.napi_scheduled, Some(true));
    assert_eq!(event.napi_core, None);
    let newer = nic(SAMPLES[1].1);
    assert_eq!((newer.napi_core, newer.since_napi), (Some(39), event.since_napi));
    let unknown = nic(
        "ena 0000:20:03.0 eth0: TX q 5 is paused for too long (threshold 5). usecs since napi 6. napi scheduled: 0. napi CPU: -1",
    );
    assert_eq!((unknown.napi_core, unknown.napi_scheduled), (None, Some(false)));
}

#[test]
fn the_watchdogs_wordings_name_device_and_queue() {
    let old = nic("NETDEV WATCHDOG: eth0 (ena): transmit queue 5 timed out");
    assert_eq!(old.device, Device { driver: Some("ena".into()), bus: None, interface: Some("eth0".into()) });
    assert_eq!((old.queue, old.silent_for), (Some(5), None));
    let new = nic("vmxnet3 0000:00:03.0 ens3: NETDEV WATCHDOG: CPU: 1: transmit queue 1 timed out 5164 ms");
    assert_eq!(new.device, device("vmxnet3", "0000:00:03.0", Some("ens3")));
    assert_eq!((new.queue, new.silent_for), (Some(1), Some(Duration::from_millis(5164))));
    assert_eq!((new.watchdog_core, new.napi_core), (Some(1), None), "the watchdog's core is not the starved one");
    let bare = nic("NETDEV WATCHDOG: CPU: 1: transmit queue 1 timed out 5164 ms");
    assert_eq!(bare.device, Device::default());
}

#[test]
fn devices_are_read_off_every_kind_of_prefix() {
    assert_eq!(
        nic("ena 0000:20:03.0: Device reset completed successfully").device,
        device("ena", "0000:20:03.0", None)
    );
    assert_eq!(
        nic("mlx5_core 0000:06:00.0: mlx5_health_try_recover:335:(pid 9): starting health recovery flow").device,
        device("mlx5_core", "0000:06:00.0", None)
    );
    let unregistered = nic("ixgbe 0000:03:00.0 eth7 (uninitialized): Reset adapter").device;
    assert_eq!(unregistered.interface.as_deref(), Some("eth7"));
}

#[test]
fn similar_lines_of_other_drivers_are_no_reset() {
    for line in [
        "usb 1-1: Resetting the device",
        "nvme nvme0: I/O 5 QID 3 timeout, reset controller",
        "ata1: hard resetting",
        "foo 0000:00:01.0 wlan0: tx hang",
        "EXT4-fs (vda): mounted filesystem 0000 r/w without journal. Quota mode: none.",
        "ena 0000:00:05.0: ENA device version: 0.10",
    ] {
        assert_eq!(parse(line, Family::Nic), None, "{line}");
    }
}

#[test]
fn stalls_name_who_and_where() {
    let stall = |line| match parse(line, Family::Stall) {
        Some(Event::Stall(event)) => event,
        other => panic!("{line:?} gave {other:?}"),
    };
    assert_eq!(
        stall("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:77]"),
        StallEvent::SoftLockup { core: 3, seconds: 22, comm: "kworker/3:1".into(), pid: 77 }
    );
    assert_eq!(
        stall("INFO: task dd:456 blocked in I/O wait for more than 122 seconds."),
        StallEvent::HungTask { comm: "dd".into(), pid: 456, seconds: 122, io: true }
    );
    assert_eq!(
        stall("INFO: rcu_sched self-detected stall on CPU { 3}  (t=5250 jiffies g=1 c=0 q=0)"),
        StallEvent::Rcu { flavour: "rcu_sched".into(), core: Some(3) }
    );
    assert_eq!(
        stall("rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-...D } 62703 jiffies"),
        StallEvent::Rcu { flavour: "rcu_preempt".into(), core: Some(1) }
    );
    assert_eq!(stall("\t12-...!: (1 GPs behind) idle=000/0/0x0"), StallEvent::RcuCore { core: 12 });
    let owner = "INFO: task nvidia-smi:82355 is blocked on a mutex likely owned by task text-embeddings:4875.";
    assert_eq!(parse(owner, Family::Stall), None, "it only follows the line that counts");
}

#[test]
fn kills_name_victim_and_limit() {
    let oom = |line| match parse(line, Family::Oom) {
        Some(Event::Oom(event)) => event,
        other => panic!("{line:?} gave {other:?}"),
    };
    assert_eq!(
        oom(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/pods/a,task_memcg=/pods/a/b,task=my,app,pid=2343,uid=0"
        ),
        OomEvent::Summary {
            scope: OomScope::Cgroup,
            pid: 2343,
            comm: "my,app".into(),
            limit_of: Some("/pods/a".into()),
            cgroup: Some("/pods/a/b".into()),
        }
    );
    assert_eq!(
        oom(
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/u,task=node,pid=5678,uid=1000"
        ),
        OomEvent::Summary {
            scope: OomScope::Node,
            pid: 5678,
            comm: "node".into(),
            limit_of: None,
            cgroup: Some("/u".into()),
        }
    );
    assert_eq!(
        oom("Out of memory: Killed process 91 ((sd-pam)) total-vm:1000kB, anon-rss:500kB, file-rss:0kB"),
        OomEvent::Killed { scope: Some(OomScope::Node), pid: 91, comm: "(sd-pam)".into(), anon_rss_kb: Some(500) }
    );
    assert_eq!(
        oom("Killed process 1234 (chrome), UID 1000, total-vm:2kB, anon-rss:1kB, file-rss:0kB"),
        OomEvent::Killed { scope: None, pid: 1234, comm: "chrome".into(), anon_rss_kb: Some(1) }
    );
}

#[test]
fn xids_name_gpu_and_process() {
    let xid = |line| match parse(line, Family::Xid) {
        Some(Event::Xid(event)) => event,
        other => panic!("{line:?} gave {other:?}"),
    };
    let lost = xid("NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.");
    assert_eq!((lost.bus.as_str(), lost.xid, lost.pid, lost.process), ("0000:17:00", 79, None, None));
    assert_eq!(lost.message, "GPU has fallen off the bus.");
    let fault = xid("NVRM: Xid (PCI:0000:3B:00): 31, pid=4711, name=python3, Ch 00000008, intr 0. MMU Fault");
    assert_eq!((fault.bus.as_str(), fault.pid, fault.process.as_deref()), ("0000:3b:00", Some(4711), Some("python3")));
}

/// Lines of a healthy log, and some that share a word with a pattern.
fn dull_line(i: usize) -> String {
    match i % 5 {
        0 => format!("pci 0000:00:{:02x}.0: [8086:1237] type 00 class 0x060000 conventional PCI endpoint", i % 32),
        1 => format!(
            "audit: type=1400 audit({i}.1:2): apparmor=\"STATUS\" operation=\"profile_load\" pid={i} comm=\"x\""
        ),
        2 => format!("IPv6: ADDRCONF(NETDEV_CHANGE): veth{i}: link becomes ready"),
        3 => format!("EXT4-fs (vda{i}): mounted filesystem with ordered data mode. Opts: (null). Quota mode: none."),
        _ => format!("systemd[1]: unit-{i}.service: Scheduled restart job, restart counter is at {i}."),
    }
}

/// Every rule reads the whole log, so a dull line must be cheap: no expression may be tried on it.
/// (20,000 lines for all five families: 17 ms, measured on a busy 2-core virtual machine.)
#[test]
fn a_dull_log_costs_one_search_for_words() {
    let lines: Vec<String> = (0..20_000).map(dull_line).collect();
    let events: usize =
        Family::ALL.iter().map(|family| lines.iter().filter(|l| parse(l, *family).is_some()).count()).sum();
    assert_eq!(events, 0);
    let tried = Family::ALL.iter().map(|f| lines.iter().filter(|l| f.words().is_match(l)).count()).sum::<usize>();
    assert_eq!(tried, 0, "lines on which an expression was tried");
}

proptest! {
    #[test]
    fn any_text_is_read_or_ignored(text in ".{0,300}") {
        for family in Family::ALL {
            let _ = parse(&text, *family);
        }
    }

    #[test]
    fn any_damage_to_a_real_line_is_survived(
        i in 0..SAMPLES.len(), cut in 0usize..300, at in 0usize..300, insert in ".{0,8}", digits in "[0-9]{0,40}",
    ) {
        let line = SAMPLES[i].1;
        let clean = |n: usize| (0..=n.min(line.len())).rev().find(|&k| line.is_char_boundary(k)).unwrap_or(0);
        let (cut, at) = (clean(cut), clean(at));
        let damaged = [
            line[..cut].to_owned(),
            line[cut..].to_owned(),
            format!("{}{insert}{}", &line[..at], &line[at..]),
            line.replace(|c: char| c.is_ascii_digit(), &digits),
        ];
        for text in &damaged {
            for family in Family::ALL {
                let _ = parse(text, *family);
            }
        }
    }
}
