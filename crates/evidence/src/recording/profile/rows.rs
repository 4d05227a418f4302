//! Names as rows of plain tables.

use super::super::rows::U64;
use super::{FrameRow, NewNames, ProfileRows, SourceRow, TaskRow};
use rusqlite::{Transaction, params};

pub fn insert_names(tx: &Transaction<'_>, rows: &ProfileRows) -> rusqlite::Result<()> {
    // Field by field, so that a new one cannot be forgotten. Stacks and samples are stored by the caller.
    let ProfileRows { events, paths, tasks, frames, stacks: _, samples: _ } = rows;
    let mut insert = tx.prepare_cached("INSERT INTO profile_events (id, name) VALUES (?, ?)")?;
    for (id, name) in numbered(events) {
        insert.execute(params![id, name])?;
    }
    let mut insert = tx.prepare_cached("INSERT INTO profile_paths (id, path) VALUES (?, ?)")?;
    for (id, path) in numbered(paths) {
        insert.execute(params![id, path])?;
    }
    let mut insert =
        tx.prepare_cached("INSERT INTO profile_tasks (id, pid, tid, comm, cgroup_path_id) VALUES (?, ?, ?, ?, ?)")?;
    for (id, TaskRow { pid, tid, comm, cgroup }) in numbered(tasks) {
        insert.execute(params![id, pid, tid, comm, cgroup])?;
    }
    let mut insert = tx.prepare_cached(
        "INSERT INTO profile_frames (id, symbol, module_path_id, place, is_inlined, build_id, file_offset)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    for (id, FrameRow { symbol, module, place, is_inlined, at }) in numbered(frames) {
        let (build_id, offset) = (at.as_ref().map(|at| &at.0), at.as_ref().map(|at| U64(at.1)));
        insert.execute(params![id, symbol, module, place, is_inlined, build_id, offset])?;
    }
    Ok(())
}

fn numbered<T>(names: &NewNames<T>) -> impl Iterator<Item = (i64, &T)> {
    names.names.iter().enumerate().map(|(i, name)| (i64::from(names.first) + i as i64, name))
}

pub fn replace_source(tx: &Transaction<'_>, source: &SourceRow) -> rusqlite::Result<()> {
    let SourceRow { kind, file, host, clock, lost, report_json } = source;
    let (clock_ns, wall_ns) = (clock.map(|c| U64(c.clock_ns)), clock.map(|c| U64(c.wall.0)));
    tx.execute(
        "REPLACE INTO profile_source (id, kind, file, host, clock_ns, real_ns, lost, report_json)
         VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
        params![kind, file, host, clock_ns, wall_ns, lost.map(U64), report_json],
    )?;
    Ok(())
}
