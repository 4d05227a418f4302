//! Records of the kernel's perf events, as they stand in perf's files and in the kernel's rings: samples, and between them what was
//! mapped where and who was called what.
//!
//! [`order`] puts the records of several cores in order of time; [`work`] does what each of them says in its turn; [`space`] knows
//! the processes, and [`frames`] makes stacks of addresses. What records alone do not tell comes from [`Beyond`]: a file has a header, a live
//! node can be asked.

pub(crate) mod attr;
pub(crate) mod fields;
pub(crate) mod frames;
pub(crate) mod order;
pub(crate) mod sample;
pub(crate) mod space;
pub(crate) mod work;

use std::rc::Rc;

use crate::symbols::RecordedKernel;
use fields::Fields;
use space::Tasks;

/// Kinds of records (include/uapi/linux/perf_event.h; from 64 on tools/lib/perf/include/perf/event.h).
pub(crate) mod kind {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const UNTHROTTLE: u32 = 6;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const LOST_SAMPLES: u32 = 13;
    pub const KSYMBOL: u32 = 17;
    pub const CGROUP: u32 = 19;
    pub const FIRST_OF_PERF: u32 = 64;
    pub const HEADER_ATTR: u32 = 64;
    pub const TRACING_DATA: u32 = 66;
    pub const FINISHED_ROUND: u32 = 68;
    pub const AUXTRACE: u32 = 71;
    pub const HEADER_FEATURE: u32 = 80;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
    pub const LAST_OF_PERF: u32 = 100;
}

/// The size of `struct perf_event_header`: kind, misc, size.
pub(crate) const HEADER: usize = 8;

pub(crate) fn record_header(record: &[u8], swap: bool) -> (u32, u16, usize) {
    let mut fields = Fields::new(record, swap);
    (fields.u32().unwrap_or(0), fields.u16().unwrap_or(0), usize::from(fields.u16().unwrap_or(0)))
}

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
