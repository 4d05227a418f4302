//! Nodes in trouble, made by hand: the incident in pieces.

use crate::cores::scene::{Actor, Doing, Load, Scene, time};
use crate::kernel_work::test_work::{row, second};
use crate::zombies::test_scan::scan;
use coroner_evidence::{
    CgroupCensus, CoreSet, Evidence, LogLine, MapSource, Nic, NicQueue, Node, QueueKind, Source, StatRead, Unit,
    WorkKind, ZombieScan,
};
use std::time::Duration;

pub const SECONDS: f64 = 10.0;
pub const KUBELET: u32 = 4711;
/// Where it all happens.
pub const CORE: u32 = 3;
pub const CGROUP: &str = "/system.slice/ecs.service";

/// Eight nearly idle cores, nothing wrong. The kernel is one that walks all cgroups on each read.
pub fn quiet() -> Scene {
    let mut scene = Scene::new(8, SECONDS).all_cores(Load::User, 0.05);
    scene.evidence.node = Some(Node { kernel: Some("5.4.0-216-generic".to_owned()), ..Node::default() });
    scene
}

/// kubelet occupies core 3 for 6.6 s, in the kernel.
pub fn with_full_core(scene: Scene) -> Scene {
    scene.load(CORE, 2.0, 8.6, Load::System, 0.95).with(Actor::new(KUBELET, "kubelet", CORE).in_kernel().between(
        2.0,
        8.6,
        Doing::Run,
    ))
}

/// Samples of a thread in the kernel on a core, from second `from` to `to`.
pub fn work(evidence: &mut Evidence, from: u64, to: u64, core: u32, tid: u32, comm: &str, kind: WorkKind) {
    sampled(evidence);
    for stretch in &mut evidence.kernel_work {
        if stretch.from >= time(from as f64) && stretch.from < time(to as f64) {
            stretch.rows.push(row(core, tid, comm, kind, 92));
        }
    }
}

/// The kernel is sampled throughout, and idle.
pub fn sampled(evidence: &mut Evidence) {
    if evidence.kernel_work.is_empty() {
        evidence.kernel_work = (0..SECONDS as u64).map(|s| second(time(s as f64), Vec::new())).collect();
    }
}

/// Dead cgroups of a path: `before` at the first look, `after` at the last.
pub fn dead(evidence: &mut Evidence, path: &str, before: usize, after: usize) {
    let at = |second: f64, n: usize| ZombieScan { at: time(second), ..scan(vec![path; n]) };
    let merge = |scans: &mut Vec<ZombieScan>, new: ZombieScan| match scans.iter_mut().find(|s| s.at == new.at) {
        None => scans.push(new),
        Some(old) => {
            old.zombies.extend(new.zombies);
            let dead = old.zombies.len() as u64;
            (old.dead, old.tracked) = (Some(dead), Some(dead + 51));
        }
    };
    merge(&mut evidence.zombie_scans, at(0.5, before));
    merge(&mut evidence.zombie_scans, at(SECONDS, after));
}

/// Dead cgroups that were counted but not named.
pub fn dead_without_names(evidence: &mut Evidence, before: u64, after: u64) {
    for (second, dead) in [(0.5, before), (SECONDS, after)] {
        evidence.cgroup_censuses.push(CgroupCensus {
            at: time(second),
            version: 1,
            mount_point: "/sys/fs/cgroup/memory".to_owned(),
            live: 50,
            tracked: Some(dead + 51),
            dying: Some(dead),
            dying_source: "/proc/cgroups".to_owned(),
            took_ns: 1_000_000,
            ..CgroupCensus::default()
        });
    }
}

/// A unit that systemd restarted this often while watched; 0: it just runs.
pub fn unit(evidence: &mut Evidence, name: &str, restarts: u32) {
    for (second, count) in [(0.5, 100), (SECONDS, 100 + restarts)] {
        let ended = restarts > 0;
        evidence.units.push(Unit {
            at: time(second),
            name: name.to_owned(),
            load_state: "loaded".to_owned(),
            active_state: "active".to_owned(),
            sub_state: "running".to_owned(),
            result: Some(if ended { "exit-code" } else { "success" }.to_owned()),
            restarts: Some(if ended { count } else { 0 }),
            invocation_id: Some(if ended { count } else { 0 }.to_string()),
            main_started: Some(time(second) - Duration::from_millis(if ended { 200 } else { 500_000 })),
            exit_kind: ended.then(|| "exited".to_owned()),
            exit_status: ended.then_some(5),
            cgroup: Some(format!("/system.slice/{name}")),
            ..Unit::default()
        });
    }
}

