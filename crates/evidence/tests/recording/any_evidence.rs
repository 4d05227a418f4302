//! Evidence of every kind, with every value that its types allow.

use crate::any_units::units;
use crate::any_zombies::{cgroup_churn, kernel_work, zombie_scan};
use coroner_evidence::cgroups::{CgroupCensus, CgroupMount, CgroupOwner, CrowdedParent, StatRead};
use coroner_evidence::counters::{Counters, Point, Series, Source};
use coroner_evidence::node::{Gpu, Node, Software};
use coroner_evidence::tasks::{Process, RayProcess, SchedTimes, SchedulingClass, Thread, ThreadKey, ThreadSample};
use coroner_evidence::{
    Clocks, CoreSet, CoreTicks, CoreTimes, Cost, Evidence, LogLine, MapSource, Nic, NicQueue, QueueKind, Time, Unseen,
    Wall,
};
use proptest::array::uniform8;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

pub fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..1000, any::<u64>(), Just(u64::MAX), Just(i64::MAX as u64 + 1)]
}

pub fn time() -> impl Strategy<Value = Time> {
    prop_oneof![(0u64..60).prop_map(Time::from_secs), number().prop_map(Time)]
}

pub fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{0,6}", "\\PC{0,6}", Just("a\0b\n'\"".to_owned())]
}

fn cores() -> impl Strategy<Value = CoreSet> {
    vec(0u32..=65_535, 0..5).prop_map(CoreSet::new)
}

fn software() -> impl Strategy<Value = Software> {
    (text(), any::<Option<bool>>(), of(text()), text()).prop_map(|(name, running, version, seen_by)| Software {
        name,
        running,
        version,
        seen_by,
    })
}

fn node() -> impl Strategy<Value = Node> {
    let gpu = (text(), of(text()), of(text())).prop_map(|(bus, model, driver)| Gpu { bus, model, driver });
    let texts = vec(of(text()), 14);
    let programs = (of(software()), vec(software(), 0..3), of(software()), vec(gpu, 0..3));
    (texts, of(number()), any::<Option<u32>>(), of(number()), any::<Option<bool>>(), programs).prop_map(
        |(mut texts, booted, cores, memory_bytes, systemd, (kubelet, container_runtimes, ray, gpus))| {
            let mut text = || texts.pop().expect("as many as there are fields");
            Node {
                host: text(),
                machine_id: text(),
                boot_id: text(),
                kernel: text(),
                architecture: text(),
                booted: booted.map(Wall),
                os: text(),
                cores,
                memory_bytes,
                cloud: text(),
                image_id: text(),
                zone: text(),
                instance_type: text(),
                instance_id: text(),
                hypervisor: text(),
                cgroup_version: text(),
                in_container: text(),
                systemd,
                kubelet,
                container_runtimes,
                ray,
                gpus,
            }
        },
    )
}

fn clocks() -> impl Strategy<Value = Clocks> {
    (time(), number(), number()).prop_map(|(at, wall, boot_ns)| Clocks { at, wall: Wall(wall), boot_ns })
}

fn core_times() -> impl Strategy<Value = CoreTimes> {
    let core = (any::<u32>(), uniform8(number())).prop_map(|(core, n)| CoreTicks {
        core,
        user: n[0],
        nice: n[1],
        system: n[2],
        idle: n[3],
        iowait: n[4],
        irq: n[5],
        softirq: n[6],
        steal: n[7],
    });
    (time(), vec(core, 0..4)).prop_map(|(at, cores)| CoreTimes { at, cores })
}

fn process() -> impl Strategy<Value = Process> {
    let ray = (of(text()), of(text()), of(text())).prop_map(|(job_id, submission_id, entry_point)| RayProcess {
        job_id,
        submission_id,
        entry_point,
    });
    let owner = (of(text()), of(text()), of(text())).prop_map(|(unit, pod_uid, container_id)| CgroupOwner {
        unit,
        pod_uid,
        container_id,
    });
    let plain = (time(), any::<u32>(), number(), any::<u32>(), text(), of(text()), any::<bool>());
    (plain, of(text()), of(text()), owner, of(ray)).prop_map(
        |((at, pid, started, ppid, comm, command, kernel), memory_cgroup, cpu_cgroup, owner, ray)| Process {
            at,
            pid,
            started,
            ppid,
            comm,
            command,
            kernel,
            memory_cgroup,
            cpu_cgroup,
            owner,
            ray,
        },
    )
}

fn key() -> impl Strategy<Value = ThreadKey> {
    prop_oneof![
        (0u32..3, 0u64..3).prop_map(|(tid, started)| ThreadKey { tid, started }),
        (any::<u32>(), number()).prop_map(|(tid, started)| ThreadKey { tid, started }),
    ]
}

fn thread() -> impl Strategy<Value = Thread> {
    let class = prop::sample::select(vec![
        SchedulingClass::Other,
        SchedulingClass::Fifo,
        SchedulingClass::RoundRobin,
        SchedulingClass::Batch,
        SchedulingClass::Idle,
        SchedulingClass::Deadline,
        SchedulingClass::Ext,
        SchedulingClass::Unknown,
    ]);
    (time(), key(), any::<u32>(), text(), any::<bool>(), class, any::<u8>(), any::<i8>(), of(cores())).prop_map(
        |(at, key, pid, comm, kernel, class, rt_priority, nice, affinity)| Thread {
            at,
            key,
            pid,
            comm,
            kernel,
            class,
            rt_priority,
            nice,
            affinity,
        },
    )
}

