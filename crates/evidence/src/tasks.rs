//! Processes and threads.

use crate::cgroups::CgroupOwner;
use crate::cores::CoreSet;
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// A thread; its start time distinguishes it from an earlier one with the same id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadKey {
    pub tid: u32,
    /// Ticks (1/100 s) after boot.
    pub started: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub at: Time,
    pub pid: u32,
    /// Ticks (1/100 s) after boot.
    pub started: u64,
    pub ppid: u32,
    /// Name of the main thread.
    pub comm: String,
    /// What it runs: the program, or interpreter and script (`python3 train.py`). Without arguments, which may contain secrets.
    pub command: Option<String>,
    pub kernel: bool,
    /// Path in the hierarchy with the memory controller.
    pub memory_cgroup: Option<String>,
    /// Path in the hierarchy with the cpu controller.
    pub cpu_cgroup: Option<String>,
    /// Owner of that cgroup: systemd unit, pod, container.
    pub owner: CgroupOwner,
    pub ray: Option<RayProcess>,
}

/// What a Ray process says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RayProcess {
    pub job_id: Option<String>,
    pub submission_id: Option<String>,
    /// The driver's script, or the task or actor that a worker runs.
    pub entry_point: Option<String>,
}

/// A process that observes: the one that made this evidence, or another coroner beside it. Known by its pid and its program file; anybody
/// may call a process `coroner`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Observer {
    pub at: Time,
    pub pid: u32,
    /// Ticks (1/100 s) after boot.
    pub started: u64,
}

/// How much memory a process has: one of those with the most.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryHolder {
    pub at: Time,
    pub pid: u32,
    /// Ticks (1/100 s) after boot.
    pub started: u64,
    pub comm: String,
    /// Resident, shared pages included (field `rss` of /proc/PID/stat).
    pub resident_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub at: Time,
    pub key: ThreadKey,
    pub pid: u32,
    pub comm: String,
    pub kernel: bool,
    pub class: SchedulingClass,
    /// 1 to 99 for real-time threads, else 0.
    pub rt_priority: u8,
    pub nice: i8,
    /// Where it may run. Read only for threads that matter; `None`: not read.
    pub affinity: Option<CoreSet>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedulingClass {
    #[default]
    Other,
    Fifo,
    RoundRobin,
    Batch,
    Idle,
    Deadline,
    /// sched_ext
    Ext,
    Unknown,
}

impl SchedulingClass {
    pub const ALL: [SchedulingClass; 8] = [
        SchedulingClass::Other,
        SchedulingClass::Fifo,
        SchedulingClass::RoundRobin,
        SchedulingClass::Batch,
        SchedulingClass::Idle,
        SchedulingClass::Deadline,
        SchedulingClass::Ext,
        SchedulingClass::Unknown,
    ];

    /// From the `policy` field of /proc/PID/stat (include/uapi/linux/sched.h).
    pub fn from_policy(policy: u64) -> SchedulingClass {
        match policy {
            0 => SchedulingClass::Other,
            1 => SchedulingClass::Fifo,
            2 => SchedulingClass::RoundRobin,
            3 => SchedulingClass::Batch,
            5 => SchedulingClass::Idle,
            6 => SchedulingClass::Deadline,
            7 => SchedulingClass::Ext,
            _ => SchedulingClass::Unknown,
        }
    }

    /// Whether it takes precedence over every ordinary thread.
    pub fn is_real_time(self) -> bool {
        matches!(self, SchedulingClass::Fifo | SchedulingClass::RoundRobin | SchedulingClass::Deadline)
    }

    pub fn parse(text: &str) -> Option<SchedulingClass> {
        SchedulingClass::ALL.into_iter().find(|class| class.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            SchedulingClass::Other => "SCHED_OTHER",
            SchedulingClass::Fifo => "SCHED_FIFO",
            SchedulingClass::RoundRobin => "SCHED_RR",
            SchedulingClass::Batch => "SCHED_BATCH",
            SchedulingClass::Idle => "SCHED_IDLE",
            SchedulingClass::Deadline => "SCHED_DEADLINE",
            SchedulingClass::Ext => "SCHED_EXT",
            SchedulingClass::Unknown => "unknown",
        }
    }
}

/// What a thread has consumed since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadSample {
    pub at: Time,
    pub key: ThreadKey,
    /// As in /proc/PID/stat: `R` running or waiting to run, `S` sleeping, `D` in uninterruptible sleep …
    pub state: char,
    /// The core it runs on, waits for, or ran on last.
    pub core: u32,
    /// Ticks (1/100 s).
    pub user_ticks: u64,
    pub system_ticks: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// From schedstat. `None` if the kernel lacks it or denies it.
    pub sched: Option<SchedTimes>,
}

/// /proc/PID/task/TID/schedstat.
///
/// The kernel counts a wait only when it ends, as the thread gets to run: a thread that is still waiting has state `R`, unchanged
/// `slices` and unchanged `wait_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedTimes {
    pub run_ns: u64,
    /// Time spent waiting on a run queue.
    pub wait_ns: u64,
    /// How often it got to run.
    pub slices: u64,
}
