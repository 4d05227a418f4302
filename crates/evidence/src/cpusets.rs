//! Cpusets: cgroups that allow fewer cores than the node has.

use crate::Evidence;
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

impl Evidence {
    /// The cpuset of a thread, if that keeps it from some cores.
    pub fn cpuset_of(&self, tid: u32) -> Option<&Cpuset> {
        self.cpusets.iter().rev().find(|cpuset| cpuset.threads.contains(&tid))
    }

    /// The cgroup whose cpuset keeps a thread on these cores; `None` if its affinity does, or if that is not known.
    pub fn kept_by_cpuset(&self, tid: u32, affinity: &CoreSet) -> Option<&str> {
        self.cpuset_of(tid).filter(|cpuset| cpuset.cores == *affinity).map(|cpuset| cpuset.cgroup.as_str())
    }
}

/// One cgroup's `cpuset.cpus`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpusetLevel {
    pub file: String,
    pub cores: CoreSet,
}
