//! What threads in uninterruptible sleep waited for, by the kernel functions on their stacks.

use coroner_evidence::{Block, Order, Party, Time, WaitLedger};
use std::collections::BTreeMap;

/// What a blocked thread needs to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// A device to finish a read or write.
    Storage,
    /// A file system that somebody froze (fsfreeze, a snapshot).
    FrozenFileSystem,
    /// A file server.
    Network,
    /// Free memory.
    Memory,
    /// A lock in the kernel that another thread holds.
    Lock,
    /// Its child to call exec, or somebody to thaw its cgroup: on purpose, and no trouble of the node.
    OnPurpose,
    Unknown,
}

/// The first that fits a function of the stack wins; so the particular come before the general.
const MEANINGS: &[(Needs, &[&str])] = &[
    (Needs::OnPurpose, &["wait_for_vfork_done", "__refrigerator", "do_freezer_trap", "ptrace_stop"]),
    (Needs::Memory, &["throttle_direct_reclaim", "mem_cgroup_handle_over_high", "reclaim_throttle", "shrink_node"]),
    (Needs::Network, &["nfs_", "nfs4_", "rpc_", "cifs_", "smb2_", "ceph_", "fuse_", "request_wait_answer", "v9fs_"]),
    (Needs::FrozenFileSystem, &["sb_start_write", "percpu_rwsem_wait", "__percpu_down_read", "freeze_super"]),
    (
        Needs::Storage,
        &[
            "io_schedule",
            "blk_",
            "bio_",
            "submit_bio_wait",
            "folio_wait",
            "wait_on_page_bit",
            "bit_wait_io",
            "jbd2_",
            "xfs_log",
            "xfs_buf",
            "ext4_",
            "btrfs_",
            "nvme_",
            "scsi_",
            "dm_",
            "md_",
            "wbt_wait",
            "rq_qos_wait",
            "balance_dirty_pages",
        ],
    ),
    (Needs::Lock, &["rwsem_down", "__mutex_lock", "mutex_lock", "down_read", "down_write", "__down", "rt_mutex"]),
];

pub fn needs(stack: &[String]) -> Needs {
    let has = |marks: &[&str]| stack.iter().any(|function| marks.iter().any(|mark| function.starts_with(mark)));
    MEANINGS.iter().find(|(_, marks)| has(marks)).map_or(Needs::Unknown, |(needs, _)| *needs)
}

/// Sleeps at one place, over all ledgers.
#[derive(Debug, Clone, Copy)]
pub struct Sleeps {
    pub ns: u64,
    pub longest_ns: u64,
    /// When the first of them may have begun, and when the last was seen.
    pub from: Time,
    pub to: Time,
    /// At `to`.
    pub goes_on: bool,
}

impl Sleeps {
    pub fn add(known: Option<Sleeps>, block: &Block, ledger: &WaitLedger) -> Sleeps {
        // One that began before counts from its beginning.
        let open_ns = block.since.map_or(0, |since| ledger.to.since(since).as_nanos() as u64);
        let one = Sleeps {
            ns: block.ns,
            longest_ns: block.longest_ns.max(open_ns),
            from: block.since.unwrap_or(ledger.from),
            to: ledger.to,
            goes_on: block.since.is_some(),
        };
        known.map_or(one, |known| Sleeps {
            ns: known.ns.saturating_add(one.ns),
            longest_ns: known.longest_ns.max(one.longest_ns),
            from: known.from.min(one.from),
            to: one.to,
            // Several threads may sleep there.
            goes_on: one.goes_on || (known.goes_on && known.to == one.to),
        })
    }

    /// Whether it still did when the last of these ended.
    pub fn go_on(&self, ledgers: &[WaitLedger]) -> bool {
        self.goes_on && ledgers.last().is_some_and(|last| last.to == self.to)
    }
}

/// One thread, blocked at one place.
#[derive(Debug, Clone)]
pub struct Blocked<'e> {
    pub party: &'e Party,
    pub tid: Option<u32>,
    pub needs: Needs,
    pub sleeps: Sleeps,
    pub goes_on: bool,
    /// The last row, for stack, file and waker.
    pub last: &'e Block,
}

/// A thread (process, id, name) and what it needs.
type Place<'e> = (Option<u32>, Option<u32>, &'e str, Needs);

/// Those that were blocked, longest single block first.
pub fn blocked(ledgers: &[WaitLedger]) -> Vec<Blocked<'_>> {
    let mut by_place: BTreeMap<Place<'_>, Blocked<'_>> = BTreeMap::new();
    for ledger in ledgers {
        for block in &ledger.blocks {
            let Some(party) = ledger.parties.iter().find(|party| party.id == block.party) else { continue };
            let needs = needs(&block.stack);
            let key = (party.pid, block.tid, party.comm.as_str(), needs);
            let sleeps = Sleeps::add(by_place.get(&key).map(|known| known.sleeps), block, ledger);
            let goes_on = sleeps.go_on(ledgers);
            by_place.insert(key, Blocked { party, tid: block.tid, needs, sleeps, goes_on, last: block });
        }
    }
    let mut all: Vec<Blocked<'_>> = by_place.into_values().collect();
    all.order_by_key(|one| std::cmp::Reverse(one.sleeps.longest_ns));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(functions: &[&str]) -> Vec<String> {
        functions.iter().map(|function| (*function).to_owned()).collect()
    }

    #[test]
    fn the_stack_tells_what_it_needs() {
        for (functions, expected) in [
            (&["percpu_rwsem_wait", "__percpu_down_read", "vfs_write"][..], Needs::FrozenFileSystem),
            (&["io_schedule", "folio_wait_bit_common", "filemap_read"], Needs::Storage),
            (&["rpc_wait_bit_killable", "nfs4_proc_getattr"], Needs::Network),
            (&["wait_for_vfork_done", "kernel_clone"], Needs::OnPurpose),
            (&["rwsem_down_read_slowpath", "exit_mm"], Needs::Lock),
            (&["io_schedule_timeout", "throttle_direct_reclaim"], Needs::Memory),
            (&[], Needs::Unknown),
        ] {
            assert_eq!(needs(&stack(functions)), expected, "{functions:?}");
        }
    }
}
