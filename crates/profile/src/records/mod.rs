//! What the records of the kernel's perf events ([`coroner_evidence::perf`]) do in their turn, out of perf's files and out of the kernel's rings.
//!
//! [`order`] puts the records of several cores in order of time; [`work`] does what each of them says in its turn; [`space`] knows
//! the processes, and [`frames`] makes stacks of addresses. What records alone do not tell comes from [`Beyond`]: a file has a header, a live
//! node can be asked.

pub(crate) mod frames;
pub(crate) mod order;
pub(crate) mod space;
pub(crate) mod work;

use std::rc::Rc;

use crate::symbols::RecordedKernel;
use space::Tasks;

/// How much is remembered. What is beyond loses names, not samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Mappings of all processes together.
    pub mappings: usize,
    /// Processes, and threads.
    pub tasks: usize,
    /// Bytes of paths of mapped files.
    pub path_bytes: usize,
    /// Bytes of callers that were seen before.
    pub seen_bytes: usize,
    /// Addresses that were named before.
    pub addresses: usize,
    /// Bytes of records that wait for their turn.
    pub held_bytes: usize,
}

impl Limits {
    /// A file: some thousand processes with some hundred mappings each.
    pub const FILE: Limits = Limits {
        mappings: 1 << 22,
        tasks: 1 << 20,
        path_bytes: 64 << 20,
        seen_bytes: 16 << 20,
        addresses: 1 << 20,
        held_bytes: 64 << 20,
    };
    /// A recorder that runs for months in a few megabytes.
    pub const LIVE: Limits = Limits {
        mappings: 1 << 16,
        tasks: 1 << 15,
        path_bytes: 2 << 20,
        seen_bytes: 2 << 20,
        addresses: 1 << 15,
        held_bytes: 8 << 20,
    };
}

/// Who knows more than the records.
pub(crate) trait Beyond {
    /// The build id of a file that a process mapped, where the record lacks it.
    fn build_id(&mut self, pid: u32, path: &str, inode: Option<u64>) -> Option<Rc<[u8]>>;

    /// The kernel, or a module, was mapped.
    fn kernel_mapped(&mut self, path: &str, start: u64, length: u64, reference: u64, build_id: Option<&[u8]>);

    /// What is known of the kernel that ran, if that has changed since the last time.
    fn changed_kernel(&mut self) -> Option<RecordedKernel>;

    /// A thread is about to be sampled, or to have a child: what records did not tell of it may be added.
    fn meet(&mut self, pid: u32, tid: u32, tasks: &mut Tasks);

    /// A thread began; it has what its parent has.
    fn born(&mut self, _tid: u32, _parent_pid: u32, _tasks: &mut Tasks) {}
}
