//! Dead memory cgroups: which they are, what keeps them, who makes them, and what the kernel spends on them.

use crate::time::Time;
use serde::{Deserialize, Serialize};

/// How the dead were told from the living, the best way first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZombieMethod {
    /// BPF walk, run by BPF_PROG_TEST_RUN, answers in a ring buffer: from Linux 5.10.
    BpfTestRun,
    /// The same walk at page faults of our own thread, answers in an array map: from Linux 5.4.
    BpfPageFaults,
    /// v2: cgroup.stat of every directory, and memory.stat of a parent less that of its live children.
    CgroupStat,
    /// v1: memory.stat of a parent, with and without descendants, less that of its live children.
    MemoryStat,
    /// What the kernel tracks less the directories there are.
    Count,
}

impl ZombieMethod {
    pub const ALL: [ZombieMethod; 5] = [
        ZombieMethod::BpfTestRun,
        ZombieMethod::BpfPageFaults,
        ZombieMethod::CgroupStat,
        ZombieMethod::MemoryStat,
        ZombieMethod::Count,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            ZombieMethod::BpfTestRun => "bpf-test-run",
            ZombieMethod::BpfPageFaults => "bpf-page-faults",
            ZombieMethod::CgroupStat => "cgroup-stat",
            ZombieMethod::MemoryStat => "memory-stat",
            ZombieMethod::Count => "count",
        }
    }

    pub fn parse(text: &str) -> Option<ZombieMethod> {
        ZombieMethod::ALL.into_iter().find(|m| m.as_str() == text)
    }

    pub fn is_bpf(self) -> bool {
        matches!(self, ZombieMethod::BpfTestRun | ZombieMethod::BpfPageFaults)
    }
}

/// One look at all memory cgroups that the kernel tracks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZombieScan {
    pub at: Time,
    pub took_ns: u64,
    pub method: ZombieMethod,
    /// Of the cgroup hierarchy with the memory controller: 1 or 2.
    pub version: u8,
    /// The root, live and dead ones, and those in between. `None` where this way cannot tell.
    pub tracked: Option<u64>,
    pub live: Option<u64>,
    pub dead: Option<u64>,
    /// Neither live nor zombies: they went while we looked, or nothing but their last work keeps them.
    pub leaving: u64,
    /// By name, in the order of their birth. Only the BPF walk can tell.
    pub zombies: Vec<Zombie>,
    /// What dead children of live cgroups hold together. Where they cannot be told one by one.
    pub below: Vec<DeadBelow>,
    /// The files that keep them, the one that holds most first.
    pub files: Vec<PinningFile>,
    /// Which zombie is held by which file, by their places in `zombies` and `files`; ordered by zombie.
    pub holds: Vec<Hold>,
    /// Why files are missing, or not all of them are there.
    pub files_unseen: Option<String>,
    /// Not all were reached: out of time, or nested too deeply.
    pub truncated: Option<String>,
    /// The better ways that were tried in vain, and why.
    pub instead_of: Vec<TriedInVain>,
}

impl ZombieScan {
    /// The one to report on: the newest. A recorder counts by parent every minute and names them more rarely; then the newest that
    /// names them tells more, unless their number has doubled since.
    pub fn to_report(scans: &[ZombieScan]) -> Option<&ZombieScan> {
        let newest = scans.iter().max_by_key(|s| s.at)?;
        let only_counted = newest.method.is_bpf() && newest.zombies.is_empty() && newest.dead.is_some_and(|n| n > 0);
        let named = scans.iter().filter(|s| only_counted && !s.zombies.is_empty()).max_by_key(|s| s.at);
        let is_recent = |s: &&ZombieScan| newest.dead.is_none_or(|n| n <= 2 * s.zombies.len() as u64);
        Some(named.filter(is_recent).unwrap_or(newest))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriedInVain {
    /// `bpf`, or the name of a [`ZombieMethod`].
    pub method: String,
    pub why: String,
    pub how_to_see: String,
}

/// A memory cgroup without a directory that something still holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zombie {
    /// The inode number of its directory; before 5.5 with a generation in the upper half.
    pub id: u64,
    /// As it was in /proc/PID/cgroup, dead parents included.
    pub path: String,
    /// References that keep it; `None` where the kernel still counts them per CPU.
    pub references: Option<u64>,
    pub held: Held,
    pub born: Option<Born>,
    /// Only its memory controller was taken away; the directory is there (v2).
    pub directory_lives: bool,
    /// Of all cgroups of this boot, in the order of their birth.
    pub serial: u64,
}

/// Bytes charged to a memcg itself. A page in flight (a batch of the LRU, a swapped out one) is on no list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Page cache of files.
    pub file: u64,
    /// On the lists of swap-backed memory: anonymous, shared memory and tmpfs.
    pub swap_backed: u64,
    /// mlocked, SHM_LOCKed, ramfs.
    pub unevictable: u64,
    /// Of `swap_backed`, as far as it was looked at.
    pub anonymous: Option<u64>,
    pub shmem: Option<u64>,
    /// Kernel memory; `None` where the kernel does not tell (v2).
    pub kernel: Option<u64>,
    /// Swapped out; `None` where it cannot be told.
    pub swap: Option<u64>,
}

