//! Do jobs wait for memory to be freed?
//!
//! A node that caches files well has no free memory and is healthy: kswapd frees in the background. It hurts when the allocating
//! threads themselves must reclaim (*direct reclaim*), when pages come back right after they were dropped (*refaults*), or when a
//! cgroup reclaims inside its own limit. Pressure stall information says how much time that costs; the counters say where.
//!
//! /proc/vmstat counts pgscan_direct, pgsteal_direct and allocstall for the node's own reclaim only, not for a cgroup's
//! (mm/vmscan.c: `if (!cgroup_reclaim(sc))`), so the two can be told apart; pressure includes both.

use crate::case::Case;
use crate::cgroup_paths::{cgroup_name, cgroup_owner, is_same_or_below};
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::{Task, Ties};
use crate::units::paths::operand;
use crate::words::{bytes, count, duration_words, list, percent, plural, times};
use coroner_evidence::{CgroupOwner, Evidence, MemoryHolder, Order, Source, Time, probe};
use std::time::Duration;

/// Share of time in which nothing could run because everything waited for memory (`full`). systemd-oomd kills at 60 % over 30 s;
/// 5 % already shows in latencies.
const FULL_WARNING: f64 = 0.05;
const FULL_CRITICAL: f64 = 0.20;
/// Share of time in which at least one thread waited for memory (`some`).
const SOME_WARNING: f64 = 0.20;

/// Pages scanned by allocating threads, per second. One stall scans at least 32 pages (SWAP_CLUSTER_MAX), so this is about thirty
/// stalls a second.
const DIRECT_PAGES_PER_SECOND: f64 = 1_000.0;
/// Direct reclaim or compaction stalls, per second.
const STALLS_PER_SECOND: f64 = 10.0;
/// If pressure is unknown: a node that frees less than 30 % of the scanned pages, at ten times that rate, finds hardly anything to
/// reclaim.
const POOR_EFFICIENCY: f64 = 0.3;
const MUCH_DIRECT: f64 = 10.0 * DIRECT_PAGES_PER_SECOND;

/// A cgroup this close to its limit reclaims for each new page.
const AT_LIMIT: f64 = 0.95;
/// Fewer hits are just a cache that grows up to its limit.
const LIMIT_HITS_PER_SECOND: f64 = 10.0;
const CGROUPS_SHOWN: usize = 5;

/// How many of the largest processes are named.
const HOLDERS_SHOWN: usize = 3;
/// A process that holds half of what is in use is the reason that it is short.
const HOLDS_MOST: f64 = 0.5;
/// Shared memory is worth knowing from a quarter of all memory on.
const MUCH_SHARED: u64 = 4;

#[derive(Debug, Default)]
struct Reclaim {
    direct_scanned: Option<u64>,
    direct_freed: Option<u64>,
    stalls: Option<u64>,
    kswapd_scanned: Option<u64>,
    refaults: Option<u64>,
    compactions: Option<u64>,
    swapped_in: Option<u64>,
    swapped_out: Option<u64>,
}

