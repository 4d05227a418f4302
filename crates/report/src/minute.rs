//! One minute of a node, small enough for a fleet to keep.

use crate::Wall;
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "coroner.minute/1";

/// One minute of a node in a few numbers. What was not seen is `None`; counts are for this minute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Minute {
    /// When the minute began.
    pub minute: Wall,
    pub cores: Option<u32>,
    /// Busy share over the minute: the mean of all cores, and the busiest core.
    pub busy_mean: Option<f64>,
    pub busy_max: Option<f64>,
    /// The core that spent the largest share of the minute in the kernel, and that share.
    pub worst_core: Option<u32>,
    pub worst_core_system: Option<f64>,
    /// By core; empty if the cores were not seen.
    pub by_core: Vec<CoreMinute>,
    pub zombies_tracked: Option<u64>,
    pub zombies_live: Option<u64>,
    pub zombies_dead: Option<u64>,
    pub unit_restarts: Option<u64>,
    pub nic_resets: Option<u64>,
    pub softnet_drops: Option<u64>,
    pub oom_kills: Option<u64>,
    /// µs in which something waited for a core, memory or a disk (/proc/pressure, `some`).
    pub cpu_stall_us: Option<u64>,
    pub memory_stall_us: Option<u64>,
    pub io_stall_us: Option<u64>,
    pub samples: Option<u64>,
    pub lost_samples: Option<u64>,
    /// NIC queues whose core was full.
    pub starved_queues: Option<u64>,
    /// µs for which a CPU quota stopped cgroups, summed over them.
    pub throttled_us: Option<u64>,
    /// Pages that processes had to reclaim themselves because the node was short of memory (pgsteal_direct).
    pub direct_reclaim_pages: Option<u64>,
    /// CPU time of the recorder itself, with its diagnoses.
    pub own_cpu_us: Option<u64>,
}

/// One core over a minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreMinute {
    pub core: u32,
    /// Shares between 0 and 1.
    pub busy: f64,
    /// In the kernel: system, interrupts and softirqs.
    pub system: f64,
    /// Seconds in which it was full in the kernel.
    pub saturated_s: f64,
}
