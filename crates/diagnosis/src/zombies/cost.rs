//! What the dead cost on this node: what was measured, what was not, and which of it matters on this kernel.
//!
//! What we measured elsewhere says where to look; it never replaces a measurement here.

use crate::kernel_work::Work;
use crate::memcg_size::MemcgSize;
use crate::rules::slow_memcg_stat;
use crate::words::{bytes, count, duration_words, percent};
use coroner_evidence::{About, Evidence, Order, Source, StatRead, Unseen, WorkRow, ZombieScan, probe};
use coroner_report::named;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Memory cgroups have 16-bit ids (MEM_CGROUP_ID_MAX in mm/memcontrol.c).
pub const ID_LIMIT: u64 = 65_535;

/// From here on a removed cgroup gives its id back at once, unless some of its memory is swapped out (commit 73f576c04b94, "fix
/// cgroup creation failure after many small jobs"; mem_cgroup_css_offline). We had 66,171 dead ones on 6.18.
const DEAD_GIVE_IDS_BACK: Version = (4, 7);

/// Before this, v1 memory.numa_stat walked every cgroup, the dead included; v2 and memory.stat until 5.2 (mm/memcontrol.c).
const V1_STATS_WALK_BEFORE: Version = (5, 8);
const V2_STATS_WALK_BEFORE: Version = (5, 2);

/// Booting leaves about 40; so few do no harm on any kernel.
const TOO_FEW: u64 = 100;

/// A share of one core that is worth naming.
const FELT_CORE: f64 = 0.02;

const MOST_TASKS: usize = 8;
const MOST_SYMBOLS: usize = 12;

type Version = (u32, u32);

#[derive(Debug, Clone)]
pub struct Cost {
    /// The slowest guarded read of the root's statistics.
    pub stats_read: Option<StatRead>,
    /// From samples of the kernel while watched.
    pub kernel: Option<SampledWork>,
    pub structures: Structures,
    pub ids: Ids,
    /// One for each kind, for people.
    pub lines: Vec<CostLine>,
    /// Which of these matters on this kernel, in a sentence or two.
    pub matters: String,
}

named! {
    pub enum CostKind {
        StatsRead = "stats-read",
        Reclaim = "reclaim",
        MemcgWalk = "memcg-walk",
        Memory = "memory",
        Ids = "ids",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostLine {
    pub kind: CostKind,
    pub measured: bool,
    /// One sentence: what was measured, or that it was not, and what else is known.
    pub text: String,
    /// Set if it was not measured.
    pub how_to_measure: Option<String>,
}

/// What samples of the kernel show, over all stretches.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledWork {
    pub over: Duration,
    pub cores: u32,
    /// System time of all cores.
    pub system: Duration,
    /// Of that, time spent walking memory cgroups, and in reclaim.
    pub memcg_walk: Duration,
    pub reclaim: Duration,
    /// Shares of the system time; `None` if there was none.
    pub walk_share: Option<f64>,
    pub reclaim_share: Option<f64>,
    /// Who did it and in which functions, most first.
    pub by_task: Vec<TaskSamples>,
    pub by_symbol: Vec<SymbolSamples>,
    /// Samples that the kernel had no room for: the times are lower bounds.
    pub lost: u64,
}

/// Samples of one task in either.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskSamples {
    pub pid: u32,
    pub comm: String,
    pub memcg_walk: u64,
    pub reclaim: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SymbolSamples {
    pub symbol: String,
    pub samples: u64,
}

impl SampledWork {
    /// How much of one core reclaim took.
    pub fn reclaim_cores(&self) -> f64 {
        self.reclaim.as_secs_f64() / self.over.as_secs_f64().max(0.001)
    }

    pub fn walk_cores(&self) -> f64 {
        self.memcg_walk.as_secs_f64() / self.over.as_secs_f64().max(0.001)
    }
}

/// Memory taken by the structures themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Structures {
    /// Slab caches of memory cgroups, live ones included, if the kernel has separate caches for them.
    pub slab_bytes: Option<u64>,
    /// All per-CPU memory of the kernel; most of it belongs to cgroups if there are many.
    pub percpu_bytes: Option<u64>,
    /// For the dead, from the size of one as measured on several kernels ([`MemcgSize`]); at most what the node reports.
    pub estimate_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// Ids in use; `None` if unknown.
    pub used: Option<u64>,
    pub limit: u64,
    /// Whether the dead hold ids on this kernel; `None` if the kernel version is unknown.
    pub dead_hold: Option<bool>,
}