#[derive(Debug, Clone)]
struct AtLimit<'e> {
    path: &'e str,
    hits: u64,
    usage: Option<u64>,
    limit: Option<u64>,
    /// memory.high, which makes threads sleep, rather than the hard limit.
    high: bool,
    /// The last hit, if it was well before the end.
    until: Option<Time>,
}

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let reclaim = reclaim(evidence);
    let pressure = |name| evidence.counters.moved(Source::Pressure, "memory", name);
    let (some_us, full_us) = (pressure("some_us"), pressure("full_us"));
    if reclaim.direct_scanned.is_none() && some_us.is_none() {
        let unseen = evidence.why_unseen(probe::MEMORY).or_else(|| evidence.why_unseen(probe::PRESSURE));
        return Answer::CannotTell {
            because: unseen
                .map_or_else(|| "neither /proc/vmstat nor memory pressure was read".to_owned(), |u| u.why.clone()),
            how_to_see: unseen.map_or_else(|| "run on the node".to_owned(), |u| u.how_to_see.clone()),
        };
    }
    let Some(window) = evidence.window().map(|w| w.length()).filter(|l| *l >= Duration::from_secs(1)) else {
        return Answer::CannotTell {
            because: "watched for less than a second".to_owned(),
            how_to_see: "watch longer (--for 5s)".to_owned(),
        };
    };
    let secs = window.as_secs_f64();
    let per_second = |n: Option<u64>| n.map(|n| n as f64 / secs);
    let share = |us: Option<u64>| us.map(|us| us as f64 / 1e6 / secs);
    let (some, full) = (share(some_us), share(full_us));

    let direct = per_second(reclaim.direct_scanned).unwrap_or(0.0);
    let node_reclaims =
        direct >= DIRECT_PAGES_PER_SECOND || per_second(reclaim.stalls).unwrap_or(0.0) >= STALLS_PER_SECOND;
    let compacts = per_second(reclaim.compactions).unwrap_or(0.0) >= STALLS_PER_SECOND;
    let severity = match (some, full) {
        (Some(_), Some(full)) if full >= FULL_CRITICAL => Some(Severity::Critical),
        (Some(some), full) if some >= SOME_WARNING || full.unwrap_or(0.0) >= FULL_WARNING => Some(Severity::Warning),
        (Some(_), _) => None,
        (None, _) if !node_reclaims && !compacts => None,
        (None, _) if direct >= MUCH_DIRECT && efficiency(&reclaim).is_some_and(|e| e < POOR_EFFICIENCY) => {
            Some(Severity::Critical)
        }
        (None, _) => Some(Severity::Warning),
    };

    let cgroups = cgroups_at_limit(evidence, secs);
    let facts = facts(evidence, &reclaim, some, full, window);
    let mut findings = Vec::new();
    // Pressure, no reclaim by the node, and a cgroup at its limit: the time is lost in that cgroup.
    let blame_cgroups = severity.is_some() && !node_reclaims && !compacts && !cgroups.is_empty();
    if let Some(severity) = severity
        && !blame_cgroups
    {
        let mut finding =
            node_finding(severity, &reclaim, some, full, window, compacts && !node_reclaims, facts.clone());
        if node_reclaims || !compacts {
            name_holders(case, &mut finding);
        }
        findings.push(finding);
    }
    let cgroup_severity = if blame_cgroups { severity.unwrap_or(Severity::Info) } else { Severity::Info };
    findings.extend(
        cgroups.iter().take(CGROUPS_SHOWN).map(|c| cgroup_finding(c, cgroup_severity, some, full, window, &facts)),
    );
    Answer::from_findings(findings, || fine(evidence, &reclaim, some, full, window))
}

fn reclaim(evidence: &Evidence) -> Reclaim {
    let moved = |name: &str| evidence.counters.moved(Source::Vmstat, "", name);
    let names = evidence.counters.names(Source::Vmstat, "");
    let sum_of = |prefix: &str| {
        let found: Vec<u64> = names.iter().filter(|n| n.starts_with(prefix)).filter_map(|n| moved(n)).collect();
        (!found.is_empty()).then(|| found.into_iter().fold(0u64, u64::saturating_add))
    };
    Reclaim {
        direct_scanned: moved("pgscan_direct"),
        direct_freed: moved("pgsteal_direct"),
        // allocstall before 4.10, then one per zone.
        stalls: sum_of("allocstall"),
        kswapd_scanned: moved("pgscan_kswapd"),
        // workingset_refault before 5.9, then _anon and _file.
        refaults: sum_of("workingset_refault"),
        compactions: moved("compact_stall"),
        swapped_in: moved("pswpin"),
        swapped_out: moved("pswpout"),
    }
}

fn efficiency(reclaim: &Reclaim) -> Option<f64> {
    let scanned = reclaim.direct_scanned.filter(|n| *n > 0)?;
    Some(reclaim.direct_freed? as f64 / scanned as f64)
}

