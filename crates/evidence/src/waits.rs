//! The wait ledger: for every thread, the time it ran, waited for a core, was throttled, or was blocked; and for every wait, who had
//! that core meanwhile.
//!
//! These are sums over an interval. `coroner-diagnosis` (module `waits`) says what they mean: who lost markedly, and to whom.

use crate::tasks::SchedulingClass;
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// The books of one interval. Intervals follow each other; sums of a longer time are sums over intervals.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitLedger {
    pub from: Time,
    pub to: Time,
    pub method: LedgerMethod,
    /// How much of the interval was watched: less than its length if the ledger worked in slices to bound its cost.
    pub watched_ns: u64,
    pub parties: Vec<Party>,
    pub accounts: Vec<Account>,
    pub charges: Vec<Charge>,
    pub blocks: Vec<Block>,
    /// Of the cgroups of those who waited or ran meanwhile, and of their ancestors.
    pub weights: Vec<CgroupWeight>,
    /// Waits seen but not charged because a table was full.
    pub unbooked_ns: u64,
}

/// What a cgroup weighs against its siblings when they compete for a core.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupWeight {
    /// Path in the hierarchy with the cpu controller.
    pub path: String,
    /// cpu.shares (v1; 1024 unless set) or cpu.weight (v2; 100 unless set).
    pub weight: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LedgerMethod {
    /// Every switch and wake-up was seen.
    Bpf,
    /// From schedstat, thread states and samples of who ran.
    #[default]
    Estimate,
}

/// Who runs or waits: the threads of a process that compete alike (same cgroup, class, priority), or short-lived processes with the same
/// parent, name and cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// Names the party within this ledger only.
    pub id: u32,
    /// `None`: short-lived processes, summed.
    pub pid: Option<u32>,
    /// The process that started it. Known for short-lived processes.
    pub parent_pid: Option<u32>,
    pub parent_comm: Option<String>,
    /// Name of the process (its main thread).
    pub comm: String,
    pub kernel: bool,
    /// Path in the hierarchy with the cpu controller; `None` if it is gone or was not found.
    pub cgroup: Option<String>,
    pub class: SchedulingClass,
    /// 1 to 99 for real-time threads, else 0.
    pub rt_priority: u8,
    pub nice: i8,
    /// Threads that ended in the interval.
    pub ended: u64,
}

/// Where a thread's time went. `slept_ns` is what remains, so that the books balance: for a thread that lived through the whole interval
/// the five add up to `watched_ns`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub party: u32,
    /// `None`: the party's threads that ended, summed.
    pub tid: Option<u32>,
    pub ran_ns: u64,
    /// Wanted to run and could have, but for others on the core.
    pub waited_ns: u64,
    /// Wanted to run, but its cgroup had used up its quota.
    pub throttled_ns: u64,
    /// In uninterruptible sleep (state D).
    pub blocked_ns: u64,
    pub slept_ns: u64,
    pub longest_wait_ns: u64,
    /// How often it got to run.
    pub runs: u64,
    /// Waits for a core that ended, and one that had not ended when the interval did.
    pub waits: u64,
    /// How long the wait that had not ended has lasted, since before this interval if so. 0: none.
    pub open_wait_ns: u64,
}

/// Time that a party waited for a core, and who had that core.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// Who waited.
    pub victim: u32,
    /// `None`: threads of the party that ended, or that had no room of their own.
    pub tid: Option<u32>,
    pub to: Runner,
    pub core: u32,
    pub ns: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runner {
    Party(u32),
    /// The core was idle: it was on its way, or the hypervisor had the core.
    Idle,
    /// Many who had a little each.
    Others,
    /// Who ran is no longer known.
    #[default]
    Unknown,
}

/// Uninterruptible sleep at one place in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    pub party: u32,
    pub tid: Option<u32>,
    /// Within the interval.
    pub ns: u64,
    pub longest_ns: u64,
    pub times: u64,
    /// When the one that goes on began; `None`: none goes on.
    pub since: Option<Time>,
    /// Kernel functions, innermost first, without scheduler functions. Empty: the stack could not be read.
    pub stack: Vec<String>,
    /// The file it works on, or the device (`/data/x`, `sda1`), if known.
    pub on: Option<String>,
    /// Who ended the last block.
    pub waker_comm: Option<String>,
}