pub fn cost(evidence: &Evidence, scan: &ZombieScan) -> Cost {
    let release = evidence.node.as_ref().and_then(|node| node.kernel.as_deref());
    let kernel = release.and_then(parse_version);
    let walks = stats_walk(evidence, scan.version);
    let mut cost = Cost {
        stats_read: evidence.stat_reads.iter().max_by_key(|r| (!r.finished, r.cpu_ns.unwrap_or(r.took_ns))).cloned(),
        kernel: kernel_work(evidence),
        structures: structures(evidence, scan),
        ids: ids(scan, kernel),
        lines: Vec::new(),
        matters: String::new(),
    };
    cost.lines = vec![
        stats_line(evidence, &cost),
        reclaim_line(evidence, &cost),
        walk_line(evidence, &cost),
        memory_line(&cost),
        ids_line(&cost, release),
    ];
    cost.matters = matters(evidence, scan, &cost, release, walks);
    cost
}

/// Whether a read of memory statistics walks every cgroup on this kernel; `None` if its version is unknown.
pub fn stats_walk(evidence: &Evidence, cgroup_version: u8) -> Option<bool> {
    let kernel = evidence.node.as_ref()?.kernel.as_deref().and_then(parse_version)?;
    Some(kernel < if cgroup_version == 1 { V1_STATS_WALK_BEFORE } else { V2_STATS_WALK_BEFORE })
}

fn parse_version(release: &str) -> Option<Version> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn kernel_work(evidence: &Evidence) -> Option<SampledWork> {
    let work = Work::of(evidence)?;
    let of = |row: &WorkRow| row.kind.is_memcg_walk() || row.kind.is_reclaim();
    let mut by_task: BTreeMap<(u32, &str), TaskSamples> = BTreeMap::new();
    for row in evidence.kernel_work.iter().flat_map(|stretch| &stretch.rows).filter(|row| of(row)) {
        let task = by_task.entry((row.pid, &row.comm)).or_insert_with(|| TaskSamples {
            pid: row.pid,
            comm: row.comm.clone(),
            memcg_walk: 0,
            reclaim: 0,
        });
        for (count, counts) in
            [(&mut task.memcg_walk, row.kind.is_memcg_walk()), (&mut task.reclaim, row.kind.is_reclaim())]
        {
            *count = count.saturating_add(if counts { row.samples } else { 0 });
        }
    }
    let mut by_task: Vec<TaskSamples> = by_task.into_values().collect();
    // A sample may count as both.
    by_task.order_by_key(|t| (Reverse(t.memcg_walk.max(t.reclaim)), t.pid));
    by_task.truncate(MOST_TASKS);
    let by_symbol = work.symbols(of).into_iter().take(MOST_SYMBOLS);
    let system = work.time(|_| true);
    let (memcg_walk, reclaim) = (work.time(|row| row.kind.is_memcg_walk()), work.time(|row| row.kind.is_reclaim()));
    let share = |part: Duration| (!system.is_zero()).then(|| part.as_secs_f64() / system.as_secs_f64());
    Some(SampledWork {
        over: work.over(),
        cores: work.cores(),
        system,
        memcg_walk,
        reclaim,
        walk_share: share(memcg_walk),
        reclaim_share: share(reclaim),
        by_task,
        by_symbol: by_symbol.map(|(symbol, samples)| SymbolSamples { symbol: symbol.to_owned(), samples }).collect(),
        lost: work.lost(),
    })
}

fn structures(evidence: &Evidence, scan: &ZombieScan) -> Structures {
    let counters = &evidence.counters;
    let caches = counters.subjects(Source::Slab);
    let slab = caches.iter().filter_map(|cache| counters.last(Source::Slab, cache, "bytes"));
    Structures {
        slab_bytes: slab.fold(None, |sum: Option<u64>, bytes| Some(sum.unwrap_or(0).saturating_add(bytes))),
        percpu_bytes: counters.last(Source::Meminfo, "", "Percpu"),
        estimate_bytes: scan.dead.and_then(|dead| estimate(evidence, dead, scan.tracked)),
    }
}

/// The size of the structures of that many dead. The number of NUMA nodes is unknown: one makes it too small rather than too large.
pub(crate) fn estimate(evidence: &Evidence, dead: u64, tracked: Option<u64>) -> Option<u64> {
    let node = evidence.node.as_ref()?;
    let each = MemcgSize::estimate(node.kernel.as_deref(), node.cores?, 1);
    let each = each.at_most(evidence, tracked.unwrap_or(dead));
    Some(dead.saturating_mul(each.total()))
}