fn thread_sample() -> impl Strategy<Value = ThreadSample> {
    (time(), key(), any::<char>(), any::<u32>(), uniform8(number()), any::<bool>()).prop_map(
        |(at, key, state, core, n, has_sched)| ThreadSample {
            at,
            key,
            state,
            core,
            user_ticks: n[0],
            system_ticks: n[1],
            minor_faults: n[2],
            major_faults: n[3],
            sched: has_sched.then_some(SchedTimes { run_ns: n[4], wait_ns: n[5], slices: n[6] }),
        },
    )
}

fn counters() -> impl Strategy<Value = Counters> {
    let series = (prop::sample::select(Source::ALL), "[ab]{0,1}", text()).prop_map(|(source, subject, name)| Series {
        source,
        subject,
        name,
    });
    let points = vec((time(), number()).prop_map(|(at, value)| Point { at, value }), 0..4);
    vec((series, points), 0..6).prop_map(Counters::from)
}

fn nic() -> impl Strategy<Value = Nic> {
    let kind = prop::sample::select(vec![QueueKind::Rx, QueueKind::Tx, QueueKind::Combined]);
    let map = prop::sample::select(vec![MapSource::Netlink, MapSource::Name, MapSource::Unmapped]);
    let ids = (any::<Option<u32>>(), any::<Option<u32>>(), any::<Option<u32>>());
    let queue = (kind, any::<u32>(), map, ids, of(cores()), of(cores()), of(cores())).prop_map(
        |(kind, index, map, (irq, napi_id, napi_tid), irq_cores, napi_cores, steering)| NicQueue {
            kind,
            index,
            map,
            irq,
            irq_cores,
            napi_id,
            napi_tid,
            napi_cores,
            steering,
        },
    );
    (time(), of(text()), text(), of(text()), of(text()), any::<Option<bool>>(), vec(queue, 0..4))
        .prop_map(|(at, netns, name, driver, bus, up, queues)| Nic { at, netns, name, driver, bus, up, queues })
}

fn cgroup_mount() -> impl Strategy<Value = CgroupMount> {
    (any::<u8>(), vec(text(), 0..4), text(), text()).prop_map(|(version, controllers, mount_point, root)| CgroupMount {
        version,
        controllers,
        mount_point,
        root,
    })
}

fn cgroup_census() -> impl Strategy<Value = CgroupCensus> {
    let crowded = (text(), number(), of(number()), of(number()), of(text()))
        .prop_map(|(path, children, empty, dying, example)| CrowdedParent { path, children, empty, dying, example });
    let counts = (number(), of(number()), of(number()), of(number()));
    (time(), any::<u8>(), text(), counts, text(), vec(crowded, 0..3), any::<bool>(), number()).prop_map(
        |(at, version, mount_point, (live, tracked, dying, empty), dying_source, crowded, truncated, took_ns)| {
            CgroupCensus {
                at,
                version,
                mount_point,
                live,
                tracked,
                dying,
                dying_source,
                empty,
                crowded,
                truncated,
                took_ns,
            }
        },
    )
}

fn stat_read() -> impl Strategy<Value = StatRead> {
    (time(), text(), number(), of(number()), any::<bool>()).prop_map(|(at, path, took_ns, cpu_ns, finished)| StatRead {
        at,
        path,
        took_ns,
        cpu_ns,
        finished,
    })
}

fn log_line() -> impl Strategy<Value = LogLine> {
    (time(), number(), number(), number(), any::<u8>(), any::<u8>(), text()).prop_map(
        |(at, uncertainty_ns, stamp_us, sequence, level, facility, text)| LogLine {
            at,
            uncertainty_ns,
            stamp_us,
            sequence,
            level,
            facility,
            text,
        },
    )
}

/// Few words, so that repeats are frequent.
fn unseen() -> impl Strategy<Value = Unseen> {
    let about = of(proptest::sample::select(coroner_evidence::About::ALL));
    ("[ab]", about, "[ab]", "[ab]", text()).prop_map(|(probe, about, what, why, how_to_see)| Unseen {
        probe,
        about,
        what,
        why,
        how_to_see,
    })
}

fn cost() -> impl Strategy<Value = Cost> {
    (number(), number(), number()).prop_map(|(startup_cpu_ms, cpu_ms, peak_rss_bytes)| Cost {
        startup_cpu_ms,
        cpu_ms,
        peak_rss_bytes,
    })
}

pub fn evidence() -> impl Strategy<Value = Evidence> {
    let seldom = (of(node()), of(cost()), vec(unseen(), 0..5));
    let streams = (vec(core_times(), 0..4), vec(thread_sample(), 0..6), counters());
    let tasks = (vec(clocks(), 0..3), vec(process(), 0..3), vec(thread(), 0..3), vec(nic(), 0..3));
    let cgroups = (vec(cgroup_mount(), 0..3), vec(cgroup_census(), 0..3), vec(stat_read(), 0..3));
    let zombies = (vec(zombie_scan(), 0..3), vec(cgroup_churn(), 0..3), vec(kernel_work(), 0..3));
    (seldom, streams, tasks, cgroups, zombies, vec(log_line(), 0..4), units()).prop_map(
        |(
            (node, cost, unseen),
            (core_times, thread_samples, counters),
            (clocks, processes, threads, nics),
            (cgroup_mounts, cgroup_censuses, stat_reads),
            (zombie_scans, cgroup_churn, kernel_work),
            log,
            units,
        )| Evidence {
            zombie_scans,
            cgroup_churn,
            kernel_work,
            node,
            clocks,
            core_times,
            processes,
            threads,
            thread_samples,
            counters,
            nics,
            cgroup_mounts,
            cgroup_censuses,
            stat_reads,
            log,
            unseen,
            cost,
            ..units
        },
    )
}
