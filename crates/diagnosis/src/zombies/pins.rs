//! What keeps the dead of a group: files, and what no file explains.

use coroner_evidence::PinningFile;

/// A file that keeps dead cgroups of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin<'e> {
    pub file: &'e PinningFile,
    /// Of this group.
    pub bytes: u64,
    pub zombies: u64,
}

/// Files of one directory whose names are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileGroup {
    /// `/dev/shm/ecs-*`, or the one file's path. What is known instead where the kernel has forgotten the names.
    pub pattern: String,
    pub filesystem: String,
    pub files: u64,
    /// Of these, removed but still open or mapped.
    pub deleted: u64,
    pub bytes: u64,
    /// Dead cgroups that are held by them; one that is held by several files counts for each.
    pub zombies: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OtherwiseKind {
    /// Anonymous memory: of processes that moved on without it, or that still share it.
    Anonymous,
    /// mlocked and SHM_LOCKed pages, ramfs: their files cannot be told.
    Unevictable,
    /// Page cache whose file could not be told.
    File,
    /// tmpfs or shared memory whose file could not be told.
    SharedMemory,
    /// On the lists of swap-backed memory; nobody looked whether it is anonymous or shared.
    SwapBacked,
    Kernel,
    Swap,
    /// They hold no page that is listed, no kernel memory and no swap that is known.
    Unknown,
    /// They hold nothing themselves; dead children of theirs do.
    Children,
}

impl OtherwiseKind {
    pub fn as_str(self) -> &'static str {
        match self {
            OtherwiseKind::Anonymous => "anonymous memory",
            OtherwiseKind::Unevictable => "locked memory",
            OtherwiseKind::File => "page cache of unknown files",
            OtherwiseKind::SharedMemory => "shared memory of unknown files",
            OtherwiseKind::SwapBacked => "anonymous or shared memory",
            OtherwiseKind::Kernel => "kernel memory",
            OtherwiseKind::Swap => "swap",
            OtherwiseKind::Unknown => "unknown",
            OtherwiseKind::Children => "dead children",
        }
    }
}

/// What keeps them besides files that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Otherwise {
    pub kind: OtherwiseKind,
    /// `None` where it is not known how much.
    pub bytes: Option<u64>,
    /// Dead cgroups that hold some of it; `None` where they cannot be told one by one.
    pub zombies: Option<u64>,
}