/// Cgroups that kept hitting their own limit while we watched. v2 counts a hit in every ancestor too; the deepest with most of the
/// hits is the one whose limit matters.
fn cgroups_at_limit(evidence: &Evidence, secs: f64) -> Vec<AtLimit<'_>> {
    let counters = &evidence.counters;
    let mut found: Vec<AtLimit> = Vec::new();
    for path in counters.subjects(Source::CgroupMemory) {
        let moved = |name| counters.moved(Source::CgroupMemory, path, name).unwrap_or(0);
        let (max, high) = (moved("limit_hits"), moved("high_hits"));
        let usage = counters.last(Source::CgroupMemory, path, "usage_bytes");
        let limit = counters.last(Source::CgroupMemory, path, "limit_bytes").filter(|l| *l > 0);
        let full = usage.zip(limit).is_some_and(|(u, l)| u as f64 >= AT_LIMIT * l as f64);
        let hits = if full { max } else { 0 };
        let (hits, high) = if high > hits { (high, true) } else { (hits, false) };
        if hits as f64 / secs >= LIMIT_HITS_PER_SECOND {
            let name = if high { "high_hits" } else { "limit_hits" };
            let until = evidence.window().and_then(|w| counters.stopped(Source::CgroupMemory, path, name, w.to));
            found.push(AtLimit { path, hits, usage, limit, high, until });
        }
    }
    let mut deepest: Vec<AtLimit> = found
        .iter()
        .filter(|a| {
            !found
                .iter()
                .any(|b| b.path != a.path && is_same_or_below(b.path, a.path) && b.hits.saturating_mul(2) >= a.hits)
        })
        .cloned()
        .collect();
    deepest.order_by_key(|c| std::cmp::Reverse(c.hits));
    deepest
}

fn facts(evidence: &Evidence, reclaim: &Reclaim, some: Option<f64>, full: Option<f64>, window: Duration) -> Vec<Fact> {
    let round = |share: f64| (share * 1000.0).round() / 10.0;
    let mut facts = Vec::new();
    let pressure = "/proc/pressure/memory";
    if let Some(full) = full {
        facts.push(Fact::new(FactKey::MemoryPressureFull, round(full), pressure));
    }
    if let Some(some) = some {
        facts.push(Fact::new(FactKey::MemoryPressureSome, round(some), pressure));
    }
    let counters = [
        (FactKey::DirectScanned, reclaim.direct_scanned),
        (FactKey::DirectFreed, reclaim.direct_freed),
        (FactKey::DirectStalls, reclaim.stalls),
        (FactKey::KswapdScanned, reclaim.kswapd_scanned),
        (FactKey::Refaults, reclaim.refaults),
        (FactKey::Compactions, reclaim.compactions),
        (FactKey::SwappedIn, reclaim.swapped_in),
        (FactKey::SwappedOut, reclaim.swapped_out),
    ];
    for (key, n) in counters {
        if let Some(n) = n {
            facts.push(Fact::new(key, n, "/proc/vmstat").over(window));
        }
    }
    for (key, name) in [(FactKey::MemoryAvailable, "MemAvailable"), (FactKey::MemoryTotal, "MemTotal")] {
        if let Some(n) = evidence.counters.last(Source::Meminfo, "", name) {
            facts.push(Fact::new(key, n, "/proc/meminfo"));
        }
    }
    facts
}

/// `pressure over 10 s: some 40 %, full 30 %`, to follow `memory`.
fn pressure_words(some: Option<f64>, full: Option<f64>, window: Duration) -> String {
    let over = duration_words(window);
    match (some, full) {
        (Some(some), Some(full)) => format!("pressure over {over}: some {}, full {}", percent(some), percent(full)),
        (Some(some), None) => format!("pressure over {over}: some {}", percent(some)),
        (None, _) => "pressure is unknown (not read)".to_owned(),
    }
}

