//! Dead memory cgroups: which there are, what keeps them, and who creates them.

use crate::time::Time;
use coroner_report::named;
use serde::{Deserialize, Serialize};

named! {
    /// How dead cgroups were told from live ones, best first.
    #[derive(Default)]
    pub enum ZombieMethod {
        /// BPF walk run by BPF_PROG_TEST_RUN, results in a ring buffer: from Linux 5.10.
        BpfTestRun = "bpf-test-run",
        /// The same walk run at page faults of our own thread, results in an array map: from Linux 5.4.
        BpfPageFaults = "bpf-page-faults",
        /// v2: cgroup.stat of every directory, and memory.stat of a parent minus that of its live children.
        CgroupStat = "cgroup-stat",
        /// v1: memory.stat of a parent, with and without descendants, minus that of its live children.
        MemoryStat = "memory-stat",
        /// Cgroups tracked by the kernel minus directories.
        #[default]
        Count = "count",
    }
}

impl ZombieMethod {
    pub fn is_bpf(self) -> bool {
        matches!(self, ZombieMethod::BpfTestRun | ZombieMethod::BpfPageFaults)
    }
}

/// One scan of all memory cgroups that the kernel tracks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZombieScan {
    pub at: Time,
    pub took_ns: u64,
    pub method: ZombieMethod,
    /// Version of the cgroup hierarchy with the memory controller: 1 or 2.
    pub version: u8,
    /// The root, live and dead ones, and those in between. `None` if this method cannot tell.
    pub tracked: Option<u64>,
    pub live: Option<u64>,
    pub dead: Option<u64>,
    /// Neither live nor zombies: they went away during the scan, or only pending kernel work still holds them.
    pub leaving: u64,
    /// By name, in the order of creation. Only the BPF walk can tell.
    pub zombies: Vec<Zombie>,
    /// What dead children of live cgroups hold in all, if they cannot be listed one by one.
    pub below: Vec<DeadBelow>,
    /// The files that keep them, those that hold most first.
    pub files: Vec<PinningFile>,
    /// Which file holds which zombie, as indexes into `files` and `zombies`; sorted by zombie.
    pub holds: Vec<Hold>,
    /// Why some or all files are missing.
    pub files_unseen: Option<String>,
    /// Why not all were reached: out of time, or nested too deeply.
    pub truncated: Option<String>,
    /// Better methods that failed, and why.
    pub instead_of: Vec<TriedInVain>,
}

impl ZombieScan {
    /// The scan to report: the newest. A recorder counts by parent every minute but names zombies less often: then the newest scan
    /// with names says more, unless their number has doubled since.
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

/// A memory cgroup without a directory that is still held by something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zombie {
    /// The inode number of its directory; before 5.5, with a generation in the upper half.
    pub id: u64,
    /// As it was in /proc/PID/cgroup, with dead parents.
    pub path: String,
    /// References that keep it; `None` if the kernel still counts them per CPU.
    pub references: Option<u64>,
    pub held: Charged,
    pub born: Option<Born>,
    /// Only its memory controller was disabled; the directory still exists (v2).
    pub directory_lives: bool,
    /// Counts all cgroups of this boot, in the order of creation.
    pub serial: u64,
}

/// Bytes charged to a memcg itself. Pages in flight (in an LRU batch, or swapped out) are on no list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charged {
    /// Page cache of files.
    pub file: u64,
    /// Swap-backed memory: anonymous, shared memory and tmpfs.
    pub swap_backed: u64,
    /// mlocked, SHM_LOCKed, ramfs.
    pub unevictable: u64,
    /// Part of `swap_backed`, as far as it was looked at.
    pub anonymous: Option<u64>,
    pub shmem: Option<u64>,
    /// Kernel memory; `None` if the kernel does not say (v2).
    pub kernel: Option<u64>,
    /// Swapped out; `None` if unknown.
    pub swap: Option<u64>,
}

impl Charged {
    /// Bytes in memory, without swap.
    pub fn total(&self) -> u64 {
        let listed = self.file.saturating_add(self.swap_backed).saturating_add(self.unevictable);
        listed.saturating_add(self.kernel.unwrap_or(0))
    }

    pub fn add(&mut self, other: &Charged) {
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

/// When a memcg was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Born {
    pub at: Time,
    /// True: to a kernel tick. False: then or earlier, as on v2 memory pressure moves the mark.
    pub exact: bool,
}

/// Dead children of one live cgroup, with all dead ones below them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadBelow {
    pub parent: String,
    /// `None` if the kernel does not count them by parent (v1).
    pub dead: Option<u64>,
    /// `None` if unreadable, or not separable from what the parent itself holds (v2, if it has processes).
    pub held: Option<Charged>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinningFile {
    /// On this node, or as process `seen_by` sees it; otherwise within its file system. `None` if the kernel no longer knows the
    /// name, and for block devices.
    pub path: Option<String>,
    /// A process whose mount namespace has the path, if ours does not.
    pub seen_by: Option<u32>,
    /// Whether the file system is mounted where we could find it.
    pub mounted: bool,
    pub filesystem: String,
    /// Major and minor number of the file system; for a block device's own pages (metadata), of that device.
    pub device: (u32, u32),
    pub inode: u64,
    pub size: u64,
    /// Removed, but still open or mapped somewhere. Never set for memfd and SysV shared memory, which have no directory.
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

/// Memory cgroups that one process created and removed below one parent within some time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupChurn {
    pub from: Time,
    pub to: Time,
    /// The parent's path, in the hierarchy with the memory controller. `*` for those that could only be counted, and for rows beyond
    /// the limit.
    pub parent: String,
    /// Their names with the varying parts folded, see [`crate::name_pattern`]. `*` without a maker also sums up rows beyond the limit.
    pub pattern: String,
    /// One of their names.
    pub example: String,
    pub born: u64,
    pub removed: u64,
    /// Freed; those that stay are zombies. Counted in a row without a maker, as the kernel frees them later.
    pub freed: u64,
    pub maker: Option<Maker>,
}

/// The process that created or removed cgroups, itself or through commands it started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Maker {
    /// In the initial pid namespace. If several short-lived `processes` acted, the last one seen.
    pub pid: u32,
    pub comm: String,
    /// The short-lived commands it used, creating ones first: `mkdir, rmdir`. `None` if it acts itself.
    #[serde(default)]
    pub via: Option<String>,
    /// How many processes acted.
    #[serde(default)]
    pub processes: u64,
    /// Its command without arguments, if it could still be read.
    pub command: Option<String>,
    pub parent_pid: Option<u32>,
    pub parent_comm: Option<String>,
    /// Its memory cgroup.
    pub cgroup: Option<String>,
}

/// What became of the memory cgroups that one process created while it was watched, followed by their ids.
///
/// [`CgroupChurn`] counts who acts: the one who removes a cgroup may not have created it, and the kernel frees it later on its own. This
/// tells creators whose cgroups stay from those whose cgroups are freed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupFate {
    pub from: Time,
    pub to: Time,
    /// As in [`CgroupChurn`].
    pub parent: String,
    pub pattern: String,
    /// Of those it created: how many were created, removed and freed within this time, by whomever.
    pub born: u64,
    pub removed: u64,
    pub freed: u64,
    /// Ids of those that were removed but not freed at the end, as [`Zombie::id`]. Each is reported once.
    pub left: Vec<u64>,
    /// Those reported in `left` earlier that were freed after all.
    pub left_freed: Vec<u64>,
    pub maker: Maker,
}
