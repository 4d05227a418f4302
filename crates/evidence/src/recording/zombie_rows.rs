//! Dead memory cgroups and who creates them, as rows and back.

use super::rows::{Columns, Table, U64, cell, insert_below, insert_each, optional, row};
use super::zombie_chunk;
use crate::zombies::{CgroupChurn, CgroupFate, Charged, DeadBelow, Hold, Maker, PinningFile, Zombie, ZombieScan};
use rusqlite::types::ToSqlOutput;
use rusqlite::{Row, Transaction, params};
use std::collections::HashMap;
use std::slice;

/// Most files to store, those that hold most first: each is a row that people can read.
pub const MOST_FILES: usize = 5000;

row!(ZombieScan in "zombie_scans" {
    at: "at_ns", took_ns: "took_ns", method: "method", version: "version", tracked: "tracked", live: "live", dead: "dead",
    leaving: "leaving", files_unseen: "files_unseen", truncated: "truncated", instead_of: "instead_of_json"
} without zombies, below, files, holds);

row!(DeadBelow in "zombies_below" of "scan_id" { parent: "parent", dead: "dead" } with held);

row!(Charged {
    file: "file_bytes",
    swap_backed: "swap_backed_bytes",
    unevictable: "unevictable_bytes",
    anonymous: "anonymous_bytes",
    shmem: "shmem_bytes",
    kernel: "kernel_bytes",
    swap: "swap_bytes"
});

optional!(Charged, "file_bytes");

/// A file, and its place in the scan's list.
pub struct PlacedFile {
    pub place: u32,
    pub file: PinningFile,
}

row!(PlacedFile in "zombie_files" of "scan_id" { place: "place" } with file);

row!(PinningFile {
    path: "path", seen_by: "seen_by_pid", mounted: "is_mounted", filesystem: "filesystem", inode: "inode", size: "size",
    deleted: "is_deleted", bytes: "bytes", zombies: "zombies"
} with device);

/// Numbers of a device.
impl Columns for (u32, u32) {
    fn names(names: &mut Vec<&'static str>) {
        names.extend(["device_major", "device_minor"]);
    }

    fn put<'a>(&'a self, cells: &mut Vec<ToSqlOutput<'a>>) -> rusqlite::Result<()> {
        cells.extend([self.0.into(), self.1.into()]);
        Ok(())
    }

    fn get(row: &Row<'_>) -> rusqlite::Result<(u32, u32)> {
        Ok((cell(row, "device_major")?, cell(row, "device_minor")?))
    }
}

/// The columns of a chunk. `held_bytes` and `example` are for people.
pub fn zombie_chunks() -> Table {
    Table { name: "zombie_chunks", columns: vec!["scan_id", "rows", "held_bytes", "example", "data"] }
}

row!(CgroupChurn in "cgroup_churn" {
    from: "from_ns", to: "to_ns", parent: "parent", pattern: "pattern", example: "example", born: "born",
    removed: "removed", freed: "freed"
} with maker);

row!(CgroupFate in "cgroup_fates" {
    from: "from_ns", to: "to_ns", parent: "parent", pattern: "pattern", born: "born", removed: "removed",
    freed: "freed", left: "left_json", left_freed: "left_freed_json"
} with maker);

row!(Maker {
    pid: "maker_pid",
    comm: "maker_comm",
    via: "maker_via",
    processes: "maker_processes",
    command: "maker_command",
    parent_pid: "maker_parent_pid",
    parent_comm: "maker_parent_comm",
    cgroup: "maker_cgroup"
});

optional!(Maker, "maker_pid");

