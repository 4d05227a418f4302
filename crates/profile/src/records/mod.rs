//! Processes the kernel's perf event records ([`coroner_evidence::perf`]), from perf's files and from the kernel's rings.
//!
//! [`order`] sorts the records of several cores by time; [`work`] applies them one by one; [`space`] tracks the processes, and
//! [`frames`] turns addresses into stacks. What the records lack comes from [`Beyond`]: a file has a header, a live node can be
//! queried.

pub(crate) mod frames;
pub(crate) mod order;
pub(crate) mod space;
pub(crate) mod work;

use std::rc::Rc;

use crate::symbols::RecordedKernel;
use space::Tasks;

/// Memory limits. Beyond them names are lost, not samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Mappings of all processes together.
    pub mappings: usize,
    /// Processes, and threads.
    pub tasks: usize,
    /// Bytes of paths of mapped files.
    pub path_bytes: usize,
    /// Bytes of remembered caller chains.
    pub seen_bytes: usize,
    /// Remembered addresses.
    pub addresses: usize,
    /// Bytes of records held back for sorting.
    pub held_bytes: usize,
}

impl Limits {
    /// For a file: thousands of processes with hundreds of mappings each.
    pub const FILE: Limits = Limits {
        mappings: 1 << 22,
        tasks: 1 << 20,
        path_bytes: 64 << 20,
        seen_bytes: 16 << 20,
        addresses: 1 << 20,
        held_bytes: 64 << 20,
    };
    /// For a recorder that runs for months in a few megabytes.
    pub const LIVE: Limits = Limits {
        mappings: 1 << 16,
        tasks: 1 << 15,
        path_bytes: 2 << 20,
        seen_bytes: 2 << 20,
        addresses: 1 << 15,
        held_bytes: 8 << 20,
    };
}

/// A source of what the records lack.
pub(crate) trait Beyond {
    /// The build id of a mapped file, if the record lacks it.
    fn build_id(&mut self, pid: u32, path: &str, inode: Option<u64>) -> Option<Rc<[u8]>>;

    /// The kernel, or a module, was mapped.
    fn kernel_mapped(&mut self, path: &str, start: u64, length: u64, reference: u64, build_id: Option<&[u8]>);

    /// The recorded kernel, if it changed since the last call.
    fn changed_kernel(&mut self) -> Option<RecordedKernel>;

    /// A thread is about to be sampled or to fork: missing facts about it may be added.
    fn meet(&mut self, pid: u32, tid: u32, tasks: &mut Tasks);

    /// A thread started; it inherits from its parent.
    fn born(&mut self, _tid: u32, _parent_pid: u32, _tasks: &mut Tasks) {}
}
