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

/// Of `kernel` samples `memcg_walk` in walks, all but those beyond `reclaim` within reclaim.
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
fn an_old_kernel_walks_them_at_each_read() {
    let (mut evidence, scan) = on("5.4.0-216-generic", 1, 2_000);
    let untold = cost(&evidence, &scan);
    assert!(untold.matters.contains("each read of memory.numa_stat walks all of them"), "{}", untold.matters);
    assert!(untold.matters.contains("was not measured"), "{}", untold.matters);
    evidence.stat_reads = vec![read(26_304)];
    assert!(
        cost(&evidence, &scan)
            .matters
            .contains("still quick here: reading /sys/fs/cgroup/memory/memory.numa_stat took 26 ms")
    );
    evidence.stat_reads = vec![read(4_800_000)];
    assert!(cost(&evidence, &scan).matters.contains("It is felt: reading"), "{}", cost(&evidence, &scan).matters);
}

#[test]
fn a_read_too_dangerous_to_time_is_told_instead_of_a_harmless_one() {
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
        let untold = cost(&evidence, &scan);
        assert!(untold.matters.contains("reading statistics does not walk the dead"), "{}", untold.matters);
        assert!(untold.matters.contains("What reclaim costs was not measured here"), "{}", untold.matters);
        assert!(!line(&untold, CostKind::Reclaim).measured);
        assert!(line(&untold, CostKind::Reclaim).how_to_measure.is_some());
        // Slow reads there are not blamed on the dead.
        evidence.stat_reads = vec![read(4_800_000)];
        assert!(cost(&evidence, &scan).matters.contains("not for the dead, on this kernel"));
    }
}

#[test]
fn samples_tell_time_and_shares() {
    let (mut evidence, scan) = on("6.18.44", 1, 5_000);
    evidence.kernel_work = vec![samples(500, 100, 400)];
    let told = cost(&evidence, &scan);
    let work = told.kernel.as_ref().unwrap();
    assert_eq!((work.reclaim, work.memcg_walk), (Duration::from_secs(4), Duration::from_secs(1)));
    assert_eq!((work.walk_share, work.reclaim_share), (Some(0.2), Some(0.8)));
    assert_eq!(
        line(&told, CostKind::Reclaim).text,
        "Memory reclaim took 4.0 s of system time in 10 s: 40 % of one core"
    );
    assert!(line(&told, CostKind::MemcgWalk).text.contains("by kswapd0[70] in mem_cgroup_iter"));
    assert!(told.matters.contains("Reclaim took 40 % of one core"), "{}", told.matters);
    evidence.kernel_work = vec![samples(500, 0, 0)];
    let quiet = cost(&evidence, &scan);
    assert!(quiet.matters.contains("hardly any reclaim"), "{}", quiet.matters);
    // It was measured that there was none; what it would cost was not.
    assert!(line(&quiet, CostKind::Reclaim).text.contains("what it would cost is not known"));
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
fn memory_is_measured_where_the_kernel_tells() {
    let (mut evidence, scan) = on("6.18.44", 1, 1000);
    let untold = cost(&evidence, &scan);
    assert!(!line(&untold, CostKind::Memory).measured);
    assert!(
        line(&untold, CostKind::Memory).text.contains("estimate the structures of the dead take 17"),
        "{}",
        line(&untold, CostKind::Memory).text
    );
    evidence.counters.push(Source::Meminfo, "", "Percpu", END, 50 << 20);
    evidence.counters.push(Source::Slab, "mem_cgroup", "bytes", END, 2 << 20);
    evidence.counters.push(Source::Slab, "mem_cgroup_per_node", "bytes", END, 1 << 20);
    let told = cost(&evidence, &scan);
    assert!(line(&told, CostKind::Memory).measured);
    assert_eq!(told.structures.slab_bytes, Some(3 << 20));
    assert_eq!(told.structures.percpu_bytes, Some(50 << 20));
    assert_eq!(cost(&watched(5), &scan).structures.estimate_bytes, None, "of how many cores nobody knows");
}

#[test]
fn few_are_not_felt() {
    let (mut evidence, scan) = on("5.4.0", 1, 40);
    assert_eq!(cost(&evidence, &scan).matters, "So few dead cgroups are not felt on any kernel.");
    evidence.stat_reads = vec![read(200_000)];
    assert!(cost(&evidence, &scan).matters.contains("has other reasons"));
}
