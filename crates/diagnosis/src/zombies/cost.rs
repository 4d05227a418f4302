//! What the dead cost on this node: what was measured, and what was not.

use coroner_evidence::{Evidence, KernelSamples, StatRead, ZombieScan};
use std::time::Duration;

/// Memory cgroups have 16-bit ids (MEM_CGROUP_ID_MAX in mm/memcontrol.c).
pub const ID_LIMIT: u64 = 65_535;

#[derive(Debug, Clone)]
pub struct Cost {
    /// The slowest guarded read of the root's statistics.
    pub stats_read: Option<StatRead>,
    /// Samples of the kernel over what was watched.
    pub kernel: Option<KernelWork>,
    pub structures: Option<Structures>,
    pub ids: Ids,
    /// One for each kind, for people; what matters on this kernel first.
    pub lines: Vec<CostLine>,
    /// Which of these matters on this kernel.
    pub matters: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CostKind {
    StatsRead,
    Reclaim,
    MemcgWalk,
    Memory,
    Ids,
}

impl CostKind {
    pub fn as_str(self) -> &'static str {
        match self {
            CostKind::StatsRead => "stats-read",
            CostKind::Reclaim => "reclaim",
            CostKind::MemcgWalk => "memcg-walk",
            CostKind::Memory => "memory",
            CostKind::Ids => "ids",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostLine {
    pub kind: CostKind,
    pub measured: bool,
    /// One sentence: what was measured, or that it was not and what is known besides.
    pub text: String,
    /// Where it was not measured.
    pub how_to_measure: Option<String>,
}

/// What samples of the kernel say, all stretches together.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelWork {
    pub over: Duration,
    pub cores: u32,
    /// System time of all cores.
    pub system: Duration,
    /// Of that, in stepping from memory cgroup to memory cgroup, and in reclaim.
    pub memcg_walk: Duration,
    pub reclaim: Duration,
    /// Shares of the system time; `None` if there was none.
    pub walk_share: Option<f64>,
    pub reclaim_share: Option<f64>,
    /// Most first: task and the share of walking and reclaim that was its.
    pub by_task: Vec<(String, u32, u64)>,
    pub by_symbol: Vec<(String, u64)>,
    pub lost: u64,
}

/// Memory of the structures themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structures {
    /// What all memory cgroups take, live ones included, as far as the kernel tells it apart.
    pub slab_bytes: Option<u64>,
    /// All per-CPU memory of the kernel; most of it is of cgroups where these are many.
    pub percpu_bytes: Option<u64>,
    /// An estimate for the dead, from what one took where we measured it.
    pub estimate_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// Of [`ID_LIMIT`], in use.
    pub used: Option<u64>,
    pub limit: u64,
    /// Whether dead ones hold an id on this kernel; `None` if it is not known which kernel it is.
    pub dead_hold: Option<bool>,
}

pub fn cost(evidence: &Evidence, scan: Option<&ZombieScan>) -> Cost {
    Cost {
        stats_read: evidence.stat_reads.iter().max_by_key(|r| r.cpu_ns.unwrap_or(r.took_ns)).cloned(),
        kernel: kernel_work(&evidence.kernel_samples),
        structures: None,
        ids: Ids { used: scan.and_then(|s| s.live), limit: ID_LIMIT, dead_hold: None },
        lines: Vec::new(),
        matters: String::new(),
    }
}

fn kernel_work(samples: &[KernelSamples]) -> Option<KernelWork> {
    let last = samples.last()?;
    let mut work = KernelWork {
        over: Duration::ZERO,
        cores: last.cores,
        system: Duration::ZERO,
        memcg_walk: Duration::ZERO,
        reclaim: Duration::ZERO,
        walk_share: None,
        reclaim_share: None,
        by_task: Vec::new(),
        by_symbol: Vec::new(),
        lost: 0,
    };
    let (mut kernel, mut walk, mut reclaim) = (0u64, 0u64, 0u64);
    for s in samples {
        let time = |n: u64| Duration::from_secs_f64((n as f64 / f64::from(s.rate_hz.max(1))).min(1e12));
        work.over = work.over.saturating_add(s.to.since(s.from));
        work.system = work.system.saturating_add(time(s.kernel));
        work.memcg_walk = work.memcg_walk.saturating_add(time(s.memcg_walk));
        work.reclaim = work.reclaim.saturating_add(time(s.reclaim));
        work.lost = work.lost.saturating_add(s.lost);
        kernel = kernel.saturating_add(s.kernel);
        walk = walk.saturating_add(s.memcg_walk);
        reclaim = reclaim.saturating_add(s.reclaim);
    }
    if kernel > 0 {
        work.walk_share = Some(walk as f64 / kernel as f64);
        work.reclaim_share = Some(reclaim as f64 / kernel as f64);
    }
    Some(work)
}
