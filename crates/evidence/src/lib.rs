//! What the node said, and when.
//!
//! Evidence is typed, time-stamped and never derived: a probe notes what a kernel file said, a rule in `coroner-diagnosis` draws
//! conclusions. What could not be read is `None`, with an [`Unseen`] that says why; it is never 0.
//!
//! [`Evidence`] serves three purposes: a probe returns a fragment of it, appended fragments make the picture of a live node, and
//! a [`recording`] stores and returns fragments. So a rule cannot tell a live node from a recorded one.

pub mod agents;
#[cfg(any(test, feature = "any"))]
pub mod any;
pub mod cgroup_names;
pub mod cgroups;
pub mod cores;
pub mod counters;
pub mod cpusets;
pub mod glob;
pub mod history;
pub mod kallsyms;
pub mod kernel_work;
pub mod log;
pub mod nic;
pub mod order;
pub mod own_directory;
pub mod perf;
pub mod recording;
pub mod tasks;
pub mod time;
pub mod units;
pub mod waits;
pub mod zombies;

use serde::{Deserialize, Serialize};

pub use agents::{
    Condition, Enablement, FileAnswer, FileFormat, FileQuestion, FileState, Package, Preset, PullIn, TextFile, UnitFile,
};
pub use cgroup_names::{name_pattern, name_pattern_into, pattern_covers};
pub use cgroups::{CgroupCensus, CgroupMount, CgroupOwner, CrowdedParent, StatRead};
pub use cores::{CoreSet, CoreTicks, CoreTimes};
pub use coroner_report::Wall;
pub use coroner_report::node::{self, Node};
pub use coroner_report::{About, Cost, Unseen};
pub use counters::{Counters, Delta, Point, Source};
pub use cpusets::{Cpuset, CpusetLevel};
pub use glob::glob_matches;
pub use kernel_work::{KernelWork, WorkKind, WorkRow};
pub use log::LogLine;
pub use nic::{MapSource, Nic, NicQueue, QueueKind};
pub use order::Order;
pub use tasks::{MemoryHolder, Observer, Process, RayProcess, Thread, ThreadKey, ThreadSample};
pub use time::{Clocks, Time, Window};
pub use units::{ChildExits, Container, Unit, UnitLogLine, UnitSockets};
pub use waits::{Account, Block, CgroupWeight, Charge, LedgerMethod, Party, Runner, WaitLedger};
pub use zombies::{
    Born, CgroupChurn, CgroupFate, Charged, DeadBelow, Hold, Maker, PinningFile, TriedInVain, Zombie, ZombieMethod,
    ZombieScan,
};

