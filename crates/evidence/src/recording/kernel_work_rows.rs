//! What the kernel was working on, as rows.

use super::rows::{insert_readable, row};
use crate::kernel_work::{KernelWork, WorkKind};
use rusqlite::Transaction;

row!(KernelWork in "kernel_work" {
    from: "from_ns", to: "to_ns", rate_hz: "rate_hz", cores: "cores", lost: "lost", rows: "rows_json"
});

/// With sums for people who read the table.
pub fn insert_kernel_work(tx: &Transaction<'_>, items: &[KernelWork]) -> rusqlite::Result<()> {
    insert_readable(tx, items, ["kernel", "memcg_walk", "reclaim"], |work| {
        let sums: [fn(WorkKind) -> bool; 3] = [|_| true, WorkKind::is_memcg_walk, WorkKind::is_reclaim];
        sums.map(|of| (work.samples(of) as i64).into())
    })
}