fn node_finding(
    severity: Severity,
    reclaim: &Reclaim,
    some: Option<f64>,
    full: Option<f64>,
    window: Duration,
    only_compaction: bool,
    facts: Vec<Fact>,
) -> Finding {
    let mut signs = Vec::new();
    if let Some(n) = reclaim.direct_scanned.filter(|n| *n > 0) {
        let freed = efficiency(reclaim).map(|e| format!(" and freed {} of them", percent(e))).unwrap_or_default();
        signs.push(format!("direct reclaim scanned {}{freed}", plural(n, "page", "pages")));
    }
    for (n, one, many) in [
        (reclaim.refaults, "page was read back after it was dropped", "pages were read back after they were dropped"),
        (reclaim.swapped_in, "page was swapped in", "pages were swapped in"),
        (reclaim.compactions, "allocation had to compact memory", "allocations had to compact memory"),
    ] {
        if let Some(n) = n.filter(|n| *n > 0) {
            signs.push(plural(n, one, many));
        }
    }
    let what = if signs.is_empty() { "none in /proc/vmstat".to_owned() } else { list(&signs, 5) };
    let legend = if some.is_some() { " (some: at least one thread waited; full: nothing could run)" } else { "" };
    let title = match (full.filter(|f| *f >= FULL_WARNING), some) {
        (Some(full), _) => format!("The node stalled on memory {} of the time: nothing could run", percent(full)),
        (None, Some(some)) => format!("At least one thread waited for memory {} of the time", percent(some)),
        (None, None) if only_compaction => "Allocations stall because they must compact memory first".to_owned(),
        (None, None) => "Allocations stall because they must free memory first (direct reclaim)".to_owned(),
    };
    let remedy = if only_compaction {
        "Memory is fragmented, not short: let huge pages be made in the background \
         (`echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag`), or reserve them at boot."
    } else {
        "Find what uses the memory: `ps -eo pid,rss,comm --sort=-rss | head`, and `df -h -t tmpfs` (/dev/shm and tmpfs count too). Give jobs memory \
         limits and the node a reserve. Raising vm.min_free_kbytes or vm.watermark_scale_factor wakes kswapd earlier, so that jobs reclaim less."
    };
    Finding {
        code: Code::MemoryReclaim,
        ties: Ties::default(),
        severity,
        subject: Subject::new(SubjectKind::Node, "memory"),
        title,
        detail: format!(
            "Memory {}{legend}. Signs: {what}. This is the node's own reclaim, not one cgroup's limit.",
            pressure_words(some, full, window)
        ),
        evidence: facts,
        remedy: remedy.to_owned(),
    }
}

/// Who has the memory: the largest processes of the last look, and shared memory, which may belong to none of them.
fn name_holders(case: &Case<'_>, finding: &mut Finding) {
    let evidence = case.evidence;
    let total = evidence.counters.last(Source::Meminfo, "", "MemTotal");
    let available = evidence.counters.last(Source::Meminfo, "", "MemAvailable");
    let last = evidence.memory_holders.iter().map(|holder| holder.at).max();
    let mut holders: Vec<&MemoryHolder> =
        evidence.memory_holders.iter().filter(|holder| Some(holder.at) == last).collect();
    holders.order_by_key(|holder| std::cmp::Reverse(holder.resident_bytes));
    let task = |holder: &MemoryHolder| Task { tid: holder.pid, pid: holder.pid, comm: holder.comm.clone() };
    let source = "/proc/PID/stat, rss";
    for holder in holders.iter().take(HOLDERS_SHOWN) {
        let bytes = holder.resident_bytes;
        finding.evidence.push(Fact::new(FactKey::ResidentMemory, bytes, source).of(task(holder).name()));
    }
    let shared = evidence.counters.last(Source::Meminfo, "", "Shmem");
    if let Some(shared) = shared.filter(|shared| total.is_some_and(|total| *shared >= total / MUCH_SHARED)) {
        finding.evidence.push(Fact::new(FactKey::SharedMemory, shared, "/proc/meminfo"));
        finding.detail.push_str(&format!(" Shared memory and files in tmpfs take {}.", bytes(shared)));
    }
    let Some(largest) = holders.first() else {
        finding.detail.push_str(" Who holds the memory was not seen.");
        return;
    };
    let used = total.zip(available).map(|(total, available)| total.saturating_sub(available));
    let of = total.map(|total| format!(" of {}", bytes(total))).unwrap_or_default();
    let home = case.home_of(largest.pid);
    let held = bytes(largest.resident_bytes);
    finding.detail.push_str(&format!(" Most memory is held by {}{home}: {held}{of}.", task(largest).name()));
    // With less, it is just the largest of many.
    if used.is_some_and(|used| largest.resident_bytes as f64 >= HOLDS_MOST * used as f64) {
        finding.ties.culprits.push(task(largest));
        let process = evidence.processes.iter().rev().find(|process| process.pid == largest.pid);
        finding.ties.units.extend(process.and_then(|process| process.owner.unit.clone()));
        finding.remedy = format!(
            "{} holds {held}: give it a memory limit, or make it use less. {}",
            task(largest).name(),
            finding.remedy
        );
    }
}

