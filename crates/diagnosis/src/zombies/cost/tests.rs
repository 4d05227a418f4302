use super::*;
use crate::kernel_work::test_work::row;
use crate::rules::test_evidence::{END, start, watched};
use crate::zombies::test_scan::scan;
use coroner_evidence::{KernelWork, Node, WorkKind};

fn on(kernel: &str, version: u8, dead: usize) -> (Evidence, ZombieScan) {
    let node = Node { kernel: Some(kernel.to_owned()), cores: Some(2), ..Node::default() };
    let scan = ZombieScan { version, ..scan((0..dead).map(|i| format!("/p/z{i}"))) };
    (Evidence { node: Some(node), ..watched(5) }, scan)
}

fn read(micros: u64) -> StatRead {
    let path = "/sys/fs/cgroup/memory/memory.numa_stat".to_owned();
    StatRead { at: END, path, took_ns: micros * 1000, cpu_ns: Some(micros * 1000), finished: true }
}

/// `kernel` samples, of which `memcg_walk` in walks and `reclaim` in reclaim; walks are part of reclaim as far as they fit.
fn samples(kernel: u64, memcg_walk: u64, reclaim: u64) -> KernelWork {
    let both = memcg_walk.min(reclaim);
    let counts = [
        (WorkKind::ReclaimWalk, both),
        (WorkKind::StatsWalk, memcg_walk - both),
        (WorkKind::Reclaim, reclaim - both),
        (WorkKind::Other, kernel - memcg_walk.max(reclaim)),
    ];
    let rows = counts
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .map(|(kind, n)| WorkRow { symbol: Some("mem_cgroup_iter".to_owned()), ..row(0, 70, "kswapd0", kind, n) });
    KernelWork { from: start(10), to: END, rate_hz: 100, cores: 2, lost: 0, rows: rows.collect() }
}

fn line(cost: &Cost, kind: CostKind) -> &CostLine {
    cost.lines.iter().find(|l| l.kind == kind).unwrap()
}

#[test]
fn an_old_kernel_walks_them_on_each_read() {
    let (mut evidence, scan) = on("5.4.0-216-generic", 1, 2_000);
    let unmeasured = cost(&evidence, &scan);
    assert!(unmeasured.matters.contains("each read of memory.numa_stat walks all of them"), "{}", unmeasured.matters);
    assert!(unmeasured.matters.contains("was not measured"), "{}", unmeasured.matters);
    evidence.stat_reads = vec![read(26_304)];
    assert!(
        cost(&evidence, &scan)
            .matters
            .contains("still quick here: reading /sys/fs/cgroup/memory/memory.numa_stat took 26 ms")
    );
    evidence.stat_reads = vec![read(4_800_000)];
    assert!(cost(&evidence, &scan).matters.contains("This hurts here: reading"), "{}", cost(&evidence, &scan).matters);
}

#[test]
fn a_read_too_dangerous_to_time_is_named_before_a_harmless_one() {
    let (mut evidence, scan) = on("5.4.0-216-generic", 1, 68_000);
    evidence.stat_reads = vec![StatRead { path: "/m/memory.stat".into(), ..read(100) }];
    evidence.unseen_about(
        probe::CGROUPS,
        About::DangerousStatsRead,
        "how long a read of /m/memory.numa_stat takes",
        "too dangerous to time: 4.8 s",
        "drain the node",
    );
    let cost = cost(&evidence, &scan);
    let line = line(&cost, CostKind::StatsRead);
    assert!(
        !line.measured && line.text.contains("4.8 s") && line.text.contains("/m/memory.stat took 100"),
        "{}",
        line.text
    );
    assert_eq!(line.how_to_measure.as_deref(), Some("drain the node"));
    assert!(cost.matters.contains("too dangerous"), "{}", cost.matters);
}

#[test]
fn a_new_kernel_pays_in_reclaim_and_memory() {
    for (kernel, version) in [("6.18.44", 1), ("5.10.0", 1), ("6.1.0-18-amd64", 2), ("5.4.0", 2)] {
        let (mut evidence, scan) = on(kernel, version, 5_000);
        let unmeasured = cost(&evidence, &scan);
        assert!(unmeasured.matters.contains("reading statistics does not walk the dead"), "{}", unmeasured.matters);
        assert!(unmeasured.matters.contains("What reclaim costs was not measured here"), "{}", unmeasured.matters);
        assert!(!line(&unmeasured, CostKind::Reclaim).measured);
        assert!(line(&unmeasured, CostKind::Reclaim).how_to_measure.is_some());
        // On such kernels slow reads are not blamed on the dead.
        evidence.stat_reads = vec![read(4_800_000)];
        assert!(cost(&evidence, &scan).matters.contains("on this kernel the dead are not the cause"));
    }
}

