//! Cpusets: cgroups that allow fewer cores than the node has.

use crate::cores::CoreSet;
use serde::{Deserialize, Serialize};

/// A cpuset with threads that it keeps from some cores. No affinity can lead out of it: sched_setaffinity fails with EINVAL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpuset {
    /// Path in the hierarchy with the cpuset controller.
    pub cgroup: String,
    /// 1 or 2: of the hierarchy.
    pub version: u8,
    /// The cores it allows.
    pub cores: CoreSet,
    /// What to write to in order to widen it: its own file and those of its ancestors that leave cores out, topmost first.
    pub levels: Vec<CpusetLevel>,
    /// Threads in it, by TID.
    pub threads: Vec<u32>,
}

/// One cgroup's `cpuset.cpus`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpusetLevel {
    pub file: String,
    pub cores: CoreSet,
}