fn cgroup_finding(
    c: &AtLimit,
    severity: Severity,
    some: Option<f64>,
    full: Option<f64>,
    window: Duration,
    all: &[Fact],
) -> Finding {
    let within = duration_words(window);
    let which = if c.high { "memory.high" } else { "its memory limit" };
    let size = match (c.usage, c.limit) {
        (Some(usage), Some(limit)) => format!(" (using {} of {})", bytes(usage), bytes(limit)),
        _ => String::new(),
    };
    let source = if c.high { "memory.events high" } else { "memory.events max (v1 memory.failcnt)" };
    let mut facts = vec![Fact::new(FactKey::LimitHits, c.hits, format!("{}: {source}", c.path)).over(window)];
    if let Some(usage) = c.usage {
        facts.push(Fact::new(FactKey::Usage, usage, c.path));
    }
    if let Some(limit) = c.limit {
        facts.push(Fact::new(FactKey::Limit, limit, c.path));
    }
    facts.extend(
        all.iter().filter(|f| matches!(f.key, FactKey::MemoryPressureFull | FactKey::MemoryPressureSome)).cloned(),
    );
    let judgement = match severity {
        Severity::Info => "That alone is harmless: the files it reads fill the limit and are dropped again.",
        _ => "The node itself does not reclaim, so the waiting comes from limits like this one.",
    };
    let owner = CgroupOwner::of_path(c.path);
    let remedy = if severity == Severity::Info {
        "Nothing, as long as the job is fast enough.".to_owned()
    } else if owner.pod_uid.is_some() {
        "Raise resources.limits.memory of that container, or make the job use less memory.".to_owned()
    } else if let Some(unit) = owner.unit {
        format!(
            "Raise {} of {unit}: `systemctl set-property {} {}=…`.",
            if c.high { "MemoryHigh=" } else { "MemoryMax=" },
            operand(&unit),
            if c.high { "MemoryHigh" } else { "MemoryMax" }
        )
    } else {
        format!("Raise the memory limit of {} where it is set, or make the job use less memory.", c.path)
    };
    Finding {
        code: Code::MemoryReclaim,
        ties: Ties { until: c.until, ..Ties::of_cgroup(c.path) },
        severity,
        subject: Subject::new(SubjectKind::Cgroup, c.path),
        title: format!("{} hit {which} {} in {within}{size}", cgroup_name(c.path), times(c.hits)),
        detail: format!(
            "Cgroup {}{} is at {which}: its threads must free a page for each new one. The node's memory {}. {judgement}",
            c.path,
            cgroup_owner(c.path),
            pressure_words(some, full, window),
        ),
        evidence: facts,
        remedy,
    }
}