impl Held {
    /// What is in memory: swap is not.
    pub fn total(&self) -> u64 {
        let listed = self.file.saturating_add(self.swap_backed).saturating_add(self.unevictable);
        listed.saturating_add(self.kernel.unwrap_or(0))
    }

    pub fn add(&mut self, other: &Held) {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        self.file = self.file.saturating_add(other.file);
        self.swap_backed = self.swap_backed.saturating_add(other.swap_backed);
        self.unevictable = self.unevictable.saturating_add(other.unevictable);
        self.anonymous = sum(self.anonymous, other.anonymous);
        self.shmem = sum(self.shmem, other.shmem);
        self.kernel = sum(self.kernel, other.kernel);
        self.swap = sum(self.swap, other.swap);
    }
}

/// When a memcg was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Born {
    pub at: Time,
    /// To a tick of the kernel's. If not, it was then or earlier: on v2 memory pressure moves the mark.
    pub exact: bool,
}

/// Dead children of one live cgroup, and all that is dead below these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadBelow {
    pub parent: String,
    /// `None` where the kernel does not count them by parent (v1).
    pub dead: Option<u64>,
    /// `None` where it cannot be told from what the parent itself holds (v2, and it has processes), or not be read.
    pub held: Option<Held>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinningFile {
    /// On this node, or as the process `seen_by` sees it; else within its file system. `None` where the kernel has forgotten
    /// the name, and for a block device.
    pub path: Option<String>,
    /// A process whose mount namespace has the path, if ours has not.
    pub seen_by: Option<u32>,
    /// Whether the file system is mounted where we could find it.
    pub mounted: bool,
    pub filesystem: String,
    /// Major and minor number of the file system; of a block device's own pages (metadata) that device.
    pub device: (u32, u32),
    pub inode: u64,
    pub size: u64,
    /// Removed, but still open or mapped somewhere. Never so for memfd and SysV shared memory, which have no directory.
    pub deleted: bool,
    /// Bytes of it that are charged to zombies.
    pub bytes: u64,
    pub zombies: u64,
}

impl PinningFile {
    /// The file system type of block devices' own page cache (block/bdev.c).
    pub const BLOCK_DEVICES: &str = "bdev";

    /// For people: the path, or what is known instead.
    pub fn name(&self) -> String {
        let (major, minor) = self.device;
        match &self.path {
            Some(path) if self.deleted => format!("{path} (deleted)"),
            Some(path) => path.clone(),
            None if self.filesystem == PinningFile::BLOCK_DEVICES => format!("block device {major}:{minor}"),
            None => format!("inode {} of {} {major}:{minor}", self.inode, self.filesystem),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub zombie: u32,
    pub file: u32,
    pub bytes: u64,
}

/// Memory cgroups that were made and removed within a stretch of time below one parent, by one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupChurn {
    pub from: Time,
    pub to: Time,
    /// The path of the parent, in the hierarchy with the memory controller. `*` for those that could only be counted, and for
    /// what there were too many rows of.
    pub parent: String,
    /// Their names with what changes folded: see [`crate::name_pattern`]. `*` without a maker also sums up rows beyond the limit.
    pub pattern: String,
    /// One of their names.
    pub example: String,
    pub born: u64,
    pub removed: u64,
    /// Freed at last: those that stay are zombies. Counted in a row without a maker, as the kernel does it later.
    pub freed: u64,
    pub maker: Option<Maker>,
}

/// The process that made or removed cgroups, itself or by others that it started for that.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Maker {
    /// In the initial pid namespace. Of `processes` alike that came and went, the last one seen.
    pub pid: u32,
    pub comm: String,
    /// The short-lived commands that it had it done by, those that made first: `mkdir, rmdir`. `None` if it acts itself.
    #[serde(default)]
    pub via: Option<String>,
    /// How many processes acted.
    #[serde(default)]
    pub processes: u64,
    /// What it runs, without arguments, if it could still be read.
    pub command: Option<String>,
    pub parent_pid: Option<u32>,
    pub parent_comm: Option<String>,
    /// Its memory cgroup.
    pub cgroup: Option<String>,
}
