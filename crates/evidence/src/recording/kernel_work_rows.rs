//! What the kernel was working on, as rows.

use super::rows::{Table, U64, from_json, json, u64_of};
use crate::kernel_work::{KernelWork, WorkKind};
use rusqlite::{Row, Transaction, params};

pub const KERNEL_WORK: Table = Table {
    name: "kernel_work",
    columns: &["from_ns", "to_ns", "rate_hz", "cores", "lost", "kernel", "memcg_walk", "reclaim", "rows_json"],
};

pub fn insert_kernel_work(tx: &Transaction<'_>, items: &[KernelWork]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&KERNEL_WORK.insert())?;
    for work in items {
        let KernelWork { from, to, rate_hz, cores, lost, rows } = work;
        // Sums for people who read the table.
        let sum = |of: fn(WorkKind) -> bool| U64(work.samples(of));
        insert.execute(params![
            from,
            to,
            rate_hz,
            cores,
            U64(*lost),
            sum(|_| true),
            sum(WorkKind::is_memcg_walk),
            sum(WorkKind::is_reclaim),
            json(rows)?,
        ])?;
    }
    Ok(())
}

pub fn kernel_work(row: &Row<'_>) -> rusqlite::Result<KernelWork> {
    Ok(KernelWork {
        from: row.get("from_ns")?,
        to: row.get("to_ns")?,
        rate_hz: row.get("rate_hz")?,
        cores: row.get("cores")?,
        lost: u64_of(row, "lost")?,
        rows: from_json(&row.get::<_, String>("rows_json")?)?,
    })
}