fn fine(evidence: &Evidence, reclaim: &Reclaim, some: Option<f64>, full: Option<f64>, window: Duration) -> String {
    let n = |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), count);
    let limited = evidence.counters.subjects(Source::CgroupMemory).len() as u64;
    format!(
        "memory {}; pages scanned by the node: direct reclaim {}, kswapd {}; {}",
        pressure_words(some, full, window),
        n(reclaim.direct_scanned),
        n(reclaim.kswapd_scanned),
        match limited {
            0 => "no cgroup with a memory limit seen".to_owned(),
            n => format!("{} not held up by their own limits", plural(n, "cgroup", "cgroups")),
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{
        END, cannot_tell, fact, fact_of, findings, fine as is_fine, one, start, watched,
    };

    /// A node watched for 10 s in which these counters rose.
    fn with(moves: &[(Source, &str, &str, u64)]) -> Evidence {
        let mut evidence = watched(10);
        for (source, subject, name, by) in moves {
            evidence.counters.push(*source, subject, name, start(10), 1_000_000);
            evidence.counters.push(*source, subject, name, END, 1_000_000 + by);
        }
        evidence
    }

    fn vm(name: &'static str, by: u64) -> (Source, &'static str, &'static str, u64) {
        (Source::Vmstat, "", name, by)
    }

    fn psi(name: &'static str, millis: u64) -> (Source, &'static str, &'static str, u64) {
        (Source::Pressure, "memory", name, millis * 1000)
    }

    #[test]
    fn a_full_page_cache_that_kswapd_keeps_up_with_is_healthy() {
        let quiet =
            with(&[vm("pgscan_direct", 0), vm("pgscan_kswapd", 900_000), psi("some_us", 20), psi("full_us", 5)]);
        let why = is_fine(examine(&Case::of(&quiet)));
        assert!(why.contains("kswapd 900,000"), "{why}");
        is_fine(examine(&Case::of(&with(&[vm("pgscan_direct", 0), vm("pgscan_kswapd", 900_000)]))));
    }

    #[test]
    fn pressure_decides_where_it_is_known() {
        let at = |some, full| {
            examine(&Case::of(&with(&[vm("pgscan_direct", 500_000), psi("some_us", some), psi("full_us", full)])))
        };
        assert_eq!(one(at(6_000, 2_000)).severity, Severity::Critical);
        assert_eq!(one(at(6_000, 1_999)).severity, Severity::Warning);
        assert_eq!(one(at(500, 500)).severity, Severity::Warning);
        assert_eq!(one(at(2_000, 0)).severity, Severity::Warning);
        is_fine(at(1_999, 499));
    }

    #[test]
    fn without_pressure_direct_reclaim_decides() {
        let direct =
            |scanned, freed| examine(&Case::of(&with(&[vm("pgscan_direct", scanned), vm("pgsteal_direct", freed)])));
        let f = one(direct(10_000, 9_000));
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.detail.contains("freed 90 % of them"), "{}", f.detail);
        assert!(f.detail.contains("unknown"));
        is_fine(direct(9_999, 9_000));
        assert_eq!(one(direct(100_000, 29_000)).severity, Severity::Critical);
        assert_eq!(one(direct(100_000, 31_000)).severity, Severity::Warning);
        // Old kernels have one counter, newer ones one per zone.
        one(examine(&Case::of(&with(&[
            vm("pgscan_direct", 0),
            vm("allocstall_normal", 60),
            vm("allocstall_movable", 40),
        ]))));
    }

    #[test]
    fn compaction_is_reported_apart_from_reclaim() {
        let f = one(examine(&Case::of(&with(&[vm("pgscan_direct", 0), vm("compact_stall", 100)]))));
        assert!(f.title.contains("compact"), "{}", f.title);
        assert!(f.remedy.contains("transparent_hugepage"));
    }

    fn limited(evidence: &mut Evidence, path: &str, hits: u64, usage: u64) {
        let counters = &mut evidence.counters;
        counters.push(Source::CgroupMemory, path, "limit_hits", start(10), 5);
        counters.push(Source::CgroupMemory, path, "limit_hits", END, 5 + hits);
        counters.push(Source::CgroupMemory, path, "usage_bytes", END, usage);
        counters.push(Source::CgroupMemory, path, "limit_bytes", END, 1 << 30);
    }

    #[test]
    fn a_cgroup_at_its_limit_is_blamed_instead_of_the_node() {
        let mut evidence = with(&[vm("pgscan_direct", 0), psi("some_us", 4_000), psi("full_us", 3_000)]);
        limited(&mut evidence, "/system.slice/job.service", 5_000, 1 << 30);
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.subject, Subject::new(SubjectKind::Cgroup, "/system.slice/job.service"));
        assert_eq!(f.severity, Severity::Critical);
        assert_eq!(fact(&f, FactKey::LimitHits), 5_000);
        assert!(f.remedy.contains("MemoryMax"));
    }

    #[test]
    fn both_are_named_if_the_node_reclaims_too() {
        let mut evidence = with(&[vm("pgscan_direct", 500_000), psi("some_us", 4_000), psi("full_us", 3_000)]);
        limited(&mut evidence, "/job", 5_000, 1 << 30);
        let all = findings(examine(&Case::of(&evidence)));
        let kinds: Vec<(SubjectKind, Severity)> = all.iter().map(|f| (f.subject.kind, f.severity)).collect();
        assert_eq!(kinds, [(SubjectKind::Node, Severity::Critical), (SubjectKind::Cgroup, Severity::Info)]);
    }

    #[test]
    fn a_cache_at_its_limit_without_pressure_is_info() {
        let quiet = || with(&[vm("pgscan_direct", 0), psi("some_us", 10), psi("full_us", 0)]);
        let mut evidence = quiet();
        limited(&mut evidence, "/job", 100, 1 << 30);
        assert_eq!(one(examine(&Case::of(&evidence))).severity, Severity::Info);
        let mut few = quiet();
        limited(&mut few, "/job", 99, 1 << 30);
        is_fine(examine(&Case::of(&few)));
        let mut roomy = quiet();
        limited(&mut roomy, "/job", 5_000, 1 << 29);
        is_fine(examine(&Case::of(&roomy)));
    }

    #[test]
    fn of_nested_cgroups_the_deepest_at_its_limit_is_named() {
        let mut evidence = with(&[vm("pgscan_direct", 0), psi("some_us", 4_000), psi("full_us", 3_000)]);
        limited(&mut evidence, "/pods", 5_000, 1 << 30);
        limited(&mut evidence, "/pods/job", 5_000, 1 << 30);
        assert_eq!(one(examine(&Case::of(&evidence))).subject.name, "/pods/job");
    }

    #[test]
    fn nothing_seen_is_not_fine() {
        cannot_tell(examine(&Case::of(&watched(10))));
        let mut short = with(&[vm("pgscan_direct", 0)]);
        short.core_times.pop();
        assert!(cannot_tell(examine(&Case::of(&short))).0.contains("less than a second"));
    }

    fn short_of_memory(holders: &[(u64, u32, &str, u64)]) -> Evidence {
        let mut evidence = with(&[vm("pgscan_direct", 500_000), psi("some_us", 6_000), psi("full_us", 2_000)]);
        for (name, bytes) in [("MemTotal", 24 << 30), ("MemAvailable", 1 << 30), ("Shmem", 1 << 30)] {
            evidence.counters.push(Source::Meminfo, "", name, END, bytes);
        }
        let holder = |(second, pid, comm, bytes): &(u64, u32, &str, u64)| MemoryHolder {
            at: start(*second),
            pid: *pid,
            started: 1,
            comm: (*comm).to_owned(),
            resident_bytes: *bytes,
        };
        evidence.memory_holders = holders.iter().map(holder).collect();
        evidence
    }

    #[test]
    fn who_holds_most_of_the_memory_is_named() {
        let holders = [(10, 70, "hog", 1 << 30), (1, 80, "small", 100 << 20), (1, 70, "hog", 21 << 30)];
        let f = one(examine(&Case::of(&short_of_memory(&holders))));
        assert!(f.detail.contains("Most memory is held by hog[70]: 21.0 GiB of 24.0 GiB."), "{}", f.detail);
        assert_eq!(fact_of(&f, FactKey::ResidentMemory, "hog[70]"), 21_u64 << 30);
        assert_eq!(fact_of(&f, FactKey::ResidentMemory, "small[80]"), 100_u64 << 20);
        assert_eq!(f.ties.culprits[0].name(), "hog[70]");
        assert!(f.remedy.starts_with("hog[70] holds 21.0 GiB"), "{}", f.remedy);
    }

    #[test]
    fn the_largest_of_many_is_named_but_not_blamed() {
        let f = one(examine(&Case::of(&short_of_memory(&[(1, 70, "job", 5 << 30), (1, 71, "job", 4 << 30)]))));
        assert_eq!(f.ties.culprits, []);
        assert_eq!(fact_of(&f, FactKey::ResidentMemory, "job[70]"), 5_u64 << 30);
        assert!(f.detail.contains("held by job[70]: 5.0 GiB"), "{}", f.detail);
        // It may be in files of a tmpfs, which belong to nobody.
        let mut shared = short_of_memory(&[(1, 70, "job", 1 << 30)]);
        shared.counters.push(Source::Meminfo, "", "Shmem", END + Duration::from_secs(1), 20_u64 << 30);
        let f = one(examine(&Case::of(&shared)));
        assert_eq!(fact(&f, FactKey::SharedMemory), 20_u64 << 30);
        assert!(f.detail.contains("files in tmpfs take 20.0 GiB"), "{}", f.detail);
        let f = one(examine(&Case::of(&short_of_memory(&[]))));
        assert!(f.detail.contains("Who holds the memory was not seen."), "{}", f.detail);
    }
}