#[test]
fn samples_give_time_and_shares() {
    let (mut evidence, scan) = on("6.18.44", 1, 5_000);
    evidence.kernel_work = vec![samples(500, 100, 400)];
    let measured = cost(&evidence, &scan);
    let work = measured.kernel.as_ref().unwrap();
    assert_eq!((work.reclaim, work.memcg_walk), (Duration::from_secs(4), Duration::from_secs(1)));
    assert_eq!((work.walk_share, work.reclaim_share), (Some(0.2), Some(0.8)));
    assert_eq!(
        line(&measured, CostKind::Reclaim).text,
        "Memory reclaim took 4.0 s of system time in 10 s: 40 % of one core"
    );
    assert!(line(&measured, CostKind::MemcgWalk).text.contains("by kswapd0[70] in mem_cgroup_iter"));
    assert!(measured.matters.contains("Reclaim took 40 % of one core"), "{}", measured.matters);
    evidence.kernel_work = vec![samples(500, 0, 0)];
    let quiet = cost(&evidence, &scan);
    assert!(quiet.matters.contains("hardly any reclaim"), "{}", quiet.matters);
    // There was no reclaim, so its cost was not measured.
    assert!(line(&quiet, CostKind::Reclaim).text.contains("so its cost is unknown"));
    assert!(line(&quiet, CostKind::Reclaim).how_to_measure.is_some());
}

#[test]
fn the_dead_hold_ids_only_on_kernels_before_4_7_or_in_swap() {
    let (evidence, mut dead) = on("5.4.0", 1, 300);
    let used =
        |evidence: &Evidence, scan: &ZombieScan| (cost(evidence, scan).ids.used, cost(evidence, scan).ids.dead_hold);
    assert_eq!(used(&evidence, &dead), (Some(50), Some(false)));
    for zombie in &mut dead.zombies[..7] {
        zombie.held.swap = Some(4096);
    }
    assert_eq!(used(&evidence, &dead), (Some(57), Some(false)));
    let (old, scan) = on("4.4.0-31-generic", 1, 300);
    assert_eq!(used(&old, &scan), (Some(351), Some(true)));
    assert!(line(&cost(&old, &scan), CostKind::Ids).text.contains("351 of 65,535"));
    assert_eq!(used(&watched(5), &scan), (None, None));
    assert!(!line(&cost(&watched(5), &scan), CostKind::Ids).measured);
    assert!(cost(&watched(5), &scan).matters.contains("not known"));
}

#[test]
fn memory_is_measured_where_the_kernel_reports_it() {
    let (mut evidence, scan) = on("6.18.44", 1, 1000);
    let unmeasured = cost(&evidence, &scan);
    assert!(!line(&unmeasured, CostKind::Memory).measured);
    assert!(
        line(&unmeasured, CostKind::Memory).text.contains("the structures of the dead take an estimated 17"),
        "{}",
        line(&unmeasured, CostKind::Memory).text
    );
    evidence.counters.push(Source::Meminfo, "", "Percpu", END, 50 << 20);
    evidence.counters.push(Source::Slab, "mem_cgroup", "bytes", END, 2 << 20);
    evidence.counters.push(Source::Slab, "mem_cgroup_per_node", "bytes", END, 1 << 20);
    let measured = cost(&evidence, &scan);
    assert!(line(&measured, CostKind::Memory).measured);
    assert_eq!(measured.structures.slab_bytes, Some(3 << 20));
    assert_eq!(measured.structures.percpu_bytes, Some(50 << 20));
    assert_eq!(cost(&watched(5), &scan).structures.estimate_bytes, None, "the number of cores is unknown");
}

#[test]
fn few_do_no_harm() {
    let (mut evidence, scan) = on("5.4.0", 1, 40);
    assert_eq!(cost(&evidence, &scan).matters, "So few dead cgroups do no harm on any kernel.");
    evidence.stat_reads = vec![read(200_000)];
    assert!(cost(&evidence, &scan).matters.contains("look for another cause"));
}
