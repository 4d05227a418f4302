//! What the recorder knows of the node and of itself at the moment: what /metrics tells.

use std::collections::BTreeMap;
use std::time::Instant;

/// Stands for all that has no row of its own: tables are bounded.
pub const OTHER: &str = "other";

/// Counters count from the recorder's start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    pub node: NodeStatus,
    pub own: OwnStatus,
    /// By code.
    pub incidents: BTreeMap<String, u64>,
    /// `None` until the first one.
    pub diagnoses: Option<DiagnosisStatus>,
}

/// The recorder's own diagnoses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiagnosisStatus {
    pub diagnoses: u64,
    pub failures: u64,
    pub cpu_seconds: f64,
    /// Until the next one.
    pub pause_seconds: f64,
    /// What is wrong by the last one: how many, by code and severity.
    pub problems: BTreeMap<(String, String), u64>,
}

/// Filled by the meter from evidence; `None` is what could not be seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeStatus {
    pub zombies: Option<ZombieStatus>,
    /// Seconds that each core was full in system, interrupt and softirq mode.
    pub saturated_seconds: BTreeMap<u32, f64>,
    /// The core that was busiest in the last ten seconds, and its share there.
    pub worst_core: Option<(u32, f64)>,
    /// NIC queues whose core was full in the last minute.
    pub starved_queues: Option<u64>,
    pub nic_resets: BTreeMap<String, u64>,
    pub unit_restarts: BTreeMap<String, u64>,
    pub softnet_drops: Option<u64>,
    pub oom_kills: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ZombieStatus {
    pub tracked: Option<u64>,
    pub live: Option<u64>,
    pub dead: Option<u64>,
    /// The parents with most dead children; the rest is summed up as `other`.
    pub by_parent: Vec<(String, u64)>,
}

/// Filled by the recorder's threads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnStatus {
    pub started_real_ns: u64,
    pub cpu_seconds: f64,
    pub rss_bytes: u64,
    pub disk_bytes: u64,
    pub disk_limit_bytes: u64,
    pub incident_bytes: u64,
    pub segments: u64,
    pub samples: u64,
    /// By core: no room in the ring or behind it, and held back by the kernel (estimated).
    pub lost_samples: BTreeMap<u32, u64>,
    pub throttled_samples: BTreeMap<u32, u64>,
    /// The part of `lost_samples` that we had read and could not keep.
    pub lost_behind_rings: BTreeMap<u32, u64>,
    /// Fragments of evidence that the store could not take.
    pub refused_fragments: u64,
    /// Commits that failed, and seconds that were given up because of it.
    pub failed_commits: u64,
    pub lost_seconds: f64,
    /// When a commit succeeded last.
    pub last_commit: Option<Instant>,
    /// Why the last commit failed, if it did.
    pub trouble: Option<String>,
}