pub fn insert_zombie_scans(tx: &Transaction<'_>, items: &[ZombieScan]) -> rusqlite::Result<()> {
    for scan in items {
        let (files, left_out) = scan.files.split_at(scan.files.len().min(MOST_FILES));
        let shortened = (!left_out.is_empty())
            .then(|| ZombieScan { files_unseen: Some(files_unseen_with(scan, left_out)), ..scan.clone() });
        insert_each(tx, None, slice::from_ref(shortened.as_ref().unwrap_or(scan)), |_, scan_id| {
            insert_below(tx, scan_id, &scan.below)?;
            let placed = files.iter().zip(0..).map(|(file, place)| PlacedFile { place, file: file.clone() });
            insert_below(tx, scan_id, &placed.collect::<Vec<_>>())?;
            insert_zombies(tx, scan_id, &scan.zombies, &scan.holds, files.len())
        })?;
    }
    Ok(())
}

/// A scan's note on missing files, which adds that some of its files are not stored.
fn files_unseen_with(scan: &ZombieScan, left_out: &[PinningFile]) -> String {
    let bytes = left_out.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
    let told = format!(
        "{} files that hold the least ({bytes} bytes together) were left out: a recording stores at most {MOST_FILES}",
        left_out.len()
    );
    scan.files_unseen.as_ref().map_or(told.clone(), |unseen| format!("{unseen}; {told}"))
}

fn insert_zombies(
    tx: &Transaction<'_>,
    scan_id: i64,
    zombies: &[Zombie],
    holds: &[Hold],
    files: usize,
) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&zombie_chunks().insert())?;
    let mut holds: Vec<Hold> = holds.iter().filter(|h| (h.file as usize) < files).copied().collect();
    // A scan has them sorted already.
    holds.sort_by_key(|h| h.zombie);
    let all = zombie_chunk::pinned(zombies, &holds);
    for part in zombie_chunk::parts(&all) {
        let data = zombie_chunk::encode(part).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))?;
        let held = part.iter().fold(0u64, |sum, p| sum.saturating_add(p.zombie.held.total()));
        let example = part.first().map(|p| &p.zombie.path);
        insert.execute(params![scan_id, part.len() as i64, U64(held), example, data])?;
    }
    Ok(())
}

/// The zombies of one scan, as far as they were read. Holds refer to files by their place in the scan.
#[derive(Debug, Default)]
pub struct Unpacked {
    zombies: Vec<Zombie>,
    holds: Vec<Hold>,
}

impl Unpacked {
    /// Adds those of the next chunk.
    pub fn add(&mut self, zombies: Vec<Zombie>, holds: Vec<Hold>) {
        let before = u32::try_from(self.zombies.len()).unwrap_or(u32::MAX);
        let moved = holds.into_iter().map(|h| Hold { zombie: h.zombie.saturating_add(before), ..h });
        self.holds.extend(moved);
        self.zombies.extend(zombies);
    }

    /// Moves them and the files into their scan. A file whose row is lost takes only its own holds with it.
    pub fn give_to(self, scan: &mut ZombieScan, files: Vec<PlacedFile>) {
        let places: HashMap<u32, u32> = files.iter().zip(0..).map(|(file, now)| (file.place, now)).collect();
        scan.files = files.into_iter().map(|placed| placed.file).collect();
        scan.zombies = self.zombies;
        let still_there = |h: Hold| Some(Hold { file: *places.get(&h.file)?, ..h });
        scan.holds = self.holds.into_iter().filter_map(still_there).collect();
    }
}

/// A chunk's zombies and holds, and the id of the scan.
pub fn zombie_chunk(row: &Row<'_>) -> Result<(i64, Vec<Zombie>, Vec<Hold>), String> {
    let read = || -> rusqlite::Result<(i64, u64, &[u8])> {
        Ok((row.get("scan_id")?, cell(row, "rows")?, row.get_ref("data")?.as_blob()?))
    };
    let (scan_id, rows, data) = read().map_err(|e| e.to_string())?;
    let (zombies, holds) = zombie_chunk::decode(data, rows).map_err(|e| format!("(scan {scan_id}): the chunk {e}"))?;
    Ok((scan_id, zombies, holds))
}