/// That many restarts more, before we looked.
pub fn restarted_before(evidence: &mut Evidence, name: &str, restarts: u32) {
    for unit in evidence.units.iter_mut().filter(|unit| unit.name == name) {
        unit.restarts = unit.restarts.map(|counted| counted + restarts);
    }
}

/// eth0 with its queue 5 on that core, and packets for it.
pub fn nic(evidence: &mut Evidence, core: u32) {
    evidence.nics.push(Nic {
        at: time(0.0),
        netns: None,
        name: "eth0".to_owned(),
        driver: Some("ena".to_owned()),
        bus: Some("0000:20:03.0".to_owned()),
        up: Some(true),
        queues: vec![NicQueue {
            kind: QueueKind::Combined,
            index: 5,
            map: MapSource::Name,
            irq: Some(71),
            irq_cores: Some(CoreSet::new([core])),
            ..NicQueue::default()
        }],
    });
    for (second, n) in [(0.0, 100), (1.0, 900), (9.0, 1000), (SECONDS, 1900)] {
        evidence.counters.push(Source::Interrupts, &format!("cpu{core}"), "71", time(second), n);
        evidence.counters.push(Source::Softirqs, &format!("cpu{core}"), "NET_RX", time(second), n);
    }
}

/// ksoftirqd waits while its core is full.
pub fn starving(core: u32) -> Actor {
    Actor::kernel(222, &format!("ksoftirqd/{core}"), core)
        .until(2.1, Doing::Sleep)
        .until(8.6, Doing::Wait)
        .until(8.7, Doing::Run)
        .until(99.0, Doing::Sleep)
}

pub const DONE: &str =
    "ena 0000:20:03.0: Device reset completed successfully, Driver info: Elastic Network Adapter (ENA) v2.11.0g";
pub const PAUSED: &str = "ena 0000:20:03.0 eth0: TX q 5 is paused for too long (threshold 5000000). Time since last napi 6296000 usec. napi scheduled: 1";

/// A kernel log line whose clock may be off.
pub fn line(evidence: &mut Evidence, second: f64, uncertainty_ms: u64, text: &str) {
    let at = time(second);
    if evidence.log.is_empty() {
        let text = "Linux version 5.4.0-216-generic".to_owned();
        evidence.log.push(LogLine {
            at: time(0.0) - Duration::from_secs(900),
            stamp_us: 1,
            level: 5,
            text,
            ..LogLine::default()
        });
    }
    evidence.log.push(LogLine {
        at,
        uncertainty_ns: uncertainty_ms * 1_000_000,
        stamp_us: at.0 / 1000,
        sequence: at.0 / 1000,
        level: 4,
        facility: 0,
        text: text.to_owned(),
    });
}

pub fn slow_read(evidence: &mut Evidence, ms: u64) {
    evidence.stat_reads.push(StatRead {
        at: time(SECONDS),
        path: "/sys/fs/cgroup/memory/memory.numa_stat".to_owned(),
        took_ns: ms * 1_000_000,
        cpu_ns: Some(ms * 1_000_000),
        finished: true,
    });
}

/// All of it: a crashlooping agent, its dead cgroups, who walks them, the core that this occupies, the NIC that depends on the core, and
/// the line in the kernel log.
pub fn incident() -> Evidence {
    let mut evidence = with_full_core(quiet()).with(starving(CORE)).evidence();
    unit(&mut evidence, "ecs.service", 24);
    restarted_before(&mut evidence, "ecs.service", 19_876);
    unit(&mut evidence, "kubelet.service", 0);
    dead(&mut evidence, CGROUP, 19_976, 20_000);
    work(&mut evidence, 2, 9, CORE, KUBELET, "kubelet", WorkKind::StatsWalk);
    nic(&mut evidence, CORE);
    line(&mut evidence, 8.4, 7, PAUSED);
    line(&mut evidence, 8.5, 7, DONE);
    evidence
}