/// Everything seen of one node over some time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Identity of the node. The latest wins.
    pub node: Option<Node>,
    /// Readings of several clocks at one moment, to translate between them.
    pub clocks: Vec<Clocks>,
    /// Time spent by each core, ten times a second. Oldest first.
    pub core_times: Vec<CoreTimes>,
    /// Processes, described when first seen and again when their description changed.
    pub processes: Vec<Process>,
    /// Threads, described when first seen and again when their name, scheduling class or affinity changed.
    pub threads: Vec<Thread>,
    /// Cpusets that keep some of these threads from some cores.
    pub cpusets: Vec<Cpuset>,
    /// CPU use of threads. The first look has every thread; later ones only those that ran or want to run.
    pub thread_samples: Vec<ThreadSample>,
    /// Processes that observe. Empty in recordings of versions that did not record them.
    #[serde(default)]
    pub observers: Vec<Observer>,
    /// The processes with the most memory, from each look.
    #[serde(default)]
    pub memory_holders: Vec<MemoryHolder>,
    /// All plain counters and gauges of the kernel.
    pub counters: Counters,
    /// Network devices, mapping queue → interrupt or NAPI thread → core.
    pub nics: Vec<Nic>,
    /// Where cgroup hierarchies are mounted.
    pub cgroup_mounts: Vec<CgroupMount>,
    /// Counts of cgroup directories and of cgroups tracked by the kernel.
    pub cgroup_censuses: Vec<CgroupCensus>,
    /// Guarded, timed reads of memory statistics.
    pub stat_reads: Vec<StatRead>,
    /// Dead memory cgroups by name, from each scan.
    pub zombie_scans: Vec<ZombieScan>,
    /// Who created and removed memory cgroups.
    pub cgroup_churn: Vec<CgroupChurn>,
    /// What became of the memory cgroups that were created meanwhile.
    #[serde(default)]
    pub cgroup_fates: Vec<CgroupFate>,
    /// What the kernel was working on. Oldest first.
    pub kernel_work: Vec<KernelWork>,
    /// Who waited for a core, and who had it meanwhile. Oldest first.
    pub waits: Vec<WaitLedger>,
    /// The kernel log.
    pub log: Vec<LogLine>,
    /// systemd units, from each look.
    pub units: Vec<Unit>,
    /// What is installed to run. The latest wins.
    pub unit_files: Vec<UnitFile>,
    /// The directory that was audited without booting it, if so. Then nothing runs that could be looked at.
    pub image: Option<String>,
    /// Whether the files that known agents need exist.
    pub agent_files: Vec<FileAnswer>,
    /// What users added to the catalogue of agents.
    pub catalogues: Vec<TextFile>,
    /// What the node's unit files are compared with.
    pub baseline: Option<TextFile>,
    /// The latest messages of units that are worth a closer look.
    pub unit_log: Vec<UnitLogLine>,
    /// Open sockets of such units.
    pub unit_sockets: Vec<UnitSockets>,
    /// Who starts short-lived processes, and how they exit.
    pub child_exits: Vec<ChildExits>,
    /// Containers known to their runtimes, from each look.
    pub containers: Vec<Container>,
    /// What could not be seen, and why.
    pub unseen: Vec<Unseen>,
    /// What looking has cost so far. The latest wins.
    pub cost: Option<Cost>,
}

/// Names of the probes, as used in [`Unseen::probe`].
pub mod probe {
    pub const CORES: &str = "cores";
    pub const RUN_QUEUE: &str = "run-queue";
    pub const TASKS: &str = "tasks";
    pub const INTERRUPTS: &str = "interrupts";
    pub const SOFTIRQS: &str = "softirqs";
    pub const SOFTNET: &str = "softnet";
    pub const NICS: &str = "nics";
    pub const CONNTRACK: &str = "conntrack";
    pub const PRESSURE: &str = "pressure";
    pub const MEMORY: &str = "memory";
    pub const CGROUPS: &str = "cgroups";
    pub const ZOMBIES: &str = "zombies";
    pub const CGROUP_CHURN: &str = "cgroup-churn";
    pub const KERNEL_SAMPLES: &str = "kernel-samples";
    pub const SAMPLES: &str = "samples";
    pub const WAITS: &str = "waits";
    pub const KERNEL_LOG: &str = "kernel-log";
    pub const UNITS: &str = "units";
    pub const UNIT_FILES: &str = "unit-files";
    pub const PACKAGES: &str = "packages";
    pub const AGENT_FILES: &str = "agent-files";
    pub const JOURNAL: &str = "journal";
    pub const UNIT_SOCKETS: &str = "unit-sockets";
    pub const CHILD_EXITS: &str = "child-exits";
    pub const CONTAINERS: &str = "containers";
    pub const NODE: &str = "node";
}