fn ids(scan: &ZombieScan, kernel: Option<Version>) -> Ids {
    let dead_hold = kernel.map(|kernel| kernel < DEAD_GIVE_IDS_BACK);
    // Swapped-out memory refers to its cgroup by id.
    let swapped = scan.zombies.iter().filter(|z| z.held.swap.unwrap_or(0) > 0).count() as u64;
    let used = match dead_hold {
        Some(true) => scan.tracked,
        Some(false) => scan.live.map(|live| live.saturating_add(swapped)),
        None => None,
    };
    Ids { used, limit: ID_LIMIT, dead_hold }
}

fn not_measured(kind: CostKind, what: &str, blind: Option<&Unseen>, otherwise: &str) -> CostLine {
    let why = blind.map(|u| format!(": {}", u.why)).unwrap_or_default();
    CostLine {
        kind,
        measured: false,
        text: format!("{what} was not measured{why}"),
        how_to_measure: Some(blind.map_or_else(|| otherwise.to_owned(), |u| u.how_to_see.clone())),
    }
}

fn measured(kind: CostKind, text: String) -> CostLine {
    CostLine { kind, measured: true, text, how_to_measure: None }
}

fn read_words(read: &StatRead) -> String {
    let took = duration_words(Duration::from_nanos(read.took_ns));
    if !read.finished {
        return format!("{} had not finished after {took}", read.path);
    }
    let cpu = read.cpu_ns.map(|cpu| format!(" ({} of CPU)", duration_words(Duration::from_nanos(cpu))));
    format!("{} took {took}{}", read.path, cpu.unwrap_or_default())
}

fn stats_line(evidence: &Evidence, cost: &Cost) -> CostLine {
    // A read that is too dangerous to time matters more than a harmless one.
    let refused = evidence.why_unseen_about(probe::CGROUPS, &[About::DangerousStatsRead]);
    match (&cost.stats_read, refused) {
        (Some(read), None) => measured(CostKind::StatsRead, format!("Reading {}", read_words(read))),
        (read, blind_to) => {
            let blind_to = blind_to.or_else(|| evidence.why_unseen_about(probe::CGROUPS, &[About::StatsRead]));
            let mut line = not_measured(
                CostKind::StatsRead,
                "How long a read of the root's statistics takes",
                blind_to,
                "run on the node as root for a few seconds",
            );
            if let Some(read) = read {
                line.text.push_str(&format!("; reading {}", read_words(read)));
            }
            line
        }
    }
}

const SAMPLE_IT: &str = "`coroner zombies --watch` as root, while memory is short";

fn reclaim_line(evidence: &Evidence, cost: &Cost) -> CostLine {
    let Some(work) = &cost.kernel else {
        let blind = evidence.why_unseen(probe::KERNEL_SAMPLES);
        return not_measured(CostKind::Reclaim, "System time of memory reclaim", blind, SAMPLE_IT);
    };
    let over = duration_words(work.over);
    if work.reclaim.is_zero() {
        let text = format!("No core was seen in memory reclaim during {over} of sampling, so its cost is unknown");
        return CostLine { kind: CostKind::Reclaim, measured: false, text, how_to_measure: Some(SAMPLE_IT.to_owned()) };
    }
    measured(
        CostKind::Reclaim,
        format!(
            "Memory reclaim took {} of system time in {over}: {} of one core",
            duration_words(work.reclaim),
            percent(work.reclaim_cores())
        ),
    )
}

fn walk_line(evidence: &Evidence, cost: &Cost) -> CostLine {
    let Some(work) = &cost.kernel else {
        let blind = evidence.why_unseen(probe::KERNEL_SAMPLES);
        return not_measured(CostKind::MemcgWalk, "Time spent walking memory cgroups", blind, SAMPLE_IT);
    };
    let share = work.walk_share.map_or_else(|| "none".to_owned(), percent);
    let mut text = format!(
        "Walking memory cgroups took {share} of the kernel's CPU time ({} in {})",
        duration_words(work.memcg_walk),
        duration_words(work.over)
    );
    if let Some(task) = work.by_task.first().filter(|_| !work.memcg_walk.is_zero()) {
        text.push_str(&format!(", most of it by {}[{}]", task.comm, task.pid));
    }
    if let Some(symbol) = work.by_symbol.first().filter(|_| !work.memcg_walk.is_zero()) {
        text.push_str(&format!(" in {}", symbol.symbol));
    }
    if work.lost > 0 {
        text.push_str(&format!("; {} samples were lost, so it is at least that much", count(work.lost)));
    }
    measured(CostKind::MemcgWalk, text)
}

