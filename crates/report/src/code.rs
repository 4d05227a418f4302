//! The codes that people cite, and their pages.

use crate::name::{Name, named};
use std::fmt;

macro_rules! codes {
    ($($variant:ident = $text:literal,)*) => {
        /// What can be wrong with a node. A code never changes; its page is docs/findings/CODE.md.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $($variant,)*
            /// Of a newer version than this one.
            Other(Name),
        }

        impl Code {
            pub const ALL: &[Code] = &[$(Code::$variant,)*];

            pub fn as_str(&self) -> &str {
                match self {
                    $(Code::$variant => $text,)*
                    Code::Other(name) => name.as_str(),
                }
            }

            pub fn parse(text: &str) -> Option<Code> {
                match text { $($text => Some(Code::$variant),)* _ => None }
            }

            /// The page that `--explain` prints.
            pub fn page(self) -> &'static str {
                match self {
                    $(Code::$variant => include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/findings/", $text, ".md")),)*
                    Code::Other(_) => "This version of coroner has no page for this code.\n",
                }
            }
        }
    };
}

codes! {
    CoreSaturated = "core-saturated",
    CoreMonopolised = "core-monopolised",
    NicCoreStarved = "nic-core-starved",
    NicReset = "nic-reset",
    NicAllowance = "nic-allowance",
    SoftnetDrop = "softnet-drop",
    CpuThrottled = "cpu-throttled",
    MemoryReclaim = "memory-reclaim",
    OomKill = "oom-kill",
    ZombieMemcgs = "zombie-memcgs",
    CgroupLeak = "cgroup-leak",
    SlowMemcgStat = "slow-memcg-stat",
    MemcgWalk = "memcg-walk",
    ObserverCost = "observer-cost",
    InterruptStorm = "interrupt-storm",
    CpuSteal = "cpu-steal",
    CpuContention = "cpu-contention",
    Affinity = "affinity",
    CpuStarved = "cpu-starved",
    UnfairWeight = "unfair-weight",
    ForkStorm = "fork-storm",
    Blocked = "blocked",
    PageFaults = "page-faults",
    HugePages = "huge-pages",
    KernelStall = "kernel-stall",
    UnitCrashloop = "unit-crashloop",
    UnitChurn = "unit-churn",
    UnitFailing = "unit-failing",
    UnitDrift = "unit-drift",
    ContainerCrashloop = "container-crashloop",
    AgentUnused = "agent-unused",
    AgentConflict = "agent-conflict",
    GpuXid = "gpu-xid",
    ConntrackFull = "conntrack-full",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

named!(Code, "a finding code");