impl Evidence {
    /// Adds later evidence.
    pub fn append(&mut self, later: Evidence) {
        if later.node.is_some() {
            self.node = later.node;
        }
        self.clocks.extend(later.clocks);
        self.core_times.extend(later.core_times);
        self.processes.extend(later.processes);
        self.threads.extend(later.threads);
        self.cpusets.extend(later.cpusets);
        self.thread_samples.extend(later.thread_samples);
        self.observers.extend(later.observers);
        self.memory_holders.extend(later.memory_holders);
        self.counters.append(later.counters);
        self.nics.extend(later.nics);
        self.cgroup_mounts.extend(later.cgroup_mounts);
        self.cgroup_censuses.extend(later.cgroup_censuses);
        self.stat_reads.extend(later.stat_reads);
        self.zombie_scans.extend(later.zombie_scans);
        self.cgroup_churn.extend(later.cgroup_churn);
        self.cgroup_fates.extend(later.cgroup_fates);
        self.kernel_work.extend(later.kernel_work);
        self.waits.extend(later.waits);
        self.log.extend(later.log);
        self.units.extend(later.units);
        self.image = later.image.or(self.image.take());
        if !later.unit_files.is_empty() {
            self.unit_files = later.unit_files;
        }
        if !later.agent_files.is_empty() {
            self.agent_files = later.agent_files;
        }
        if !later.catalogues.is_empty() {
            self.catalogues = later.catalogues;
        }
        self.baseline = later.baseline.or(self.baseline.take());
        self.unit_log.extend(later.unit_log);
        self.unit_sockets.extend(later.unit_sockets);
        self.child_exits.extend(later.child_exits);
        self.containers.extend(later.containers);
        for unseen in later.unseen {
            if !self.unseen.contains(&unseen) {
                self.unseen.push(unseen);
            }
        }
        if later.cost.is_some() {
            self.cost = later.cost;
        }
    }

    /// The time that was watched: from the first to the last look at the cores.
    pub fn window(&self) -> Option<Window> {
        let from = self.core_times.first()?.at;
        let to = self.core_times.last()?.at;
        Some(Window { from, to })
    }

    /// Whether a process observes rather than works: this coroner, or another beside it. `started` tells it from an earlier process with the
    /// same id.
    ///
    /// Recordings of versions that did not record their own pid have nothing but the name.
    pub fn is_observer(&self, pid: u32, started: Option<u64>) -> bool {
        const UNRECORDED: &str = "coroner";
        if self.observers.is_empty() {
            let process = self.processes.iter().rev().find(|process| process.pid == pid);
            return process.is_some_and(|process| process.comm == UNRECORDED);
        }
        self.observers.iter().any(|o| o.pid == pid && started.is_none_or(|started| o.started == started))
    }

    /// Notes that something could not be seen.
    pub fn unseen(
        &mut self,
        probe: &str,
        what: impl Into<String>,
        why: impl Into<String>,
        how_to_see: impl Into<String>,
    ) {
        self.add_unseen(probe, None, what, why, how_to_see);
    }

    /// The same, for one aspect of the probe that rules ask for.
    pub fn unseen_about(
        &mut self,
        probe: &str,
        about: About,
        what: impl Into<String>,
        why: impl Into<String>,
        how_to_see: impl Into<String>,
    ) {
        self.add_unseen(probe, Some(about), what, why, how_to_see);
    }

    fn add_unseen(
        &mut self,
        probe: &str,
        about: Option<About>,
        what: impl Into<String>,
        why: impl Into<String>,
        how_to_see: impl Into<String>,
    ) {
        let (what, why, how_to_see) = (what.into(), why.into(), how_to_see.into());
        let unseen = Unseen { probe: probe.to_owned(), about, what, why, how_to_see };
        if !self.unseen.contains(&unseen) {
            self.unseen.push(unseen);
        }
    }

    /// Why a probe could not see one of these, if it said so.
    pub fn why_unseen_about(&self, probe: &str, about: &[About]) -> Option<&Unseen> {
        self.unseen.iter().find(|u| u.probe == probe && u.about.is_some_and(|told| about.contains(&told)))
    }

    /// Why a probe could not see anything, if it said so.
    pub fn why_unseen(&self, probe: &str) -> Option<&Unseen> {
        self.unseen.iter().find(|u| u.probe == probe)
    }
}