fn memory_line(cost: &Cost) -> CostLine {
    let Structures { slab_bytes, percpu_bytes, estimate_bytes } = cost.structures;
    let estimate = estimate_bytes.map(|n| format!("; the structures of the dead take an estimated {}", bytes(n)));
    let mut parts = Vec::new();
    if let Some(slab) = slab_bytes {
        parts.push(format!("{} in slab caches of memory cgroups (part of what they take)", bytes(slab)));
    }
    if let Some(percpu) = percpu_bytes {
        parts.push(format!("{} of per-CPU memory in the whole kernel", bytes(percpu)));
    }
    let mut line = if parts.is_empty() {
        let how = "see Percpu in /proc/meminfo (Linux 5.1 or later) and /sys/kernel/slab";
        not_measured(CostKind::Memory, "The memory of their structures", None, how)
    } else {
        measured(CostKind::Memory, parts.join(", "))
    };
    line.text.push_str(&estimate.unwrap_or_default());
    line
}

fn ids_line(cost: &Cost, release: Option<&str>) -> CostLine {
    let Ids { used, limit, dead_hold } = cost.ids;
    let (Some(used), Some(dead_hold)) = (used, dead_hold) else {
        let what = "The number of memory cgroup ids in use (of 65,535)";
        let how = "run on the node as root: this takes its kernel version and its cgroup directories";
        return not_measured(CostKind::Ids, what, None, how);
    };
    let release = release.unwrap_or("?");
    let who = if dead_hold {
        format!("on Linux {release} the dead keep theirs")
    } else {
        format!("on Linux {release} the dead give theirs back, except those with memory in swap")
    };
    let share = percent(used as f64 / limit as f64);
    measured(CostKind::Ids, format!("{} of {} cgroup ids are in use ({share}); {who}", count(used), count(limit)))
}

/// Which of these matters here. Never blames slow reads on the dead where they cannot be the cause.
fn matters(evidence: &Evidence, scan: &ZombieScan, cost: &Cost, release: Option<&str>, walks: Option<bool>) -> String {
    let slow = slow_memcg_stat::slowest(evidence);
    if scan.dead.is_some_and(|dead| dead < TOO_FEW) {
        let few = "So few dead cgroups do no harm on any kernel.";
        return match slow {
            Some(read) => format!("{few} Reading {}: look for another cause.", read_words(read)),
            None => few.to_owned(),
        };
    }
    let (Some(release), Some(walks)) = (release, walks) else {
        return "Which of these matters depends on the kernel version, which is not known.".to_owned();
    };
    let file = if scan.version == 1 { "memory.numa_stat" } else { "memory.stat" };
    let mut text = if walks {
        format!(
            "On Linux {release} with cgroup v{}, each read of {file} walks all of them, and memory reclaim visits each of them too: both can get \
             slow. ",
            scan.version
        )
    } else {
        format!(
            "On Linux {release} with cgroup v{}, reading statistics does not walk the dead. What matters is that memory reclaim visits each of \
             them, and that they take memory. ",
            scan.version
        )
    };
    let stats = &cost.lines[0];
    match (slow, walks) {
        (Some(read), true) => text.push_str(&format!("This hurts here: reading {}. ", read_words(read))),
        (Some(read), false) => text.push_str(&format!(
            "Yet reading {}: on this kernel the dead are not the cause. Look for another one. ",
            read_words(read)
        )),
        (None, true) if stats.measured => {
            text.push_str(&format!("Statistics are still quick here: {}. ", lower_first(&stats.text)))
        }
        (None, true) => text.push_str(&format!("{}. ", stats.text)),
        (None, false) => {}
    }
    match &cost.kernel {
        Some(work) if work.reclaim_cores() >= FELT_CORE => {
            let share = percent(work.reclaim_cores());
            let walk = duration_words(work.memcg_walk);
            text.push_str(&format!(
                "Reclaim took {share} of one core while we sampled; walking all cgroups took {walk}."
            ));
        }
        Some(_) => text.push_str("There was hardly any reclaim while we sampled."),
        None => text.push_str("What reclaim costs was not measured here."),
    }
    text.trim_end().to_owned()
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|c| c.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
