//! The current state of the node and of the recorder, for /metrics.

use coroner_evidence::Wall;
use coroner_report::Dropped;
use std::collections::BTreeMap;
use std::time::Instant;

/// Sums up everything without its own row: tables are bounded.
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
    /// `None` if nothing is reported to a fleet.
    pub report: Option<ReportStatus>,
}

/// The recorder's own diagnoses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiagnosisStatus {
    pub diagnoses: u64,
    pub failures: u64,
    pub cpu_seconds: f64,
    /// Pause until the next one.
    pub pause_seconds: f64,
    /// Problems found by the last one, by code and severity.
    pub problems: BTreeMap<(String, String), u64>,
}

/// Reports to a fleet's collector.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportStatus {
    pub requests: u64,
    pub sent_batches: u64,
    /// Compressed, without headers.
    pub sent_bytes: u64,
    /// Requests that will be repeated.
    pub failures: u64,
    /// Batches that the collector will never take.
    pub refused_batches: u64,
    /// Rows dropped because the spool was full or a batch was refused.
    pub dropped: Dropped,
    pub spool_bytes: u64,
    pub spool_batches: u64,
    pub last_success: Option<Instant>,
    /// Why the last request failed, if it did.
    pub trouble: Option<String>,
}

/// Filled by the meter from evidence; `None` is what could not be seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeStatus {
    pub zombies: Option<ZombieStatus>,
    /// Seconds in which each core was full of kernel work or taken by a real-time thread.
    pub saturated_seconds: BTreeMap<u32, f64>,
    /// The busiest core of the last ten seconds, and its busy share.
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
    /// The parents with the most dead children; the rest is summed up as `other`.
    pub by_parent: Vec<(String, u64)>,
}

/// Filled by the recorder's threads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnStatus {
    pub started: Wall,
    pub cpu_seconds: f64,
    pub rss_bytes: u64,
    pub disk_bytes: u64,
    pub disk_limit_bytes: u64,
    pub incident_bytes: u64,
    pub segments: u64,
    pub samples: u64,
    /// By core: lost because the ring or the store was full, and throttled by the kernel (estimated).
    pub lost_samples: BTreeMap<u32, u64>,
    pub throttled_samples: BTreeMap<u32, u64>,
    /// The part of `lost_samples` that was read but could not be stored.
    pub lost_behind_rings: BTreeMap<u32, u64>,
    /// Fragments of evidence that the store could not take.
    pub refused_fragments: u64,
    /// Failed commits, and the seconds of evidence lost by them.
    pub failed_commits: u64,
    pub lost_seconds: f64,
    /// Time of the last successful commit.
    pub last_commit: Option<Instant>,
    /// Why the last commit failed, if it did.
    pub trouble: Option<String>,
}
